"""How long answers are, and the requests that independent sampling and EqLen make of them: processes for the servers' model.

A law says how long an answer to a prompt becomes, given that it is longer than what a fork inherits. Draws depend on the position
(prompt, stream, track) alone, never on the order of events. Not here: servers and time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal, Protocol

from _cluster import Cluster, Process
from _servers import Request

Forks = Literal["reach", "whole", "call"]
"""When a fork starts. reach: as soon as the survivor has got to where the finisher ended (our engine). whole: when both tracks
have ended (an engine that returns whole continuations). call: when the tracks of all streams have ended (one call at a time)."""
NORMAL = NormalDist()


class Law(Protocol):
    """Lengths in tokens, from 1 to `budget`; an answer of `budget` tokens was cut off."""

    @property
    def max_response_length(self) -> int: ...

    def draw(self, prompt: int, beyond: int, dice: random.Random) -> int:
        """The length of an answer to `prompt` that has more than `beyond` tokens."""
        ...


@dataclass(frozen=True)
class LogNormal:
    """Heavy-tailed lengths, as of long reasoning; prompts differ in how long their answers are."""

    median: float
    between: float
    """Standard deviation of the logarithm over prompts."""
    within: float
    """Standard deviation of the logarithm over the answers to one prompt."""
    max_response_length: int
    seed: int = 0

    def draw(self, prompt: int, beyond: int, dice: random.Random) -> int:
        centre = math.log(self.median) + self.between * random.Random(f"{self.seed}/{prompt}").gauss()
        below = NORMAL.cdf((math.log(beyond) - centre) / self.within) if beyond else 0.0
        place = below + (1 - below) * dice.random()
        if place >= 1 - 1e-12:
            return min(beyond + 1, self.max_response_length)
        length = math.ceil(math.exp(centre + self.within * NORMAL.inv_cdf(max(place, 1e-12))))
        return min(max(length, beyond + 1), self.max_response_length)


@dataclass(frozen=True)
class Geometric:
    """Answers that stop with one probability at every token: what closed forms are known for."""

    stop: float
    max_response_length: int

    def draw(self, prompt: int, beyond: int, dice: random.Random) -> int:
        more = 1 + math.floor(math.log(1 - dice.random()) / math.log(1 - self.stop))
        return min(beyond + more, self.max_response_length)


@dataclass(frozen=True)
class Replayed:
    """The very lengths of a recorded rollout batch, by (prompt, stream, track): what `follow` asks for."""

    lengths: Mapping[tuple[int, int, int], int]
    max_response_length: int


@dataclass
class Made:
    """What a rollout batch was made of."""

    prompts: int = 0
    responses: int = 0
    """Ended tracks: every one is verified."""
    tokens: int = 0
    """Generated, not inherited."""
    rounds: int = 0
    streams: int = 0
    rows: int = 0
    """Segments, and ends of no pair, which verl has rows for too."""
    row_tokens: int = 0
    """Tokens forwarded where each of them is a row of its own, its prompt and prefix included."""
    tree_tokens: int = 0
    """Tokens forwarded where what is shared is forwarded once."""
    trained: int = 0
    lengths: list[int] = field(default_factory=list)
    """Of all ended tracks, inherited tokens included."""

    @property
    def forwarded(self) -> int:
        """Tokens that an update forwards under verl: streams as trees, each independent response as a row."""
        return self.tree_tokens if self.streams else self.row_tokens


@dataclass(frozen=True)
class Job:
    """A method's rollouts of one prompt."""

    law: Law | Replayed
    num_prompt: int
    """Tokens of the prompt."""
    streams: int
    """Of two tracks; for independent sampling half of the responses."""
    forks: Forks | None
    """None: independent responses."""
    max_rounds: int = 0
    """Of a stream, after which its survivor is completed alone; 0: no limit."""
    seed: int = 0

    def length(self, prompt: int, stream: int, track: int, beyond: int) -> int:
        """Total length of a track's answer."""
        if isinstance(self.law, Replayed):
            return self.law.lengths[prompt, stream, track]
        return self.law.draw(prompt, beyond, random.Random(f"{self.seed}/{prompt}/{stream}/{track}"))

    def request(
        self, cluster: Cluster, prompt: int, stream: int, track: int, parent: Request | None, beyond: int
    ) -> Request:
        """Submits a track that inherits `beyond` tokens."""
        new = self.length(prompt, stream, track, beyond) - beyond
        key = (prompt, stream if self.forks else track)
        prefix = self.num_prompt + beyond
        return cluster.submit(Request(key, ("prompt", prompt), self.num_prompt, prefix, new, parent))

    def launch(self, cluster: Cluster, prompt: int, made: Made, done: Callable[[int], None] = lambda _: None) -> None:
        """Starts all that one prompt asks for; `done` is called with the prompt when all of it has ended."""
        left = self.streams if self.forks else 1

        def end(_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                made.prompts += 1
                done(prompt)

        if self.forks is None:
            cluster.start(self.answer(cluster, prompt, made), end)
        for stream in range(self.streams if self.forks else 0):
            cluster.start(self.stream(cluster, prompt, stream, made), end)

    def answer(self, cluster: Cluster, prompt: int, made: Made) -> Process:
        """Independent responses."""
        answers = [self.request(cluster, prompt, 0, track, None, 0) for track in range(2 * self.streams)]
        yield [(answer, answer.new) for answer in answers]
        for answer in answers:
            self.count(made, answer)
        tokens = sum(answer.new for answer in answers)
        made.rows += len(answers)
        made.trained += tokens
        made.row_tokens += tokens + len(answers) * self.num_prompt
        made.tree_tokens += tokens + self.num_prompt

    def stream(self, cluster: Cluster, prompt: int, stream: int, made: Made) -> Process:
        """One stream of EqLen: two tracks, and a fork of the survivor whenever one has ended."""
        live = [self.request(cluster, prompt, stream, track, None, 0) for track in (0, 1)]
        track, beyond = 2, 0
        made.streams += 1
        made.tree_tokens += self.num_prompt
        while True:
            first, other = sorted(live, key=lambda request: request.prefix + request.new)
            stop = first.prefix + first.new - self.num_prompt
            whole = other.new if self.forks == "whole" else self.num_prompt + stop - other.prefix
            yield [(first, first.new), (other, whole)]
            self.count(made, first)
            self.count_pair(made, beyond, stop)
            is_tie = other.prefix + other.new - self.num_prompt == stop
            if is_tie or stop == self.law.max_response_length or track - 1 == self.max_rounds:
                break
            beyond = stop
            live = [other, self.request(cluster, prompt, stream, track, other, beyond)]
            track += 1
        yield [(other, other.new)]
        self.count(made, other)
        if not is_tie and stop < self.law.max_response_length:  # completed alone, for its verdict
            made.rows += 1
            made.row_tokens += other.prefix + other.new

    def count(self, made: Made, ended: Request) -> None:
        """A track has ended."""
        made.responses += 1
        made.tokens += ended.new
        made.tree_tokens += ended.new if self.forks else 0
        made.lengths.append(ended.prefix + ended.new - self.num_prompt)

    def count_pair(self, made: Made, start: int, stop: int) -> None:
        """A round has ended; all pairs are counted, those of equal worth too."""
        made.rounds += 1
        made.rows += 2
        made.trained += 2 * (stop - start)
        made.row_tokens += 2 * (self.num_prompt + stop)


def count_calls(job: Job, prompts: int, first: int = 0) -> int:
    """Steps in sequence where forks wait for one call that serves all streams: the longest track of each call, summed.

    What a host that generates a batch at a time does (TRL); rows that have ended are idle until the call returns.
    """
    live = {(prompt, stream): [(0, job.length(prompt, stream, track, 0)) for track in (0, 1)]
            for prompt in range(first, first + prompts) for stream in range(job.streams)}  # fmt: skip
    steps, track = max(end for pair in live.values() for _, end in pair), 2
    while True:
        forks = {}
        for (prompt, stream), pair in live.items():
            (_, stop), (_, other) = sorted(pair, key=lambda one: one[1])
            if stop < other and track - 1 != job.max_rounds:
                forks[prompt, stream] = [(0, other), (stop, job.length(prompt, stream, track, stop))]
        if not forks:
            return steps
        steps += max(end - start for pair in forks.values() for start, end in pair[1:])
        live, track = forks, track + 1

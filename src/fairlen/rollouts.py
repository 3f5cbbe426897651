"""What a sampler returns: responses with their tokens, and the spans of them that may train; batch.py has their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Literal

import numpy as np

from fairlen.batch import NO_VERDICT, Ints, Responses, Segments, build_responses, build_segments

TokenIds = tuple[int, ...]
Finish = Literal["stop", "length"]
Status = Literal["correct", "incorrect", "no_answer", "timeout", "error", "unverified"]
VERDICTS: tuple[Status, ...] = ("correct", "incorrect", "no_answer")
"""Statuses of responses that have a verdict; those with another have none."""
Role = Literal["whole", "finisher", "survivor"]


@dataclass(frozen=True, slots=True)
class Response:
    """A response to one prompt, finished or truncated."""

    prompt: int
    """Position of the prompt in the rollout batch."""
    token_ids: TokenIds
    """Prompt and generated tokens."""
    num_prompt: int
    logprobs: tuple[float, ...]
    """Nats, by the policy that sampled, of the generated tokens."""
    finish: Finish
    seed: int
    temperature: float = 1.0
    policy_version: int = 0
    stream: int = 0
    track: int = 0
    """In order of start; a stream of EqLen has two from the start and one more for each further round. Of a Tree its path."""
    round: int = 0
    """In which the track started, from 0."""
    inherited: int = 0
    """Generated tokens taken over from the track that it was forked from."""
    outcome: float = 0.0
    """The verifier's verdict and the user's reward functions, weighted; set once, never overwritten by shaping."""
    status: Status = "unverified"
    active: bool = True
    """False for rows that must not count: no verdict, or padding of a framework."""
    turns: tuple[tuple[int, int], ...] = ()
    """Of a trajectory: where the policy wrote, from one position of `token_ids` to before another, in order; tokens between were
    read from an environment. Empty where all that follows the prompt is one turn."""
    turn_rewards: tuple[float, ...] = ()
    """What the environment paid for each turn; in `outcome` already."""
    supports: tuple[bytes, ...] = ()
    """Of each token of `logprobs` the ids that it was drawn from, int32: those that top-p, top-k or min-p did not cut. Empty
    bytes for the whole vocabulary; empty where all tokens were drawn from it."""

    def __post_init__(self) -> None:
        if not 0 < self.num_prompt < len(self.token_ids):
            raise ValueError(
                f"num_prompt={self.num_prompt} of {len(self.token_ids)} token_ids: "
                "a response needs a prompt of at least one token and at least one generated token"
            )
        if not 0 <= self.inherited < self.length:
            raise ValueError(
                f"inherited={self.inherited} of {self.length} generated tokens: a track adds at least one token of its own"
            )
        if len(self.logprobs) != self.length:
            raise ValueError(
                f"{len(self.logprobs)} logprobs for {self.length} generated tokens: give one for each, EOS included"
            )
        if self.supports and len(self.supports) != self.length:
            raise ValueError(
                f"{len(self.supports)} supports for {self.length} generated tokens: give one for each, or none"
            )
        bounds = (self.num_prompt, *chain(*self.turns), len(self.token_ids))
        if any(stop < start for start, stop in pairwise(bounds)):
            raise ValueError(f"turns={self.turns}: give spans in order, from {bounds[0]} to {bounds[-1]}")
        if self.turn_rewards and len(self.turn_rewards) != self.num_turns:
            raise ValueError(
                f"{len(self.turn_rewards)} turn_rewards for {self.num_turns} turns: give one for each, or none"
            )

    @property
    def length(self) -> int:
        """Generated tokens, EOS included."""
        if not self.turns:
            return len(self.token_ids) - self.num_prompt
        return sum(stop - start for start, stop in self.turns)

    @property
    def num_turns(self) -> int:
        return len(self.turns) or 1

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where the policy wrote, turn by turn."""
        return self.turns or ((self.num_prompt, len(self.token_ids)),)

    def positions(self, start: int, stop: int) -> range | Ints:
        """Return where in `token_ids`, from one position to before another, there are generated tokens."""
        if not self.turns:
            return range(start, stop)
        parts = (np.arange(max(begin, start), min(end, stop)) for begin, end in self.turns)
        return np.concatenate([part for part in parts])

    def logprobs_of(self, start: int, stop: int) -> tuple[float, ...]:
        """Return the log-probs of these tokens."""
        return self.logprobs[self.generated(start, stop)]

    def supports_of(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Return the supports of these tokens, also where all are the whole vocabulary."""
        return (self.supports or (b"",) * self.length)[self.generated(start, stop)]

    def generated(self, start: int, stop: int) -> slice:
        """Return which of the generated tokens these are."""
        before = len(self.positions(self.num_prompt, start))
        return slice(before, before + len(self.positions(start, stop)))


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of one response that trains."""

    response: int
    """Row of the response in the rollout batch."""
    start: int
    """First trained position in the response's token_ids."""
    stop: int
    """One past the last trained position."""
    group: int
    """Segments compared with each other; not the same as having the same prompt."""
    role: Role = "whole"
    round: int = 0
    mass: float = 1.0
    """Multiplies the weight after aggregation; carries round weights."""
    turn: int = 0
    """Its first turn, among those of its response."""
    num_turns: int = 1
    earned: float = 0.0
    """What the environment had paid before, where it is compared by what came after."""


@dataclass(frozen=True)
class Rollouts:
    """One rollout batch: every ended track, rejected prompts included, and the spans that may train."""

    responses: tuple[Response, ...]
    segments: tuple[Segment, ...]
    max_response_length: int

    @cached_property
    def response_table(self) -> Responses:
        rows = self.responses
        return build_responses(
            prompt=np.array([r.prompt for r in rows], np.int64),
            length=[r.length for r in rows],
            outcome=[r.outcome for r in rows],
            verdict=[float(r.status == "correct") if r.active else NO_VERDICT for r in rows],
            truncated=[r.finish == "length" for r in rows],
            max_response_length=self.max_response_length,
            stream=[r.stream for r in rows],
            round=[r.round for r in rows],
            num_turns=[r.num_turns for r in rows],
        )

    @cached_property
    def segment_table(self) -> Segments:
        rows = self.segments
        return build_segments(
            self.response_table,
            length=[len(self.responses[s.response].positions(s.start, s.stop)) for s in rows],
            response=[s.response for s in rows],
            group=np.array([s.group for s in rows], np.int64),
            mass=[s.mass for s in rows],
            survivor=[s.role == "survivor" for s in rows],
            round=[s.round for s in rows],
            turn=[s.turn for s in rows],
            num_turns=[s.num_turns for s in rows],
            earned=[s.earned for s in rows],
        )


def whole_segments(responses: Sequence[Response]) -> tuple[Segment, ...]:
    """One segment a response, its generated tokens, compared with all others of its prompt."""
    return tuple(
        Segment(response=row, start=r.num_prompt, stop=len(r.token_ids), group=r.prompt, num_turns=r.num_turns)
        for row, r in enumerate(responses)
    )

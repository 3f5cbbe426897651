"""Responses with their tokens and the segments of them that train: every column with its type, unit and meaning, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Annotated, Literal

import numpy as np

from fairlen.batch import NO_VERDICT, Ints, Responses, Segments, build_responses, build_segments
from fairlen.channels import OBSERVATION, count_channels
from fairlen.schema import Column, Spans, list_columns

TokenIds = tuple[int, ...]
Logprobs = tuple[float, ...]
Supports = tuple[bytes, ...]
Named = Mapping[str, float]
Counts = Mapping[str, int]
Finish = Literal["stop", "length"]
Status = Literal["correct", "incorrect", "no_answer", "timeout", "error", "unverified"]
VERDICTS: tuple[Status, ...] = ("correct", "incorrect", "no_answer")
"""Statuses of responses that have a verdict; those with another have none."""
Role = Literal["whole", "finisher", "survivor"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verifier's verdict on one finished response."""

    status: Status
    outcome: float
    """Worth of the response, 0 where it is incorrect and 1 where it is correct; some verifiers give values between."""
    answer: str | None = None
    """Answer of the response, equal answers in one form; None without one."""

    @classmethod
    def of(cls, status: Status, answer: str | None = None) -> Verdict:
        """Return the verdict that is worth 1 where it is correct, else 0."""
        return cls(status, float(status == "correct"), answer)


@dataclass(frozen=True, slots=True)
class Response:
    """A response to one prompt, finished or truncated; a trajectory is one of several turns."""

    prompt: Annotated[int, Column("position of its prompt in the rollout batch, from 0")]
    token_ids: Annotated[TokenIds, Column("prompt and generated tokens; of a trajectory also what it read")]
    num_prompt: Annotated[int, Column("tokens of the prompt, the first of `token_ids`", "tokens")]
    logprobs: Annotated[Logprobs, Column("of each generated token, by the policy that sampled it", "nats")]
    finish: Annotated[Finish, Column("stop, at EOS, or length, truncated")]
    seed: Annotated[int, Column("its own, which its tokens follow from")]
    temperature: Annotated[float, Column("by which logits were divided")] = 1.0
    policy_version: Annotated[int, Column("updates that the weights had seen that sampled it", "updates")] = 0
    stream: Annotated[int, Column("of EqLen, among those of the prompt, from 0")] = 0
    track: Annotated[int, Column("of its stream, in order of start: two, and one a further round")] = 0
    round: Annotated[int, Column("in which the track started, from 0")] = 0
    inherited: Annotated[int, Column("generated tokens taken from the track that it was forked from", "tokens")] = 0
    outcome: Annotated[float, Column("verdict and reward functions, weighted, before shaping", "reward")] = 0.0
    status: Annotated[Status, Column("the verifier's verdict, or why there is none")] = "unverified"
    active: Annotated[bool, Column("whether it counts: a verdict, no padding, not filtered for its length")] = True
    turns: Annotated[Spans, Column("spans of `token_ids` that the policy wrote: start and stop of each turn")] = ()
    """Empty where all that follows the prompt is one turn."""
    turn_rewards: Annotated[
        tuple[float, ...], Column("paid by the environment for each turn; in `outcome`", "reward")
    ] = ()
    supports: Annotated[Supports, Column("ids that top-p, top-k, min-p left each generated token; of none all")] = ()
    """Int32. Empty bytes for the whole vocabulary; empty where all tokens were drawn from it."""
    outcomes: Annotated[Named, Column("by name, what verifier and reward functions said", "reward")] = field(
        default_factory=dict, hash=False
    )
    channels: Annotated[
        Counts, Column("by what they were spent on; sum to `length`, but for `observation`, which was read", "tokens")
    ] = field(default_factory=dict, hash=False)
    """Empty where all of it is an answer."""
    extracted: Annotated[str | None, Column("the answer that the verifier read")] = None
    verify_seconds: Annotated[float | None, Column("of the verifier", "s")] = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.num_prompt < len(self.token_ids):
            raise ValueError(
                f"num_prompt={self.num_prompt} of {len(self.token_ids)} token_ids: "
                "a response needs a prompt of at least one token and at least one generated token"
            )
        if self.turns == ((self.num_prompt, len(self.token_ids)),):
            object.__setattr__(self, "turns", ())  # one response, one form
        if not 0 <= self.inherited < self.length:
            raise ValueError(
                f"inherited={self.inherited} of {self.length} generated tokens: a track adds at least one token of its own"
            )
        if len(self.logprobs) != self.length:
            raise ValueError(
                f"{len(self.logprobs)} logprobs for {self.length} generated tokens: give one for each, EOS included"
            )
        if self.channels and sum(self.channels.values()) - self.channels.get(OBSERVATION, 0) != self.length:
            raise ValueError(f"channels={self.channels} of {self.length} generated tokens: each belongs to one channel")
        bounds = (self.num_prompt, *chain(*self.turns), len(self.token_ids))
        if any(stop < start for start, stop in pairwise(bounds)):
            raise ValueError(f"turns={self.turns}: give spans in order, from {bounds[0]} to {bounds[-1]}")
        parts = ("supports", self.length, "generated tokens"), ("turn_rewards", self.num_turns, "turns")
        for name, number, what in parts:
            if (given := len(getattr(self, name))) not in (0, number):
                raise ValueError(f"{given} {name} for {number} {what}: give one for each, or none")

    @property
    def length(self) -> int:
        """Generated tokens, EOS included."""
        if not self.turns:
            return len(self.token_ids) - self.num_prompt
        return sum(stop - start for start, stop in self.turns)

    def with_channels(self, decode: Callable[[Sequence[int]], str]) -> Response:
        """Return the response with its tokens by channel, as its tags say; `decode` keeps special tokens."""
        return replace(self, channels=count_channels(self.token_ids, self.spans, decode))

    @property
    def num_turns(self) -> int:
        return len(self.turns) or 1

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Spans of `token_ids` that the policy wrote, one a turn."""
        return self.turns or ((self.num_prompt, len(self.token_ids)),)

    def positions(self, start: int, stop: int) -> range | Ints:
        """Positions of generated tokens in `token_ids`, from `start` to before `stop`."""
        if not self.turns:
            return range(start, stop)
        return np.concatenate([np.arange(max(begin, start), min(end, stop)) for begin, end in self.turns])

    def logprobs_of(self, start: int, stop: int) -> tuple[float, ...]:
        return self.logprobs[self.generated(start, stop)]

    def supports_of(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Supports of these tokens, b"" where all are the whole vocabulary."""
        return (self.supports or (b"",) * self.length)[self.generated(start, stop)]

    def generated(self, start: int, stop: int) -> slice:
        """The generated tokens between two positions of `token_ids`, as a slice of `logprobs`."""
        before = len(self.positions(self.num_prompt, start))
        return slice(before, before + len(self.positions(start, stop)))


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of one response that trains."""

    response: Annotated[int, Column("row of its response among those of the rollout batch")]
    start: Annotated[int, Column("first trained position in the response's `token_ids`")]
    stop: Annotated[int, Column("one past the last trained position")]
    group: Annotated[int, Column("equal for segments that are compared with each other; several to a prompt")]
    role: Annotated[
        Role, Column("whole, or of a pair the finisher, or the survivor, worth what later came from it")
    ] = "whole"
    round: Annotated[int, Column("of its pair, from 0")] = 0
    mass: Annotated[float, Column("factor of its weight after aggregation: the round's")] = 1.0
    turn: Annotated[int, Column("its first turn among those of its response, from 0")] = 0
    num_turns: Annotated[int, Column("turns that it has", "turns")] = 1
    earned: Annotated[float, Column("paid by the environment before, where turns compare what follows", "reward")] = 0.0


class RecordedResponse:
    """Columns that a response has in files alone."""

    id: Annotated[str, Column("rollout batch, prompt and number among the prompt's responses: the same after a resume")]
    rollout_batch: Annotated[int, Column("number of the rollout batch, from 0")]
    length: Annotated[int, Column("generated tokens, EOS included", "tokens")]
    num_turns: Annotated[int, Column("turns of the policy", "turns")]
    counts: Annotated[bool, Column("as `active`, before truncated responses are filtered")]
    selected: Annotated[bool, Column("whether its prompt trains")]
    reward: Annotated[float, Column("its outcome after shaping", "reward")]
    problem_id: Annotated[str, Column("id of the problem, the same in every run")]
    problem: Annotated[str, Column("the problem, before any chat template")]
    answer: Annotated[str, Column("the reference answer")]
    text: Annotated[str, Column("what was generated, without special tokens")]


class RecordedSegment:
    """Columns that a segment has in files alone; lists have one number an update."""

    id: Annotated[str, Column("that of its response, and its number among the response's segments")]
    rollout_batch: Annotated[int, Column("number of the rollout batch, from 0")]
    length: Annotated[int, Column("trained tokens", "tokens")]
    trains: Annotated[bool, Column("whether it is in updates")]
    value: Annotated[float, Column("what it is worth", "reward")]
    advantage: Annotated[float, Column("its value relative to its group")]
    update: Annotated[tuple[float, ...], Column("numbers of the updates that it was part of")]
    weight: Annotated[tuple[float, ...], Column("of each of its tokens in the loss")]
    log_ratio: Annotated[tuple[float, ...], Column("summed log ratio S of current to old policy", "nats")]
    clipped: Annotated[tuple[float, ...], Column("share of tokens whose gradient a bound made zero", "share")]
    inside: Annotated[tuple[float, ...], Column("share of tokens within the two-sided bound", "share")]


RESPONSES = list_columns(RecordedResponse, Response)
SEGMENTS = list_columns(RecordedSegment, Segment)
"""Every column of the records, by name."""
UPDATES = ("update", "weight", "log_ratio", "clipped", "inside")
"""Columns of segments that each update adds a number to."""


@dataclass(frozen=True)
class Rollouts:
    """One rollout batch: every ended track, rejected prompts included, and the spans that may train."""

    responses: tuple[Response, ...]
    segments: tuple[Segment, ...]
    max_response_length: int

    def join(self, further: Rollouts) -> Rollouts:
        """Append responses to further prompts, with rows and groups numbered on."""
        row = len(self.responses)
        last = max((s.group for s in self.segments), default=-1)
        group = last + 1 - min((s.group for s in further.segments), default=0)
        segments = (replace(s, response=s.response + row, group=s.group + group) for s in further.segments)
        return replace(self, responses=self.responses + further.responses, segments=(*self.segments, *segments))

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
            channels=[r.channels for r in rows],
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

"""How one prompt becomes responses, and these the segments that train: the protocol of samplers, and independent responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

from fairlen.batch import Bools, Floats, Responses, Segments
from fairlen.checks import Checked, Count, added_later
from fairlen.rollouts import Response, Segment, TokenIds, whole_segments
from fairlen.sampling.extend import Continuation, Extend, Sampling, derive_seed, gather

Grade = Callable[[Response], Awaitable[Response]]
"""Fills in outcome and status of a finished response; called once for each, as soon as it has ended."""


async def no_grader(response: Response) -> Response:
    return response


@dataclass(frozen=True)
class Request:
    """One prompt of a rollout batch, and the settings of all of its tracks."""

    prompt: int
    """Position in the rollout batch."""
    token_ids: TokenIds
    sampling: Sampling
    """For every track, but for its seed."""
    policy_version: int
    seed: tuple[int, ...]
    """Position of this prompt occurrence: (run, rollout batch, prompt occurrence, refill)."""

    def respond(
        self, answer: Continuation, seed: int, stream: int = 0, track: int = 0, round: int = 0, inherited: int = 0
    ) -> Response:
        first = len(self.token_ids)
        generated = {one.name: getattr(answer, one.name) for one in fields(answer)} | {
            "token_ids": self.token_ids + answer.token_ids,
            "turns": tuple((first + start, first + stop) for start, stop in answer.turns),
        }
        return Response(
            self.prompt, num_prompt=first, seed=seed, temperature=self.sampling.temperature,
            policy_version=self.policy_version, stream=stream, track=track, round=round, inherited=inherited, **generated,
        )  # fmt: skip


class Sampler(Protocol):
    """How a prompt becomes responses, responses segments, and rewards the values of segments."""

    @property
    def num_tracks(self) -> int: ...

    @property
    def is_whole(self) -> bool:
        """True where each response is one independent draw that trains whole: a framework may generate by its own means."""
        ...

    def with_num_tracks(self, num_tracks: int) -> Sampler:
        """The same with that many tracks for a prompt. Raises ValueError where it cannot have them."""
        ...

    async def __call__(self, extend: Extend, grade: Grade, request: Request) -> tuple[Response, ...]: ...

    def cut(self, responses: tuple[Response, ...]) -> tuple[Segment, ...]: ...

    def value(self, responses: Responses, segments: Segments, reward: Floats) -> Floats:
        """Value of each segment, [B]; nan where nothing that it depends on is active. `reward` is of all responses, [R]."""
        ...

    def trains(self, responses: Responses, segments: Segments, value: Floats) -> Bools: ...

    def metrics(
        self, responses: Responses, segments: Segments, reward: Floats, value: Floats, trains: Bools
    ) -> dict[str, float]:
        """Numbers of one rollout batch that this way of sampling alone has; `trains` [B] is the final mask."""
        ...


@dataclass(frozen=True)
class Independent(Checked):
    """n independent responses to a prompt, compared with each other.

    Source: GRPO (arXiv:2402.03300, section 4.1.1); n 16 as in DAPO and 2605.04077. Turns compared by what came after them:
    verl#7244.
    """

    n: Count = 16
    """Responses to a prompt."""
    unit: Literal["trajectory", "turn"] = added_later("trajectory")
    """Sequence with a ratio, a clip and a weight of its own: a trajectory, or each of its turns."""
    compare: Literal["trajectories", "turns"] = added_later("trajectories")
    """Unit of comparison: trajectories by their reward, or with unit=turn the same turn of each by what was earned from it on."""
    is_whole = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compare == "turns" and self.unit == "trajectory":
            raise ValueError("compare=turns with unit=trajectory: only turns are compared one by one; give unit=turn")

    @property
    def num_tracks(self) -> int:
        return self.n

    def with_num_tracks(self, num_tracks: int) -> Independent:
        return replace(self, n=num_tracks)

    async def __call__(self, extend: Extend, grade: Grade, request: Request) -> tuple[Response, ...]:
        async def run_track(track: int) -> Response:
            seed = derive_seed(*request.seed, 0, track, 0)
            sampling = replace(request.sampling, seed=seed)
            continuation = (await extend(request.token_ids, sampling)).check(sampling)
            return await grade(request.respond(continuation, seed, track=track))

        return tuple(await gather(map(run_track, range(self.n))))

    def cut(self, responses: tuple[Response, ...]) -> tuple[Segment, ...]:
        return whole_segments(responses) if self.unit == "trajectory" else tuple(self.cut_turns(responses))

    def cut_turns(self, responses: tuple[Response, ...]) -> Iterator[Segment]:
        groups: dict[tuple[int, int], int] = {}
        for row, response in enumerate(responses):
            earned = 0.0
            for turn, (start, stop) in enumerate(response.spans):
                key = (response.prompt, turn if self.compare == "turns" else 0)
                group = groups.setdefault(key, len(groups))
                yield Segment(row, start, stop, group, turn=turn, earned=earned)
                if self.compare == "turns" and response.turn_rewards:
                    earned += response.turn_rewards[turn]

    def value(self, responses: Responses, segments: Segments, reward: Floats) -> Floats:
        return reward[segments.response] - segments.earned

    def trains(self, responses: Responses, segments: Segments, value: Floats) -> Bools:
        return responses.active[segments.response]

    def metrics(
        self, responses: Responses, segments: Segments, reward: Floats, value: Floats, trains: Bools
    ) -> dict[str, float]:
        return {}

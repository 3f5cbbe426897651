"""A policy so small that every answer, every group and every stream of it can be listed with its probability.

A prefix of letters is a node of a tree: the root is 0, and letter l leads from node u to node letters * u + 1 + l. The policy is
a softmax of free logits at every node, over the letters and one or more ends. Everything is float64, and nothing is sampled here.

A listing is one big rollout batch in which every prompt is one possible outcome of sampling. The methods see it as they would any
batch; only the sum over its prompts is weighted by their probabilities.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from fairlen.batch import Responses
from fairlen.methods.method import Method, updates
from fairlen.methods.presets import eqlen_unbiased
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.sampling.eqlen import EqLen

PROMPT = 99
"""The one token of the prompt."""


@dataclass(frozen=True)
class Toy:
    """The shape: letters are tokens 0, 1, ..., ends are the tokens after them."""

    horizon: int
    """The budget."""
    letters: int = 2
    ends: int = 1

    @property
    def size(self) -> int:
        """Tokens of the vocabulary."""
        return self.letters + self.ends

    @property
    def num_nodes(self) -> int:
        """Prefixes that can still be continued: of 0 to horizon - 1 letters."""
        return sum(self.letters**depth for depth in range(self.horizon))

    def is_end(self, token: int) -> bool:
        return token >= self.letters

    def path(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """(node, token drawn there) of an answer from its beginning."""
        node, steps = 0, []
        for token in tokens:
            steps.append((node, token))
            node = self.letters * node + 1 + token
        return steps

    def node(self, letters: Sequence[int]) -> int:
        """The node of a prefix."""
        return self.path((*letters, 0))[-1][0]

    def finish(self, tokens: Sequence[int]) -> str:
        return "stop" if self.is_end(tokens[-1]) else "length"

    def answers(self, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
        """Every way to complete a prefix, the prefix included, cut off at the horizon."""
        for token in range(self.size):
            tokens = (*prefix, token)
            if self.is_end(token) or len(tokens) == self.horizon:
                yield tokens
            else:
                yield from self.answers(tokens)

    def worth(self, tokens: Sequence[int], reward: np.ndarray) -> float:
        """Of one answer, by what each end at each node is worth, [nodes, ends]; a truncated one is worth nothing."""
        node, token = self.path(tokens)[-1]
        return float(reward[node, token - self.letters]) if self.is_end(token) else 0.0

    def gradient(self, policy: np.ndarray, push: np.ndarray) -> np.ndarray:
        """By the logits, of sum push * log policy, both [..., nodes, size]: push - policy * its sum over the node."""
        return push - policy * push.sum(-1, keepdims=True)


def random_policy(toy: Toy, seed: int) -> np.ndarray:
    """Probabilities of every token at every node, [nodes, size]."""
    logits = np.random.default_rng((seed, 1)).standard_normal((toy.num_nodes, toy.size))
    return softmax(logits)


def softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def random_reward(toy: Toy, seed: int, binary: bool = False) -> np.ndarray:
    """What every end at every node is worth, in 0..1, [nodes, ends]."""
    draw = np.random.default_rng((seed, 2)).random((toy.num_nodes, toy.ends))
    return np.round(draw) if binary else draw


def answer_chance(toy: Toy, policy: np.ndarray, tokens: Sequence[int], inherited: int = 0) -> float:
    """Of drawing an answer, given its first `inherited` tokens."""
    return float(np.prod([policy[step] for step in toy.path(tokens)[inherited:]]))


def exact_gradient(toy: Toy, policy: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """d E[worth] / d logits, [nodes, size]: the sum over all answers of chance * worth * d log chance."""
    push = np.zeros_like(policy)
    for tokens in toy.answers():
        for step in toy.path(tokens):
            push[step] += answer_chance(toy, policy, tokens) * toy.worth(tokens, reward)
    return toy.gradient(policy, push)


class Track(NamedTuple):
    """One answer of a stream."""

    tokens: tuple[int, ...]
    round: int = 0
    inherited: int = 0


Stream = tuple[Track, ...]
EMPTY = (Track(()), Track(()))


def lockstep(toy: Toy, max_rounds: int = 0, tracks: Stream = EMPTY, live: tuple[int, int] = (0, 1)) -> Iterator[Stream]:
    """Every way in which a stream can go on: both live tracks draw a token; where one ends, the other is written to both."""
    for pair in product(range(toy.size), repeat=2):
        grown = list(tracks)
        for track, token in zip(live, pair, strict=True):
            grown[track] = tracks[track]._replace(tokens=(*tracks[track].tokens, token))
        yield from after_step(toy, max_rounds, tuple(grown), live)


def after_step(toy: Toy, max_rounds: int, tracks: Stream, live: tuple[int, int]) -> Iterator[Stream]:
    """The same, from the tokens that both live tracks have just drawn."""
    ended = [toy.is_end(tracks[track].tokens[-1]) for track in live]
    length = len(tracks[live[0]].tokens)
    if all(ended) or length == toy.horizon:
        yield tracks
    elif not any(ended):
        yield from lockstep(toy, max_rounds, tracks, live)
    else:
        survivor, rounds = live[ended.index(False)], len(tracks) - 1
        written = tracks[survivor]
        if rounds == max_rounds:
            for tokens in toy.answers(written.tokens):
                yield tuple(written._replace(tokens=tokens) if t == survivor else o for t, o in enumerate(tracks))
        else:
            forked = (*tracks, Track(written.tokens, rounds, length))
            yield from lockstep(toy, max_rounds, forked, (survivor, len(tracks)))


def responses_of(toy: Toy, stream: Stream, prompt: int = 0, number: int = 0) -> list[Response]:
    """A stream as the sampler returns it, without verdicts."""
    return [
        Response(
            prompt=prompt, token_ids=(PROMPT, *tokens), num_prompt=1, logprobs=(-1.0,) * len(tokens),
            finish=toy.finish(tokens), seed=0, stream=number, track=track, round=round, inherited=inherited,
        )
        for track, (tokens, round, inherited) in enumerate(stream)
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Listing:
    """Everything that can be sampled for a prompt, each outcome as a prompt of its own."""

    toy: Toy
    outcomes: tuple[Stream, ...]

    def __len__(self) -> int:
        return len(self.outcomes)

    @cached_property
    def responses(self) -> tuple[Response, ...]:
        return tuple(r for at, stream in enumerate(self.outcomes) for r in responses_of(self.toy, stream, at))

    @cached_property
    def table(self) -> Responses:
        return Rollouts(self.responses, (), self.toy.horizon).response_table

    @cached_property
    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Outcome and node * size + token of every token drawn; inherited ones were drawn by the track they came from."""
        return self.flatten(self.table.prompt, [(r, r.inherited, r.length) for r in self.responses])

    def flatten(self, owner: Sequence[int], spans: list[tuple[Response, int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Owner and node * size + token of every token of the spans (response, first, past the last)."""
        rows = [
            (own, node * self.toy.size + token)
            for own, (response, start, stop) in zip(owner, spans, strict=True)
            for node, token in self.toy.path(response.token_ids[1:])[start:stop]
        ]
        return tuple(np.array(rows, np.int64).reshape(-1, 2).T)

    @cached_property
    def last(self) -> np.ndarray:
        """Node and token of the last step of every response, [R, 2]."""
        return np.array([self.toy.path(r.token_ids[1:])[-1] for r in self.responses])

    def chance(self, policy: np.ndarray) -> np.ndarray:
        """Of each outcome, [N]: the product over all tokens drawn."""
        at, step = self.drawn
        with np.errstate(divide="ignore"):
            return np.exp(np.bincount(at, weights=np.log(policy.ravel())[step], minlength=len(self)))

    def graded(self, reward: np.ndarray) -> Responses:
        """The table with verdicts: an answer is right if it is worth more than one half."""
        node, token = self.last.T
        worth = np.where(token < self.toy.letters, 0.0, reward[node, np.maximum(token - self.toy.letters, 0)])
        return replace(self.table, outcome=worth, correct=worth > 0.5)

    def gradients(self, method: Method, policy: np.ndarray, reward: np.ndarray, num_updates: int = 1) -> np.ndarray:
        """What each of the N outcomes adds to its update's gradient, times the outcomes of an update, [N, nodes, size].

        A plan divides by tracks or rows of its whole update. In one update of all, TokenSum("planned") has N * 2 streams tracks:
        times N, that is mass / (2 streams) on every token of a stream, the mean over its planned tracks. With N updates each
        outcome is an update of its own and nothing is undone. Ascent: + weight * advantage * d log policy.
        """
        segments, owner, step = self.pieces(method)
        push = np.zeros(len(segments))
        for update in updates(method.score_tables(self.graded(reward), segments), num_updates):
            plan = method.weigh(update)
            push[plan.rows] = plan.weight * plan.advantage * len(self) / num_updates
        cells = self.table.prompt[segments.response][owner] * policy.size + step
        total = np.bincount(cells, weights=push[owner], minlength=len(self) * policy.size)
        return self.toy.gradient(policy, total.reshape(len(self), *policy.shape))

    def pieces(self, method: Method):
        """Segments by the method's own cut, and segment and node * size + token of every token of theirs."""
        return cut(self, method.sampling)

    def expected(self, method: Method, policy: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """The expected gradient of an update of one prompt, [nodes, size]."""
        return np.tensordot(self.chance(policy), self.gradients(method, policy, reward), 1)


@cache
def cut(listing: Listing, sampler):
    segments: tuple[Segment, ...] = sampler.cut(listing.responses)
    spans = [(listing.responses[s.response], s.start - 1, s.stop - 1) for s in segments]
    table = Rollouts(listing.responses, segments, listing.toy.horizon).segment_table
    return table, *listing.flatten(range(len(spans)), spans)


@cache
def all_streams(toy: Toy, max_rounds: int = 0) -> Listing:
    return Listing(toy, tuple(lockstep(toy, max_rounds)))


@cache
def all_groups(toy: Toy, size: int = 2) -> Listing:
    """Every group of independent answers."""
    return Listing(
        toy, tuple(tuple(Track(tokens) for tokens in group) for group in product(toy.answers(), repeat=size))
    )


def unbiased(survivor_reward: str = "halving", round_weight: str = "halving") -> Method:
    """eqlen_unbiased with one stream for each prompt, or its variants with other values of survivors and rounds."""
    sampling = EqLen(streams=1, survivor_reward=survivor_reward, round_weight=round_weight)
    return replace(eqlen_unbiased(), sampling=sampling)


def relative_error(ours: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(ours - exact) / np.linalg.norm(exact))


def cosine(ours: np.ndarray, exact: np.ndarray) -> float:
    return float((ours * exact).sum() / np.linalg.norm(ours) / np.linalg.norm(exact))

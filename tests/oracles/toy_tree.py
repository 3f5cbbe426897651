"""Every tree of a small policy, with its probability, for the real sampler's cut, values and weights."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

from toy import PROMPT, Listing, Toy, Track

from fairlen.methods.method import Method
from fairlen.methods.presets import tree_unbiased
from fairlen.rollouts import Response
from fairlen.sampling.tree import Tree

Tracks = tuple[tuple[int, Track], ...]
"""The tracks of one tree by their numbers."""


def first_parts(toy: Toy, prefix: tuple[int, ...], length: int) -> Iterator[tuple[int, ...]]:
    """Every way to go on until `length` tokens or an end, the prefix included."""
    for token in range(toy.size):
        tokens = (*prefix, token)
        if toy.is_end(token) or len(tokens) == length:
            yield tokens
        else:
            yield from first_parts(toy, tokens, length)


def grow(toy: Toy, tree: Tree, prefix: tuple[int, ...] = (), level: int = 0, number: int = 0) -> Iterator[Tracks]:
    """Every subtree of a node that begins after `prefix`: its tracks, the one that wrote the node first.

    Written as the definition has it, by recursion over children, not track by track as the sampler does.
    """
    stop = (level + 1) * (toy.horizon // tree.parts) if level < tree.depth - 1 else toy.horizon
    for tokens in first_parts(toy, prefix, min(stop, toy.horizon)):
        if toy.is_end(tokens[-1]) or len(tokens) == toy.horizon:
            yield ((number, Track(tokens, level, len(prefix))),)
            continue
        numbers = [number + digit * tree.branching**level for digit in range(tree.branching)]
        for (own, *rest), *forks in product(*(list(grow(toy, tree, tokens, level + 1, each)) for each in numbers)):
            wrote = number, Track(own[1].tokens, level, len(prefix))
            yield (wrote, *rest, *(track for fork in forks for track in fork))


@dataclass(frozen=True, eq=False)
class Forests(Listing):
    """Everything that a tree sampler can draw for a prompt; an outcome is one tree for each track from the prompt."""

    @cached_property
    def responses(self) -> tuple[Response, ...]:
        return tuple(
            Response(
                prompt=at, token_ids=(PROMPT, *track.tokens), num_prompt=1, logprobs=(-1.0,) * len(track.tokens),
                finish=self.toy.finish(track.tokens), seed=0, stream=stream, track=own, round=track.round,
                inherited=track.inherited,
            )
            for at, forest in enumerate(self.outcomes)
            for stream, tracks in enumerate(forest)
            for own, track in tracks
        )  # fmt: skip


@cache
def all_trees(toy: Toy, tree: Tree) -> Forests:
    return Forests(toy, tuple(product(grow(toy, tree), repeat=tree.n)))


def method_of(tree: Tree, **fields: str) -> Method:
    """tree_unbiased with a tree of this shape, and with other fields of it."""
    return replace(tree_unbiased(), sampling=replace(tree, level_weight="branching", **fields))

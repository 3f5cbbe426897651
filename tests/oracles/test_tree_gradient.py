"""The expected gradient of trees, from every tree that a small policy can produce, against the exact policy gradient.

Run this file, or pytest -s, for the table of docs/methods/tree.md. The sampler draws trees with the law that the listing has,
whatever the order in which tracks end in time: fed with what the tracks of a listed tree add, it returns that tree, and 2,000 of
its trees have the probabilities of the listing."""

import functools
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from loops import over
from toy import PROMPT, Toy, Track, cosine, exact_gradient, random_policy, random_reward, relative_error
from toy_engine import Engine, run_sampler, sample_from
from toy_tree import all_trees, method_of

from fairlen.methods.method import Method
from fairlen.methods.presets import grpo, tree_unbiased
from fairlen.methods.stages.advantage import GroupCentered, LeaveOneOut
from fairlen.methods.stages.aggregation import TokenSum
from fairlen.rollouts import Response, TokenIds
from fairlen.sampling.extend import Continuation, Sampling, derive_seed
from fairlen.sampling.tree import Tree

SHAPES = {
    # horizon 3, two letters, EOS; forks after 1 token: EOS, or one of 2 letters and 7 x 7 ends: 99 trees, 99^2 of two
    "two levels": (Toy(3), Tree(n=2, branching=2, depth=2, parts=3)),
    # one letter, EOS; forks after 1 and 2 tokens: 1 + (1 + 2^2)^2 = 26 trees, 26^2 of two
    "three levels": (Toy(3, letters=1), Tree(n=2, branching=2, depth=3, parts=3)),
    # forks in three after 1 token, then EOS, or a letter and EOS or a letter: 1 + 3^3 = 28 trees, 28^2 of two
    "three children": (Toy(3, letters=1), Tree(n=2, branching=3, depth=2, parts=3)),
    # forks after 2 of 4 tokens: EOS, a letter and EOS, or two letters and 3 x 3 ends: 11 trees, 11^3 of three
    "longer nodes": (Toy(4, letters=1), Tree(n=3, branching=2, depth=2, parts=2)),
}
NUM_TREES = {"two levels": 99**2, "three levels": 26**2, "three children": 28**2, "longer nodes": 11**3}
WEIGHTS = ("none", "branching")


@functools.cache
def expected(shape: str, method: Method, seed: int, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    """The expected gradient, and the exact one."""
    toy, _ = SHAPES[shape]
    policy, reward = random_policy(toy, seed), random_reward(toy, seed, binary)
    exact = exact_gradient(toy, policy, reward)
    return all_trees(toy, method.sampling).expected(method, policy, reward), exact


@over("shape", SHAPES)
def test_every_tree_is_listed_once(shape):
    toy, tree = SHAPES[shape]
    forests = all_trees(toy, tree)
    assert len(forests) == len(set(forests.outcomes)) == NUM_TREES[shape]
    assert forests.chance(random_policy(toy, 0)).sum() == pytest.approx(1.0, abs=1e-13)


@over("shape, seed", [*zip(SHAPES, (0, 1, 0, 1), strict=True)])
def test_siblings_with_branching_weights_give_the_policy_gradient(shape, seed):
    """A state of level k is visited b^k times as often as by the policy, which b^-k undoes. Siblings are independent given what
    they continue, so that E[score of a node * mean worth of its siblings] = 0, and a child is worth E[reward | node]."""
    ours, exact = expected(shape, method_of(SHAPES[shape][1]), seed, binary=False)
    assert relative_error(ours, exact) < 1e-10


def test_the_preset_is_the_method_that_is_exact():
    assert tree_unbiased() == method_of(Tree())
    assert tree_unbiased().sampling == Tree(level_weight="branching")
    assert (tree_unbiased().advantage, tree_unbiased().aggregation) == (LeaveOneOut(), TokenSum("planned"))


@functools.cache
def compare(shape: str, seed: int) -> dict[str, tuple[float, float, float]]:
    """Relative error, cosine, and the sum over the EOS logits of each rule, for rewards 0 and 1; the last is the truth."""
    toy, tree = SHAPES[shape]
    rules = {weight: replace(tree_unbiased(), sampling=replace(tree, level_weight=weight)) for weight in WEIGHTS}
    rules["tree+grpo"] = replace(grpo(), sampling=tree)
    rules["centred"] = replace(rules["branching"], advantage=GroupCentered())
    found = {}
    for name, method in rules.items():
        ours, exact = expected(shape, method, seed, binary=True)
        found[name] = relative_error(ours, exact), cosine(ours, exact), float(ours[:, toy.letters :].sum())
    return found | {"exact": (0.0, 1.0, float(exact[:, toy.letters :].sum()))}


PAGE = (Path(__file__).parents[2] / "docs/methods/tree.md").read_text()


@pytest.mark.slow
def test_every_other_rule_is_biased_as_the_page_says():
    """Without the weights late levels count b^k times. The mean of a group with the node itself in it scales levels of unlike
    group sizes differently; here both have two, so that it is 1/2."""
    found = compare("two levels", 2)
    after = PAGE.partition("python tests/oracles/test_tree_gradient.py")[2].partition("\n\n|")[2].partition("\n\n")[0]
    for rule, line in zip((*WEIGHTS, "tree+grpo"), after.splitlines()[2:], strict=True):
        assert [float(cell) for cell in line.split("|")[3:6]] == pytest.approx(found[rule], abs=6e-4), rule
    assert float(re.findall(r"true value is\s+(\+[\d.]+)", PAGE)[0]) == pytest.approx(found["exact"][2], abs=6e-4)
    assert found["branching"][0] < 1e-10
    assert found["none"][0] > 1e-2 and found["tree+grpo"][0] > 1e-2
    assert found["centred"][:2] == (pytest.approx(0.5), pytest.approx(1.0))


SEED = 11


def forest_of(responses: tuple[Response, ...]) -> tuple:
    """The tracks of each tree, as a listing has them, in order of their numbers."""
    trees: dict[int, list] = {}
    for r in responses:
        trees.setdefault(r.stream, []).append((r.track, Track(r.token_ids[1:], r.round, r.inherited)))
    return tuple(tuple(trees[stream]) for stream in sorted(trees))


def in_order(forest: tuple) -> tuple:
    return tuple(tuple(sorted(tracks)) for tracks in forest)


def replay(toy: Toy, forest: tuple):
    """Answers each track, known by its seed, with what it had added; refuses any other prefix or budget."""
    added = {
        derive_seed(SEED, 0, 0, 0, stream, number, track.round): track
        for stream, tracks in enumerate(forest)
        for number, track in tracks
    }

    def answer(prefix: TokenIds, sampling: Sampling) -> Continuation:
        tokens, _, inherited = added.pop(sampling.seed)
        assert (prefix, sampling.max_new_tokens) == ((PROMPT, *tokens[:inherited]), toy.horizon - inherited)
        return Continuation(tokens[inherited:], (-1.0,) * (len(tokens) - inherited), toy.finish(tokens))

    return answer


@over("grows", [False, True])
@over("shape", ["three levels", "three children", "longer nodes"])
def test_the_sampler_returns_every_listed_tree(shape, grows):
    """Of each listing some 50. An engine that tells how far it has got is forked before it is released."""
    toy, tree = SHAPES[shape]
    reward = random_reward(toy, SEED)
    listed = all_trees(toy, tree).outcomes
    for forest in listed[:: len(listed) // 50]:
        found = run_sampler(tree, toy, Engine(replay(toy, forest), grows), reward, SEED)
        assert forest_of(found) == in_order(forest)


def test_trees_are_drawn_with_their_probabilities():
    """Three levels: 26 trees of one track from the prompt, 2,000 of them; chi-squared of 25 degrees, 99.9% below 52.6."""
    toy, tree = SHAPES["three levels"]
    policy, reward = random_policy(toy, SEED), random_reward(toy, SEED)
    listing = all_trees(toy, replace(tree, n=1))
    place = {in_order(forest)[0]: at for at, forest in enumerate(listing.outcomes)}
    found = run_sampler(replace(tree, n=2000), toy, Engine(sample_from(toy, policy), True), reward, SEED)
    counts = np.bincount([place[tracks] for tracks in forest_of(found)], minlength=len(listing))
    wanted = 2000 * listing.chance(policy)
    assert ((counts - wanted) ** 2 / wanted).sum() < 52.6


if __name__ == "__main__":
    for shape, seed in product(SHAPES, range(3)):
        print(f"{shape}, policy {seed}")
        for rule, (error, cos, stop) in compare(shape, seed).items():
            print(f"| {rule} | {error:.3g} | {cos:.4f} | {stop:+.4f} |")

"""The sampler draws trees with the law that the listing has, whatever the order in which tracks end in time.

Exactly: for every listed tree, the sampler, fed with what its tracks add, returns it. By sampling: 2,000 trees of the sampler
against the listing's probabilities.
"""

from dataclasses import replace

import numpy as np
from loops import over
from test_tree_gradient import SHAPES
from toy import PROMPT, Toy, Track, random_policy, random_reward
from toy_engine import Engine, run_sampler, sample_from
from toy_tree import Forests, all_trees

from fairlen.rollouts import Response, TokenIds
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.tree import Tree
from fairlen.seeds import derive_seed

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


def test_the_order_in_which_tracks_end_changes_nothing():
    toy, tree = Toy(8, letters=2), Tree(n=3, branching=3, depth=3, parts=4)
    policy, reward = random_policy(toy, 1), random_reward(toy, 1)
    engines = [Engine(sample_from(toy, policy), grows, slowest) for grows in (False, True) for slowest in (0, 2, 7)]
    first, *others = (run_sampler(tree, toy, engine, reward, 3) for engine in engines)
    assert max(r.round for r in first) == 2 and all(other == first for other in others)


def test_listings_are_of_the_shape_they_say():
    """Numbers of tracks in base `branching`: of 3 levels and 2 children 0, 1 (level 1), 2 and 3 (level 2)."""
    toy, tree = SHAPES["three levels"]
    listing = all_trees(toy, replace(tree, n=1))
    assert isinstance(listing, Forests)
    largest = max(listing.outcomes, key=lambda forest: len(forest[0]))[0]
    assert [(number, track.round, track.inherited) for number, track in sorted(largest)] == [
        (0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 2, 2),
    ]  # fmt: skip

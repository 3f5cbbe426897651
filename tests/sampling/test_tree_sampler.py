"""A tree, its nodes and their values by hand. Two tracks from the prompt, forks in two after 3 and 6 of 9 tokens.

stream  track  level  text                 reward   nodes (level: tokens)
0       0      0      a b c d e f g EOS    1        0: 0 to 3, 1: 3 to 6, 2: 6 to 8
0       1      1      a b c + x EOS        0        1: 3 to 5; it ended before 6, so that there is no track 3
0       2      2      a b c d e f + u v w  0.5      2: 6 to 9, cut by the budget
1       0      0      p q EOS              0.25     0: 0 to 3, which ends where it would be forked
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from fairlen.methods.compose import compose, explain
from fairlen.methods.presets import tree_unbiased
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.extend import Continuation, Sampling, derive_seed
from fairlen.sampling.independent import Request
from fairlen.sampling.tree import Tree

EOS, BUDGET = 0, 9
TREE = Tree(n=2, branching=2, depth=3, parts=3)
SCRIPT = {
    (0, 0, 0): (1, 2, 3, 4, 5, 6, 7, EOS),
    (0, 1, 1): (11, EOS),
    (0, 2, 2): (21, 22, 23),
    (1, 0, 0): (31, 32, EOS),
}
"""What each track adds, by (stream, track, level)."""
REWARD = {(0, 0): 1.0, (0, 1): 0.0, (0, 2): 0.5, (1, 0): 0.25}


def run(sampler: Tree = TREE) -> tuple[Response, ...]:
    added = {derive_seed(1, 2, *place): tokens for place, tokens in SCRIPT.items()}

    async def extend(prefix, sampling: Sampling) -> Continuation:
        tokens = added[sampling.seed]
        assert sampling.max_new_tokens == BUDGET - (len(prefix) - 2)
        return Continuation(tokens, (-0.1,) * len(tokens), "stop" if tokens[-1] == EOS else "length")

    async def grade(response: Response) -> Response:
        return replace(response, outcome=REWARD[response.stream, response.track], status="correct")

    request = Request(0, (7, 8), Sampling(BUDGET, seed=0), policy_version=3, seed=(1, 2))
    return asyncio.run(sampler(extend, grade, request))


RESPONSES = run()


def rollouts_of(sampler: Tree, responses: tuple[Response, ...] = RESPONSES) -> Rollouts:
    return Rollouts(responses, sampler.cut(responses), BUDGET)


def test_tracks_take_over_what_they_continue():
    assert [(r.stream, r.track, r.round, r.inherited) for r in RESPONSES] == [
        (0, 0, 0, 0), (0, 1, 1, 3), (0, 2, 2, 6), (1, 0, 0, 0),
    ]  # fmt: skip
    assert [r.token_ids[2:] for r in RESPONSES] == [
        (1, 2, 3, 4, 5, 6, 7, EOS), (1, 2, 3, 11, EOS), (1, 2, 3, 4, 5, 6, 21, 22, 23), (31, 32, EOS),
    ]  # fmt: skip
    assert [r.finish for r in RESPONSES] == ["stop", "stop", "length", "stop"]


def test_nodes_are_cut_once_and_siblings_are_groups():
    segments = TREE.cut(RESPONSES)
    assert [(s.response, s.start - 2, s.stop - 2, s.group, s.role, s.round) for s in segments] == [
        (0, 0, 3, 0, "survivor", 0), (0, 3, 6, 1, "survivor", 1), (0, 6, 8, 2, "whole", 2),
        (1, 3, 5, 1, "whole", 1),
        (2, 6, 9, 2, "whole", 2),
        (3, 0, 3, 0, "whole", 0),
    ]  # fmt: skip
    assert {s.mass for s in segments} == {1.0}
    weighed = replace(TREE, level_weight="branching").cut(RESPONSES)
    assert [s.mass for s in weighed] == [1, 1 / 2, 1 / 4, 1 / 2, 1 / 4, 1]


def test_a_forked_node_is_worth_the_mean_of_its_children():
    """(1 + 0.5) / 2 = 0.75 at level 1, (0.75 + 0) / 2 = 0.375 at level 0: not (1 + 0 + 0.5) / 3, the mean of its leaves."""
    scored = replace(tree_unbiased(), sampling=TREE).score(rollouts_of(TREE))
    assert scored.value.tolist() == [0.375, 0.75, 1.0, 0.0, 0.5, 0.25]
    assert scored.advantage.tolist() == pytest.approx([0.125, 0.75, 0.5, -0.75, -0.5, -0.125], abs=1e-15)


def test_the_plan_divides_by_the_tracks_that_start_from_the_prompt():
    """2 of one prompt: 1/2 a token at level 0, 1/4 at level 1, 1/8 at level 2."""
    sampler = replace(TREE, level_weight="branching")
    method = replace(tree_unbiased(), sampling=sampler)
    assert method.plan(method.score(rollouts_of(sampler))).weight.tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 4, 1 / 8, 1 / 2]


def test_a_missing_verdict_leaves_the_others():
    """Without track 0's, what it wrote last has no worth, and its parent is worth what its fork came to: 0.5, so that the root is
    worth 0.25, as its sibling; of level 2 nothing is left to compare."""
    responses = tuple(replace(r, active=False) if r.stream == r.track == 0 else r for r in RESPONSES)
    scored = replace(tree_unbiased(), sampling=TREE).score(rollouts_of(TREE, responses))
    assert np.isnan(scored.value).tolist() == [False, False, True, False, False, False]
    assert scored.value[[0, 1, 3, 4, 5]].tolist() == [0.25, 0.5, 0.0, 0.5, 0.25]
    assert scored.segments.active.tolist() == [False, True, False, True, False, False]


def test_a_tree_of_which_a_track_is_missing_is_refused():
    for lost in range(3):
        left = tuple(r for r in RESPONSES if (r.stream, r.track) != (0, lost))
        with pytest.raises(
            ValueError, match=r"stream 0 of prompt 0 has tracks .*, and Tree of depth 3 would have others"
        ):
            TREE.cut(left)


def test_rows_in_any_order_are_cut_alike():
    order = [3, 1, 2, 0]
    segments = TREE.cut(tuple(RESPONSES[row] for row in order))
    found = {(order[s.response], s.start, s.stop, s.round) for s in segments}
    assert found == {(s.response, s.start, s.stop, s.round) for s in TREE.cut(RESPONSES)}


def test_what_it_reports():
    """4 responses and 6 nodes, of which 2 were forked; all differ from a sibling."""
    scored = replace(tree_unbiased(), sampling=TREE).score(rollouts_of(TREE))
    found = TREE.metrics(scored.responses, scored.segments, scored.reward, scored.value, scored.trains)
    assert found == {"tree/responses": 4.0, "tree/nodes": 6.0, "tree/forked": pytest.approx(1 / 3), "tree/trained": 1.0}


def test_a_limit_below_the_parts_forks_at_every_token():
    """Budget 9 of 20 parts: one token a node, never none."""
    sampler = Tree(n=1, depth=2, parts=20)
    made = {derive_seed(1, 2, 0, 0, 0): (1, 2, EOS), derive_seed(1, 2, 0, 1, 1): (4, EOS)}

    async def extend(prefix, sampling: Sampling) -> Continuation:
        return Continuation(made[sampling.seed], (-1.0,) * len(made[sampling.seed]), "stop")

    async def grade(response: Response) -> Response:
        return response

    request = Request(0, (7, 8), Sampling(BUDGET, seed=0), policy_version=0, seed=(1, 2))
    found = asyncio.run(sampler(extend, grade, request))
    assert [(r.inherited, r.length) for r in found] == [(0, 3), (1, 3)]


def test_what_breaks_the_proposition_is_a_note():
    for names, setting, words in (
        ("tree_unbiased+no_std", "sampling.n=4", "GroupCentered with the branching weights of Tree"),
        ("tree_unbiased", "sampling.n=1", "the first node has no siblings"),
        ("tree_unbiased+overlong_filter", "sampling.n=4", "mask_truncated with the branching weights of Tree"),
        ("tree_unbiased+dynamic", "sampling.n=4", "MixedOutcomes with the branching weights of Tree"),
        ("tree_unbiased+lp", "sampling.n=4", "LengthPenalty with the branching weights of Tree"),
    ):
        more = ["advantage=GroupCentered"] if setting == "sampling.n=1" else []
        assert any(words in note for note in explain(names, [*more, setting]).notes), words
    assert explain("tree_unbiased").notes == explain("tree+grpo").notes == explain("treerpo").notes == ()


def test_tracks_are_forked_in_one_way():
    for names in ("tree_unbiased+tree", "eqlen_unbiased+tree", "tree_unbiased+eqlen", "tree_unbiased+treerpo"):
        with pytest.raises(ValueError, match="already: leave"):
            compose(names)

"""Forests: every (prefix, token) once, paths that spell the rows, who sees whom, and cuts at a budget."""

import numpy as np
from loops import over

from fairlen.policy.tree import LEAST_SHARED, Forest, SortedRows, sort_rows


def random_rows(seed: int, number: int = 14, longest: int = 90) -> list[np.ndarray]:
    """Ragged rows of few tokens, most of them forks of others; duplicates, prefixes of others, and rows of one token."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 3, rng.integers(1, longest)) for _ in range(3)]
    while len(rows) < number - 3:
        base = rows[rng.integers(len(rows))]
        rows.append(np.r_[base[: rng.integers(0, len(base) + 1)], rng.integers(0, 3, rng.integers(1, longest))])
    rows += [rows[0].copy(), rows[3][: max(1, len(rows[3]) // 2)], np.array([2])]
    return [rows[i].astype(np.int64) for i in rng.permutation(len(rows))]


def forest_of(rows: list[np.ndarray], least_shared: int = 1) -> tuple[SortedRows, Forest]:
    found = sort_rows(rows, least_shared)
    return found, found.forest(slice(0, len(rows)))


def prefixes(rows: list[np.ndarray]) -> set[tuple[int, ...]]:
    return {tuple(row[: end + 1].tolist()) for row in rows for end in range(len(row))}


def test_a_small_forest_by_hand():
    #   5 6 7      rows 0 and 3 are equal, row 2 is a prefix of row 0, row 1 leaves row 0 after one token,
    #    \ 8 9     row 4 shares nothing. Sorted: 2 (5 6), 0 (5 6 7), 3 (5 6 7), 1 (5 8 9), 4 (6)
    rows = [np.array(row) for row in ([5, 6, 7], [5, 8, 9], [5, 6], [5, 6, 7], [6])]
    found, forest = forest_of(rows)
    assert found.order.tolist() == [2, 0, 3, 1, 4]
    assert found.shared.tolist() == [0, 2, 3, 1, 0]
    assert forest.tokens.tolist() == [5, 6, 7, 8, 9, 6]
    assert forest.depth.tolist() == [0, 1, 2, 1, 2, 0]
    assert forest.parent.tolist() == [-1, 0, 1, 0, 3, -1]
    assert forest.until.tolist() == [5, 3, 3, 5, 5, 6]  # 5 is seen by all of its tree, 6 by itself and 7
    assert forest.starts.tolist() == [0, 5, 6]
    assert [path.tolist() for path in forest.paths] == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 3, 4], [5]]
    assert np.diff(found.forest(slice(0, 5)).starts).tolist() == [5, 1]


@over("seed", range(8))
def test_every_prefix_has_one_place_and_is_seen_by_its_own_row(seed):
    rows = random_rows(seed)
    found, forest = forest_of(rows)
    assert len(forest) == len(prefixes(rows))
    for row, path in zip(found.order, forest.paths, strict=True):
        assert forest.tokens[path].tolist() == rows[row].tolist()
        assert forest.depth[path].tolist() == list(range(len(path)))
        assert forest.parent[path].tolist() == [-1, *path[:-1].tolist()]
        for place in path:  # sees its own row up to itself and nothing else
            seen = np.flatnonzero((np.arange(len(forest)) <= place) & (place < forest.until))
            assert seen.tolist() == path[: forest.depth[place] + 1].tolist()
    trees = np.searchsorted(forest.starts, np.arange(len(forest)), side="right")
    assert all(len(set(trees[path])) == 1 for path in forest.paths)
    assert (np.flatnonzero(forest.parent < 0) == forest.starts[:-1]).all()


def test_rows_that_share_less_than_a_few_tokens_are_trees_of_their_own():
    trunk = np.arange(LEAST_SHARED)
    rows = [np.r_[trunk[:-1], 50], np.r_[trunk[:-1], 60], np.r_[trunk, 70], np.r_[trunk, 80]]
    _, forest = forest_of(rows, LEAST_SHARED)
    # the last two share 8 tokens; the others at most 7
    assert forest.starts.tolist() == [0, 10, 18, 26]
    assert len(forest) == (8 + 2) + 8 + 8


@over("max_tokens", [1, 20, 100, 400, 10_000])
def test_a_forest_is_cut_at_the_budget_and_repeats_what_was_shared(max_tokens):
    rows = random_rows(3, number=30)
    found = sort_rows(rows, 1)
    parts = list(found.split(max_tokens))
    assert np.concatenate([found.order[part] for part in parts]).tolist() == found.order.tolist()
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        chosen = [rows[i] for i in found.order[part]]
        size = len(prefixes(chosen))
        assert len(found.forest(part)) == size
        assert size <= max_tokens or len({row.tobytes() for row in chosen if len(row) == max(map(len, chosen))}) == 1
        if following:  # it could not have had one row more
            assert len(prefixes([*chosen, rows[found.order[following.start]]])) > max_tokens
    assert len(parts) > 1 or max_tokens >= len(prefixes(rows))


def test_tokens_are_ordered_as_numbers():
    rows = [np.array([300, 1]), np.array([2, 1]), np.array([300, 0]), np.array([70_000])]
    assert sort_rows(rows, 1).order.tolist() == [1, 2, 0, 3]

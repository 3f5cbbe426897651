"""The search by its arithmetic: grids, widening, ties, and the table that is made from evidence."""

from loops import over
from study_runs import kept_run

from research.study.evidence import load_evidence, write_kept
from research.study.plan import FACTORS, RATES, Plan, Variant
from research.study.search import Settings, climb, final_accuracy, search, search_table


def follow(kind, score):
    """Run a search to its end; return its outcome and the settings in the order in which they were tried."""
    known, order = {}, []
    while (outcome := search(kind, lambda rate, factor: known.get((rate, factor)))).missing:
        for one in outcome.missing:
            known[one.rate, one.factor] = score(one.rate, one.factor)
            order.append((one.rate, one.factor))
    return outcome, order


def test_a_search_begins_with_the_middle_and_its_neighbours_and_ends_where_the_best_is_inside():
    outcome, order = follow("rate", lambda rate, factor: 0.8 if rate == 1e-4 else 0.7)
    assert order == [(1e-4, 1.0), (3e-5, 1.0), (3e-4, 1.0)]
    assert outcome.chosen == Settings(1e-4, 1.0)
    assert outcome.edges == ()


@over(
    "best, tried, edges",
    [
        (3e-4, [1e-4, 3e-5, 3e-4, 1e-3], ()),
        (1e-3, [1e-4, 3e-5, 3e-4, 1e-3, 3e-3], ()),
        (3e-3, [1e-4, 3e-5, 3e-4, 1e-3, 3e-3], ("rate",)),
        (3e-5, [1e-4, 3e-5, 3e-4, 1e-5], ()),
        (1e-5, [1e-4, 3e-5, 3e-4, 1e-5], ("rate",)),
    ],
)
def test_a_grid_is_widened_on_the_side_of_the_best(best, tried, edges):
    outcome, order = follow("rate", lambda rate, _: -abs(RATES.index(rate) - RATES.index(best)))
    assert [rate for rate, _ in order] == tried
    assert (outcome.chosen, outcome.edges) == (Settings(best, 1.0), edges)


def test_a_width_is_searched_at_the_middle_rate_first_and_rates_at_the_width_that_it_found():
    score = {1 / 3: 0.1, 1.0: 0.2, 10 / 3: 0.4, 10.0: 0.3}
    outcome, order = follow("rate+width", lambda rate, factor: score[factor] + (0.1 if rate == 3e-4 else 0.0))
    widths = [(1e-4, 1.0), (1e-4, 1 / 3), (1e-4, 10 / 3), (1e-4, 10.0)]
    assert order == [*widths, (3e-5, 10 / 3), (3e-4, 10 / 3), (1e-3, 10 / 3)]
    assert outcome.chosen == Settings(3e-4, 10 / 3)


def test_of_equal_values_the_one_nearest_to_the_middle_wins():
    assert follow("rate", lambda *_: 0.5)[0].chosen == Settings(1e-4, 1.0)
    assert climb(FACTORS, 1.0, {1.0: 0.1, 1 / 3: 0.2, 10 / 3: 0.2, 0.1: 0.2}.get) == ([], 1 / 3)


def test_the_table_has_means_over_seeds_and_what_they_choose(tmp_path):
    right = {3e-5: (1, 2), 1e-4: (2, 2), 3e-4: (4, 2)}  # of 2 problems x 4 samples: 3/16, 4/16, 6/16
    runs = [
        kept_run(seed=seed, role="search", rate=rate, right=[[0, 0], [n, 0]])
        for rate, some in right.items() for seed, n in zip((101, 102), some, strict=True)
    ]  # fmt: skip
    write_kept(runs, tmp_path)
    evidence = load_evidence(tmp_path)
    assert final_accuracy(evidence.run_tables(0)) == 1 / 8
    plan = Plan((Variant("grpo", "short"),))
    tried = [[3e-5, 1.0, 0.1875, 2], [1e-4, 1.0, 0.25, 2], [3e-4, 1.0, 0.375, 2]]
    # 3e-4 is best: 1e-3 is missing
    assert search_table(evidence, plan) == {"short grpo": {"edges": [], "tried": tried}}
    write_kept([*runs, kept_run(seed=101, role="search", rate=1e-3, right=[[0, 0], [0, 0]])], tmp_path)
    found = search_table(load_evidence(tmp_path), plan)["short grpo"]
    assert (found["rate"], found["factor"], found["edges"]) == (3e-4, 1.0, [])

"""Numbers of a run, from records written by hand."""

import numpy as np
import pytest

from research.study import quantities as q


def run(right, updates=None, generated=None, **more):
    """Four samples of two problems at each evaluation."""
    num = len(right)
    updates, generated = updates or list(range(0, 10 * num, 10)), generated or list(range(0, 100 * num, 100))
    evaluations = [
        {"right": r, "samples": 4, "update": u, "generated": g, "length": [10.0 * (i + 1), 20.0]}
        for i, (r, u, g) in enumerate(zip(right, updates, generated, strict=True))
    ]
    return {"evaluations": evaluations, "batches": {}, "updates": {}} | more


def test_best_is_the_first_of_the_highest_evaluations():
    found = run([[0, 4], [4, 2], [2, 4], [1, 1]])  # means 4/8, 6/8, 6/8, 2/8
    assert q.best(found).tolist() == [1.0, 0.5]
    assert q.last(found).tolist() == [0.25, 0.25]
    assert q.length_at_best(found).tolist() == [20.0, 20.0]


def test_falls_count_no_rise():
    curve = run([[2, 2], [4, 4], [2, 3], [3, 3], [1, 1]])  # 1/2, 1, 5/8, 3/4, 1/4: falls of 3/8 and 1/2
    assert q.falls(curve).item() == pytest.approx(7 / 8)


def test_falls_are_taken_at_quarters_of_the_tokens_whatever_the_number_of_evaluations():
    often = run([[2, 2], [0, 0], [4, 4], [0, 0], [2, 2], [0, 0], [2, 2], [0, 0], [2, 2]])
    assert q.falls(often).item() == pytest.approx(0.5)  # 1/2, 1, 1/2, 1/2, 1/2: the evaluations between do not count


def test_early_is_never_the_evaluation_before_training():
    assert q.early(run([[0, 0], [1, 1], [4, 4]], generated=[0, 80, 100])).tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("right", "updates"),
    [
        ([[2, 2], [4, 4], [3, 3], [3, 3]], 20),  # 1, then 3/4 to the end: 25 points down from update 20 on
        ([[2, 2], [4, 4], [3, 3], [4, 4]], 30),  # came back: the end of the run
        ([[2, 2], [3, 3], [4, 4], [4, 4]], 30),
    ],
)
def test_a_collapse_is_where_accuracy_stays_down(right, updates):
    assert q.collapse(run(right)).item() == updates


def test_samples_of_pairs_are_both_pieces():
    pairs = {"pairs/formed": [3, 5], "responses/verified": [9, 9], "prompts/asked": [2, 2]}
    assert q.samples_per_second(run([[1, 1]], batches=pairs, training_seconds=4.0)).item() == 2 * (3 + 5) / 4
    whole = {"responses/verified": [16, 16], "prompts/asked": [2, 2]}
    assert q.samples_per_second(run([[1, 1]], batches=whole, training_seconds=4.0)).item() == 32 / 4


def test_quarters_leave_out_what_does_not_exist():
    updates = {"entropy/mean": [1.0, None, 2.0, 2.0, 3.0, 3.0, 4.0, 6.0]}
    found = run([[1, 1]], updates=None) | {"updates": updates}
    assert [q.quarter("updates", "entropy/mean", i)(found).item() for i in range(4)] == [1.0, 2.0, 3.0, 5.0]


def test_violations_are_shares_of_all_bands():
    rows = [{"rho": 0.5, "rho_paper": 0.4, "rho_bound": 0.6}, {"rho": 0.5, "rho_paper": 0.5, "rho_bound": None}]
    undefined = [{"rho": None, "rho_paper": None, "rho_bound": None}]
    found = {"directions": {"fspo": rows, "gspo": undefined}}
    assert q.violations("rho_paper")(found).item() == 1 / 2
    assert q.violations("rho_bound")(found).item() == 0.0
    assert np.isnan(q.violations("rho_bound")({"directions": {"gspo": undefined}})).all()

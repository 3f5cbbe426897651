"""Numbers of a run, from tables written by hand."""

import math

import numpy as np
import pytest
from loops import over
from study_tables import evaluations, make_run

from recipes.replay_bands import WIDTHS, critical_factor
from research.study.evidence import load_evidence
from research.study.quantities import QUANTITIES, Rates, cross_fit, drifts, exponent, off_policy, replayed


def of(name, run, **options):
    return QUANTITIES[name](run, **options)


def curve(right, **more):
    return make_run(evaluations=evaluations(right, **more))


def test_the_best_is_chosen_on_one_problem_and_read_on_the_other():
    """Problem 0 chooses evaluation 1, where problem 1 has 2/4; problem 1 chooses 2, where problem 0 has 3/4; both end at 1/4."""
    run = curve([[0, 1], [4, 2], [3, 4], [1, 1]], length=[[1, 1], [10, 20], [30, 40], [9, 9]])
    found = {name: of(name, run) for name in ("accuracy", "best_accuracy", "drop", "length_at_best")}
    assert found == {"accuracy": 25, "best_accuracy": 62.5, "drop": 37.5, "length_at_best": (20 + 30) / 2}
    assert math.isnan(of("drop", curve([[1], [2]])))  # no problem is left to read


def test_a_run_is_read_where_another_is_most_accurate():
    other = curve([[0, 0], [1, 1], [4, 4]])
    run = curve([[0, 0], [4, 4], [1, 1]], length=[[0, 0], [10, 20], [30, 50]])
    assert (of("length_at_best", run), of("length_at_best", run, chosen_by=other)) == (15, 40)


def test_swings_are_squared_distances_from_the_middle_of_neighbours():
    """50, 100, 50, 50 percent in both problems: 50 and -25 from the middle, 2500 and 625; a line has none."""
    assert of("swings", curve([[2, 2], [4, 4], [2, 2], [2, 2]])) == (2500 + 625) / 2
    assert of("swings", curve([[1, 1], [2, 2], [3, 3]])) == 0
    assert of("swings", curve([[2, 2], [4, 0], [2, 2]])) == -2500  # 50 and -50: their product


def test_a_curve_is_of_the_problems_that_all_evaluations_have():
    """Problem 2 is there at the end alone: 4/8 and 2/8 of the others, 6/12 with it."""
    table = evaluations([[2, 2], [1, 1]])
    end = {"generated": 100, "update": 10, "rollout_batch": 1, "problem": 2, "samples": 4, "right": 4, "length": 30}
    run = make_run(evaluations={name: [*values, end.get(name, 0)] for name, values in table.items()})
    assert [of("accuracy", run, place=place) for place in (0, 0.5, 1, None)] == [50, 37.5, 25, 50]
    assert (of("drop", run), of("length", run), of("length_at_best", run)) == (25, 10, 0)


@pytest.mark.slow
@over("name", ["drop", "swings", "best_accuracy"])
def test_the_noise_of_a_plateau_is_no_instability(name):
    """Nine evaluations of 64 problems at 50%: within three standard errors of 0, or of 50, over 300 runs."""
    rng = np.random.default_rng(4)
    found = [of(name, curve(rng.binomial(4, 0.5, (9, 64)))) for _ in range(300)]
    assert abs(np.mean(found) - (50 if name == "best_accuracy" else 0)) < 3 * np.std(found) / math.sqrt(300) < 2.5


def test_a_place_between_evaluations_is_on_the_line_between_them():
    run = curve([[0, 0], [4, 4], [2, 2]])
    assert [of("accuracy", run, place=place) for place in (0.25, 1.0, 1.5, None)] == [25, 100, 75, 50]


def test_lengths_are_means_over_samples():
    run = curve([[4, 0], [1, 0]], length=[[10, 20], [30, 40]], length_right=[[40, 0], [15, 0]])
    assert of("length", run) == 35  # (4 * 30 + 4 * 40) / 8
    assert of("length_correct", run) == 15
    assert of("length_incorrect", run) == pytest.approx((4 * 30 + 4 * 40 - 15) / 7)
    assert math.isnan(of("length_correct", curve([[0, 0]])))


def test_the_gap_by_verdict_is_of_problems_with_both():
    """One of four is correct, of 20 tokens where the mean is 30: incorrect ones have (120 - 20) / 3. The second has none."""
    run = curve([[1, 4]], length=[[30, 40]], length_right=[[20, 160]])
    assert of("length_gap", run) == pytest.approx(100 * (100 / 3 - 20) / 30)
    assert math.isnan(of("length_gap", curve([[0, 4]])))


def test_the_change_of_length_is_from_the_first_rollout_batch_to_the_last_quarter():
    """From 100 tokens a prompt to (300 + 500) / (2 + 2) = 200."""
    batches = {"generated": [200, 0, 0, 0, 0, 0, 300, 500], "asked": [2, 1, 1, 1, 1, 1, 2, 2]}
    assert of("length_change", make_run(batches=batches)) == 100


@over(
    "right, updates",
    [
        ([[2, 2], [4, 4], [3, 3], [3, 3]], 20),  # 100, then 75 to the end: down from update 20 on
        ([[2, 2], [4, 4], [3, 3], [4, 4]], 30),  # came back: the end of the run
        ([[2, 2], [3, 3], [4, 4], [4, 4]], 30),
    ],
)
def test_a_collapse_is_where_accuracy_stays_down(right, updates):
    assert of("collapse", curve(right)) == updates


def test_quarters_leave_out_what_does_not_exist():
    run = make_run(updates={"entropy": [1, np.nan, 2, 2, 3, 3, 4, 6], "loss": [1, -1, 1, -3, 0, 0, 0, 0]})
    assert [of("entropy", run, quarter=i) for i in range(4)] == [1, 2, 3, 5]
    assert of("entropy_change", run) == 400  # 5 / 1
    assert (of("loss", run), of("loss_abs", run, quarter=1)) == (-0.25, 2)


def test_the_spread_of_the_gradient_is_over_its_mean():
    assert of("gradient_spread", make_run(updates={"gradient_norm": [1, 3, np.nan]})) == 0.5  # std 1, mean 2


def test_what_a_second_gives():
    """600 tokens at 1/100 s and 400 trained at 1/200 s are 8 s; a pair has two pieces."""
    more = {"updates": {"tokens_trained": [100, 300]}, "sequences": {"length": [5] * 16}}
    rates = Rates(0.01, 0.005)
    whole = make_run(batches={"generated": [200, 400], "asked": [2, 2], "seconds": [1, 3]}, **more)
    paired = make_run(batches={"generated": [200, 400], "asked": [2, 2], "pairs_formed": [3, 5]}, **more)
    assert of("seconds", whole, rates=rates) == pytest.approx(8.0)
    assert of("samples_per_second", whole, rates=rates) == pytest.approx(16 / 8)
    assert of("samples_per_second", paired, rates=rates) == pytest.approx(2 * (3 + 5) / 8)
    assert of("tokens_per_second", whole) == 400 / 3  # without the first rollout batch, in which a process starts up
    assert of("pairs", paired) == 2


def test_the_signal_is_what_has_an_advantage():
    sequences = {"length": [10, 20, 30], "advantage": [0.5, 0, -0.5]}
    assert of("signal", make_run(batches={"generated": [80]}, sequences=sequences)) == 50  # 40 of 80


def test_lengths_by_verdict_within_prompts():
    """Prompt 0: correct 2 and 4, incorrect 9; prompt 1 has no incorrect one and counts for nothing."""
    sequences = {"prompt": [0, 0, 0, 1, 1], "length": [2, 4, 9, 5, 500], "correct": [True, True, False, True, True]}
    run = make_run(sequences=sequences)
    assert of("gap", run) == pytest.approx(100 * (9 - 3) / 5)
    assert of("variation", run) == pytest.approx(math.sqrt((9 + 1 + 16) / 3) / 5)


def spread_run(power, num=4000, width=0.0):
    """Return a run whose log ratios are normal with std L^power, with a band of a width times the root of length."""
    rng = np.random.default_rng(5)
    length = np.exp(rng.normal(4, 0.7, num)).astype(int) + 1
    total = 0.002 * length**power * rng.normal(size=num)
    return make_run(
        sequences={
            "length": length, "log_ratio": total, "inside": np.abs(total) <= width * np.sqrt(length),
            "off_policy": np.full(num, True), "prompt": np.arange(num) // 8, "update": np.arange(num) // 100,
        }
    )  # fmt: skip


@over("drift, expected", [(0.0, 0.0), (0.02, 0.5)])
def test_the_exponent_of_a_drift_is_above_the_root_that_chance_has(drift, expected):
    """Log ratios of spread .02 sqrt(L): without drift the size of their mean grows like the root, with .02 L like L."""
    rng, found = np.random.default_rng(3), []
    for _ in range(200):
        length = np.exp(rng.normal(5, 0.7, 1600)).astype(int) + 1
        total = rng.normal(-drift * length, 0.02 * np.sqrt(length))
        columns = {"length": length, "log_ratio": total, "off_policy": np.full(1600, True)}
        found.append(of("drift_root", make_run(sequences=columns), minus=0.5))
    assert abs(np.mean(found) - expected) < 3 * np.std(found) / math.sqrt(200) + 0.01  # bins have a width


def test_growth_is_that_of_each_update_where_updates_differ_in_size_and_lengths():
    """Each of two updates spreads with the root; the second, of longer responses, ten times as far: together it is faster."""
    rng = np.random.default_rng(0)
    length = np.concatenate([rng.integers(30, 200, 4000), rng.integers(100, 700, 4000)])
    update = np.repeat([1, 2], 4000)
    log_ratio = rng.normal(size=8000) * np.sqrt(length) * np.where(update == 1, 0.001, 0.01)
    columns = {"length": length, "update": update, "log_ratio": log_ratio, "off_policy": [True] * 8000}
    assert of("growth", make_run(sequences=columns)) == pytest.approx(0.5, abs=0.05)
    assert exponent(length, log_ratio) > 0.9


def test_the_error_without_chance_is_that_of_the_population():
    """Two kinds of length, of which 9 and 6 of 10 are accepted: 1/2 (|9/15 - 1/2| + |6/15 - 1/2|) = 0.1."""
    length = np.tile([10, 20], 500)
    accepted = np.where(length == 10, np.arange(1000) // 2 % 10 < 9, np.arange(1000) // 2 % 10 < 6)
    assert cross_fit(length, accepted, np.arange(1000) // 20) == pytest.approx(0.1, abs=1e-9)


@pytest.mark.slow
def test_chance_alone_is_no_error():
    """The mean of 400 is 0 within three standard errors, where the plain error has its floor of 0.399 sqrt(7 / 800) = .037."""
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        length = np.exp(rng.normal(4, 0.7, 800)).astype(int) + 1
        found.append(cross_fit(length, rng.random(800) < 0.5, np.arange(800) // 8))
    assert abs(np.mean(found)) < 3 * np.std(found) / 20 < 0.004


def test_acceptance_leaves_out_what_is_short_or_on_policy():
    sequences = {"length": [3, 50, 60, 70], "inside": [0, 1, 0, 0.5], "off_policy": [True, True, True, False]}
    run = make_run(sequences=sequences)
    assert of("acceptance", run) == pytest.approx(100 / 3)
    assert of("acceptance", run, shortest=10) == 50
    assert of("acceptance_gap", run) == 0  # quartiles 26.5 and 55: [60] and [3], both refused
    assert math.isnan(of("acceptance", run, shortest=100))


def test_the_band_of_the_root_is_fair_where_the_spread_grows_with_the_root():
    """At 80% of all, each rule's share at length L is 2 Phi(z L^(power - 1/2)) - 1."""
    run = spread_run(0.5)
    assert abs(of("replay", run, rule="fspo_v3")) < 0.01
    for rule in ("rloo", "gspo"):
        assert of("replay", run, rule=rule) > 0.05
        expected = of("replay", run, rule=rule) - of("replay", run, rule="fspo_v3")
        assert of("replay", run, rule=rule, against="fspo_v3") == pytest.approx(expected)
    assert replayed(run, "gspo", 0.5, 0) > replayed(run, "gspo", 0.95, 0)


def test_the_drift_of_a_band_is_what_earlier_updates_showed():
    """20 tokens with S = -2 in update 1: k = 0.1 from update 2 on; update 2 shows 0.3: (0.9 * 0.01 + 0.1 * 0.3) / (1 - 0.9^2)."""
    sequences = {
        "length": [10, 10, 20, 20], "log_ratio": [-1, -1, -6, 0.1], "update": [1, 1, 2, 3], "off_policy": [True] * 4,
    }  # fmt: skip
    assert drifts(make_run(sequences=sequences)) == pytest.approx([0, 0, 0.1, 0.039 / 0.19])


@pytest.mark.slow
def test_a_replay_at_a_run_s_own_width_accepts_what_the_run_accepted(tiny_study):
    runs = load_evidence(tiny_study.evidence).find("short", "rloo")
    assert len(runs) == 3
    for run in runs.values():
        rows = off_policy(run)
        width = [run.run.factor * width for width in WIDTHS["rloo"]]
        found = critical_factor("rloo", rows["length"], rows["log_ratio"], 0.0, *width) <= 1
        assert len(found) > 0 and (found == (rows["inside"] == 1)).all()


def test_directions_are_compared_where_both_accept_something():
    table = {"rule": ["fspo", "gspo", "fspo", "gspo"], "update": [1, 1, 2, 2], "cosine": [0.9, 0.5, 0.8, np.nan],
             "rho": [0.5, 0.5, 0.5, np.nan], "rho_paper": [0.4, 0.5, np.nan, 0.1]}  # fmt: skip
    run = make_run(directions=table)
    assert of("cosine", run, rule="fspo", against="gspo") == pytest.approx(0.4)
    assert of("cosine", run, rule="fspo") == pytest.approx(0.85)
    assert of("bound_slack", run) == pytest.approx(-0.1)  # .4 - .5 and .5 - .5; two have no rho or no bound


def test_every_quantity_of_a_run_without_tables_is_no_number():
    needed = {"cosine": {"rule": "gspo"}}
    rates = {name: {"rates": Rates(1, 1)} for name in ("seconds", "samples_per_second")}
    for name in QUANTITIES:
        assert math.isnan(of(name, make_run(), **needed.get(name, {}), **rates.get(name, {}))), name

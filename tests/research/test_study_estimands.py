"""Estimands: what a definition must say, pairing by seed, and where costs are equal."""

import math
from dataclasses import replace

import pytest
from loops import over
from study_tables import evaluations, evidence_of, make_run

from research.study.estimands import make_estimand, measure, measure_all, rates_of
from research.study.quantities import Rates

ENTRY = {
    "world": "short", "quantity": "accuracy", "variants": ["a", "b"], "combine": "difference", "unit": "points",
    "what": "a less b",
}  # fmt: skip


def estimand(**changed):
    return make_estimand("a-minus-b", ENTRY | changed)


@over(
    "changed, message",
    [
        ({"quantity": "accurracy"}, "a-minus-b: quantity='accurracy': give one of accuracy, "),
        ({"variants": ["a"]}, r"variants=\('a',\): difference takes 2"),
        ({"combine": "value"}, r"variants=\('a', 'b'\): value takes 1"),
        ({"world": "tiny"}, "world='tiny': give one of long, short"),
        ({"cost": "joules"}, "cost='joules': give one of seconds, tokens, updates, best"),
        ({"cost": "tokens", "quantity": "drop"}, "cost='tokens': it needs two variants and one of accuracy, length"),
        ({"quantity": "drop", "options": {"quarter": 1}}, "options=.*drop takes none"),
        ({"cost": "tokens", "options": {"place": 1.0}}, "options=.*a cost decides the place"),
        ({"quantity": "lre", "options": {"shortest": "30"}}, "options=.*shortest is a number"),
        ({"quantity": "cosine"}, "options={}: cosine needs rule"),
        ({"unit": ""}, "unit='': say what it is"),
        ({"colour": "red"}, "colour: unknown key; there are world, "),
    ],
)
def test_a_mistake_is_told_with_its_id_its_field_and_its_remedy(changed, message):
    with pytest.raises(ValueError, match=message):
        estimand(**changed)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="a-minus-b: what is missing"):
        make_estimand("a-minus-b", {name: value for name, value in ENTRY.items() if name != "what"})
    with pytest.raises(ValueError, match="id='A_b': write lower case"):
        make_estimand("A_b", ENTRY)


def run(variant, seed, right, **more):
    """Return a run with one problem of four samples at each evaluation."""
    return make_run(seed, variant, evaluations=evaluations([[one] for one in right], **more))


def test_differences_are_of_runs_with_one_seed():
    runs = [run("a", 1, [2]), run("a", 2, [4]), run("a", 3, [4]), run("a", 9, [0])]
    runs += [run("b", 3, [1]), run("b", 1, [2]), run("b", 2, [2])]
    found = measure(evidence_of(*runs), estimand())
    assert found.by_seed == ((1, 0.0), (2, 50.0), (3, 75.0))  # seed 9 has no partner
    assert (found.value, found.seeds, found.unit, found.what) == (pytest.approx(125 / 3), 3, "points", "a less b")


def test_ratios_are_percent_from_the_mean_of_logarithms():
    runs = [run("a", s, [1], length=[[length]]) for s, length in enumerate((20, 40, 40))]
    runs += [run("b", s, [1], length=[[length]]) for s, length in enumerate((20, 20, 10))]
    found = measure(evidence_of(*runs), estimand(quantity="length", combine="ratio", unit="percent"))
    assert found.value == pytest.approx(100.0)  # 1, 2 and 4: the third root of 8 is 2
    assert [value for _, value in found.by_seed] == pytest.approx([0, 100, 300])


def test_a_control_is_found_by_its_label():
    runs = [
        make_run(s, "a", label=label, evaluations=evaluations([[r]]))
        for s in (1, 2, 3)
        for label, r in (("", 3), ("again", 2))
    ]
    found = measure(evidence_of(*runs), estimand(variants=["a", "a"], labels=["", "again"]))
    assert found.value == 25.0
    assert not found.has_interval  # the same in every seed


def test_what_was_not_run_is_nothing():
    runs = [run("a", s, [s]) for s in (1, 2, 3)]
    timed = [make_run(1, "b", role="timed")]
    assert measure(evidence_of(*runs, *timed), estimand()) is None
    assert measure_all(
        evidence_of(*runs), {"x": estimand(), "y": estimand(combine="value", variants=["a"])}
    ).keys() == {"y"}


def test_two_runs_are_read_where_they_have_generated_the_same():
    """`a` generates twice as much: at b's 200 tokens it is at its first evaluation, at 3/4; b ends at 2/4."""
    runs = [run("a", 1, [0, 3, 1], generated=[0, 200, 400]), run("b", 1, [0, 1, 2], generated=[0, 100, 200])]
    assert measure(evidence_of(*runs), estimand(cost="tokens")).value == 25.0
    assert measure(evidence_of(*runs), estimand(cost="updates")).value == -25.0  # both have made 20: 1/4 against 2/4
    half = [run("a", 1, [0, 3, 1], generated=[0, 100, 400]), run("b", 1, [0, 1, 2], generated=[0, 100, 200])]
    # 200 is a third of the way from 100 to 400: 3/4 - 1/3 * 2/4 = 58.3%, less 50%
    assert measure(evidence_of(*half), estimand(cost="tokens")).value == pytest.approx(25 / 3)


def test_two_runs_are_read_where_the_first_is_most_accurate():
    runs = [
        make_run(1, "a", evaluations=evaluations([[0, 0], [4, 4], [1, 1]], length=[[9, 9], [30, 50], [10, 10]])),
        make_run(1, "b", evaluations=evaluations([[0, 0], [1, 1], [4, 4]], length=[[9, 9], [80, 80], [20, 20]])),
    ]
    ratio = estimand(quantity="length_at_best", combine="ratio", cost="best")
    assert measure(evidence_of(*runs), ratio).value == pytest.approx(-50)  # 40 over 80
    assert measure(evidence_of(*runs), replace(ratio, cost="")).value == pytest.approx(100)  # 40 over 20


def test_more_problems_at_the_end_count_where_both_runs_end():
    """Of the problem that both have always, 1/4 and 2/4; with one more at the end 5/8 and 2/8."""

    def with_more(variant, right, more, generated):
        table = evaluations([[one] for one in right], generated=generated)
        last = {name: values[-1] for name, values in table.items()} | {"problem": 1, "right": more}
        return make_run(1, variant, evaluations={name: [*values, last[name]] for name, values in table.items()})

    runs = with_more("a", [0, 1], 4, [0, 200]), with_more("b", [0, 2], 0, [0, 100])
    assert measure(evidence_of(*runs), estimand(cost="updates")).value == 62.5 - 25
    assert measure(evidence_of(*runs), estimand(cost="tokens")).value == 12.5 - 50  # half of the way to 1/4


def timed(variant, seconds, training):
    """Return a timed run: a first rollout batch, which does not count, then 100 tokens collected and 50 trained on."""
    tables = {
        "batches": {"generated": [100, 100], "seconds": [9, seconds]},
        "updates": {"tokens_trained": [20, 30, 20, 30], "seconds": [9, 9, training / 2, training / 2]},
    }
    return make_run(1, variant, role="timed", **tables)


def test_two_runs_are_read_where_they_have_taken_the_same_seconds():
    """`a` has taken 0, 100 * .02 + 40 * .1 = 6 and 200 * .02 + 80 * .1 = 12 s."""

    def studied(variant, right):
        table = {"tokens_trained": [20, 20, 20, 20], "update": [5, 10, 15, 20]}
        points = evaluations([[r] for r in right], generated=[0, 100, 200])
        return make_run(1, variant, updates=table, evaluations=points, batches={"generated": [200]})

    clock = [timed("a", 2, 5), timed("b", 1, 5)]
    evidence = evidence_of(studied("a", [0, 2, 4]), studied("b", [0, 1, 1]), *clock)
    assert rates_of(evidence, "short", "a") == Rates(0.02, 0.1)
    # b: 200 * .01 + 80 * .1 = 10 s in all; `a` at 10 s is 2/3 of the way from 6 to 12 s: 50% + 2/3 * 50% - 25%
    assert measure(evidence, estimand(cost="seconds")).value == pytest.approx(50 + 100 / 3 - 25)
    seconds = estimand(quantity="seconds", combine="ratio", unit="percent")
    assert measure(evidence, seconds).value == pytest.approx(20.0)  # 12 s over 10 s
    alone = evidence_of(studied("a", [0, 2, 4]), studied("b", [0, 1, 1]), clock[0])
    assert measure(alone, estimand(cost="seconds")) is None
    assert measure(alone, estimand(cost="tokens")).value == 75.0


def test_speed_is_that_of_timed_runs():
    speed = estimand(quantity="tokens_per_second", combine="ratio", unit="percent")
    found = measure(evidence_of(timed("a", 2, 5), timed("b", 1, 5)), speed)
    assert found.value == pytest.approx(-50.0)
    assert math.isnan(found.low)  # one seed


def test_problems_that_all_seeds_share_are_a_sample_too():
    """Two problems, `a` less `b`: 50, 50, 25 and 25 points. One left out in turn the mean over seeds is 0 or 75, which makes
    37.5^2 = 1406.25; of a seed by itself 50^2 or 25^2, on average 1562.5. Of that each has for itself, as the spread over seeds
    has too, (1562.5 - 1406.25) / 3 = 52.08."""
    runs = [make_run(s, "a", evaluations=evaluations([[r, 0]])) for s, r in enumerate((4, 4, 2, 2))]
    runs += [make_run(s, "b", evaluations=evaluations([[0, 0]])) for s in range(4)]
    found = measure(evidence_of(*runs), estimand())
    assert found.value == 37.5 and found.other == pytest.approx(math.sqrt(1406.25 - 52.0833), rel=1e-4)
    spread = math.sqrt(4 * 12.5**2 / 3 / 4)  # of 50, 50, 25, 25
    assert found.high - found.value == pytest.approx(3.1824 * math.hypot(spread, found.other), rel=1e-4)


def test_timing_adds_what_methods_differ_by_that_sample_alike():
    """`b` collects a token in .01 s, `c` in .02 s: a standard deviation of log 2 / sqrt 2 = .490. Of seconds that all go into
    collecting, the logarithm of a / b moves by as much with the rate of each: sqrt 2 times .490 = log 2."""
    clock = [timed(name, seconds, 5) for name, seconds in (("b", 1), ("c", 2))]
    runs = [make_run(s, v, batches={"generated": [100 + s]}) for s in (1, 2, 3) for v in ("b", "c")]
    found = measure(
        evidence_of(*runs, *clock), estimand(variants=["b", "c"], quantity="seconds", combine="ratio", unit="percent")
    )
    assert found.other == pytest.approx(math.log(2), rel=1e-6)

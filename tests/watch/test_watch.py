"""A watch: evidence by hand and the laws that hold whatever is drawn; alarms, each once, thresholds, what cannot be, going on."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from fairlen import LengthWatch
from fairlen.audit.conclusion import conclude, within_log
from fairlen.watch.evidence import STAKES, EProcess, bound_mean, compare_groups
from fairlen.watch.page import make_log


def draw(rng, *, gap=1.0, scale=100.0, correct=0.5, prompts=16, size=8):
    """Prompts, lengths and outcomes of a step whose incorrect responses are `gap` times as long."""
    rows = np.repeat(np.arange(prompts), size)
    is_correct = rng.random(len(rows)) < correct
    length = np.exp(np.log(scale) + rng.normal(0, 0.5, len(rows)) + np.log(gap) * ~is_correct)
    return rows.tolist(), np.ceil(length), is_correct.astype(float)


def watch_steps(watch, steps, **changes):
    rng = np.random.default_rng(0)
    return [one for step in range(steps) for one in watch.add(*draw(rng, **changes), step=step)]


@pytest.mark.parametrize(("gap", "words"), [(1.5, ("longer", "+balanced")), (1 / 1.5, ("shorter",)), (1.0, ())])
def test_an_effect_is_told_once_with_its_size_as_the_audit_finds_it(gap, words):
    """The longer of a pair is the incorrect one with probability Phi(ln gap / sqrt(2 * .5^2)): .717 for 1.5 times."""
    watch = LengthWatch(method="dapo")
    alarms = [one for one in watch_steps(watch, 60, gap=gap) if one.kind == "effect"]
    assert len(alarms) == bool(words)
    for one in alarms:
        low, high = one.interval
        truth = {"length": gap - 1, "pairs": NormalDist().cdf(np.log(gap) / 0.5**0.5) - 0.5}[one.quantity]
        assert low <= one.size <= high and low < truth < high and not low <= 0.0 <= high
        assert one.since <= one.step and all(word in one.text for word in (*words, "not a cause"))
    assert conclude(within_log(make_log(watch.steps, watch.kept))).status == ("effect" if words else "none")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lengths", 1.5),
        ("lengths", 1e30),
        ("lengths", "long"),
        ("outcomes", 1e300),
        ("outcomes", "good"),
        ("truncated", "no"),
    ],
)
def test_a_column_that_cannot_be_is_refused_by_its_name(name, value):
    columns = {"lengths": [3, 4], "outcomes": [0, 1], "truncated": [0, 0]} | {name: [value] * 2}
    with pytest.raises(ValueError, match=rf"^{name}.*: give "):
        LengthWatch().add(["a", "a"], columns["lengths"], columns["outcomes"], truncated=columns["truncated"])


def test_prompts_may_be_messages():
    prompts, watch = [[{"role": "user", "content": text}] for text in "aab"], LengthWatch()
    watch.add(prompts, [3, 4, 5], [0, 1, 1])
    assert watch.steps[0].size == 3


def test_an_empty_response_counts_as_one_token_in_the_alarms_as_on_the_page():
    """A correct response of 2 tokens and an incorrect one of none: 1 token, ln 2 shorter, and by rank in all of one pair."""
    watch = LengthWatch()
    watch.add(["a", "a"], [2, 0], [1, 0])
    np.testing.assert_allclose(watch.evidence.groups, [[[0.5, -math.log(2), -0.5]]])
    log = make_log(watch.steps, watch.kept)
    assert log.responses.active.tolist() == [True, True] and watch.steps[0].length == log.responses.length.mean() == 1.5


def test_a_trend_of_both_raises_none():
    watch, rng = LengthWatch(), np.random.default_rng(0)
    for step in range(100):
        watch.add(*draw(rng, scale=100 + 0.8 * step, correct=0.3 + 0.004 * step), step=step)
    assert watch.alarms == []


def test_a_sampler_that_selects_by_length_is_not_tested():
    watch = LengthWatch(exchangeable=False)
    assert "effect" not in {one.kind for one in watch_steps(watch, 60, gap=2.0)}
    assert watch.summary()["effect"] == "not tested"


@pytest.mark.parametrize(
    ("kind", "later"),
    [
        ("truncation", {"truncated": 0.5}), ("length", {"scale": 300}), ("length", {"scale": 30}), ("signal", {"correct": 1.0}),
        ("verdicts", {"missing": 0.3}), ("staleness", {"stale": True}),
    ],
)  # fmt: skip
def test_a_threshold_is_crossed_and_told_once(kind, later):
    watch, rng, told = LengthWatch(), np.random.default_rng(0), []
    for step in range(12):
        changes = later if step >= 5 else {}
        prompts, lengths, outcomes = draw(rng, **{k: v for k, v in changes.items() if k in ("scale", "correct")})
        outcomes = np.where(rng.random(len(outcomes)) < changes.get("missing", 0), np.nan, outcomes)
        cut = rng.random(len(outcomes)) < changes.get("truncated", 0.02)
        age = np.argsort(np.argsort(lengths)) // 32 if changes.get("stale") else np.zeros(len(lengths))
        told += watch.add(prompts, lengths, outcomes, truncated=cut, age=age, step=step)
    assert [one.kind for one in told] == [kind]
    assert told[0].interval is None and told[0].since == 5 and "threshold" in told[0].text


def test_a_share_of_prompts_is_told_where_enough_have_it():
    """All responses to each of 4 prompts a step have one outcome: 12 prompts of 3 steps say little, 32 are there after 8."""
    watch, prompts = LengthWatch(), np.arange(16) // 4
    told = [watch.add(prompts, np.full(16, 50), prompts % 2, step=step) for step in range(8)]
    assert [one.step for some in told for one in some] == [7] and "the mean of 8 steps" in told[-1][0].text
    alone, kinds = LengthWatch(), ("signal",)
    assert not [one for step in range(40) for one in alone.add([step], [50], [1.0], step=step) if one.kind in kinds]


def test_a_gradual_change_began_where_a_quarter_of_it_was_made():
    # (200 + 170 + 160) / 3 = 177 is 0.44 of 400; a quarter of the way, 400 * 0.44 ** 0.25 = 326, lies between 360 and 300.
    watch, told = LengthWatch(kinds=("length",)), []
    for length in (400, 400, 400, 400, 360, 300, 240, 200, 170, 160):
        told += watch.add(range(8), [length] * 8, [1, 0] * 4)
    assert [(one.step, one.since) for one in told] == [(9, 5)]


def test_the_channel_that_grew_is_named():
    """Thinking from 40 to 160 tokens beside an answer of 60: 2.2 times as long; a channel alone raises nothing."""
    watch, told = LengthWatch(), []
    for step in range(8):
        thinking = np.full(32, 160.0 if step >= 4 else 40.0)
        channels = {"thinking": thinking, "answer": np.full(32, 60.0), "observation": np.full(32, 1000.0 * step)}
        told += watch.add(np.arange(32) // 4, thinking + 60, np.arange(32) % 2, channels=channels)
    assert [one.kind for one in told] == ["length"] and told[0].size == pytest.approx(2.2) and told[0].step == 6
    assert "thinking" in told[0].text and "observation" not in told[0].text


def test_the_weight_under_the_method_in_use():
    # Under a mean over each response a token weighs 1 / length: lognormal lengths of standard deviation .5 have outer quarters
    # 3.6 times as long as each other, exp(2 * 1.27 * .5); under one constant for all tokens none weighs more.
    assert "weight" in {one.kind for one in watch_steps(LengthWatch(method="grpo"), 5)}
    assert "weight" not in {one.kind for one in watch_steps(LengthWatch(method="dr_grpo"), 5)}


def test_keys_of_any_kind_and_channels_of_a_batch_that_counts_once():
    watch, (prompts, lengths, outcomes) = LengthWatch(), draw(np.random.default_rng(0))
    for _ in range(2):  # iterations over one batch
        channels = {"thinking": lengths - 1, "answer": np.ones_like(lengths)}
        watch.add([("problem", one) for one in prompts], lengths, outcomes, channels=channels, step=4)
    assert watch.summary()["responses"] == 128
    assert watch.summary()["last"]["channels"]["thinking"] == pytest.approx(lengths.mean() - 1)


def test_prompts_of_many_tokens_differ_by_any_of_them():
    """Two arrays that differ at token 1,000 of 2,000: two prompts of one response each, of which none is compared."""
    token_ids, watch = np.zeros((2, 2000), int), LengthWatch()
    token_ids[1, 1000] = 1
    watch.add(token_ids, [3, 4], [0, 1])
    assert len(np.unique(watch.kept[0][:, 0])) == 2 and np.isnan(watch.steps[0].idle)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [1.0]}, ("lengths", "[1]", "[2]")), ({"lengths": [1.0, -2.0]}, ("lengths[1]", "-2")),
        ({"outcomes": [1.0, np.inf]}, ("outcomes[1]", "nan")), ({"age": [0, np.nan]}, ("age[1]",)),
        ({"step": -1}, ("step=-1", "at least 0")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(change, words):
    with pytest.raises(ValueError) as error:
        LengthWatch().add(**{"prompts": [0, 0], "lengths": [3, 4], "outcomes": [0, 1]} | change)
    assert all(word in str(error.value) for word in words)
    for settings in ({"error": 0.0}, {"smallest_length": 2.0}, {"method": "dappo"}):
        with pytest.raises(ValueError, match=r"error|smallest_length|dapo"):
            LengthWatch(**settings)


def test_a_watch_goes_on_from_json_as_if_nothing_had_happened(tmp_path):
    whole, first, second = (LengthWatch(method="dapo") for _ in range(3))
    rng = np.random.default_rng(0)
    for step in range(40):
        one = draw(rng, gap=1.4)
        whole.add(*one, step=step)
        (first if step < 30 else second).add(*one, step=step)
        if step == 29:
            second.restore(json.loads(json.dumps(first.state())))
    assert json.dumps(second.state()) == json.dumps(whole.state()) and second.alarms == whole.alarms != []
    page = second.page(tmp_path / "page.html").read_text()
    assert "Alarms" in page and "longer than correct ones" in page


def test_statistics_of_a_group_by_hand():
    # Lengths 10, 20 correct and 20, 40 incorrect, median 20. Pairs worse - better: ln 2, ln 4, 0, ln 2; mean ln 2.
    # The worse one is longer in 3 of 4 pairs and ties in 1: (3 + .5) / 4 - .5 = .375. Weight 2 * 2 / 4 = 1.
    _, found = compare_groups(np.zeros(4, int), np.array([1.0, 1.0, 0.0, 0.0]), np.array([10, 20, 20, 40]))
    np.testing.assert_allclose(found, [[1.0, math.log(2), 0.375]], rtol=1e-12)
    assert len(compare_groups(np.array([0, 0, 1]), np.array([1.0, 1.0, 0.0]), np.array([5, 9, 7]))[1]) == 0
    # 1 and 10,000 around the median 100: both count as a nat away, so that the incorrect one is 2 longer, not ln 10,000
    _, found = compare_groups(np.zeros(3, int), np.array([1.0, 0.0, 0.0]), np.array([1, 10_000, 100]))
    assert found[0, 1] == pytest.approx((2 + 1) / 2)


def test_the_first_steps_wealth_by_hand():
    # One group of weight 1 whose statistics are both .5. At step 1 half of the capital is staked, 1 / (1 * 2).
    # Of pairs: .5 * (1 + s (.5 - .05)); of lengths: .5 * (1 + s (.5 - ln 1.1)); half stays idle.
    one = EProcess()
    one.add(np.array([[1.0, 0.5, 0.5]]))
    margins, most = np.array([math.log(1.1), 0.05]), 0.95 / (np.array([2.0, 0.5]) + np.array([math.log(1.1), 0.05]))
    grown = [0.5 * (1 + np.minimum(STAKES, most[k]) * (0.5 - margins[k])) for k in range(2)]
    assert one.measure(0) == pytest.approx(np.mean(grown) + 0.5, rel=1e-12)


def test_capital_grows_by_no_more_than_it_should():
    """The mean e-value of many runs at the edge of the hypothesis is at most 1: Ville's inequality rests on it."""
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        one = EProcess()
        for _ in range(10):
            shares = np.where(rng.random(8) < 0.55, 0.5, -0.5)  # of mean .05, the margin
            one.add(np.column_stack([np.ones(8), np.zeros(8), shares]))
        found.append(one.measure(0))
    assert np.mean(found) < 1 + 3 * np.std(found) / math.sqrt(len(found))


def test_an_effect_is_found_with_its_onset_and_size():
    rng, one = np.random.default_rng(1), EProcess()
    for step in range(100):
        mean = 0.2 if step >= 40 else 0.0
        one.add(np.column_stack([np.full(16, 2.0), rng.normal(mean, 0.2, (16, 2)).clip(-0.5, 0.5)]))
    assert one.measure(0) > 1e6 and one.measure(1) < 1 and abs(one.find_onset(0) - 40) <= 2
    order = one.find(0, 0.025)["order"]
    assert order.low < 0.2 < order.high < order.low + 0.1 and one.find(1, 0.025) == {}


@pytest.mark.slow
def test_bounds_cover_one_mean_at_every_time():
    """At least 95% of sequences lie on the truth at all of 30 looks: of 60 at that rate 7 or more miss with probability 3%."""
    rng, missed = np.random.default_rng(2), 0
    for mean in (-0.2, 0.0, 0.3) * 20:
        x = rng.normal(mean, 0.15, 300).clip(-0.5, 0.5)
        looks = (bound_mean(np.ones(n), x[:n], 0.5, math.log(2 / 0.05)) for n in range(10, 301, 10))
        missed += any(not found.low <= mean <= found.high for found in looks)
    assert missed <= 6


def test_what_is_no_state_and_channels_that_do_not_sum_are_refused():
    """Nothing is taken of either: 2 of 3 tokens are thinking, and nobody says what the third is."""
    watch = LengthWatch()
    for state in ({"a": 1}, {"steps": [{"x": 1}], "groups": [""], "kept": []}):
        with pytest.raises(ValueError, match="give what state"):
            watch.restore(state)
    with pytest.raises(ValueError, match="channels that sum to `lengths`"):
        watch.add(["q"], [3], [1], channels={"thinking": [2]})
    assert watch.summary()["steps"] == 0

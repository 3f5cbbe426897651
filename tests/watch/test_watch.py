"""A watch as its users call it: alarms, each once, thresholds, what cannot be, and going on."""

import json
from statistics import NormalDist

import numpy as np
import pytest

from fairlen import LengthWatch
from fairlen.audit.conclusion import conclude, within_log
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
    assert told[0].interval is None and 5 <= told[0].since <= told[0].step and "threshold" in told[0].text


def test_the_weight_under_the_method_in_use():
    # Under a mean over each response a token weighs 1 / length: lognormal lengths of standard deviation .5 have outer quarters
    # 3.6 times as long as each other, exp(2 * 1.27 * .5); under one constant for all tokens none weighs more.
    assert "weight" in {one.kind for one in watch_steps(LengthWatch(method="grpo"), 5)}
    assert "weight" not in {one.kind for one in watch_steps(LengthWatch(method="dr_grpo"), 5)}


def test_keys_of_any_kind_and_channels_of_a_batch_that_counts_once():
    watch, (prompts, lengths, outcomes) = LengthWatch(), draw(np.random.default_rng(0))
    for _ in range(2):  # iterations over one batch
        watch.add([("problem", one) for one in prompts], lengths, outcomes, channels={"thinking": lengths - 1}, step=4)
    assert watch.summary()["responses"] == 128
    assert watch.summary()["last"]["channels"]["thinking"] == pytest.approx(lengths.mean() - 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [1.0]}, ("lengths", "[1]", "[2]")), ({"lengths": [1.0, -2.0]}, ("lengths[1]", "-2")),
        ({"outcomes": [1.0, np.inf]}, ("outcomes[1]", "nan")), ({"age": [0, np.nan]}, ("age[1]",)),
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

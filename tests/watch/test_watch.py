"""A watch as its users call it: alarms, each once, thresholds, what cannot be, and going on."""

import json

import numpy as np
import pytest

from fairlen import LengthWatch


def draw(rng, *, gap=1.0, scale=100, correct=0.5, prompts=16, size=8):
    """Prompts, lengths and outcomes of a step whose incorrect responses are `gap` times as long."""
    rows = np.repeat(np.arange(prompts), size)
    is_correct = rng.random(len(rows)) < correct
    length = np.exp(np.log(scale) + rng.normal(0, 0.5, len(rows)) + np.log(gap) * ~is_correct)
    return rows.tolist(), np.ceil(length), is_correct.astype(float)


def watch_steps(watch, steps, **changes):
    rng = np.random.default_rng(0)
    return [one for step in range(steps) for one in watch.add(*draw(rng, **changes), step=step)]


def test_an_effect_is_told_once_with_its_size_and_what_to_do():
    alarms = watch_steps(LengthWatch(method="dapo"), 60, gap=1.5)
    (one,) = [one for one in alarms if one.kind == "effect"]
    assert 0.2 < one.size < 0.6 and one.interval[0] <= one.size <= one.interval[1]
    assert one.since is not None and one.since <= one.step
    assert "longer" in one.text and "not a cause" in one.text and "+balanced" in one.text


def test_the_other_direction():
    (one,) = [one for one in watch_steps(LengthWatch(), 60, gap=1 / 1.5) if one.kind == "effect"]
    assert one.size < 0 and "shorter" in one.text


def test_no_effect_raises_none_and_neither_does_a_trend_of_both():
    watch, rng = LengthWatch(), np.random.default_rng(0)
    for step in range(100):
        watch.add(*draw(rng, scale=100 + 0.8 * step, correct=0.3 + 0.004 * step), step=step)
    assert [one.kind for one in watch.alarms] == []


def test_a_sampler_that_selects_by_length_is_not_tested():
    watch = LengthWatch(exchangeable=False)
    assert not [one for one in watch_steps(watch, 60, gap=2.0) if one.kind == "effect"]
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
    # Under a mean over each response a token weighs 1 / length: lognormal lengths of standard deviation .5 have tails
    # of more than 3 times; under one constant for all tokens none.
    assert "weight" in {one.kind for one in watch_steps(LengthWatch(method="grpo"), 5)}
    assert "weight" not in {one.kind for one in watch_steps(LengthWatch(method="dr_grpo"), 5)}


def test_iterations_over_one_batch_count_once():
    watch, step = LengthWatch(), draw(np.random.default_rng(0))
    watch.add(*step, step=4)
    watch.add(*step, step=4)
    assert watch.summary()["responses"] == 128


def test_channels_and_prompts_of_any_kind():
    watch = LengthWatch()
    prompts, lengths, outcomes = draw(np.random.default_rng(0))
    keys = [("problem", one) for one in prompts]
    watch.add(keys, lengths, outcomes, channels={"thinking": lengths - 1})
    assert watch.summary()["last"]["channels"]["thinking"] == pytest.approx(lengths.mean() - 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [1.0]}, ("lengths", "[1]", "[2]")), ({"lengths": [1.0, -2.0]}, ("lengths[1]", "-2")),
        ({"outcomes": [1.0, np.inf]}, ("outcomes[1]", "nan")), ({"age": [0, np.nan]}, ("age[1]",)),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_named(change, words):
    given = {"prompts": [0, 0], "lengths": [3, 4], "outcomes": [0, 1]} | change
    with pytest.raises(ValueError) as error:
        LengthWatch().add(**given)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("change", [{"error": 0.0}, {"smallest_length": 2.0}, {"method": "dappo"}])
def test_settings_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError, match=r"error|smallest_length|dapo"):
        LengthWatch(**change)


def test_a_watch_goes_on_from_json_as_if_nothing_had_happened(tmp_path):
    whole, first, second = (LengthWatch(method="dapo") for _ in range(3))
    rng = np.random.default_rng(0)
    steps = [draw(rng, gap=1.4) for _ in range(40)]
    for step, one in enumerate(steps):
        whole.add(*one, step=step)
    for step, one in enumerate(steps[:20]):
        first.add(*one, step=step)
    second.restore(json.loads(json.dumps(first.state())))
    for step, one in enumerate(steps[20:], 20):
        second.add(*one, step=step)
    assert json.dumps(second.state()) == json.dumps(whole.state())
    page = second.page(tmp_path / "page.html").read_text()
    assert "Alarms" in page and "longer than correct ones" in page


def test_watch_and_audit_of_one_log_agree():
    """Both call it an effect where it is 1.5 times, and none where there is none, by the same margins."""
    from fairlen.audit.conclusion import conclude, within_log

    for gap, status in ((1.5, "effect"), (1.0, "none")):
        watch = LengthWatch()
        watch_steps(watch, 60, gap=gap)
        assert conclude(within_log(watch.history.log())).status == status
        assert ("effect" in {one.kind for one in watch.alarms}) == (status == "effect")

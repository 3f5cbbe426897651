"""The watch: evidence by hand, alarms, thresholds, late rows, resuming, and its page."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from fairlen import LengthWatch
from fairlen.audit.conclusion import conclude, within_log
from fairlen.watch.evidence import CLIPPED, ORDER, STAKES, EProcess, compare_groups
from fairlen.watch.page import make_log
from fairlen.watch.thresholds import THRESHOLDS


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
def test_an_effect_is_raised_once_with_its_size_as_the_audit_estimates_it(gap, words):
    """The longer of a pair is the incorrect one with probability Phi(ln gap / sqrt(2 * .5^2)): .717 for 1.5 times."""
    watch = LengthWatch(method="dapo")
    alarms = [alarm for alarm in watch_steps(watch, 60, gap=gap) if alarm.kind == "effect"]
    assert len(alarms) == bool(words)
    for alarm in alarms:
        low, high = alarm.interval
        truth = {"length": gap - 1, "pairs": NormalDist().cdf(np.log(gap) / 0.5**0.5) - 0.5}
        assert low <= alarm.size <= high and low < truth[alarm.quantity] < high and not low <= 0.0 <= high
        _, order_low, order_high = alarm.sequences["order"]
        assert order_low < truth["pairs"] < order_high
        assert alarm.since <= alarm.step and all(word in alarm.text for word in (*words, "not a cause"))
    assert conclude(within_log(make_log(watch.steps, watch.kept))).status == ("effect" if words else "none")


def test_the_size_is_the_audits_of_unclipped_lengths():
    """Lengths whose logs spread by 1: clipping at a nat would show less than the audit does. Both see the same 40 steps."""
    rng, watch, sizes = np.random.default_rng(3), LengthWatch(), []
    for _ in range(40):
        prompts = np.repeat(np.arange(16), 8)
        is_correct = rng.random(128) < 0.5
        lengths = np.exp(5 + rng.normal(0, 1.0, 128) + math.log(2.0) * ~is_correct).astype(int) + 1
        watch.add(prompts, lengths, is_correct)
    sizes = watch.evidence.estimate_sizes(0)
    audit = within_log(make_log(watch.steps, watch.kept))
    assert sizes.raw_gap.value == pytest.approx(audit.gap.value) and sizes.order.value == pytest.approx(
        audit.order.value
    )
    assert sizes.clipped_gap.value < 0.8 * audit.gap.value
    low, high = audit.gap.interval()
    assert sizes.raw_gap.low < low < high < sizes.raw_gap.high  # it holds at every look, so it is wider


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
    sizes = watch.evidence.estimate_sizes(0)
    assert (sizes.raw_gap.value, sizes.order.value) == (pytest.approx(-math.log(2)), -0.5)
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


def test_a_share_of_prompts_needs_32_prompts():
    """All responses to each of 4 prompts per step have one outcome: 12 prompts of 3 steps are too few, 32 exist after 8."""
    watch, prompts = LengthWatch(), np.arange(16) // 4
    alarms = [alarm for step in range(1, 9) for alarm in watch.add(prompts, np.full(16, 50), prompts % 2, step=step)]
    assert [(alarm.kind, alarm.step) for alarm in alarms] == [("signal", 8)] and "last 8 steps" in alarms[0].text
    single = LengthWatch()  # one response per prompt: nothing is compared, so nothing is known
    assert not [alarm for step in range(1, 100) for alarm in single.add([step], [50], [1.0], step=step)]


@pytest.mark.parametrize(("num_truncated", "is_raised"), [(9, True), (8, False)])
def test_a_clear_share_needs_few_prompts(num_truncated, is_raised):
    """12 prompts in 3 steps. A healthy share of .1 has a standard error of at most sqrt(.1 * .9 / 12) = .087 over them, so a
    share above .1 + 5 * .087 = .53 crosses: 9 of 16 does, 8 of 16 does not."""
    watch, prompts = LengthWatch(kinds=("truncation",)), np.arange(16) // 4
    for _ in range(3):
        watch.add(prompts, np.full(16, 50), prompts % 2, truncated=np.arange(16) < num_truncated)
    assert [alarm.step for alarm in watch.alarms] == [3] * is_raised


def test_a_change_of_length_within_noise_raises_no_alarm():
    """64 prompts of one response per step. One of 12,000 tokens and 63 of 50 have a mean of 237, 4.7 times the 50 before, and a
    standard error of 187; over three steps 187 / sqrt(3) / 237 = .46 of the mean. 5 * .46 is more than ln 4.7 = 1.55, so this may
    be noise. 64 responses of 237 tokens have no error."""
    for lengths, num_alarms in (([12_000] + [50] * 63, 0), ([237] * 64, 1)):
        watch, alarms = LengthWatch(kinds=("length",)), []
        for values in ([50] * 64, [50] * 64, [50] * 64, lengths, lengths, lengths):
            alarms += watch.add(range(64), values, [1, 0] * 32)
        assert len(alarms) == num_alarms


@pytest.mark.parametrize("settings", [{"prompts": 4, "size": 4}, {"prompts": 2, "size": 8}], ids=str)
def test_a_healthy_run_of_small_batches_raises_no_threshold(settings):
    watch, rng = LengthWatch(kinds=THRESHOLDS, keep=False), np.random.default_rng(0)
    for _ in range(200):
        prompts, lengths, outcomes = draw(rng, **settings)
        watch.add(prompts, lengths, outcomes, truncated=lengths > np.quantile(lengths, 0.95))
    assert watch.alarms == []


def test_a_gradual_change_began_after_a_quarter_of_it():
    # (200 + 170 + 160) / 3 = 177 is 0.44 of 400; a quarter of the way, 400 * 0.44 ** 0.25 = 326, lies between 360 and 300.
    watch, alarms = LengthWatch(kinds=("length",)), []
    for length in (400, 400, 400, 400, 360, 300, 240, 200, 170, 160):
        alarms += watch.add(range(32), [length] * 32, [1, 0] * 16)
    assert [(alarm.step, alarm.since) for alarm in alarms] == [(10, 6)]


def test_the_channel_that_grew_is_named():
    """Thinking from 40 to 160 tokens next to an answer of 60: 2.2 times as long; a channel alone raises no alarm."""
    watch, alarms = LengthWatch(), []
    for step in range(1, 9):
        thinking = np.full(96, 160.0 if step >= 5 else 40.0)
        channels = {"thinking": thinking, "answer": np.full(96, 60.0), "observation": np.full(96, 1000.0 * step)}
        alarms += watch.add(np.arange(96) // 4, thinking + 60, np.arange(96) % 2, channels=channels)
    assert (
        [alarm.kind for alarm in alarms] == ["length"] and alarms[0].size == pytest.approx(2.2) and alarms[0].step == 7
    )
    assert "thinking: 40 → 160" in alarms[0].text and "observation" not in alarms[0].text


def test_the_weight_under_the_method_in_use():
    # Under a mean over each response a token weighs 1 / length: lognormal lengths of standard deviation .5 have outer quarters
    # 3.6 times as long as each other, exp(2 * 1.27 * .5); under one constant for all tokens none weighs more.
    assert "weight" in {one.kind for one in watch_steps(LengthWatch(method="grpo"), 5)}
    assert "weight" not in {one.kind for one in watch_steps(LengthWatch(method="dr_grpo"), 5)}


def test_a_batch_that_is_added_again_counts_once():
    watch, (prompts, lengths, outcomes) = LengthWatch(), draw(np.random.default_rng(0))
    for _ in range(2):  # iterations over one batch
        channels = {"thinking": lengths - 1, "answer": np.ones_like(lengths)}
        watch.add([("problem", one) for one in prompts], lengths, outcomes, channels=channels, step=4)
    assert watch.summary()["responses"] == 128 and watch.num_late == 0
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


def test_steps_count_from_1():
    watch = LengthWatch()
    for _ in range(2):
        watch.add([0, 0], [3, 4], [0, 1])
    assert [step.number for step in watch.steps] == [1, 2]


def test_late_rows_are_counted_and_raise_an_alarm_if_they_are_many():
    """3 steps of 64 responses, 16 prompts each. Of step 2, 8 more come after step 3: 8 / (192 + 8) = 4% is below 10%; 16 more
    make 24 / (192 + 24) = 11%. The standard error without missing verdicts is 0, so the alarm needs no more."""
    watch, rng = LengthWatch(), np.random.default_rng(0)
    steps = [draw(rng, size=16, prompts=4) for _ in range(3)]
    for lengths in steps:
        assert watch.add(*lengths) == []
    assert watch.add(*steps[1], step=2) == [] and watch.num_late == 0  # the same batch again is not late

    def add_late(number):
        return watch.add([0] * number, [500] * number, [0] * number, step=2)

    state = watch.summary()["responses"], watch.evidence.find_evalue(0)
    assert add_late(8) == [] and watch.num_late == 8
    assert [note for note in watch.notes if "arrived after" in note] == watch.notes and len(watch.notes) == 1
    add_late(16)
    assert watch.num_late == 24 and len(watch.notes) == 1
    assert (watch.summary()["responses"], watch.evidence.find_evalue(0)) == state  # they are not part of the statistics
    for _ in range(3):
        watch.add(*draw(rng, size=4, prompts=32))
    assert "verdicts" not in {alarm.kind for alarm in watch.alarms[1:]}


def test_late_rows_of_many_prompts_raise_the_alarm_at_once():
    """3 steps of 32 prompts with 4 responses: 384. 50 late ones are 50 / 434 = 11.5%, all longer than those that counted."""
    watch, rng = LengthWatch(), np.random.default_rng(0)
    for _ in range(3):
        watch.add(*draw(rng, size=4, prompts=32))
    assert watch.add([0] * 40, [500] * 40, [0] * 40, step=2) == []  # 40 / 424 = 9.4%
    (alarm,) = watch.add([1] * 10, [500] * 10, [0] * 10, step=3)
    assert alarm.kind == "verdicts" and alarm.size == pytest.approx(50 / 434) and "50 of them" in alarm.text
    assert watch.add([1] * 10, [500] * 10, [0] * 10, step=3) == []  # each kind once


def test_restoring_replaces_what_the_watch_saw():
    """A watch at step 30 goes back to the state of step 10, as a trainer that resumes in one process does."""
    watch, again = LengthWatch(), LengthWatch()
    rng = np.random.default_rng(0)
    batches = [draw(rng, gap=1.2) for _ in range(30)]
    for step, batch in enumerate(batches, 1):
        watch.add(*batch)
        if step == 10:
            state = json.loads(json.dumps(watch.state()))
    end = json.dumps(watch.state())
    for _ in range(2):
        watch.restore(state)
        for batch in batches[10:]:
            watch.add(*batch)
        assert json.dumps(watch.state()) == end and len(watch.steps) == 30
    watch.restore({})
    assert json.dumps(watch.state()) == json.dumps(again.state())


def test_a_new_run_of_one_object_is_a_new_watch():
    watch = LengthWatch()
    watch_steps(watch, 10, gap=2.0)
    assert watch.alarms
    watch.reset()
    assert watch.alarms == [] and watch.kept == [] and watch_steps(watch, 10, gap=2.0) != []


def test_kept_responses_are_bounded_and_whole_prompts(tmp_path):
    """128 responses per step, 30 steps, at most 1,000 kept: 3,840 have to be halved twice, and whole groups of 8 remain."""
    watch = LengthWatch(max_kept=1000)
    watch_steps(watch, 30)
    kept = sum(map(len, watch.kept))
    assert 500 < kept <= 1000 and watch.kept_share == 0.25
    for rows in watch.kept:
        assert all(np.unique(rows[:, 0], return_counts=True)[1] == 8)
    text = watch.page(tmp_path / "page.html").read_text()
    assert f"{kept:,} of 3,840 responses" in text
    restored = LengthWatch(max_kept=1000)
    restored.restore(json.loads(json.dumps(watch.state())))
    for one in (watch, restored):
        one.add(*draw(np.random.default_rng(5)))
    assert json.dumps(restored.state()) == json.dumps(watch.state())


def test_the_page_leads_with_its_alarms_and_says_the_verdict_once(tmp_path):
    watch = LengthWatch(method="dapo")
    watch_steps(watch, 40, gap=1.5)
    text = watch.page(tmp_path / "page.html").read_text()
    (alarm,) = watch.alarms
    clause = conclude(within_log(make_log(watch.steps, watch.kept))).sentence.partition("]")[0]
    verdict = clause.removeprefix("incorrect responses ")
    assert text.index(f"Alarm: effect, step {alarm.step}") < text.index('id="watch-length"') < text.index(verdict)
    assert text.count(verdict) == 1
    assert 'id="watch-correct"' in text and "moves from step to step" in text


def test_a_watch_continues_from_json_as_if_nothing_had_happened(tmp_path):
    whole, first, second = (LengthWatch(method="dapo") for _ in range(3))
    rng = np.random.default_rng(0)
    for step in range(1, 41):
        batch = draw(rng, gap=1.4)
        whole.add(*batch, step=step)
        (first if step <= 30 else second).add(*batch, step=step)
        if step == 30:
            second.restore(json.loads(json.dumps(first.state())))
    assert json.dumps(second.state()) == json.dumps(whole.state()) and second.alarms == whole.alarms != []
    page = second.page(tmp_path / "page.html").read_text()
    assert "Alarms" in page and "longer than correct ones" in page


def test_statistics_of_a_group_by_hand():
    # Lengths 10, 20 correct and 20, 40 incorrect, median 20. Pairs worse - better: ln 2, ln 4, 0, ln 2; mean ln 2.
    # The worse one is longer in 3 of 4 pairs and ties in 1: (3 + .5) / 4 - .5 = .375. Weight 2 * 2 / 4 = 1.
    _, found = compare_groups(np.zeros(4, int), np.array([1.0, 1.0, 0.0, 0.0]), np.array([10, 20, 20, 40]))
    np.testing.assert_allclose(found, [[1.0, math.log(2), 0.375, math.log(2)]], rtol=1e-12)
    assert len(compare_groups(np.array([0, 0, 1]), np.array([1.0, 1.0, 0.0]), np.array([5, 9, 7]))[1]) == 0
    # 1 and 10,000 around the median 100: both count as a nat away, so the incorrect one is 2 longer, not ln 10,000. The order
    # and the raw gap use the lengths themselves: 200 and 400, clipped to the same length, are a pair with a longer one.
    _, found = compare_groups(np.zeros(3, int), np.array([1.0, 0.0, 0.0]), np.array([1, 10_000, 100]))
    np.testing.assert_allclose(found[0, 1:], [(2 + 1) / 2, 0.5, (math.log(10_000) + math.log(100)) / 2])
    _, found = compare_groups(np.zeros(5, int), np.array([1.0, 0, 1, 1, 1]), np.array([200, 400, 10, 10, 10]))
    assert found[0, CLIPPED] == pytest.approx(3 / 4) and found[0, ORDER] == 0.5


def test_the_first_steps_wealth_by_hand():
    # One group of weight 1 whose statistics are both .5. At step 1 half of the capital is staked, 1 / (1 * 2).
    # Of pairs: .5 * (1 + s (.5 - .05)); of lengths: .5 * (1 + s (.5 - ln 1.1)); half stays idle.
    one = EProcess()
    one.add_step(np.array([[1.0, 0.5, 0.5, 0.5]]))
    margins, most = np.array([math.log(1.1), 0.05]), 0.95 / (np.array([2.0, 0.5]) + np.array([math.log(1.1), 0.05]))
    grown = [0.5 * (1 + np.minimum(STAKES, most[k]) * (0.5 - margins[k])) for k in range(2)]
    assert one.find_evalue(0) == pytest.approx(np.mean(grown) + 0.5, rel=1e-12)


def test_capital_grows_by_no_more_than_it_should():
    """The mean e-value of many runs at the edge of the hypothesis is at most 1: Ville's inequality rests on it."""
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        one = EProcess()
        for _ in range(10):
            shares = np.where(rng.random(8) < 0.55, 0.5, -0.5)  # of mean .05, the margin
            one.add_step(np.column_stack([np.ones(8), np.zeros(8), shares, np.zeros(8)]))
        found.append(one.find_evalue(0))
    assert np.mean(found) < 1 + 3 * np.std(found) / math.sqrt(len(found))


def test_an_effect_is_found_with_its_onset_and_size():
    rng, evidence = np.random.default_rng(1), EProcess()
    for step in range(100):
        mean = 0.2 if step >= 40 else 0.0
        values = rng.normal(mean, 0.2, (16, 2)).clip(-0.5, 0.5)
        evidence.add_step(np.column_stack([np.full(16, 2.0), values, values[:, 0]]))
    assert evidence.find_evalue(0) > 1e6 and evidence.find_evalue(1) < 1 and abs(evidence.find_onset(0) - 40) <= 2
    onset, sizes = evidence.detect(0, 0.025)
    assert onset == evidence.find_onset(0) and evidence.detect(1, 0.025) is None
    for size in (sizes.raw_gap, sizes.order, sizes.clipped_gap):
        assert size.low < 0.2 < size.high and size.value == pytest.approx(0.2, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["same", "differ"])
def test_sequences_cover_the_mean_at_every_look(values):
    """At least 95% of sequences contain the mean expected value of the groups so far at all of 30 looks; of 60 at that rate 7 or
    more miss with probability 3%. It also holds if the expected values differ: .3 in the first half of the groups, then -.1."""
    rng, num_missed = np.random.default_rng(2), 0
    for _ in range(60):
        evidence, is_missed = EProcess(), False
        expected = np.full(300, 0.2) if values == "same" else np.repeat([0.3, -0.1], 150)
        for start in range(0, 300, 10):
            x = rng.normal(expected[start : start + 10], 0.15).clip(-0.5, 0.5)
            evidence.add_step(np.column_stack([np.ones(10), x, x, x]))
            sizes, mean = evidence.estimate_sizes(0), expected[: start + 10].mean()
            is_missed |= any(size.excludes(mean) for size in (sizes.clipped_gap, sizes.order))
        num_missed += is_missed
    assert num_missed <= 6


def test_wrong_states_and_channels_that_do_not_sum_are_refused():
    """The watch does not change in either case. 2 of 3 tokens are thinking, and the third has no channel."""
    watch = LengthWatch()
    for state in (
        {"a": 1},
        watch.state() | {"steps": [{"x": 1}]},
        watch.state() | {"kept": [""]},
        watch.state() | {"evidence": {}},
    ):
        with pytest.raises(ValueError, match="give what state"):
            watch.restore(state)
    with pytest.raises(ValueError, match="channels that sum to `lengths`"):
        watch.add(["q"], [3], [1], channels={"thinking": [2]})
    assert watch.summary()["steps"] == 0

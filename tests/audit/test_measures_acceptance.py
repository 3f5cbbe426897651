"""Bins, the Length Reweighting Error with its floor, tests and interval, and the bounds on direction."""

from functools import cache

import numpy as np
import pytest

from fairlen.audit.log import Log, Trained
from fairlen.audit.statistics.acceptance import acceptance, acceptance_by_length, flip_prompts, noise_floor, reweighting
from fairlen.audit.statistics.intervals import length_bins
from fairlen.batch import Responses, Segments
from research.study.bounds import direction_bound


def make_log(length, log_ratio, inside, clipped=None, prompt=None) -> Log:
    """Whole responses, each in one update."""
    num = len(length)
    rows, zeros = np.arange(num), np.zeros(num, np.int64)
    prompt = rows if prompt is None else prompt
    responses = Responses(
        prompt, np.asarray(length), np.zeros(num), zeros > 0, zeros > 0, zeros == 0, zeros, zeros, 10_000
    )
    segments = Segments(rows, responses.length, prompt, zeros == 0, np.ones(num), zeros > 0, zeros, 10_000)
    clipped = 1.0 - inside if clipped is None else clipped
    trained = Trained(rows, zeros, np.ones(num), np.asarray(log_ratio), clipped, np.asarray(inside, np.float64))
    return Log("ours", "tokens", responses, zeros, segments, trained=trained, known=frozenset({"trained"}))


def test_bins_by_hand():
    bins = length_bins(np.array([5] * 40 + [1] * 30 + [2] * 10 + [9] * 35), 10, 30)
    assert bins.low.tolist() == [1, 5, 9] and bins.high.tolist() == [2, 5, 9] and bins.count.tolist() == [40, 40, 35]
    assert bins.index[[0, 40, 70, 80]].tolist() == [1, 0, 0, 2]


def test_bins_hold_enough_never_part_equal_lengths_and_are_even():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        length = rng.integers(1, rng.integers(2, 3000), rng.integers(1, 4000))
        bins = length_bins(length)
        assert bins.count.sum() == len(length) and (np.bincount(bins.index, minlength=len(bins)) == bins.count).all()
        assert len(bins) == 1 or bins.count.min() >= 30
        assert (bins.low[bins.index] <= length).all() and (length <= bins.high[bins.index]).all()
        assert (bins.high[:-1] < bins.low[1:]).all() and len(bins) <= 10
        if len(np.unique(length)) == len(length) >= 300:
            assert len(bins) == 10 and np.ptp(bins.count) <= 1


def test_the_error_by_hand():
    """Half are short, of which 80% are accepted, half long, 40%: qbar 0.6, LRE = 1/2 (1/2 |4/3 - 1| + 1/2 |2/3 - 1|) = 1/6."""
    length = np.repeat([3, 7], 50)
    inside = np.r_[np.ones(40), np.zeros(10), np.ones(20), np.zeros(30)]
    found = acceptance_by_length(length, inside, np.arange(100))
    assert found.overall.value == pytest.approx(0.6) and found.lre.value == pytest.approx(1 / 6)
    assert found.share.value.tolist() == pytest.approx([0.8, 0.4])
    assert found.p_value == 0.001 and found.lre.low > 0.05
    assert found.floor == pytest.approx(np.sqrt(0.4 / 0.6 / 100) / np.sqrt(2 * np.pi))


def test_acceptance_is_two_sided_whatever_acted():
    length = np.repeat([3, 7], 50)
    inside, clipped = np.repeat([1.0, 0.5], 50), np.repeat([0.0, 0.25], 50)
    assert acceptance(make_log(length, np.ones(100), inside, clipped)).share.value.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("length", "inside", "reason"),
    [
        (np.repeat([3, 7], 50), np.zeros(100), "no sequence was accepted"),
        (np.repeat([3, 7], 20), np.ones(40), "40 off-policy sequences"),
        (np.full(100, 5), np.ones(100), "too few different lengths"),
        (np.zeros(0, np.int64), np.zeros(0), "0 off-policy"),
    ],
)
def test_where_the_error_does_not_exist_it_says_why(length, inside, reason):
    found = acceptance(make_log(length, np.ones(len(length)), inside))
    assert reason in found.undefined and np.isnan([found.lre.value, found.floor, found.p_value]).all()


def test_sequences_exactly_on_policy_do_not_count():
    length, inside = np.repeat([3, 7], 100), np.tile([0.0, 1.0], 100)
    found = acceptance(make_log(length, np.where(np.arange(200) % 4 < 2, 0.0, 0.1), inside))
    assert found.num_sequences == 100 and found.overall.value == 0.5 and found.lre.value == 0


@pytest.mark.parametrize(("num", "num_bins", "share"), [(2048, 10, 0.8), (600, 4, 0.3), (2000, 10, 0.97)])
def test_the_floor_is_the_mean_error_without_dependence(num, num_bins, share):
    rng, length = np.random.default_rng(0), np.arange(num) + 1
    bins = length_bins(length, num_bins)
    accepted = (rng.random((600, num)) < share).astype(float)
    everyone = bins.count.astype(float)
    inside = np.stack([np.bincount(bins.index, row, len(bins)) for row in accepted])
    closed = np.sqrt((1 - share) / share * (num_bins - 1) / num) / np.sqrt(2 * np.pi)
    floors = [noise_floor(bins, row) for row in accepted[:100]]
    assert np.mean(floors) == pytest.approx(closed, rel=0.03)
    assert reweighting(inside, everyone).mean() == pytest.approx(closed, rel=0.05)


@cache
def p_values(kind: str, effect: float = 0.0, num: int = 150) -> np.ndarray:
    """p-values of many logs of 0 and 1, independent; or "prompts": both length and acceptance differ by prompt."""
    found = []
    for seed in range(num):
        rng = np.random.default_rng(seed)
        prompt = np.arange(400) if kind != "prompts" else np.repeat(np.arange(50), 8)
        mine = rng.normal(size=400)[prompt] if kind == "prompts" else rng.normal(size=400)
        length = np.exp(6 + mine * 0.5 + 0.1 * rng.normal(size=400)).astype(int) + 1
        share = np.clip(0.7 - effect * mine + 0.2 * (rng.normal(size=400)[prompt] if kind == "prompts" else 0.0), 0, 1)
        inside = (rng.random(400) < share).astype(float)
        found.append(acceptance_by_length(length, inside, prompt, num_bins=5).p_value)
    return np.array(found)


@pytest.mark.parametrize(
    ("kind", "num"),
    [("plain", 40), *(pytest.param(kind, 150, marks=pytest.mark.slow) for kind in ("plain", "prompts"))],
)
def test_p_values_are_uniform_where_length_plays_no_part(kind, num):
    found = p_values(kind, num=num)
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert (found <= level).mean() == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / num))


def test_how_much_prompts_accept_in_all_is_no_evidence():
    """Prompts that accept 9 or 1 of 10 in each of two bins, all with half a sequence more in the first: a sure tilt."""
    accepted = np.array([[9.5, 8.5], [1.5, 0.5]] * 10)
    assert flip_prompts(np.hstack([accepted, np.full((20, 2), 10.0)])) <= 0.005


def test_p_values_are_small_where_length_matters():
    assert (p_values("plain", effect=0.2, num=20) <= 0.05).all()


@pytest.mark.parametrize(
    ("effect", "num"), [(0.0, 30), *(pytest.param(effect, 100, marks=pytest.mark.slow) for effect in (0.0, 0.08, 0.19))]
)
def test_the_interval_of_the_error_covers(effect, num):
    """Acceptance falls linearly with the rank of length; truth over ten bins. It covers 0.89 to 0.98 in long runs."""
    middle = (np.arange(10) + 0.5) / 10
    true = 0.5 * np.mean(np.abs((0.8 + effect * (1 - 2 * middle)) / 0.8 - 1))
    covered, length = 0, np.arange(2000) + 1
    for seed in range(num):
        rng = np.random.default_rng(seed)
        inside = (rng.random(2000) < 0.8 + effect * (1 - 2 * length / 2000)).astype(float)
        found = acceptance_by_length(length, inside, rng.permutation(2000) // 8).lre
        covered += found.low - 1e-12 <= true <= found.high
    assert covered / num >= 0.87


def test_the_bound_of_the_paper_fails_where_ours_holds():
    """Two bins, orthogonal gradients, q of 0.9 and 0.3, no change within a bin: rho is 1/2, the paper's bound sqrt(2)/4."""
    found = direction_bound(np.eye(2), np.eye(2), np.array([0.9, 0.3]), np.ones(2))
    assert found.rho == pytest.approx(0.5) and found.kappa == pytest.approx(np.sqrt(2)) and found.eta == 0
    assert found.lre == found.lre_weighted == pytest.approx(0.25)
    assert found.rho_paper == pytest.approx(np.sqrt(2) / 4) and found.rho_bound == pytest.approx(np.sqrt(2) / 2)
    assert found.cosine == pytest.approx(2 / np.sqrt(5)) and found.cosine_bound == pytest.approx(np.sqrt(0.5))
    assert found.cosine_paper == pytest.approx((1 - np.sqrt(2) / 4) / (1 + np.sqrt(2) / 4))


def test_the_corrected_bound_is_never_violated_and_the_paper_s_is():
    rng, violated = np.random.default_rng(0), 0
    for _ in range(2000):
        num, dim = rng.integers(2, 6), rng.integers(1, 4)
        full = rng.normal(size=(num, dim))
        accepted = full + rng.choice([0.0, 0.05, 0.3]) * rng.normal(size=(num, dim))
        share, count = rng.random(num), rng.random(num) + 0.01
        found = direction_bound(full, accepted, share, count)
        assert found.rho <= found.rho_bound + 1e-9 and found.cosine >= found.cosine_bound - 1e-9
        assert found.kappa >= 1 - 1e-12 and found.cosine <= 1 + 1e-12
        if found.rho < 1:  # the sharp statement, about rho as it is
            assert found.cosine >= np.sqrt(1 - found.rho**2) - 1e-9
        part, size = count / count.sum(), np.linalg.norm(full, axis=1)
        off = np.abs(share - part @ share)
        assumed = part @ (off * size) <= (part @ off) * (part @ size)  # B.1, on which the paper's form rests
        violated += assumed and found.eta < 1 and found.rho > found.rho_paper + 1e-9
    assert violated > 20


def test_directions_that_do_not_exist():
    assert direction_bound(np.eye(2), np.eye(2), np.zeros(2), np.ones(2)).undefined == "no sequence was accepted"
    opposite = np.array([[1.0], [-1.0]])
    assert direction_bound(opposite, opposite, np.ones(2), np.ones(2)).undefined == "the whole gradient is 0"
    unknown = direction_bound(np.eye(2), np.full((2, 2), np.nan), np.array([0.0, 1.0]), np.ones(2))
    assert np.isnan(unknown.eta) or unknown.cosine_bound == -1.0  # nothing is claimed of gradients that are not numbers
    empty_bin = direction_bound(np.eye(2), np.array([[np.nan, np.nan], [0.0, 1.0]]), np.array([0.0, 1.0]), np.ones(2))
    assert empty_bin.eta == 0 and empty_bin.cosine == pytest.approx(np.sqrt(0.5))

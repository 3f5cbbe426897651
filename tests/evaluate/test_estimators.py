"""Estimators against enumeration and simulation."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fairlen.evaluate.estimators import mean_by_problem, pass_at


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("num_correct", [0, 1, 2, 5])
def test_pass_at_k_is_the_share_of_k_subsets_with_a_right_sample(num_correct, k):
    samples = [1] * num_correct + [0] * (5 - num_correct)
    subsets = [any(samples[i] for i in chosen) for chosen in combinations(range(5), k)]
    assert pass_at(np.array([num_correct]), 5, k)[0] == pytest.approx(np.mean(subsets), abs=1e-12)


def test_pass_at_more_than_the_samples_is_refused():
    with pytest.raises(ValueError, match="k=6 of 5"):
        pass_at(np.array([1]), 5, 6)


def test_the_interval_resamples_problems_not_samples():
    # 20 problems, each always right or always wrong: 50 more samples of a problem say nothing new
    values = np.repeat(np.arange(20) % 2, 50).reshape(20, 50).astype(float)
    found = mean_by_problem(values)
    assert found.value == 0.5
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(20), rel=0.1)  # not / sqrt(1000)


def test_coverage_is_near_its_name():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        ability = rng.beta(2, 2, 60)  # mean 1/2
        found = mean_by_problem((rng.random((60, 4)) < ability[:, None]).astype(float))
        covered += found.low <= 0.5 <= found.high
    assert 0.90 <= covered / 200 <= 0.98  # 0.95 +- 3 standard errors of 0.015

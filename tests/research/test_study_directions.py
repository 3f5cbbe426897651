"""Bands and bins of the gradients, by hand, and gradients of single sequences against the whole update's."""

import numpy as np
import pytest

from research.study.directions import by_bin, is_inside


@pytest.mark.parametrize(
    ("rule", "inside"),
    [
        # lengths 4 and 16, S = 0.3 and -0.3 each
        ("fspo", [True, True, True, True]),  # 0.1 * 2 + 0.03 * 4 = 0.32; 0.1 * 4 + 0.03 * 16 = 0.88
        ("rloo", [False, False, False, False]),  # ln 1.1 = 0.095, ln 0.9 = -0.105
        ("gspo", [True, True, True, True]),  # 0.3 / 4 = 0.075
    ],
)
def test_bands(rule, inside):
    length, total = np.array([4, 4, 16, 16]), np.array([0.3, -0.3, 0.3, -0.3])
    assert is_inside(rule, 0.1, 0.1, length, total, drift=0.03).tolist() == inside


def test_the_drift_widens_the_band_of_fspo_alone():
    length, total = np.array([4]), np.array([0.3])
    assert not is_inside("fspo", 0.1, 0.1, length, total, drift=0.0).any()  # 0.1 * 2 = 0.2
    assert is_inside("rloo", 0.4, 0.4, length, total, 0.0).all()  # ln 1.4 = 0.336


def test_means_of_bins():
    index, gradient = np.array([0, 0, 1]), np.array([[2.0, 0.0], [0.0, 4.0], [6.0, 6.0]])
    full, accepted, share = by_bin(index, 2, gradient, np.array([True, False, False]))
    assert full.tolist() == [[1.0, 2.0], [6.0, 6.0]]
    assert accepted.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert share.tolist() == [0.5, 0.0]

"""Bands and bins of the gradients, by hand, and gradients of single sequences against the whole update's."""

import numpy as np

from research.study.directions import Found, by_bin


def test_a_band_decides_what_is_accepted():
    """Lengths 4 and 16, S = 0.3 and -0.3; of fspo 0.1 * 2 + 0.03 * 4 = 0.32 and more, of rloo ln 1.1 = 0.095 and ln 0.9 = -0.105,
    of gspo 0.3 / 4 = 0.075 at most; without drift 0.1 * 2 = 0.2 is below 0.3 for the two short ones."""
    found = Found([("fspo", 0.1, 0.1), ("rloo", 0.1, 0.1), ("gspo", 0.1, 0.1)])
    length, total, gradient = np.array([4, 4, 16, 16]), np.array([0.3, -0.3, 0.3, -0.3]), np.eye(4)
    for update, drift in enumerate((0.03, 0.0)):
        found.add(update, length, total, gradient, drift)
    assert [row["share"] for row in found.rows] == [1.0, 0.0, 1.0, 0.5, 0.0, 1.0]


def test_means_of_bins():
    index, gradient = np.array([0, 0, 1]), np.array([[2.0, 0.0], [0.0, 4.0], [6.0, 6.0]])
    full, accepted, share = by_bin(index, 2, gradient, np.array([True, False, False]))
    assert full.tolist() == [[1.0, 2.0], [6.0, 6.0]]
    assert accepted.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert share.tolist() == [0.5, 0.0]

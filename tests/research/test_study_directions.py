"""Bands and bins of the gradients, by hand, and gradients of single sequences against the whole update's."""

import numpy as np

from research.study.directions import Found, by_bin


def test_every_band_accepts_the_same_share_of_an_update():
    """Lengths 4, 4, 16, 16, 16 and log ratios .1, -.1, .4, -.2, .2. Four of five are the 80%, and which one is refused hangs on
    the rule: |S| / sqrt(L) is .05, .05, .1, .05, .05; ratios from 1 are .11, .10, .49, .18, .22, so both refuse the third;
    S / L is .025, -.025, .025, -.0125, .0125 of widths .0004 above and .0003 below: the second is the farthest."""
    found = Found()
    length, total = np.array([4, 4, 16, 16, 16]), np.array([0.1, -0.1, 0.4, -0.2, 0.2])
    found.add(1, length, total, np.eye(5))
    assert [(row["rule"], row["share"]) for row in found.rows] == [("fspo_v3", 0.8), ("rloo", 0.8), ("gspo", 0.8)]


def test_means_of_bins():
    index, gradient = np.array([0, 0, 1]), np.array([[2.0, 0.0], [0.0, 4.0], [6.0, 6.0]])
    full, accepted, share = by_bin(index, 2, gradient, np.array([True, False, False]))
    assert full.tolist() == [[1.0, 2.0], [6.0, 6.0]]
    assert accepted.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert share.tolist() == [0.5, 0.0]

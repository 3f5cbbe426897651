"""Theorem 2.1 of 2509.09177 v1 by exact arithmetic: on two lengths, on explicit policies, and the lemma that it rests on."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from loops import over

from research.study.bounds import direction_bound


def theorem(share: list[Fraction], gradient: list[Fraction]) -> dict[str, Fraction]:
    """Everything in theorem 2.1 for two lengths that are equally likely, gradients on a line, and eta 0."""
    half = Fraction(1, 2)
    overall = half * sum(share)
    lre = half * half * sum(abs(q / overall - 1) for q in share)
    whole, clipped = half * sum(gradient), half * sum(q * g for q, g in zip(share, gradient, strict=True))
    mean_norm = half * sum(abs(g) for g in gradient)
    kappa = mean_norm / abs(whole)
    off = half * sum(abs(q - overall) * abs(g) for q, g in zip(share, gradient, strict=True))
    return {
        "lre": lre, "kappa": kappa, "rho": abs(clipped - overall * whole) / (overall * abs(whole)),
        "rho of the paper": kappa * lre, "cosine": Fraction((clipped * whole > 0) - (clipped * whole < 0)),
        "cosine of the paper": (1 - kappa * lre) / (1 + kappa * lre),
        "B.1 holds": Fraction(off <= half * sum(abs(q - overall) for q in share) * mean_norm),
    }  # fmt: skip


def test_theorem_2_1_fails_on_two_lengths():
    """Half of all answers are short with gradient 3, half long with -2; 3/5 of the short and all of the long are accepted, and
    acceptance changes no gradient within a length, so eta = 0. q = 4/5, LRE = 1/8; g* = 1/2, E|g| = 5/2, kappa = 5. The
    theorem: rho <= 5/8, cosine >= (3/8)/(13/8) = 3/13. In fact g_b = (9/5 - 2)/2 = -1/10: rho = |-1/10 - 2/5| / (2/5) = 5/4,
    twice 5/8, and the clipped update points the other way, cosine -1. Assumption B.1 holds with equality."""
    found = theorem([Fraction(3, 5), Fraction(1)], [Fraction(3), Fraction(-2)])
    assert (found["lre"], found["kappa"]) == (Fraction(1, 8), 5)
    assert (found["rho of the paper"], found["rho"]) == (Fraction(5, 8), Fraction(5, 4))
    assert found["rho"] == 2 * found["rho of the paper"]
    assert found["cosine of the paper"] == Fraction(3, 13) and found["cosine"] == -1
    assert found["B.1 holds"]
    ours = direction_bound(np.array([[3.0], [-2.0]]), np.array([[3.0], [-2.0]]), np.array([0.6, 1.0]), np.ones(2))
    assert (ours.rho, ours.rho_paper, ours.rho_bound, ours.cosine) == pytest.approx((5 / 4, 5 / 8, 5 / 4, -1))


def test_the_variant_without_assumptions_fails_by_the_same_factor():
    """LRE weighted by the norms: |q/qbar - 1| is 1/4 for both lengths, so that the weights do not matter: again 1/8, bound 5/8,
    rho 5/4. With the factor 2 of the proof's own middle line it is met: 2 * 5 * 1/8 = 5/4."""
    share, gradient = [Fraction(3, 5), Fraction(1)], [Fraction(3), Fraction(-2)]
    weights = [abs(g) / sum(map(abs, gradient)) for g in gradient]
    weighted = Fraction(1, 2) * sum(w * abs(q / Fraction(4, 5) - 1) for w, q in zip(weights, share, strict=True))
    found = theorem(share, gradient)
    assert weighted == Fraction(1, 8)
    assert found["rho"] == Fraction(5, 4) > found["kappa"] * weighted == Fraction(5, 8)
    assert found["rho"] == 2 * found["kappa"] * weighted


def test_theorem_2_1_fails_for_a_policy_with_two_answers():
    """A prompt has a short and a long answer. The old policy has 3/10 and 7/10, the new one 1/2 and 1/2; rewards 4 and 1, no
    baseline. S = ln 5/3 = 0.51 and ln 5/7 = -0.34; a fixed clip at 0.4 rejects the short one. With logits as parameters
    g* of a length is A (e - 1/2): 4 (1, -1)/2 and (-1, 1)/2. q = 0 and 1: LRE 1/2, kappa 5/3, bound 5/6, cosine >= 1/11; but
    what is left of the update is (-1, 1)/4 against (3, -3)/4: cosine -1."""
    old, new = [Fraction(3, 10), Fraction(7, 10)], [Fraction(1, 2)] * 2
    accepted = [Fraction(abs(math.log(n / o)) <= 0.4) for n, o in zip(new, old, strict=True)]
    assert accepted == [0, 1]
    found = theorem(accepted, [Fraction(4, 2), Fraction(-1, 2)])  # along (1, -1)
    assert (found["lre"], found["kappa"], found["rho of the paper"]) == (Fraction(1, 2), Fraction(5, 3), Fraction(5, 6))
    assert found["cosine of the paper"] == Fraction(1, 11) and found["cosine"] == -1 and found["B.1 holds"]


def softmax_tree(rng: np.random.Generator, depth: int, spread: float, base: np.ndarray | None = None) -> np.ndarray:
    """Logits of a binary tree's nodes over letter 0, letter 1 and end, [nodes, 3]."""
    logits = spread * rng.standard_normal((2**depth - 1, 3))
    return logits if base is None else base + logits


def answers(depth: int):
    """(nodes, tokens) of every answer that ends within the depth; the last position must end."""
    for length in range(1, depth + 1):
        for letters in product((0, 1), repeat=length - 1):
            node, nodes = 0, [0]
            for letter in letters:
                node = 2 * node + 1 + letter
                nodes.append(node)
            yield nodes, [*letters, 2]


def probabilities(logits: np.ndarray, depth: int) -> np.ndarray:
    table = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    table[2 ** (depth - 1) - 1 :] = 0.0, 0.0, 1.0
    return table


def explicit(seed: int, band) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Per length: mean gradient, mean accepted gradient, q, probability; everything under the new policy, by enumeration."""
    depth, rng = 4, np.random.default_rng(seed)
    old_logits = softmax_tree(rng, depth, 1.0)
    old, new = (probabilities(x, depth) for x in (old_logits, softmax_tree(rng, depth, 0.05, old_logits)))
    listed = list(answers(depth))
    reward = rng.standard_normal(len(listed))
    full, kept = np.zeros((depth, new.size)), np.zeros((depth, new.size))
    mass, inside = np.zeros(depth), np.zeros(depth)
    for (nodes, tokens), worth in zip(listed, reward, strict=True):
        chance = float(np.prod(new[nodes, tokens]))
        ratio = float(np.log(new[nodes, tokens] / old[nodes, tokens]).sum())
        score = np.zeros_like(new)
        for node, token in zip(nodes, tokens, strict=True):
            score[node] -= new[node]
            score[node, token] += 1.0
        at = len(tokens) - 1
        full[at] += chance * worth * score.ravel()
        mass[at] += chance
        if abs(ratio) <= band(len(tokens)):
            kept[at] += chance * worth * score.ravel()
            inside[at] += chance
    share = inside / mass
    with np.errstate(invalid="ignore", divide="ignore"):
        return full / mass[:, None], kept / inside[:, None], share, mass


BANDS = {"square root": lambda n: 0.05 * math.sqrt(n), "fixed": lambda n: 0.09, "linear": lambda n: 0.03 * n}


@over("name", BANDS)
def test_the_corrected_bound_holds_for_explicit_policies(name):
    """100 pairs of policies with 15 answers of 1 to 4 tokens, all in closed form. The mass of lengths is exact, and so is
    everything else; 2 (1 + eta) LRE_w with the largest eta is met by each, and the cosine by sqrt(1 - rho^2) where rho < 1."""
    seen = 0
    for seed in range(100):
        found = direction_bound(*explicit(seed, BANDS[name]))
        if found.undefined:
            continue
        seen += 1
        assert found.rho <= found.rho_bound * (1 + 1e-9) + 1e-12
        if found.rho < 1:
            assert found.cosine >= math.sqrt(1 - found.rho**2) - 1e-9
    assert seen > 90


def test_the_cosine_lemma_needs_a_distance_below_1():
    """cos(u, v) >= (|v| - |u - v|) / (|v| + |u - v|) is stated for all vectors but 0. u = -v/10: |u - v| = 11/10 |v|, the lemma
    says at least -1/21, the cosine is -1. Where |u - v| <= |v| it holds in all of 500 drawn pairs."""
    distance = Fraction(11, 10)
    assert (1 - distance) / (1 + distance) == Fraction(-1, 21) > -1
    v = np.array([1.0, 2.0])
    assert (-v / 10) @ v / np.linalg.norm(-v / 10) / np.linalg.norm(v) == pytest.approx(-1)
    assert np.linalg.norm(-v / 10 - v) / np.linalg.norm(v) == pytest.approx(11 / 10)
    rng, held = np.random.default_rng(0), 0
    while held < 500:
        u, v = rng.standard_normal((2, 3))
        gap, size = np.linalg.norm(u - v), np.linalg.norm(v)
        if gap <= size:
            held += 1
            assert u @ v / np.linalg.norm(u) / size >= (size - gap) / (size + gap) - 1e-12


def test_the_sharp_form_of_the_cosine_lemma():
    """Of all u with |u - v| = rho |v|, rho < 1, the least cosine is sqrt(1 - rho^2), where u is orthogonal to u - v: rho = 3/5
    gives 4/5, the lemma 1/4."""
    v = np.array([1.0, 0.0])
    angles = np.linspace(0, 2 * np.pi, 200_001)
    u = v + 3 / 5 * np.stack([np.cos(angles), np.sin(angles)], 1)
    assert (u @ v / np.linalg.norm(u, axis=1)).min() == pytest.approx(4 / 5, abs=1e-9)
    assert (1 - Fraction(3, 5)) / (1 + Fraction(3, 5)) == Fraction(1, 4)

"""The papers' own tables: whether what their text says of them is in them. The numbers are theirs; the arithmetic is ours."""

import tomllib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import mean

import pytest

DATA = Path(__file__).parents[2] / "research/ledger/data"

EQLEN = {
    "GRPO": (75.8, 61.2, 54.6, 88.0, 69.2, 74.8),
    "Dr. GRPO": (77.4, 62.5, 56.1, 89.1, 70.0, 76.2),
    "DAPO": (78.2, 63.1, 57.8, 89.5, 70.4, 76.8),
    "GSPO": (76.6, 61.8, 55.4, 88.4, 69.6, 75.4),
    "LUSPO": (78.8, 63.4, 58.2, 89.8, 70.8, 77.1),
    "EqLen-GRPO": (84.2, 68.5, 64.0, 92.6, 74.2, 82.8),
}
"""2604.17328, table 2: AIME25, LiveCodeBench, HMMT25 of Qwen3-32B, then of Qwen3-Next."""

BALANCED = {
    ("DAPO", "Qwen2.5"): {
        "seq": (0.3578, 0.4821, 0.3446, 0.4598),
        "token": (0.3595, 0.4869, 0.3364, 0.4434),
        "balanced": (0.3634, 0.4896, 0.3424, 0.4627),
    },
    ("DAPO", "Qwen3"): {
        "seq": (0.4947, 0.5990, 0.4481, 0.5522),
        "token": (0.4876, 0.6058, 0.4360, 0.5608),
        "balanced": (0.4928, 0.6086, 0.4695, 0.5861),
    },
    ("Polaris", "Qwen2.5"): {
        "seq": (0.3405, 0.4697, 0.3172, 0.4360),
        "token": (0.3539, 0.4768, 0.3292, 0.4527),
        "balanced": (0.3423, 0.4750, 0.3319, 0.4443),
    },
    ("Polaris", "Qwen3"): {
        "seq": (0.4812, 0.5950, 0.4614, 0.5730),
        "token": (0.4842, 0.6053, 0.4349, 0.5557),
        "balanced": (0.4879, 0.6094, 0.4640, 0.5550),
    },
}
"""2605.04077, table 1: peak Acc@8, peak Best@8, last Acc@8, last Best@8."""


def test_the_leads_of_eqlen_are_those_of_its_table():
    """Over the best of the five baselines, LUSPO in every column: 5.4, 5.1, 5.8 and 2.8, 3.4, 5.7 points."""
    *baselines, ours = EQLEN.values()
    best = [max(column) for column in zip(*baselines, strict=True)]
    assert tuple(best) == EQLEN["LUSPO"]
    assert [round(a - b, 1) for a, b in zip(ours, best, strict=True)] == [5.4, 5.1, 5.8, 2.8, 3.4, 5.7]


def test_the_lead_on_hmmt_is_the_larger_one_on_one_of_two_models():
    """Half widths of EqLen's and LUSPO's intervals, 1.0, 0.9 on AIME25 and 1.0, 1.0 on HMMT25 for 32B: the leads are 5.4 +-
    1.35 and 5.8 +- 1.41, their difference 0.4 +- 1.95 contains 0. For Next 1.1, 1.2 and 0.9, 1.1: 2.8 +- 1.63 and 5.7 +- 1.42,
    difference 2.9 +- 2.16 does not. (Half widths add like standard deviations.)"""
    for aime, hmmt, differs in (
        ((5.4, 1.0, 0.9), (5.8, 1.0, 1.0), False),
        ((2.8, 1.1, 1.2), (5.7, 0.9, 1.1), True),
    ):
        half = sum(width**2 for width in (*aime[1:], *hmmt[1:])) ** 0.5
        assert (hmmt[0] - aime[0] > half) is differs


def test_six_times_is_six_pairs_of_two_pieces_in_place_of_two_answers():
    """Table 3: 51,456 / 8,520 = 6.04. 51,456 = 536 * 96 with 96 = 8 streams * 6 pairs * 2 pieces, exactly; 8,520 / 16 = 532.5:
    both arms went through 534 prompts, to 1%, in 48 hours. With 64 prompts an update that is 8.3 updates, of which the warm-up
    is 20."""
    ours, theirs = 51_456, 8_520
    assert ours == 536 * 8 * 6 * 2 and Fraction(theirs, 16) == Fraction(1065, 2) == 532.5
    assert round(ours / theirs, 2) == 6.04 and (round(theirs / 48), round(ours / 48)) == (178, 1072)
    assert abs(536 / 532.5 - 1) < 0.01
    assert round(theirs / 16 / 64, 1) == 8.3 < 20


def test_the_ablations_cost_what_the_text_says():
    """Table 4 on AIME25, from 84.2: single pair 6.7, prefix in the gradient 7.4, mean 3.6 points. With a single pair (77.5)
    EqLen is below LUSPO (78.8) and DAPO (78.2): equal lengths alone gain nothing over them."""
    full = EQLEN["EqLen-GRPO"][0]
    assert [round(full - value, 1) for value in (77.5, 76.8, 80.6)] == [6.7, 7.4, 3.6]
    assert 77.5 < EQLEN["DAPO"][0] == 78.2 < EQLEN["LUSPO"][0] == 78.8


def test_balanced_is_best_in_10_of_16_cells():
    """Best: peak accuracy 2 of 4, peak best@8 3 of 4, last accuracy 3 of 4, last best@8 2 of 4: 10 of 16. Once it is the worst
    of the three: last best@8 of Qwen3 on Polaris, 0.5550."""
    best = [
        sum(max(cells, key=lambda name: cells[name][column]) == "balanced" for cells in BALANCED.values())
        for column in range(4)
    ]
    worst = [
        (setting, column)
        for setting, cells in BALANCED.items()
        for column in range(4)
        if min(cells, key=lambda name: cells[name][column]) == "balanced"
    ]
    assert best == [2, 3, 3, 2] and sum(best) == 10
    assert worst == [(("Polaris", "Qwen3"), 3)]


def test_balanced_falls_less_than_the_token_mean_in_every_setting():
    """Peak less last accuracy, token against balanced, in hundredths of a point: 231 and 210, 516 and 233, 247 and 104, 493 and
    239. Against the sequence mean twice: it falls by 132, 466, 233, 198."""
    drops = {
        name: [round((c[name][0] - c[name][2]) * 1e4) for c in BALANCED.values()]
        for name in ("token", "balanced", "seq")
    }
    assert drops == {"token": [231, 516, 247, 493], "balanced": [210, 233, 104, 239], "seq": [132, 466, 233, 198]}
    assert sum(ours < seq for ours, seq in zip(drops["balanced"], drops["seq"], strict=True)) == 2


def test_the_flip_between_models_is_in_10_of_16_cells():
    """Token above sequence on Qwen2.5 and below it on Qwen3: peak and last accuracy say so in 3 of 4 settings each, peak and
    last best@8 in 2 of 4, 10 of 16 in all; the token mean has the higher peak best@8 everywhere."""
    expected = {setting: setting[1] == "Qwen2.5" for setting in BALANCED}
    agrees = [
        sum((cells["token"][column] > cells["seq"][column]) == expected[s] for s, cells in BALANCED.items())
        for column in range(4)
    ]
    assert agrees == [3, 2, 3, 2] and sum(agrees) == 10
    assert all(cells["token"][1] > cells["seq"][1] for cells in BALANCED.values())


def test_balanced_is_above_the_sequence_mean_in_all_4_cells_of_qwen25_on_polaris():
    """Peak acc@8 and best@8, last acc@8 and best@8 by 0.18, 0.53, 1.47 and 0.83 points; its last accuracy is the largest of the
    three, 33.19 against 32.92 of the token mean."""
    cells = BALANCED["Polaris", "Qwen2.5"]
    leads = [round(100 * (a - b), 2) for a, b in zip(cells["balanced"], cells["seq"], strict=True)]
    assert leads == [0.18, 0.53, 1.47, 0.83] and min(leads) > 0
    assert [round(100 * cells[name][2], 2) for name in ("balanced", "token")] == [33.19, 32.92]


def lead(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Mean of what one has more than the other."""
    return mean(a - b for a, b in zip(ours, theirs, strict=True))


def points(name: str, column: int, model: str = "") -> list[float]:
    """A column of BALANCED by setting, in percent."""
    return [100 * cells[name][column] for (_, trained), cells in BALANCED.items() if model in trained]


def drops(name: str) -> list[float]:
    """Peak less last accuracy by setting."""
    return [peak - last for peak, last in zip(points(name, 0), points(name, 2), strict=True)]


LEADS = {
    "eqlen-23": ("EqLen-GRPO", "GRPO"), "eqlen-24": ("EqLen-GRPO", "Dr. GRPO"), "eqlen-42": ("EqLen-GRPO", "Dr. GRPO"),
    "eqlen-43": ("EqLen-GRPO", "DAPO"), "eqlen-44": ("EqLen-GRPO", "GSPO"), "eqlen-45": ("EqLen-GRPO", "LUSPO"),
    "eqlen-25": ("Dr. GRPO", "GRPO"), "eqlen-46": ("DAPO", "GRPO"), "eqlen-47": ("GSPO", "GRPO"), "eqlen-48": ("LUSPO", "GRPO"),
}  # fmt: skip
"""Claims on table 2: the method and what it is compared with."""


def test_smallest_effects_are_half_of_those_in_the_tables():
    """Half of the mean over the columns of a table; AIME25 and HMMT25 in table 4, of full 84.2 and 64.0, single pair 77.5 and
    57.6, prefix 76.8 and 57.2, mean 80.6 and 60.4. Samples of table 3: 6.04 times are 504% more."""
    data = [tomllib.loads((DATA / f"{name}.toml").read_text()) for name in ("eqlen", "balanced")]
    smallest = {c["id"]: c["measure"]["smallest"] for file in data for c in file["claim"] if "measure" in c}
    full, single, prefix, average = (84.2, 64.0), (77.5, 57.6), (76.8, 57.2), (80.6, 60.4)
    effects = {id: lead(EQLEN[ours], EQLEN[theirs]) for id, (ours, theirs) in LEADS.items()} | {
        "eqlen-30": lead(full, single), "eqlen-31": lead(full, prefix), "eqlen-32": lead(full, average),
        "eqlen-55": lead(average, single), "eqlen-56": lead(single, prefix),
        "eqlen-34": 85.1 - 84.2, "eqlen-35": 86.4 - 84.2,
        "balanced-15": lead(drops("token"), drops("balanced")), "balanced-16": lead(drops("seq"), drops("balanced")),
        "balanced-17": lead(points("balanced", 2), points("token", 2)),
        "balanced-25": lead(points("balanced", 2), points("seq", 2)),
        "balanced-18": lead(points("balanced", 0), points("seq", 0)),
        "balanced-24": lead(points("token", 0), points("seq", 0)),
        "balanced-21": lead(points("token", 0, "Qwen2.5"), points("seq", 0, "Qwen2.5")),
        "balanced-22": lead(points("seq", 2, "Qwen3"), points("token", 2, "Qwen3")),
    }  # fmt: skip
    for id, effect in effects.items():
        assert smallest[id] == pytest.approx(effect / 2, abs=0.0051), id
    assert smallest["eqlen-28"] == round(100 * (51_456 / 8_520 - 1) / 2)
    peaks = zip(points("token", 0), points("balanced", 0), strict=True)
    assert smallest["balanced-23"] == pytest.approx(max(abs(a - b) for a, b in peaks))


def test_fspo_leads_in_the_only_column_that_has_numbers():
    """2509.09177 v1, table 1, AIME24 of Qwen3-8B-Base, best and last: over GRPO 2.92 and 2.81 points, over RLOO 3.65 and 5.52,
    over GSPO 4.27 and 3.85. Its 1.7B row and all other columns are empty. One problem of 30 is 3.33 points."""
    fspo = (34.48, 34.06)
    others = {"GRPO": (31.56, 31.25), "RLOO": (30.83, 28.54), "GSPO": (30.21, 30.21)}
    leads = {name: [round(a - b, 2) for a, b in zip(fspo, cells, strict=True)] for name, cells in others.items()}
    assert leads == {"GRPO": [2.92, 2.81], "RLOO": [3.65, 5.52], "GSPO": [4.27, 3.85]}
    assert round(100 / 30, 2) == 3.33

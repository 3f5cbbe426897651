"""Statistics of a comparison against closed forms, on evaluations written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fairlen.compare.config import parse_variant
from fairlen.compare.results import Cell, Spent, resampler, summarize
from fairlen.diagnostics.report.summary import plain
from fairlen.files.folders import write_json

RECORDS = Path(__file__).parents[1] / "fixtures_formats" / "fairlen" / "records"
"""Rollouts of a small run, for what a comparison measures on them."""


def cell(folder: Path, name: str, seed: int, rights: list[list[list[int]]], length: list[list[int]]) -> Cell:
    """A finished run with these evaluations, [evaluations][problems][samples]."""
    place = folder / name / str(seed)
    place.mkdir(parents=True)
    (place / "records").symlink_to(RECORDS)
    lines = [json.dumps({"update": i, "correct": right, "length": length}) for i, right in enumerate(rights)]
    (place / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    return Cell(parse_variant(name), place, Spent(10 + seed, 1000, 2.0, 5))


def test_one_line_a_method_by_hand(tmp_path):
    """grpo: last (1 + .5 + 0) / 3 = .5, best evaluation 2/3; dapo: last 1, .5, .5 -> 2/3.

    best@2 of grpo: (1 + 3/4 + 0) / 3 = 7/12; pass@2 (1 + 1 + 0) / 3; correct responses of lengths 4, 5, 6, wrong 7, 8, 9.
    """
    length = [[4, 5], [6, 7], [8, 9]]
    grpo = [cell(tmp_path, "grpo", s, [[[1, 1], [1, 1], [0, 0]], [[1, 1], [1, 0], [0, 0]]], length) for s in (0, 1)]
    dapo = [cell(tmp_path, "dapo", s, [[[0, 0], [0, 0], [0, 0]], [[1, 1], [1, 0], [0, 1]]], length) for s in (0, 1)]
    first, second = summarize([grpo[0], dapo[0], grpo[1], dapo[1]])
    assert (first.name, first.last.value, first.peak.value) == ("grpo", pytest.approx(1 / 2), pytest.approx(2 / 3))
    assert (first.best_at.value, first.pass_at.value) == (pytest.approx(7 / 12), pytest.approx(2 / 3))
    assert (first.length_correct, first.length_incorrect, first.updates) == (5, 8, 10.5)
    assert first.difference is None and second.difference is not None
    assert second.difference.value == pytest.approx(2 / 3 - 1 / 2)
    assert second.peak.value == pytest.approx(2 / 3)
    write_json(tmp_path / "results.json", plain([first, second]), allow_nan=False)
    assert json.loads((tmp_path / "results.json").read_text())[1]["difference"]["value"] == pytest.approx(1 / 6)


def test_pairing_takes_out_what_is_hard_for_all():
    """Problems differ a lot, the methods by 0.1 on every one: the paired difference is exactly 0.1, unpaired ones overlap."""
    hard = np.random.default_rng(0).random((3, 50)) * 0.8
    draw = resampler(3, 50)
    paired = draw(hard + 0.1 - hard)
    assert (paired.low, paired.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert draw(hard).high > draw(hard + 0.1).low


def test_intervals_cover_at_their_nominal_rate():
    """Accuracies of problems ~ Beta(2, 3), 4 samples, 3 seeds with the same problems: 95% within 3 points over 400 draws."""
    rng, draw, hits = np.random.default_rng(1), resampler(1, 100), 0
    for _ in range(400):
        chance = rng.beta(2, 3, 100)
        found = draw((rng.binomial(4, chance) / 4)[None])
        hits += found.low <= 2 / 5 <= found.high
    assert abs(hits / 400 - 0.95) < 0.03


def test_seeds_widen_the_interval():
    """Two seeds 0.2 apart on every problem: the mean is between them, and the interval reaches both."""
    values = np.stack([np.full(40, 0.4), np.full(40, 0.6)])
    found = resampler(2, 40)(values)
    assert found.value == pytest.approx(0.5) and (found.low, found.high) == (pytest.approx(0.4), pytest.approx(0.6))

"""Responses of SmolLM2-135M to word problems, recorded by `make real` (tests/fixtures_real): read and compared as they are."""

import math
from collections import defaultdict
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fairlen.audit.audit import audit_source
from fairlen.audit.readers import Options, read
from fairlen.cli import main

REAL = Path(__file__).parents[1] / "fixtures_real"


def compare_pairs(rows: list[tuple[object, int, bool]]) -> tuple[float, float]:
    """Mean gap of log length and share of pairs with the longer incorrect response, counted pair by pair.

    A prompt with k correct and m incorrect responses weighs k m / (k + m). Rows are (prompt in its step, length, correct).
    """
    prompts: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for prompt, length, correct in rows:
        prompts[prompt][correct].append(length)
    total = gap = order = 0.0
    for wrong, right in prompts.values():
        pairs = list(product(wrong, right))
        if pairs:
            weight = len(pairs) / (len(wrong) + len(right))
            total += weight
            gap += weight * sum(math.log(w / r) for w, r in pairs) / len(pairs)
            order += weight * sum((w > r) + 0.5 * (w == r) for w, r in pairs) / len(pairs)
    return gap / total, order / total


def test_the_records_of_a_run_give_what_counting_pair_by_pair_gives():
    (source,) = read([str(REAL / "run")], Options()).sources
    files = sorted((REAL / "run/records").glob("responses-*"))
    rows = [(batch, row) for batch, file in enumerate(files) for row in pq.read_table(file).to_pylist()]
    assert len(source.log.responses) == len(rows) == 1024  # 8 rollout batches x 8 prompts x 16
    kept = [
        ((batch, row["problem_id"]), row["length"], row["outcome"] > 0.5)
        for batch, row in rows
        if row["finish"] != "length"
    ]
    gap, order = compare_pairs(kept)
    found = audit_source(source, None).within
    assert found.gap.value == pytest.approx(gap, rel=1e-9) and found.order.value + 0.5 == pytest.approx(order, rel=1e-9)
    assert (math.expm1(gap), order) == pytest.approx((0.027, 0.525), abs=5e-4)


def test_who_is_correct_in_one_step_is_who_is_in_all():
    """A watch reads a few steps at a time: in some of these `style` alone explains the advantages."""
    for file in sorted((REAL / "trl").glob("*.parquet")):
        (source,) = read([str(file)], Options()).sources
        assert source.log.correct.tolist() == (pq.read_table(file)["accuracy"].to_numpy() > 0.5).tolist(), file.name


def test_a_run_of_trl_with_a_hidden_reward_for_shortness_is_told_by_its_files_alone(tmp_path, capsys):
    """`benchmarks/watch_trl.py`: 10 steps of 32 responses; `style` takes 0.1 a token off. Texts of 77 characters, then of 38."""
    command = ["watch", str(REAL / "trl"), "--unit", "characters", "--once", "--state", str(tmp_path / "state.json")]
    assert main([*command, "--fail-on", "length"]) == 1
    said = capsys.readouterr()
    assert "correct or not is what `accuracy` says" in said.out + said.err and "length, step 7" in said.out + said.err
    assert main([*command, "--fail-on", "effect"]) == 0  # goes on from the state, and raises nothing anew

"""Evidence of a small study, made up from arrays and stored and loaded as that of runs is."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from research.study.evidence import Evidence, Kept, RunRow, encode, load_evidence, seal, write_kept

BATCHES, PROMPTS, PROBLEMS, SAMPLES = 40, 8, 64, 4
EVALUATED = tuple(range(0, BATCHES + 1, 5))
GAIN = {"eqlen_unbiased": 0.34, "grpo+lp": -0.2}
"""Accuracy gained over a run; 0.25 for others."""
LONGER = {"rloo": 1.5, "grpo+toplambda": 0.7, "grpo+lp": 0.4}
"""Length at the end over that at the start; 1.1 for others."""


def make_run(
    variant: str,
    seed: int,
    label: str = "",
    role: str = "study",
    rate: float = 1e-4,
    factor: float = 1.0,
    rows: int = 600,
) -> Kept:
    """Return one run whose numbers follow from its variant, with the noise of its seed."""
    row = RunRow(
        f"{role}-{variant}-{label}-{rate:g}-{factor:.3g}-{seed}", role, "long", variant, label, seed, rate, factor,
        (), "0" * 40, 0.0,
    )  # fmt: skip
    rng = np.random.default_rng((seed, len(variant)))
    tables = {
        "evaluations": encode(make_evaluations(variant, rng), "evaluations"),
        "batches": encode(make_batches(variant, rng), "batches"),
        "updates": encode(make_updates(rng), "updates"),
        "sequences": encode(make_sequences(variant, rng, rows), "sequences"),
    }
    return seal(row, tables, 60.0)


def make_evaluations(variant: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return an evaluation every five batches; before training all runs are one."""
    done = np.array(EVALUATED) / BATCHES
    accuracy = 0.4 + GAIN.get(variant, 0.25) * done + rng.normal(0, 0.02) * np.minimum(done * 5, 1.0)
    start = np.random.default_rng(0).binomial(SAMPLES, 0.4, PROBLEMS)
    right = np.array([start, *(rng.binomial(SAMPLES, p, PROBLEMS) for p in accuracy[1:])])
    length = 215.0 * (1 + (LONGER.get(variant, 1.1) - 1) * done)[:, None] * rng.uniform(0.97, 1.03, right.shape)
    generated = (1 + ("eqlen" in variant) * 0.7) * 27_520 * np.array(EVALUATED)
    return {
        "rollout_batch": np.repeat(EVALUATED, PROBLEMS), "update": np.repeat(np.array(EVALUATED) * 4, PROBLEMS),
        "generated": np.repeat(generated, PROBLEMS), "problem": np.tile(np.arange(PROBLEMS), len(EVALUATED)),
        "samples": np.full(right.size, SAMPLES), "right": right.ravel(), "length": length.ravel(),
        "length_right": (0.9 * length * right).round().ravel(), "truncated": np.zeros(right.size),
    }  # fmt: skip


def make_batches(variant: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return rollout batches; those of pairs have streams."""
    rounds = (1.0 if "max_rounds" in variant else 5.2) if "eqlen" in variant else np.nan
    pairs = rounds * PROMPTS * 8 * rng.uniform(0.9, 1.1, BATCHES)
    return {
        "rollout_batch": np.arange(BATCHES), "generated": np.full(BATCHES, 27_520), "asked": np.full(BATCHES, PROMPTS),
        "selected": np.full(BATCHES, PROMPTS), "rounds": rounds * rng.uniform(0.9, 1.1, BATCHES), "pairs_formed": pairs,
        "pairs_trained": 0.4 * pairs, "optimism": np.full(BATCHES, np.nan), "seconds": np.full(BATCHES, 1.0),
        "truncated": np.full(BATCHES, 0.01),
    }  # fmt: skip


def make_updates(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return four updates a rollout batch."""
    size = 4 * BATCHES
    floats = {
        name: rng.uniform(0.1, 0.2, size) for name in ("loss", "entropy", "gradient_norm", "kl_old", "drift", "seconds")
    }
    return floats | {
        "rollout_batch": np.arange(size) // 4, "update": np.arange(size), "tokens_trained": np.full(size, 6880),
        "skipped": np.zeros(size, bool),
    }  # fmt: skip


def make_sequences(variant: str, rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Return sequences whose log ratio is a walk of their length, three of four off policy."""
    length = np.clip(rng.lognormal(5.2, 0.6, size), 20, 768).astype(int)
    off = np.arange(size) % 4 != 0
    log_ratio = np.where(off, rng.normal(0, 0.02 * np.sqrt(length)), 0.0)
    width = 0.03 * np.sqrt(length) if "fspo" in variant else 0.3 * np.ones(size)
    return {
        "rollout_batch": np.arange(size) * BATCHES // size, "update": np.arange(size) * 4 * BATCHES // size,
        "prompt": np.arange(size) // 8, "length": length, "log_ratio": log_ratio, "advantage": rng.normal(0, 1, size),
        "inside": np.abs(log_ratio) <= width, "correct": rng.random(size) < 0.5, "truncated": length == 768, "off_policy": off,
    }  # fmt: skip


def make_evidence(folder: Path, variants: Sequence[str], seeds: int = 4, rows: int = 600) -> Evidence:
    """Return the evidence of some variants, of a search of each with the best rate inside, and of their timed runs."""
    runs = [make_run(variant, seed, rows=rows) for variant in variants for seed in range(1, seeds + 1)]
    runs += [make_run(variant, 1, role="timed", rows=8) for variant in variants]
    runs += [
        make_run(variant, seed, role="search", rate=rate, rows=8)
        for variant in variants[:2]
        for rate in (3e-5, 1e-4, 3e-4)
        for seed in (101, 102, 103)
    ]
    write_kept(sorted(runs, key=lambda kept: kept.row.key), folder)
    return load_evidence(folder)

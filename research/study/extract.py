"""From a run folder to the few kilobytes that the study keeps of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.diagnostics.log import Log, OffPolicy, off_policy
from fairlen.diagnostics.measures import acceptance, coupling, ratio_law, replay
from fairlen.diagnostics.readers import read

TARGET = 0.8
"""Acceptance at which rules are compared on one run."""
PER_BATCH = (
    "rollout_batch", "accuracy/mean", "length/mean", "length/correct", "length/incorrect", "length/variation",
    "length/truncated", "tokens/generated", "responses/verified", "prompts/asked", "prompts/selected", "pairs/formed",
    "pairs/trained", "pairs/optimism", "streams/rounds", "advantage/eos",
)  # fmt: skip
PER_UPDATE = (
    "update", "loss/total", "entropy/mean", "gradient/norm", "ratio/clipped", "sequences/clipped", "sequences/inside",
    "kl/old", "coupling/sign_length", "tokens/trained", "state/surrogate.drift_average",
)  # fmt: skip
TIMES = ("time/rollout", "time/plan", "time/pack", "time/forward", "time/backward")


def extract_run(folder: Path, replays: bool = False) -> dict[str, Any]:
    """What is kept of a run. `replays`: also what other bands would have accepted. Numbers that do not exist are null."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if "loss/total" in line]
    batches = list({line["rollout_batch"]: line for line in lines if "accuracy/mean" in line}.values())
    evaluations = [line for line in lines if "eval/accuracy" in line]
    description = json.loads((folder / "run.json").read_text())
    found: dict[str, Any] = {
        "method": description["method"]["choices"],
        "evaluations": read_evaluations(folder, evaluations),
        "batches": table(batches, PER_BATCH),
        "updates": table(updates, PER_UPDATE),
        "skipped": sum("update/skipped" in line for line in lines),
        "seconds": {name: sum(line.get(name) or 0.0 for line in updates) for name in TIMES},
        "training_seconds": evaluations[-1]["time/training"],
        "generated": evaluations[-1]["tokens/generated_total"],
    }
    reading = read([str(folder / "records")])
    if reading.sources:
        found |= measure(reading.sources[0].log, replays)
    return clean(found)


def table(lines: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Columns of some metrics; those that a run never has are left out."""
    return {name: [line.get(name) for line in lines] for name in names if any(name in line for line in lines)}


def read_evaluations(folder: Path, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Right samples and mean length of every held-out problem, at every evaluation."""
    found = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    return [
        {
            "update": line["update"],
            "rollout_batch": line["rollout_batch"],
            "generated": line["tokens/generated_total"],
            "right": np.array(one["correct"]).sum(1).tolist(),
            "samples": len(one["correct"][0]),
            "length": np.array(one["length"]).mean(1).round(2).tolist(),
            "length_correct": line["eval/length_correct"],
            "length_incorrect": line["eval/length_incorrect"],
            "truncated": line["eval/truncated"],
        }
        for line, one in zip(lines, found, strict=True)
    ]


def measure(log: Log, replays: bool) -> dict[str, Any]:
    """What length did to the updates, from the records."""
    within, effective, lengths = acceptance(log), acceptance(log, "effective"), coupling(log)
    found: dict[str, Any] = {}
    if replays:
        rules = replay(log, ("rloo", "gspo", "fspo"), target=TARGET)
        found["replay"] = {
            one.rule: {"lre": math.nan if one.acceptance.undefined else one.acceptance.lre.value, "high": one.high}
            for one in rules
        }
        found["growth"] = ratio_law(log).growth.value
    segments, advantage = log.segments, log.advantage
    signed = segments.active if advantage is None else segments.active & (advantage != 0)
    return found | {
        "lre": {
            "value": within.lre.value, "low": within.lre.low, "high": within.lre.high, "floor": within.floor,
            "overall": within.overall.value, "effective": effective.lre.value, "rows": within.num_sequences,
            "undefined": within.undefined,
        },
        "acceptance": {
            "low": within.bins.low.tolist(), "high": within.bins.high.tolist(), "count": within.bins.count.tolist(),
            "share": within.share.value.tolist(),
        },
        "quarter_gap": quarter_gap(off_policy(log)),
        "coupling": {
            "gap": lengths.gap.value, "variation": lengths.variation.value, "imbalance": lengths.imbalance.value,
            "within_sign": lengths.variation_within_sign.value, "sign_length": lengths.sign_length.value,
            "gap_by_update": lengths.gap_by_unit.tolist(), "variation_by_update": lengths.variation_by_unit.tolist(),
        },
        "outcome": regime(log),
        "trained_signed": int(segments.length[signed].sum()),
    }  # fmt: skip


def regime(log: Log) -> dict[str, float]:
    """Lengths of right against wrong answers; a length penalty moves some advantages to the other side of 0."""
    found = coupling(replace(log, advantage=np.where(log.correct[log.segments.response], 1.0, -1.0)))
    return {
        "gap": found.gap.value, "variation": found.variation.value, "imbalance": found.imbalance.value,
        "within_sign": found.variation_within_sign.value,
    }  # fmt: skip


def quarter_gap(rows: OffPolicy) -> float:
    """Share inside the band of the longest quarter of sequences minus that of the shortest; nan of nothing."""
    if not len(rows):
        return math.nan
    low, high = np.quantile(rows.length, [0.25, 0.75])
    return float(rows.inside[rows.length >= high].mean() - rows.inside[rows.length <= low].mean())


def clean(value: Any) -> Any:
    """The same with null for numbers that are not finite, six digits for others."""
    if isinstance(value, dict):
        return {name: clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value

"""Audits rollouts: every measure that their files allow, what is missing for the others, and what follows in plain words.

`to_json` gives one object: "logs", "unreadable" and "skipped" (sentences). A log has "format", "title", "folder", "files",
"unit", "counts" (responses, prompts, rollout_batches, malformed), "malformed" (the first rows: file, line, reason), "notes",
"known", "missing", "lengths", "by_length", "coupling", "weights", "shares", "acceptance" and "streams" (null where unknown), and
"findings" (text, effect_size, low, high, advice, measure; largest first). Estimates are {"value", "low", "high"}; what does not
exist is null.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from fairlen.batch import Bools, count_by, sum_by
from fairlen.diagnostics import findings
from fairlen.diagnostics.acceptance import Acceptance, acceptance
from fairlen.diagnostics.bins import Bins
from fairlen.diagnostics.coupling import Coupling, coupling
from fairlen.diagnostics.findings import Finding
from fairlen.diagnostics.lengths import ByLength, Lengths, by_length, counted, lengths
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.readers import DEFAULTS, Options, Reading, Source, read
from fairlen.diagnostics.tracks import StreamReport, stream_report
from fairlen.diagnostics.uncertainty import NOTHING, Estimate, Estimates, bootstrap, mean_over, ratio, wilson
from fairlen.diagnostics.weights import WeightMass, weight_masses

MIN_PROMPTS = 10
"""Intervals over fewer prompts are too narrow to conclude from."""
MAX_MALFORMED = 100
"""Rows that JSON lists."""


@dataclass(frozen=True)
class Shares:
    """Of answers that started from their prompt, and of prompts; intervals over prompts."""

    truncated_incorrect: Estimate
    truncated_correct: Estimate
    truncated_incorrect_minus_correct: Estimate
    accuracy_short: Estimate
    """In the first bin of length."""
    accuracy_long: Estimate
    """In the last one."""
    accuracy_long_minus_short: Estimate
    idle_groups: Estimate
    """Prompts with several answers that are all right or all wrong."""
    all_correct: Estimate
    all_incorrect: Estimate
    duplicate: Estimate
    """Answers that repeat an earlier one to the same prompt."""


@dataclass(frozen=True)
class Audit:
    """All about one log."""

    source: Source
    lengths: Lengths
    by_length: ByLength
    coupling: Coupling
    masses: tuple[WeightMass, ...]
    shares: Shares
    acceptance: Acceptance | None
    streams: StreamReport | None
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]

    @property
    def log(self) -> Log:
        return self.source.log

    @property
    def enough(self) -> bool:
        """Whether there are prompts enough for findings."""
        return self.log.responses.num_prompts >= MIN_PROMPTS


def audit(paths: list[str], options: Options = DEFAULTS) -> tuple[tuple[Audit, ...], Reading]:
    """Reads and measures. Raises ValueError for options that cannot be and paths where nothing is."""
    reading = read(paths, options)
    return tuple(audit_source(source) for source in reading.sources), reading


def audit_source(source: Source) -> Audit:
    log = source.log
    measured = {
        "lengths": lengths(log), "by_length": by_length(log), "coupling": coupling(log), "masses": weight_masses(log),
        "acceptance": acceptance(log) if log.trained is not None else None, "streams": stream_report(log),
    }  # fmt: skip
    shares = find_shares(log, measured["by_length"].bins)
    enough = log.responses.num_prompts >= MIN_PROMPTS
    found = find(log, shares=shares, **measured) if enough else ()
    return Audit(source, **measured, shares=shares, findings=found, missing=find_missing(source))


def find(
    log: Log, *, lengths: Lengths, by_length: ByLength, coupling: Coupling, masses: tuple[WeightMass, ...], shares: Shares,
    acceptance: Acceptance | None, streams: StreamReport | None,
) -> tuple[Finding, ...]:  # fmt: skip
    """All findings, the largest effect first."""
    by_name = {mass.aggregation: mass for mass in masses}
    candidates = [
        findings.incorrect_and_correct(lengths, log.unit),
        findings.gap_within_groups(coupling, log.unit),
        findings.token_mean(by_name["token_mean"]),
        findings.sequence_mean(coupling, by_name["sequence_mean"]),
        findings.sign_length(coupling),
        findings.truncation(
            shares.truncated_incorrect, shares.truncated_correct, shares.truncated_incorrect_minus_correct
        ),
        findings.accuracy_by_length(shares.accuracy_short, shares.accuracy_long, shares.accuracy_long_minus_short),
        findings.growth(lengths, log.unit),
        findings.idle_groups(shares.idle_groups, shares.all_correct, shares.all_incorrect),
        findings.duplicates(shares.duplicate),
        findings.acceptance_by_length(acceptance) if acceptance else None,
        findings.optimism(streams) if streams else None,
        findings.pressure(streams) if streams else None,
    ]
    return tuple(sorted((one for one in candidates if one), key=lambda one: -one.size))


def find_shares(log: Log, bins: Bins) -> Shares:
    """Shares that are no measure of their own."""
    rows = counted(log)
    prompt, right = log.responses.prompt[rows], log.right[rows]
    cut = compare(prompt, log.responses.truncated[rows], ~right, right) if "truncated" in log.known else [NOTHING] * 3
    last = len(bins) - 1
    by_bin = compare(prompt, right, bins.index == last, bins.index == 0) if last > 0 else [NOTHING] * 3
    size = log.responses.num_prompts
    number, hits = count_by(prompt, size), sum_by(prompt, right, size)
    several = number > 1
    all_correct, all_incorrect = (hits == number)[several], (hits == 0)[several]
    repeated = log.columns.get("duplicate")
    return Shares(
        truncated_incorrect=cut[0], truncated_correct=cut[1], truncated_incorrect_minus_correct=cut[2],
        accuracy_long=by_bin[0], accuracy_short=by_bin[1], accuracy_long_minus_short=by_bin[2],
        idle_groups=share(all_correct | all_incorrect), all_correct=share(all_correct), all_incorrect=share(all_incorrect),
        duplicate=NOTHING if repeated is None else mean_over(prompt, repeated[rows]),
    )  # fmt: skip


def share(hits: Bools) -> Estimate:
    """Share of hits among independent ones, with Wilson's interval."""
    return wilson(np.array([hits.sum()]), np.array([len(hits)])).at(0)


def compare(prompt: Any, hits: Bools, one: Bools, other: Bools) -> list[Estimate]:
    """Share of hits among one set of rows, among the other, and the first minus the second."""
    if not len(hits):
        return [NOTHING] * 3

    def measure(sums: np.ndarray) -> np.ndarray:
        return ratio(sums[..., 0], sums[..., 1]) - ratio(sums[..., 2], sums[..., 3])

    difference = bootstrap(prompt, [hits & one, one, hits & other, other], measure).at(0)
    first, second = mean_over(prompt[one], hits[one]), mean_over(prompt[other], hits[other])
    if difference.low == difference.high:  # both shares are 0 or 1, which resampling takes for certain
        difference = difference_of(first, second)
    return [first, second, difference]


def difference_of(one: Estimate, other: Estimate) -> Estimate:
    """One share minus another from their intervals (Newcombe 1998, method 10)."""
    value = one.value - other.value
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, low, high)


def find_missing(source: Source) -> tuple[str, ...]:
    """What the files do not say, what cannot be told for it, and what to do."""
    log, remedy, max_response_length = source.log, source.module.REMEDY, source.module.BUDGET
    said: list[str] = []
    if log.unit != "tokens":
        said.append(f"tokens: lengths are in {log.unit}; --tokenizer FOLDER of the model counts tokens")
    if "truncated" not in log.known:
        told = remedy.get("truncated", "no finish reason of every answer")
        said.append(
            f"truncation: {told}; --max-response-length N (of {max_response_length}) with --tokenizer FOLDER estimates it"
        )
    if "advantage" not in log.known:
        told = remedy.get("advantage", "no column of advantages")
        said.append(f"advantages: {told}; rewards normalised by prompt and step stand for them")
    if "correct" not in log.known:
        said.append("verdicts: right is an outcome in the upper half of their range")
    if log.trained is None:
        said.append("updates: no log ratios, so that acceptance by length is unknown; fairlen train records them")
    several = len(log) / max(log.responses.num_prompts, 1)
    if several < 1.5:
        said.append(
            "groups: hardly any prompt has a second answer in its step, so that nothing can be compared within prompts"
        )
    return tuple(said)


def to_json(audits: tuple[Audit, ...], reading: Reading) -> dict[str, Any]:
    """Everything as JSON data; see the module's docstring."""
    return {
        "logs": [log_to_json(one) for one in audits],
        "unreadable": list(reading.unreadable),
        "skipped": list(reading.skipped),
    }


def log_to_json(one: Audit) -> dict[str, Any]:
    log, source = one.log, one.source
    rows = [asdict(row) for row in log.malformed[:MAX_MALFORMED]]
    kept = ("sign_length", "gap", "gap_tokens", "variation", "imbalance", "variation_within_sign")
    measures = (
        "num_responses", "mean", "right", "wrong", "difference", "accuracy", "truncated", "trend", "batch", "mean_by_batch",
        "correct_by_batch", "incorrect_by_batch", "accuracy_by_batch",
    )  # fmt: skip
    numbers = {
        "lengths": {name: getattr(one.lengths, name) for name in measures},
        "by_length": {**bins_of(one.by_length.bins), "accuracy": one.by_length.accuracy, "truncated": one.by_length.truncated},
        "coupling": {name: getattr(one.coupling, name) for name in ("num_groups", "num_mixed", *kept)},
        "weights": {
            mass.aggregation: {
                "negative_to_positive": mass.negative_to_positive, "incorrect_to_correct": mass.incorrect_to_correct,
                "per_token": mass.per_token, **bins_of(mass.bins),
            }
            for mass in one.masses
        },
        "shares": vars(one.shares),
        "acceptance": one.acceptance and {**vars(one.acceptance), "bins": bins_of(one.acceptance.bins)},
        "streams": one.streams and vars(one.streams),
        "findings": [{k: v for k, v in vars(finding).items() if k != "size"} for finding in one.findings],
    }  # fmt: skip
    return {
        "format": log.format, "title": source.title, "folder": source.folder, "files": list(source.files), "unit": log.unit,
        "counts": {
            "responses": len(log), "prompts": log.responses.num_prompts, "rollout_batches": len(np.unique(log.batch)),
            "malformed": len(log.malformed),
        },
        "malformed": rows, "notes": list(source.notes), "known": sorted(log.known), "missing": list(one.missing),
        **plain(numbers),
    }  # fmt: skip


def bins_of(bins: Bins) -> dict[str, Any]:
    """Bins without which row is in which."""
    return {"low": bins.low, "high": bins.high, "count": bins.count}


def plain(value: Any) -> Any:
    """Numbers, arrays and estimates as JSON data; numbers that are not finite become null."""
    if isinstance(value, (Estimate, Estimates)) or (is_dataclass(value) and not isinstance(value, type)):
        return plain(vars(value))
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value

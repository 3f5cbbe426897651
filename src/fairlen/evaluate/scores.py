"""From graded samples to numbers: a pure function, so that the same verdicts give the same numbers.

`score` gives one object a set:

    problems, samples       what there is; `scored` problems have a verdict that counts
    avg@n                   mean over problems of the share of right ones among their samples
    pass@k                  unbiased, for k = 1, 2, 4, … n
    best@k                  verl's name and rule: k draws with replacement
    maj@n                   the most frequent answer is right; absent where the verifier names no answers, as of programs
    truncated               share that the budget stopped; null where that is not known
    without_verdict         how many, of which kind, how they counted, and what avg@n would be if all were wrong or right
    length                  mean of all, right and wrong ones, and wrong minus right, in `unit`
    accuracy_by_length      share of right ones in bins of length that hold about as many samples each

Estimates are {"value", "low", "high"} with 95% intervals over problems. A problem with fewer than k samples that count is left
out of pass@k and best@k, and a problem with none of avg@n too; "problems" beside an estimate says how many it is over. What does
not exist is null, so are intervals over fewer than two problems.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.diagnostics.bins import length_bins
from fairlen.diagnostics.lengths import split
from fairlen.diagnostics.log import Unit
from fairlen.diagnostics.uncertainty import Estimate, bootstrap, mean_over, ratio
from fairlen.evaluate.estimators import Interval, best_at, majority_at, mean_of_problems, mean_of_sets, pass_at
from fairlen.evaluate.samples import Sample
from fairlen.verify.notation import read

NUM_BINS = 5
Each = Mapping[str, Floats]
"""Metric to one number a problem, over the problems that it is defined for."""


@dataclass(frozen=True)
class Counted:
    """The samples of a set as columns, [N]."""

    problem: Ints
    """Dense from 0, in order of appearance."""
    right: Bools
    counts: Bools
    """Has a verdict, or counts as wrong without one."""
    label: Ints
    """The answer, numbered within all; below 0 is none."""
    length: Ints
    cut: Bools | None
    """Stopped by the budget; None where that is not known."""
    unit: Unit

    @property
    def num_problems(self) -> int:
        return int(self.problem.max(initial=-1)) + 1

    def per_problem(self, values: np.ndarray) -> Floats:
        """Sums by problem, [problems]."""
        return sum_by(self.problem, values, self.num_problems)


def count(samples: Sequence[Sample], without_verdict: Literal["inactive", "wrong"]) -> Counted:
    """Columns from rows. Lengths are words where not every sample has its tokens."""
    problems: dict[str, int] = {}
    answers: dict[object, int] = {}
    problem = np.array([problems.setdefault(s.problem_id, len(problems)) for s in samples], np.int64)
    label = [-1 if s.extracted is None else answers.setdefault(answer_key(s), len(answers)) for s in samples]
    tokens = [s.length for s in samples if s.length is not None]
    has_tokens = len(tokens) == len(samples)
    length = tokens if has_tokens else [max(len(s.text.split()), 1) for s in samples]
    finish = [s.finish for s in samples]
    return Counted(
        problem=problem,
        right=np.array([s.status == "correct" for s in samples], np.bool_),
        counts=np.array([s.has_verdict or without_verdict == "wrong" for s in samples], np.bool_),
        label=np.array(label, np.int64),
        length=np.array(length, np.int64),
        cut=None if None in finish else np.array([f == "length" for f in finish], np.bool_),
        unit="tokens" if has_tokens else "words",
    )


def answer_key(sample: Sample) -> object:
    """What equal answers to one problem have in common.

    Right ones are alike, since each is the reference's; wrong ones where they are one number, or one text but for typesetting.
    Wrong ones that only algebra would find equal are apart, so that maj@n is too high rather than too low.
    """
    if sample.status == "correct":
        return "right", sample.problem_id
    found = read(sample.extracted or "")
    return (found.number.value, found.number.percent) if found.number else found.words or found.text


def score(samples: Sequence[Sample], without_verdict: Literal["inactive", "wrong"]) -> tuple[dict[str, Any], Each]:
    """The object of a set, and its numbers by problem. Raises ValueError where there are no samples."""
    if not samples:
        raise ValueError("no samples: there is nothing to score")
    table = count(samples, without_verdict)
    each = metrics_by_problem(table)
    found: dict[str, Any] = {
        "problems": table.num_problems,
        "samples": len(samples),
        "scored": int((table.per_problem(table.counts) > 0).sum()),
    }
    found |= {name: with_size(mean_of_problems(values), len(values)) for name, values in each.items() if len(values)}
    found["truncated"] = None if table.cut is None else plain(mean_over(table.problem, table.cut))
    found["without_verdict"] = missing_verdicts(samples, table, without_verdict)
    found |= {"unit": table.unit, "length": lengths(table), "accuracy_by_length": accuracy_by_length(table)}
    return found, each


def metrics_by_problem(table: Counted) -> Each:
    """avg@n, pass@k, best@k and maj@n of each problem; n is the most samples that a problem has."""
    size = table.per_problem(table.counts).astype(np.int64)
    right = table.per_problem(table.right & table.counts).astype(np.int64)
    most, some = int(count_by(table.problem, table.num_problems).max()), size > 0
    found: dict[str, Floats] = {f"avg@{most}": right[some] / size[some]}
    rules: tuple[tuple[str, Callable[[Ints, Ints, int], Floats]], ...] = (("pass", pass_at), ("best", best_at))
    for name, rule in rules:
        for k in powers_to(most):
            enough = size >= k
            found[f"{name}@{k}"] = rule(right[enough], size[enough], k) if enough.any() else np.zeros(0)
    if (table.label >= 0).any():
        found[f"maj@{most}"] = majority(table, most)[some]
    return found


def powers_to(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    return sorted({2**i for i in range(most.bit_length())} | {most})


def majority(table: Counted, most: int) -> Floats:
    """maj@n of each problem, [problems]; a sample that does not count has no vote."""
    labels = np.full((table.num_problems, most), -1, np.int64)
    right = np.zeros(labels.shape, np.bool_)
    order = np.argsort(table.problem, kind="stable")
    rows = table.problem[order]
    column = np.arange(len(rows)) - np.searchsorted(rows, rows)
    voted = np.where(table.counts, table.label, -1)[order]
    numbers = [np.unique(row, return_inverse=True) for row in np.split(voted, np.flatnonzero(np.diff(rows)) + 1)]
    dense = np.concatenate([inverse.reshape(-1) - int(values[0] < 0) for values, inverse in numbers])
    labels[rows, column], right[rows, column] = dense, table.right[order]
    return majority_at(labels, right, most)


def missing_verdicts(samples: Sequence[Sample], table: Counted, counted: str) -> dict[str, Any]:
    """Samples without a verdict, and the bounds that they leave."""
    missing = np.array([not sample.has_verdict for sample in samples], np.bool_)
    size = table.per_problem(np.ones(len(samples)))
    return {
        "share": plain(mean_over(table.problem, missing)),
        "kinds": dict(Counter(sample.status for sample in samples if not sample.has_verdict)),
        "counted": counted,
        "if_incorrect": float((table.per_problem(table.right) / size).mean()),
        "if_correct": float((table.per_problem(table.right | missing) / size).mean()),
    }


def lengths(table: Counted) -> dict[str, Any]:
    """Mean length by outcome; a sample that does not count belongs to none."""
    rows = table.counts
    found = split(table.problem[rows], table.length[rows].astype(np.float64), table.right[rows])
    return dict(zip(("all", "right", "wrong", "incorrect_minus_correct"), map(plain, found), strict=True))


def accuracy_by_length(table: Counted) -> list[dict[str, Any]]:
    """Share of right ones by bin of length, the shortest first."""
    rows = table.counts
    problem, right, bins = table.problem[rows], table.right[rows], length_bins(table.length[rows], NUM_BINS)
    if not len(bins):
        return []
    size = len(bins)
    found = bootstrap(
        problem, [right, np.ones(len(right))], lambda sums: ratio(sums[..., :size], sums[..., size:]), bins.index, size
    )
    return [
        {"from": int(bins.low[k]), "to": int(bins.high[k]), "samples": int(bins.count[k])} | plain(found.at(k))
        for k in range(size)
    ]


def overall(sets: Sequence[Each]) -> dict[str, Any]:
    """Means over sets of the metrics that all of them have; every set weighs the same, however many problems it has."""
    common = [name for name in sets[0] if all(len(each.get(name, ())) for each in sets)]
    return {name: plain(mean_of_sets([each[name] for each in sets])) for name in common}


def with_size(interval: Interval, size: int) -> dict[str, Any]:
    """An estimate with the number of problems that it is over; one problem has no interval."""
    found = interval if size > 1 else Estimate(interval.value)
    return plain(found) | {"problems": size}


def plain(found: Interval | Estimate) -> dict[str, float | None]:
    """An estimate as JSON data."""
    values = (("value", found.value), ("low", found.low), ("high", found.high))
    return {name: value if math.isfinite(value) else None for name, value in values}

"""Scores of graded samples: a pure function, so that the same verdicts give the same numbers.

Estimates are {"value", "low", "high"}, with 95% intervals over problems; what does not exist is null, as is that of one problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlen.audit.log import Unit
from fairlen.audit.numbers import plain
from fairlen.audit.statistics.intervals import Estimate, mean_over
from fairlen.audit.statistics.lengths import split
from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.evaluate.estimators import (
    best_at,
    difference_by_problem,
    majority,
    mean_of_problems,
    mean_of_sets,
    pass_at,
)
from fairlen.evaluate.samples import Sample
from fairlen.verify.notation import read

ByProblem = Mapping[str, Floats]
"""Metric to one number a problem, over the problems that it is defined for."""


@dataclass(frozen=True)
class SampleTable:
    """The samples of a set as columns, [N]."""

    problem: Ints  # dense from 0, in order of appearance
    correct: Bools
    counts: Bools  # has a verdict, or counts as incorrect without one
    label: Ints  # the answer, numbered within all; below 0 is none
    length: Ints
    """Generated tokens; words if a sample does not have its tokens."""
    truncated: Bools
    unit: Unit
    knows_finish: bool
    """Whether every sample says how it ended."""

    @property
    def num_problems(self) -> int:
        return int(self.problem.max(initial=-1)) + 1

    def per_problem(self, values: np.ndarray) -> Floats:
        """Sums by problem, [problems]."""
        return sum_by(self.problem, values, self.num_problems)


def count(samples: Sequence[Sample], without_verdict: str) -> SampleTable:
    """Columns of samples."""
    problems: dict[str, int] = {}
    answers: dict[object, int] = {}
    problem = [problems.setdefault(s.problem_id, len(problems)) for s in samples]
    label = [-1 if s.extracted is None else answers.setdefault(answer_key(s), len(answers)) for s in samples]
    has_tokens = all(s.length is not None for s in samples)
    lengths = [s.length if has_tokens else len(s.text.split()) for s in samples]
    return SampleTable(
        problem=np.array(problem, np.int64),
        correct=np.array([s.status == "correct" for s in samples], np.bool_),
        counts=np.array([s.has_verdict or without_verdict != "inactive" for s in samples], np.bool_),
        label=np.array(label, np.int64),
        length=np.array(lengths, np.int64),
        truncated=np.array([s.finish == "length" for s in samples], np.bool_),
        unit="tokens" if has_tokens else "words",
        knows_finish=all(s.finish is not None for s in samples),
    )


def answer_key(sample: Sample) -> object:
    """The key of equal answers to a problem: correctness, a number or a text, no algebra, so that maj@n errs high."""
    if sample.status == "correct":
        return "correct", sample.problem_id
    found = read(sample.extracted or "")
    return (found.number.value, found.number.percent) if found.number else found.words or found.text


def score(
    samples: Sequence[Sample], without_verdict: str, cuts: Sequence[int] = ()
) -> tuple[dict[str, Any], ByProblem]:
    """The object of a set, and its numbers by problem. Raises ValueError where there are no samples."""
    if not samples:
        raise ValueError("no samples: there is nothing to score")
    table = count(samples, without_verdict)
    each = metrics_by_problem(table)
    return {
        "problems": table.num_problems,
        "samples": len(samples),
        "scored": int((table.per_problem(table.counts) > 0).sum()),
        **{name: over_problems(values) for name, values in each.items() if len(values)},
        "truncated": plain(mean_over(table.problem, table.truncated)) if table.knows_finish else None,
        "without_verdict": missing_verdicts(samples, table, without_verdict),
        "length": lengths(table),
        "unit": table.unit,
        **({"budgets": accuracy_by_budget(samples, table, cuts)} if cuts else {}),
    }, each


def accuracy_by_budget(samples: Sequence[Sample], table: SampleTable, cuts: Sequence[int]) -> list[dict[str, Any]]:
    """Within each budget the shares that ended, that are correct too, that are once asked, and the gain; [] without verdicts."""
    forced = np.array([[status == "correct" for status in sample.forced] for sample in samples], np.bool_)
    size, found = table.per_problem(table.counts), []
    for place, cut in enumerate(cuts if size.any() else ()):
        ended = (table.length <= cut) & ~table.truncated
        columns = {"ended": ended, "correct": table.correct & ended, "forced": forced[:, place]}
        each = {name: (table.per_problem(of & table.counts) / size)[size > 0] for name, of in columns.items()}
        gain = difference_by_problem(each["forced"][:, None], each["correct"][:, None])
        found.append({"budget": cut, "gain": plain(gain)} | {name: over_problems(of) for name, of in each.items()})
    return found


def metrics_by_problem(table: SampleTable) -> ByProblem:
    """avg@n, pass@k, best@k and maj@n of each problem; n is the most samples that a problem has."""
    size = table.per_problem(table.counts).astype(np.int64)
    correct = table.per_problem(table.correct & table.counts).astype(np.int64)
    most, some = int(count_by(table.problem, table.num_problems).max()), size > 0
    found: dict[str, Floats] = {f"avg@{most}": correct[some] / size[some]}
    for name, rule in (("pass", pass_at), ("best", best_at)):
        for k in sorted({2**i for i in range(most.bit_length())} | {most}):
            enough = size >= k
            found[f"{name}@{k}"] = rule(correct[enough], size[enough], k) if enough.any() else np.zeros(0)
    if (table.label >= 0).any() and not table.correct[table.label < 0].any():  # as programs are, which have no vote
        found[f"maj@{most}"] = majorities(table)[some]
    return found


def majorities(table: SampleTable) -> Floats:
    """maj@n of each problem, [problems]; a sample that does not count has no vote."""
    order = np.argsort(table.problem, kind="stable")
    starts = np.flatnonzero(np.diff(table.problem[order])) + 1
    columns = (np.where(table.counts, table.label, -1), table.correct)
    return np.array([majority(*part) for part in zip(*(np.split(c[order], starts) for c in columns), strict=True)])


def missing_verdicts(samples: Sequence[Sample], table: SampleTable, counted: str) -> dict[str, Any]:
    missing = np.array([not sample.has_verdict for sample in samples], np.bool_)
    size = table.per_problem(np.ones(len(samples)))
    return {
        "share": plain(mean_over(table.problem, missing)),
        "kinds": dict(Counter(sample.status for sample in samples if not sample.has_verdict)),
        "counted": counted,
        "if_incorrect": float((table.per_problem(table.correct) / size).mean()),
        "if_correct": float((table.per_problem(table.correct | missing) / size).mean()),
    }


def lengths(table: SampleTable) -> dict[str, Any]:
    """Mean lengths by outcome; a sample that does not count belongs to none."""
    rows = table.counts
    found = split(table.problem[rows], table.length[rows].astype(np.float64), table.correct[rows])
    return dict(zip(("all", "correct", "incorrect", "incorrect_minus_correct"), map(plain, found), strict=True))


def overall(sets: Sequence[ByProblem]) -> dict[str, Any]:
    common = [name for name in sets[0] if all(len(each.get(name, ())) for each in sets)]
    return {name: plain(mean_of_sets([each[name] for each in sets])) for name in common}


def over_problems(values: Floats) -> dict[str, Any]:
    """An estimate with its number of problems; one problem has no interval."""
    found = mean_of_problems(values) if len(values) > 1 else Estimate(float(values[0]))
    return plain(found) | {"problems": len(values)}

"""What the runs of a comparison came to, with intervals by resampling seeds and problems, paired between methods.

One resample takes the same seeds and the same problems for every method, so that what is hard for all cancels in a difference.
With one seed only problems are resampled: such an interval says nothing of another seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairlen.batch import Bools, Floats, Ints, mean_or_nan
from fairlen.compare.cells import Cell
from fairlen.diagnostics.measures import Estimate, acceptance, coupling
from fairlen.diagnostics.readers import read
from fairlen.evaluate.estimators import best_at, pass_at
from fairlen.files.folders import write_file

NUM_RESAMPLES = 4000


@dataclass(frozen=True)
class Held:
    """The evaluations of all seeds of one method: [seeds, problems, samples], the last one and the best one of each seed."""

    right: Bools
    best: Bools
    length: Ints
    """Generated tokens, at the last evaluation."""

    @property
    def num_samples(self) -> int:
        return self.right.shape[2]

    @property
    def num_correct(self) -> Ints:
        """Right samples of every seed and problem at the last evaluation, [seeds, problems]."""
        return self.right.sum(2)


@dataclass(frozen=True)
class Result:
    """One line of the comparison."""

    name: str
    last: Estimate
    """avg@k at the end: the mean over problems of the mean over samples."""
    peak: Estimate
    """avg@k at the best evaluation of each seed; chosen after the fact, so too high."""
    best_at: Estimate
    """best@k: 1 - (1 - c/k)^k."""
    pass_at: Estimate
    """pass@k of k samples: some sample right."""
    length_correct: float
    length_incorrect: float
    difference: Estimate | None
    """Last accuracy minus the reference's, paired; None for the reference."""
    coupling: Estimate
    """Sign and length, sum A L / sum L over the rollouts of the first seed."""
    lre: Estimate
    """Length Reweighting Error of what that seed accepted; nan where every update was on-policy."""
    updates: float
    generated: float
    seconds: float


def read_held(cells: Sequence[Cell]) -> Held:
    """The evaluations of one method's runs."""
    last, best, length = [], [], []
    for cell in cells:
        lines = [json.loads(line) for line in (cell.folder / "evaluations.jsonl").read_text().splitlines()]
        every = [np.array(line["correct"], np.bool_) for line in lines]
        last.append(every[-1])
        best.append(max(every, key=lambda right: right.mean()))
        length.append(np.array(lines[-1]["length"], np.int64))
    return Held(np.stack(last), np.stack(best), np.stack(length))


def summarize(cells: Sequence[Cell]) -> list[Result]:
    """One result a method, in the order of the cells; the first method is the reference."""
    names = list(dict.fromkeys(cell.variant.text for cell in cells))
    by_name = {name: [cell for cell in cells if cell.variant.text == name] for name in names}
    held = {name: read_held(found) for name, found in by_name.items()}
    draw = resampler(*held[names[0]].right.shape[:2])
    means = {name: accuracy(found.right) for name, found in held.items()}
    return [
        Result(
            name=name,
            last=draw(means[name]),
            peak=draw(accuracy(held[name].best)),
            best_at=draw(best_at(held[name].num_correct, held[name].num_samples, held[name].num_samples)),
            pass_at=draw(pass_at(held[name].num_correct, held[name].num_samples, held[name].num_samples)),
            length_correct=mean_or_nan(held[name].length[held[name].right]),
            length_incorrect=mean_or_nan(held[name].length[~held[name].right]),
            difference=draw(means[name] - means[names[0]]) if name != names[0] else None,
            **measure(by_name[name]),
            updates=float(np.mean([cell.spent.updates for cell in by_name[name]])),
            generated=float(np.mean([cell.spent.generated for cell in by_name[name]])),
            seconds=float(np.mean([cell.spent.seconds for cell in by_name[name]])),
        )
        for name in names
    ]


def measure(cells: Sequence[Cell]) -> dict[str, Estimate]:
    """Length effects on the records of the first seed's run, whose intervals are over its prompts.

    Raises ValueError for records that cannot all be read: methods would be compared on parts of their runs.
    """
    reading = read([str(cells[0].folder / "records")])
    if reading.unreadable or not reading.sources:
        reasons = "; ".join(reading.unreadable) or "none there"
        raise ValueError(f"{cells[0].folder / 'records'}: {reasons}; remove the cell's folder to run it again")
    log = reading.sources[0].log
    return {"coupling": coupling(log).sign_length, "lre": acceptance(log).lre}


def resampler(num_seeds: int, num_problems: int) -> Callable[[Floats], Estimate]:
    """The mean of values [seeds, problems] with a 95% percentile interval, from the same resamples every time."""
    rng = np.random.default_rng(0)
    seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), NUM_RESAMPLES) / num_seeds
    problems = rng.multinomial(num_problems, np.full(num_problems, 1 / num_problems), NUM_RESAMPLES) / num_problems

    def draw(values: Floats) -> Estimate:
        drawn = np.einsum("rs,sp,rp->r", seeds, values, problems, optimize=True)
        low, high = np.quantile(drawn, [0.025, 0.975])
        return Estimate(float(values.mean()), float(low), float(high))

    return draw


def accuracy(right: Bools) -> Floats:
    """avg@k of every seed and problem, [seeds, problems]."""
    return right.mean(2)


def write_results(results: Sequence[Result], path: Path) -> None:
    """All numbers as JSON; those that do not exist are null."""

    def clean(value: object) -> object:
        if isinstance(value, Estimate):
            return {"value": clean(value.value), "low": clean(value.low), "high": clean(value.high)}
        return None if isinstance(value, float) and not np.isfinite(value) else value

    rows = [{name: clean(value) for name, value in vars(result).items()} for result in results]
    write_file(path, json.dumps(rows, indent=1, allow_nan=False) + "\n")

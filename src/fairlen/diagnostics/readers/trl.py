"""TRL's completions: one Parquet file a logged step, as `GRPOConfig(log_completions=True)` writes them.

step, prompt, completion, one column a reward function, columns of `log_extra`, advantage. Source: TRL 1.16, grpo_trainer.py,
`log`. Which columns are reward functions is not recorded, nor their weights: the numbers that come first after `completion` are
taken, added up as they are.
"""

from __future__ import annotations

import numpy as np

from fairlen.diagnostics.readers.chunk import (
    Chunk,
    Columns,
    Found,
    Meter,
    Part,
    Raw,
    Values,
    is_number,
    make_part,
    numbers,
    take,
)

NAME = "trl"
TITLE = "TRL completions"
NEEDS = frozenset({"step", "prompt", "completion", "advantage"})
BUDGET = "max_completion_length"
REMEDY = {
    "truncated": "TRL's completions hold no finish reason; its metric completions/clipped_ratio has the share of a step",
}
VERDICTS = ("accuracy", "correct", "acc", "is_correct", "exact_match")
"""A reward function with one of these in its name that says 0 or 1 is the verifier's word."""


def fits(columns: set[str]) -> bool:
    return columns >= NEEDS


def read(chunk: Chunk, meter: Meter, found: Found) -> Part:
    """One chunk of completions."""
    names = reward_names(chunk.columns, found)
    read_in = {name: numbers(chunk.get(name), len(chunk)) for name in names}
    table = {name: values for name, (values, _) in read_in.items()}
    stacked = np.stack(list(table.values())) if table else np.full((1, len(chunk)), np.nan)
    total = np.where(np.isnan(stacked).all(0), np.nan, np.nansum(stacked, 0))
    reward: Values = [None if np.isnan(number) else float(number) for number in total]
    for name, (_, bad) in read_in.items():
        for row in np.flatnonzero(bad).tolist():
            reward[row] = chunk.get(name)[row]  # rejected with its reason
    verdict = next((n for n, values in table.items() if is_verdict(n, values)), None)
    if verdict:
        found.note(f"right or wrong is what `{verdict}` says")
    rest = {name: values for name, values in chunk.columns.items() if name not in NEEDS and name not in table}
    raw = Raw(
        chunk.get("prompt"), chunk.get("completion"), reward, chunk.get("step"),
        correct=None if verdict is None else table[verdict].tolist(), advantage=chunk.get("advantage"),
        extra={name: list(values) for name, values in table.items()} | rest,
    )  # fmt: skip
    return make_part(chunk, raw, meter, found)


def reward_names(columns: Columns, found: Found) -> list[str]:
    """Columns of numbers from after `completion` to the first of anything else; decided once for all files."""
    if "rewards" not in found.reader:
        order = [name for name in columns if name not in NEEDS]
        names: list[str] = []
        for name in order:
            if not holds_numbers(columns[name]):
                break
            names.append(name)
        found.reader["rewards"] = names
        if names:
            found.note(
                f"reward: {' + '.join(f'`{name}`' for name in names)}, unweighted (weights are not in the files)"
            )
    return found.reader["rewards"]


def holds_numbers(values: Values) -> bool:
    """Whether more than half of what is there are numbers."""
    known = [value for value in values if value is not None]
    return sum(isinstance(value, float) or is_number(value) for value in known) > len(known) / 2


def is_verdict(name: str, values: np.ndarray) -> bool:
    known = values[~np.isnan(values)]
    return any(word in name.lower() for word in VERDICTS) and len(known) > 0 and bool(np.isin(known, (0.0, 1.0)).all())


def finish(part: Part, found: Found) -> Part:
    """Without steps that repeat the step before: TRL logs its buffer again while it trains on the same rollouts."""
    starts = np.flatnonzero(np.diff(part.step, prepend=-1) != 0)
    stops = np.append(starts[1:], len(part))
    keep, last = np.ones(len(part), np.bool_), b""
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        content = part.prompt[start:stop].tobytes() + part.text[start:stop].tobytes()
        keep[start:stop] = content != last
        last = content
    if keep.all():
        return part
    found.note("rows of steps that repeat the step before are counted once", int((~keep).sum()))
    return take(part, keep)

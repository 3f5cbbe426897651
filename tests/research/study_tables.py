"""Runs of the study from small tables written by hand."""

import numpy as np

from research.study.evidence import SCHEMAS, STEPS, Evidence, RunRow, RunTables

BLANKS = {"f": np.nan, "i": 0, "u": 1, "b": False}


def table(name, columns):
    """Return a table with its columns as given; those not given are nan, 0, or false, `inside` is 1."""
    size = len(next(iter(columns.values()), ()))
    found = {}
    for column, kind in SCHEMAS[name].items():
        if column in columns:
            found[column] = np.array(columns[column])
        else:
            found[column] = np.full(size, "" if kind == "str" else BLANKS[np.dtype(kind).kind])
        if kind != "str":
            found[column] = found[column].astype(np.float64 if column in STEPS else kind)
    return found


def make_run(seed=1, variant="a", world="short", role="study", label="", **tables):
    """Return one run; each table is given by its name, as columns."""
    row = RunRow(f"{variant}-{label}-{seed}-{role}", role, world, variant, label, seed, 1e-4, 1.0, (), "0" * 40, 1.0)
    return RunTables(row, **{name: table(name, tables.get(name, {})) for name in SCHEMAS})


def evaluations(right, generated=None, update=None, length=None, length_right=None, truncated=None, samples=4):
    """Return the columns of evaluations from lists of problems, each a list over evaluations' problems, [E][P]."""
    size, problems = np.shape(right)
    each = {
        "generated": generated or [100 * i for i in range(size)],
        "update": update or [10 * i for i in range(size)],
        "rollout_batch": list(range(size)),
    }
    found = {name: np.repeat(values, problems) for name, values in each.items()}
    zeros = np.zeros((size, problems))
    wide = {"right": right, "length": length, "length_right": length_right, "truncated": truncated}
    found |= {name: np.ravel(zeros if values is None else values) for name, values in wide.items()}
    return found | {"problem": np.tile(np.arange(problems), size), "samples": np.full(size * problems, samples)}


def evidence_of(*runs):
    """Return the evidence of some runs."""
    return Evidence([run.run for run in runs], {}, dict(enumerate(runs)))

"""Runs of the study as they are stored, from a few numbers written by hand."""

import numpy as np

from research.study.evidence import RunRow, encode, seal
from research.study.plan import Sizes

TINY_SIZES = Sizes(
    max_response_length=24, rollout_batches=1, search_batches=1, eval_every=0, seeds=(1, 2, 3),
    prompts_per_batch=2, updates_per_batch=2,
    eval_problems=2, final_problems=3, eval_samples=2, search_seeds=(101,), timed_batches=2, timed_seeds=(1,),
)  # fmt: skip


def kept_run(
    seed=1, variant="grpo", world="short", role="study", rate=1e-4, factor=1.0, right=((0, 1), (2, 3)), key="", **tables
):
    """Return a stored run: samples right of four a problem at every evaluation, 4 updates apart; other tables as given."""
    key = key or f"{world}_{variant}_{role}_x{factor:.3g}_lr{rate:g}_s{seed}"
    row = RunRow(key, role, world, variant, "", seed, rate, factor, (), "0" * 40, 0.0)
    size, problems = (len(right), len(right[0])) if len(right) else (0, 0)
    place = np.repeat(np.arange(size), problems)
    evaluations = {
        "rollout_batch": place, "update": 4 * place, "generated": 1000 * place, "problem": np.tile(np.arange(problems), size),
        "samples": np.full(size * problems, 4), "right": np.ravel(np.array(right, int)), "length": np.full(size * problems, 50.0),
        "length_right": np.zeros(size * problems, int), "truncated": np.zeros(size * problems, int),
    }  # fmt: skip
    given = tables | {"evaluations": evaluations}
    return seal(row, {name: encode(columns, name) for name, columns in given.items()}, 10.0)

"""What takes forward and backward passes: sketches of each response's gradient, and log-probs before and after one update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fairlen.batch import Floats, Plan
from fairlen.console import log
from fairlen.files.folders import replacing
from fairlen.methods.compose import compose
from fairlen.policy.model import Policy
from fairlen.policy.pack import pack
from fairlen.rollouts import Rollouts
from fairlen.train.start import build_learner
from research.real.draws import read_draw, read_draws
from research.real.world import World

SIZE = 4096
"""Numbers of a sketch: an inner product of two is off by about 1 / 64 of the product of their norms."""
STEPPED = "dr_grpo"
"""The method of the one update, on the first file of prompts."""


class Sketch:
    """Random signs, by which a gradient becomes SIZE sums: inner products are kept on average."""

    def __init__(self, weights: Sequence[torch.Tensor], seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        shapes = [(-(-weight.numel() // SIZE), SIZE) for weight in weights]
        self.signs = [torch.randint(0, 2, shape, generator=draw, dtype=torch.int8) * 2 - 1 for shape in shapes]

    def __call__(self, gradients: Iterable[torch.Tensor]) -> Floats:
        """Return the sketch of gradients by weight, [SIZE]."""
        total = torch.zeros(SIZE)
        for sign, gradient in zip(self.signs, gradients, strict=True):
            flat = torch.nn.functional.pad(gradient.float().reshape(-1), (0, sign.numel() - gradient.numel()))
            total += (flat.view(sign.shape) * sign).sum(0)
        return total.double().numpy()


def whole(rollouts: Rollouts, row: int) -> Plan:
    """Return a plan of one response, whose tokens all have weight 1."""
    return Plan(np.array([row]), rollouts.segment_table.length[[row]], *np.ones((3, 1)))


def total_logprob(policy: Policy, rollouts: Rollouts, row: int) -> torch.Tensor:
    """Return the log-prob of one response."""
    (packed,) = pack(rollouts, whole(rollouts, row), 1, is_on_policy=False)
    return policy.forward(packed.inputs, with_entropy=False).logprobs.double().sum()


def sketch_all(world: World) -> None:
    """Keep the sketch of the gradient of every response's log-prob, of the first prompts."""
    weights = list(world.policy.trained().values())
    sketch: Sketch | None = None
    for number, rollouts, path in waiting(world, "gradients", world.sizes.gradient_prompts // world.sizes.chunk):
        sketch = sketch or Sketch(weights)
        rows = [
            sketch(torch.autograd.grad(total_logprob(world.policy, rollouts, row), weights))
            for row in range(len(rollouts.responses))
        ]
        write(path, {"prompt": rollouts.response_table.prompt, "sketch": list(np.array(rows, np.float32))})
        log(f"gradients {number}: {len(rows)} responses")


def take_step(world: World) -> None:
    """Keep the log-prob of every response before and after one update on the first prompts.

    Raises ValueError where none of them has both verdicts.
    """
    score(world, "before")
    if not any(waiting(world, "after")):
        return
    method, (first, *_) = compose(STEPPED), read_draws_of(world)
    learner = build_learner(world.config, world.policy, method)
    plan = method.plan(method.score(first))
    if not len(plan):
        raise ValueError(
            f"{world.out}: no prompt of the first file has both verdicts, so that no update can be made on it"
        )
    learner.step(method, first, plan, {}, is_on_policy=True)
    world.policy.model.eval()
    score(world, "after")


def score(world: World, name: str) -> None:
    """Keep the log-prob of every independent response under the weights as they are."""
    for number, rollouts, path in waiting(world, name):
        with torch.no_grad():
            totals = [float(total_logprob(world.policy, rollouts, row)) for row in range(len(rollouts.responses))]
        write(path, {"prompt": rollouts.response_table.prompt, "logprob": totals})
        log(f"{name} {number}: {len(totals)} responses")


def read_draws_of(world: World) -> list[Rollouts]:
    """Return the independent responses."""
    return read_draws(world.out / "independent", world.config.sampling.max_response_length)


def waiting(world: World, name: str, number: int = 0) -> Iterator[tuple[int, Rollouts, Path]]:
    """Yield the files of independent responses, or so many of them, for which a table is not there yet, and its path."""
    folder, length = world.out / "independent", world.config.sampling.max_response_length
    for place in range(number or len(list(folder.glob("segments-*.parquet")))):
        path = world.out / name / f"{place:06d}.parquet"
        if not path.exists():
            yield place, read_draw(folder, place, length), path


def write(path: Path, columns: dict[str, object]) -> None:
    """Write a table that is whole or not there."""
    with replacing(path) as staging:
        pq.write_table(pa.table(columns), staging, compression="zstd")

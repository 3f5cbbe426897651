"""What is drawn and kept: the filter's responses, independent responses, streams; files of a few prompts each, made once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from fairlen.batch import Floats
from fairlen.console import log
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.rollouts import Rollouts
from fairlen.tasks.grader import Grader
from fairlen.train.collect import Collector
from fairlen.train.records import BatchRecord, read_rollouts
from fairlen.train.start import sampling_of
from research.real.world import Sizes, World, chunks

KINDS = ("filter", "independent", "streams")
APART = 10**6
"""Between the numbers of two kinds of draws, whose seeds follow from them."""


def method_of(kind: str, sizes: Sizes) -> Method:
    """Return the method whose sampler draws."""
    if kind == "streams":
        return compose("eqlen+grpo", [f"sampling.streams={sizes.streams}"])
    return compose("grpo", [f"sampling.n={sizes.responses}"])


async def draw(world: World, kind: str, positions: Sequence[int], number: int) -> None:
    """Draw responses to problems at these positions of the training stream, unless it was done."""
    folder = world.out / kind
    if (folder / f"segments-{number:06d}.parquet").exists():
        return
    problems = [world.task.train(position) for position in positions]
    grader = Grader(world.task, world.policy.decode)
    sampling, first = sampling_of(world.config), APART * KINDS.index(kind)
    collector = Collector(world.engine.extend, grader, problems.__getitem__, sampling, len(problems), 0, seed=0)
    found = await collector(method_of(kind, world.sizes), first + number, 0, 0)
    BatchRecord(number, found.rollouts, found.problems, found.scored, world.policy.decode).write(folder)
    log(f"{kind} {number}: {found.scored.responses.correct.mean():.0%} of {len(found.rollouts.responses)} correct")


async def choose_problems(world: World) -> list[int]:
    """Return positions of problems that are solved neither too seldom nor too often, by responses that serve nothing else.

    Raises ValueError where the candidates have too few of them.
    """
    sizes, chosen = world.sizes, list[int]()
    for number, positions in enumerate(chunks(range(sizes.candidates), sizes.chunk)):
        await draw(world, "filter", positions, number)
        share = solved(read_draw(world.out / "filter", number, world.config.sampling.max_response_length))
        chosen += [one for one, part in zip(positions, share, strict=True) if sizes.low <= part <= sizes.high]
        if len(chosen) >= sizes.prompts:
            return chosen[: sizes.prompts]
    raise ValueError(
        f"{len(chosen)} of {sizes.candidates} problems are solved in {sizes.low:.0%} to {sizes.high:.0%}, "
        f"not {sizes.prompts}: give --data with more of them"
    )


async def draw_all(world: World) -> None:
    """Choose problems and draw everything about them."""
    chosen = await choose_problems(world)
    for number, positions in enumerate(chunks(chosen, world.sizes.chunk)):
        for kind in KINDS[1:]:
            await draw(world, kind, positions, number)


def solved(rollouts: Rollouts) -> Floats:
    """Return the share of correct responses of each prompt, [P]."""
    table = rollouts.response_table
    return np.array([table.correct[table.prompt == prompt].mean() for prompt in range(table.num_prompts)])


def read_draw(folder: Path, number: int, max_response_length: int) -> Rollouts:
    """Return one file's rollouts, exactly as they were drawn."""
    tables = {name: pq.read_table(folder / f"{name}-{number:06d}.parquet") for name in ("responses", "segments")}
    return read_rollouts(tables, max_response_length)


def read_draws(folder: Path, max_response_length: int) -> list[Rollouts]:
    """Return the rollouts of all files, in their order."""
    numbers = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("segments-*.parquet"))
    return [read_draw(folder, number, max_response_length) for number in numbers]

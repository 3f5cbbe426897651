"""Draws the responses of an evaluation: every problem has its own seeds, and problems that are done are kept as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlen.evaluate.run import respond
from fairlen.evaluate.samples import Progress, Sample
from fairlen.evaluate.verdicts import grade
from fairlen.sampling.extend import Extend, Sampling, gather
from fairlen.seeds import derive_seed
from fairlen.tasks.load import ProblemSet
from fairlen.tasks.task import Problem

PART = 256
"""Samples of problems that are done, after which they are written."""


@dataclass(frozen=True)
class Drawing:
    """How responses are drawn."""

    extend: Extend
    decode: Callable[[Sequence[int]], str]
    """Generated token ids to text, special tokens left out."""
    sampling: Sampling
    """Of every response but for its seed."""
    num_samples: int
    seed: int


async def sample_set(
    drawing: Drawing, found: ProblemSet, path: Path, advance: Callable[[int], None]
) -> tuple[Sample, ...]:
    """All samples of a set, in order of problems; writes them to `path`. Takes up what an interrupted call left there.

    `advance` is told how many problems are done more.
    """
    progress = Progress(path)
    done = {sample.problem_id for _, _, sample in progress.done}
    advance(len(done))
    running = {
        asyncio.ensure_future(sample_problem(drawing, found, position, problem))
        for position, problem in enumerate(found.problems)
        if problem.id not in done
    }
    fresh: list[Sample] = []
    try:
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for problem in ended:
                fresh += problem.result()
                advance(1)
            if len(fresh) >= PART:
                progress.add(fresh)
                fresh = []
    finally:  # what is done is kept, whatever happened to the rest
        if fresh:
            progress.add(fresh)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return progress.finish({problem.id: position for position, problem in enumerate(found.problems)})


async def sample_problem(drawing: Drawing, found: ProblemSet, position: int, problem: Problem) -> list[Sample]:
    """All samples of one problem, graded; seeds depend on the position of the problem and the sample alone."""

    async def one(number: int) -> Sample:
        own = replace(drawing.sampling, seed=derive_seed(drawing.seed, position, number))
        response = await respond(drawing.extend, problem, position, own)
        sample = Sample(
            problem_id=problem.id,
            problem=problem.text,
            answer=problem.answer,
            sample=number,
            text=drawing.decode(response.token_ids[response.num_prompt :]),
            token_ids=response.token_ids,
            num_prompt=response.num_prompt,
            length=response.length,
            finish=response.finish,
            seed=own.seed,
            temperature=own.temperature,
            starts_inside=problem.starts_inside,
        )
        return await grade(found, problem, sample)

    return await gather(map(one, range(drawing.num_samples)))

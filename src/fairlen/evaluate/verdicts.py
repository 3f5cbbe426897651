"""Verdicts on texts: the same call whether a text was just generated or read from a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fairlen.evaluate.samples import Sample
from fairlen.sampling.extend import gather
from fairlen.tasks.load import ProblemSet
from fairlen.tasks.row import normalize
from fairlen.tasks.task import Problem

MAX_AT_ONCE = 256
"""Texts that wait for their verdict at a time."""


async def grade(found: ProblemSet, problem: Problem, sample: Sample) -> Sample:
    """The sample with the verifier's verdict on its text."""
    start = time.perf_counter()
    verdict = await found.verify(problem, sample.text)
    return replace(
        sample,
        outcome=verdict.outcome,
        status=verdict.status,
        extracted=verdict.answer,
        verify_seconds=time.perf_counter() - start,
    )


async def rescore(found: ProblemSet, samples: Sequence[Sample], advance: Callable[[], None]) -> tuple[Sample, ...]:
    """The samples with the verdicts of the verifier as it is now. Raises ValueError for a problem that the set does not have."""
    by_id = {problem.id: problem for problem in found.problems}
    by_text = {normalize(problem.text): problem for problem in found.problems}
    free = asyncio.Semaphore(MAX_AT_ONCE)

    async def one(sample: Sample) -> Sample:
        problem = by_id.get(sample.problem_id) or by_text.get(normalize(sample.problem))
        if problem is None:
            raise ValueError(
                f"--from-samples: problem {sample.problem_id!r} is not in {found.name}: name the set that was sampled with --data"
            )
        async with free:
            graded = await grade(found, replace(problem, starts_inside=sample.starts_inside), sample)
        advance()
        return graded

    return tuple(await gather(map(one, samples)))

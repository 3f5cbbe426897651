"""Rescores samples that are there: reads them, finds their problems, and verifies every text with the verifier as it is now.

No model and no tokenizer is needed. With --data, problems are found by their ids, or by their questions; without, every row is
graded by its own reference answer, as mathematics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.folder import read_recorded
from fairlen.evaluate.samples import Sample, is_ours, read_foreign, read_samples
from fairlen.evaluate.sets import grade, hash_rows, is_playground, places_of, playground_set
from fairlen.files.limits import name_special
from fairlen.sampling.extend import gather
from fairlen.tasks.grader import Verifier
from fairlen.tasks.load import ProblemSet, make_verifier, read_sets
from fairlen.tasks.row import Answers, Row, normalize
from fairlen.tasks.task import Problem, Verdict, is_own_task

ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".gz")
KEPT = ("suite", "data_root", "limit", "task", "without_verdict", "answer_deadline", "accept_unevaluated", "sandbox", "samples",
        "temperature", "top_p", "top_k", "min_p", "max_response_length", "seed", "instruction", "system_prompt", "template",
        "thinking")  # fmt: skip
"""Settings of the evaluation that drew the samples which hold unless others are given."""
MAX_AT_ONCE = 256
"""Texts that wait for their verdict at a time."""


def rescore_settings(place: str, **changes: Any) -> EvalConfig:
    """Return the settings that the samples of an evaluation's folder were graded with; only `place` for others' samples."""
    recorded = read_recorded(place)
    if recorded is None:
        return replace(EvalConfig(from_samples=place), **changes)
    known, old = {f.name for f in fields(EvalConfig)}, recorded["config"]
    kept: dict[str, Any] = {name: old[name] for name in KEPT if name in known and name in old}
    data = tuple(old["data"]) or (old["task"],)
    return EvalConfig(**(kept | {"data": data, "from_samples": place} | changes))


def find_files(place: str) -> dict[str, Path]:
    """Return files of samples by name. Raises ValueError where there are none to read, FileNotFoundError where nothing is."""
    path = Path(place)
    if not path.exists():
        raise FileNotFoundError(f"--from-samples {place}: there is no such file or folder")
    if special := name_special(path):
        raise ValueError(f"--from-samples {place}: {special}")
    folder = path / "samples" if (path / "samples").is_dir() else path
    files = [path] if path.is_file() else sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in ENDINGS)
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        raise ValueError(f"--from-samples {place}: no samples there; give Parquet, JSON lines, JSON or CSV")
    named: dict[str, Path] = {}
    for file in files:
        first = named.setdefault(file.name.removesuffix(".gz").rpartition(".")[0], file)
        if first != file:
            raise ValueError(
                f"--from-samples {place}: {first} and {file} are of one name, which is the set's; rename one"
            )
    return named


def read_file(path: Path) -> tuple[Sample, ...]:
    """Return the samples of a file, whoever wrote it."""
    return read_samples(path) if is_ours(path) else read_foreign(path)


def find_sets(config: EvalConfig, given: Mapping[str, Sequence[Sample]]) -> dict[str, ProblemSet]:
    """Return the set of each file of samples. Raises ValueError for samples of problems that no set has."""
    if not config.data:
        return {name: set_of_answers(config, name, samples) for name, samples in given.items()}
    places = places_of(config)
    for place in filter(is_own_task, places):
        raise ValueError(
            f"--from-samples of --task {place}: such problems are made with a tokenizer, which is not there; "
            "evaluate again, or give the samples alone with their reference answers"
        )
    read = read_sets([place for place in places if not is_playground(place)])
    verifier = make_verifier(config, read)
    sets = [playground_set(config, place) for place in places if is_playground(place)]
    for one in read:
        found = set_of_rows(one.name, one.rows[: config.limit or None], verifier, one.fingerprint, one.describe())
        sets.append(replace(found, line=one.line, revision=one.revision))
    return {name: choose_set(name, samples[0], sets) for name, samples in given.items()}


def set_of_rows(
    name: str, rows: Sequence[Row], verifier: Verifier, fingerprint: str, details: dict[str, Any]
) -> ProblemSet:
    """Return rows as problems that are verified but never asked, and so have no prompt."""
    by_id = {row.id: row for row in rows}

    async def verify(problem: Problem, text: str) -> Verdict:
        return await verifier(by_id[problem.id], text, problem.starts_inside)

    problems = tuple(Problem(row.id, row.question, (), row.reference.shown) for row in rows)
    details = details | {"verifier": verifier.describe()}
    return ProblemSet(name, problems, fingerprint, "", details, verify, verifier.close)


def set_of_answers(config: EvalConfig, name: str, samples: Sequence[Sample]) -> ProblemSet:
    """Return problems known by nothing but the reference answers beside the samples. Raises ValueError where one is missing."""
    answers: dict[str, Sample] = {}
    for sample in samples:
        first = answers.setdefault(sample.problem_id, sample)
        if not sample.answer:
            raise ValueError(
                f"--from-samples: {name} has no reference answer for {sample.problem_id!r}: "
                "add a column `gold`, or name the set with --data"
            )
        if first.answer != sample.answer:
            raise ValueError(
                f"--from-samples: {name} has the answers {first.answer!r} and {sample.answer!r} for {sample.problem_id!r}: "
                "add a column `problem_id`"
            )
    rows = [Row(one.problem_id, name, one.problem, Answers((one.answer,))) for one in answers.values()]
    fingerprint = hash_rows(sorted([row.id, row.question, row.reference.shown] for row in rows))
    unevaluated = config.accept_unevaluated
    verifier = Verifier(
        {"math"}, deadline=config.answer_deadline, unevaluated=unevaluated, workers=config.verify_workers
    )
    return set_of_rows(name, rows, verifier, fingerprint, {"schema": "answers beside the samples"})


def choose_set(name: str, first: Sample, sets: Sequence[ProblemSet]) -> ProblemSet:
    """Return the set that has the first problem of the samples."""
    for found in sets:
        if any(p.id == first.problem_id or normalize(p.text) == normalize(first.problem) for p in found.problems):
            return found
    names = ", ".join(found.name for found in sets)
    raise ValueError(
        f"--from-samples: problem {first.problem_id!r} of {name} is in none of {names}: name its set with --data"
    )


async def rescore(found: ProblemSet, samples: Sequence[Sample], advance: Callable[[float], None]) -> tuple[Sample, ...]:
    """Return the samples with the verdicts of the verifier as it is now. Raises ValueError for a problem that the set lacks."""
    by_id = {problem.id: problem for problem in found.problems}
    by_text = {normalize(problem.text): problem for problem in found.problems}
    free = asyncio.Semaphore(MAX_AT_ONCE)

    async def one(sample: Sample) -> Sample:
        problem = by_id.get(sample.problem_id) or by_text.get(normalize(sample.problem))
        if problem is None:
            raise ValueError(
                f"--from-samples: problem {sample.problem_id!r} is not in {found.name}: "
                "name the set that was sampled with --data"
            )
        async with free:
            graded = await grade(found, replace(problem, starts_inside=sample.starts_inside), sample)
        advance(1)
        return graded

    return tuple(await gather(map(one, samples)))

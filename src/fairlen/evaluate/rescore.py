"""Grades samples that are there: reads them, finds their problems, and verifies every text with the verifier as it is now.

No model and no tokenizer is needed. With --data, problems are found by their ids, or by their questions; without, every row is
graded by its own reference answer, as mathematics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.foreign import read_foreign
from fairlen.evaluate.samples import Sample, is_ours, read_samples, read_tokens
from fairlen.evaluate.sets import is_playground, places_of, playground_set
from fairlen.files.limits import NotJSONError, name_special, parse_json
from fairlen.tasks.load import ProblemSet, make_verifier, read_sets
from fairlen.tasks.own import is_own_task
from fairlen.tasks.row import Answers, Row, normalize
from fairlen.tasks.task import Problem, Verdict
from fairlen.tasks.verifier import Verifier

ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".gz")
RECORDED = "eval.json"
KEPT = ("suite", "data_root", "limit", "task", "without_verdict", "answer_deadline", "accept_unevaluated", "sandbox", "samples",
        "temperature", "top_p", "top_k", "min_p", "max_response_length", "seed", "instruction", "system_prompt", "template",
        "thinking")  # fmt: skip
"""Settings of the evaluation that drew the samples which hold unless others are given."""


def settings_again(place: str, **changes: Any) -> EvalConfig:
    """The settings to grade the samples of an evaluation's folder again as they were graded; only `place` for others' samples."""
    told = read_recorded(place)
    if told is None:
        return replace(EvalConfig(from_samples=place), **changes)
    known = {f.name for f in fields(EvalConfig)}
    kept: dict[str, Any] = {name: told["config"][name] for name in KEPT if name in known and name in told["config"]}
    data = tuple(told["config"]["data"]) or (told["config"]["task"],)
    return EvalConfig(**(kept | {"data": data, "from_samples": place} | changes))


def read_recorded(place: str) -> dict[str, Any] | None:
    """What an evaluation's folder says of itself; None for other places. Raises ValueError naming a file that is damaged."""
    path = Path(place) / RECORDED
    return read_facts(path) if path.is_file() else None


def read_facts(path: Path) -> dict[str, Any]:
    """What eval.json holds. Raises ValueError naming the file where that cannot be read."""
    try:
        told = parse_json(path.read_bytes())
        reason = "" if are_facts(told) else "it lacks settings, model or sets"
    except NotJSONError as error:
        told, reason = {}, str(error)
    if reason:
        raise ValueError(
            f"{path}: {reason}: the file is damaged, fetch it again or choose another folder; "
            f"samples without it are graded again with --from-samples {path.parent / 'samples'}"
        )
    return told


def are_facts(told: Any) -> bool:
    """Whether a value has the parts of eval.json that are read again."""
    if not isinstance(told, dict) or not all(isinstance(told.get(name), dict) for name in ("config", "sets")):
        return False
    has_settings = "model" in told and {"data", "task"} <= told["config"].keys()
    return has_settings and all(isinstance(one, dict) and "fingerprint" in one for one in told["sets"].values())


@dataclass(frozen=True)
class Given:
    """The samples of one file."""

    path: Path
    samples: tuple[Sample, ...]
    is_ours: bool

    def tokens(self) -> pa.ChunkedArray | None:
        """Of each sample, where the file is one of ours."""
        return read_tokens(self.path) if self.is_ours else None


def read_given(place: str) -> dict[str, Given]:
    """Samples by the name of their file. Raises ValueError where one cannot be read, FileNotFoundError where nothing is."""
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
    return {name: read_file(file) for name, file in named.items()}


def read_file(path: Path) -> Given:
    """The samples of a file, whoever wrote it."""
    ours = is_ours(path)
    return Given(path, read_samples(path) if ours else read_foreign(path), ours)


def find_sets(config: EvalConfig, given: Mapping[str, Given]) -> dict[str, ProblemSet]:
    """The set of each file of samples. Raises ValueError for samples of problems that no set has."""
    if not config.data:
        return {name: set_of_answers(config, name, one.samples) for name, one in given.items()}
    places = places_of(config)
    refuse_own_tasks(places)
    read = read_sets([place for place in places if not is_playground(place)])
    verifier = make_verifier(config, read)
    sets = [playground_set(config, place, None) for place in places if is_playground(place)]
    for one in read:
        details = one.describe() | {"verifier": verifier.describe()}
        rows = one.rows[: config.limit or None]
        found = set_of_rows(one.name, rows, verifier, one.fingerprint, one.revision, details)
        sets.append(replace(found, line=one.line))
    return {name: choose_set(name, one.samples, sets) for name, one in given.items()}


def refuse_own_tasks(places: Sequence[str]) -> None:
    """Raises ValueError for problems that only a tokenizer makes."""
    for place in filter(is_own_task, places):
        raise ValueError(
            f"--from-samples of --task {place}: such problems are made with a tokenizer, which is not there; "
            "evaluate again, or give the samples alone with their reference answers"
        )


def set_of_rows(
    name: str, rows: Sequence[Row], verifier: Verifier, fingerprint: str, revision: str, details: dict[str, Any]
) -> ProblemSet:
    """Rows as problems that are verified but never asked, and so have no prompt."""
    by_id = {row.id: row for row in rows}

    async def verify(problem: Problem, text: str) -> Verdict:
        return await verifier(by_id[problem.id], text, problem.starts_inside)

    problems = tuple(Problem(row.id, row.question, (), row.reference.shown) for row in rows)
    return ProblemSet(name, problems, fingerprint, revision, details, verify, verifier.close)


def set_of_answers(config: EvalConfig, name: str, samples: Sequence[Sample]) -> ProblemSet:
    """Problems known by nothing but the reference answers beside the samples. Raises ValueError where one is missing."""
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
    lines = sorted(json.dumps([row.id, row.question, row.reference.shown]) for row in rows)
    unevaluated = config.accept_unevaluated
    verifier = Verifier(
        {"math"}, deadline=config.answer_deadline, unevaluated=unevaluated, workers=config.verify_workers
    )
    details = {"schema": "answers beside the samples", "verifier": verifier.describe()}
    return set_of_rows(name, rows, verifier, hashlib.sha256("\n".join(lines).encode()).hexdigest(), "", details)


def choose_set(name: str, samples: Sequence[Sample], sets: Sequence[ProblemSet]) -> ProblemSet:
    """The set that has the first problem of the samples."""
    first = samples[0]
    for found in sets:
        if any(p.id == first.problem_id or normalize(p.text) == normalize(first.problem) for p in found.problems):
            return found
    names = ", ".join(found.name for found in sets)
    raise ValueError(
        f"--from-samples: problem {first.problem_id!r} of {name} is in none of {names}: name its set with --data"
    )

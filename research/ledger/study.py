"""Whether stored figures and search tables are what the stored runs give, and the runs what the plan asks for."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from research.ledger.claims import FIGURES, Ledger
from research.ledger.protocol import check_protocol
from research.ledger.rule import is_number
from research.study.cells import make_cell, row_of
from research.study.estimands import Estimand, measure_all
from research.study.evidence import Evidence, RunRow, load_evidence, to_bytes
from research.study.plan import FACTORS, RATES, Plan
from research.study.search import Settings, search_table

FOLDER = Plan().folder
SEARCH = "docs/study/search.json"
DIGESTS = "evidence.json"
COMMIT = re.compile(r"[0-9a-f]{40}")


def read_evidence(root: Path) -> Evidence | None:
    """Return the stored runs, or None where there are none yet."""
    return load_evidence(root / FOLDER) if (root / FOLDER).is_dir() else None


def check_study(ledger: Ledger, evidence: Evidence | None, root: Path) -> Iterator[str]:
    """Yield everything that is not what the stored runs give, and runs that nobody planned."""
    if evidence is None:
        found = [name for name in (FIGURES, SEARCH) if (root / name).exists()]
        yield from (f"{name}: there are no runs in {FOLDER} that it could be made from" for name in found)
        return
    searched = search_table(evidence, ledger.plan)
    yield from check_digests(evidence, root, FOLDER)
    yield from check_runs(evidence, searched, ledger.plan)
    yield from compare(SEARCH, searched, root)
    yield from compare(FIGURES, make_figures(evidence, ledger.estimands), root)
    yield from check_protocol(ledger, root, {run.commit for run in evidence.runs})


def make_figures(evidence: Evidence, estimands: Mapping[str, Estimand]) -> dict[str, Any]:
    """Return every figure that the runs give as it is stored: six digits, null for an interval that there is not."""
    return {id: rounded(asdict(result)) for id, result in measure_all(evidence, estimands).items()}


def rounded(value: Any) -> Any:
    """Return JSON data with numbers of six digits; null for those that are not finite."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if is_list(value):
        return [rounded(one) for one in value]
    return (float(f"{value:.6g}") if math.isfinite(value) else None) if isinstance(value, float) else value


def check_runs(evidence: Evidence, searched: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Yield runs that nobody planned so: of another variant, seed, learning rate or width than the plan and the searches say."""
    keys = [run.key for run in evidence.runs]
    for number, run in enumerate(evidence.runs):
        want, at = planned(run, searched, plan), f"{plan.folder}: run {number} ({run.key})"
        if want is None:
            yield f"{at}: the plan has no {run.role} run of it with seed {run.seed}"
        elif wrong := [field.name for field in fields(run) if getattr(want, field.name) != getattr(run, field.name)]:
            yield f"{at}: not the {', '.join(wrong)} that plan and search say"
        if not COMMIT.fullmatch(run.commit):
            yield f"{at}: commit={run.commit!r} is no commit"
        if keys.count(run.key) > 1:
            yield f"{at}: it is there {keys.count(run.key)} times"


def planned(run: RunRow, searched: Mapping[str, Any], plan: Plan) -> RunRow | None:
    """Return the row that the plan gives a run, or None where it has no such run."""
    named = [v for v in plan.variants if (v.world, v.text, v.label) == (run.world, run.variant, run.label)]
    if not named or run.seed not in plan.seeds(named[0], run.role):
        return None
    if plan.rate:
        chosen = Settings(plan.rate, 1.0)
    elif run.role == "search":
        chosen = Settings(run.rate, run.factor) if run.rate in RATES and run.factor in FACTORS else None
    else:
        found = searched.get(plan.source(named[0]).name, {})
        chosen = Settings(found["rate"], found["factor"]) if "rate" in found else None
    if not chosen:
        return None
    cell = make_cell(plan, named[0], chosen, run.seed, run.role)
    return replace(row_of(cell, run.commit), seconds=run.seconds, diverged=run.diverged, digest=run.digest)


def digest_columns(folder: Path) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of every column of every table in a folder, by table and column."""
    evidence = load_evidence(folder)
    rows = [asdict(run) for run in evidence.runs]
    columns = {f.name: "\n".join(json.dumps(row[f.name]) for row in rows).encode() for f in fields(RunRow)}
    found = {"runs": {name: hashlib.sha256(values).hexdigest() for name, values in columns.items()}}
    for table, arrays in evidence.tables.items():
        found[table] = {name: hashlib.sha256(to_bytes(values)).hexdigest() for name, values in arrays.items()}
    return found


def check_digests(evidence: Evidence, root: Path, folder: str) -> Iterator[str]:
    """Yield columns that are not those of which the digests were stored, and runs that are not as they were kept."""
    stored = read_json(root / folder / DIGESTS)
    for table, columns in digest_columns(root / folder).items():
        kept = stored.get(table, {})
        for column in (column for column in columns if columns[column] != kept.get(column)):
            yield f"{folder}/{table}.parquet: {column} is not what {DIGESTS} has the digest of"
    yield from (f"{folder}: the run {key} is not what its digest is of" for key in evidence.altered())


def read_json(path: Path) -> dict[str, Any]:
    """Return a stored object, empty where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def compare(name: str, made: Mapping[str, Any], root: Path, folder: str = FOLDER) -> Iterator[str]:
    """Yield entries of a stored JSON object that are not those which the runs give."""
    kept = read_json(root / name)
    for key in sorted({*made, *kept}):
        if not agree(made.get(key), kept.get(key)):
            yield f"{name}: {key} is not what {folder} gives; python -m research.study evidence writes it"


def agree(made: Any, kept: Any) -> bool:
    """Whether two JSON values are one, but for a last digit that another processor rounds otherwise."""
    if isinstance(made, Mapping) and isinstance(kept, Mapping):
        return made.keys() == kept.keys() and all(agree(made[key], kept[key]) for key in made)
    if is_list(made) and is_list(kept):
        return len(made) == len(kept) and all(map(agree, made, kept))
    if is_number(made) and is_number(kept):
        return math.isclose(made, kept, rel_tol=3e-6, abs_tol=1e-9)
    return made == kept


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)

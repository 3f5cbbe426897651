"""Whether stored figures and search tables are what the stored runs give, and the runs what the plan asks for."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.ledger.claims import FIGURES, Ledger
from research.ledger.protocol import check_protocol

if TYPE_CHECKING:
    from research.study.evidence import Evidence

FOLDER = "docs/study/evidence"
SEARCH = "docs/study/search.json"
DIGESTS = f"{FOLDER}/evidence.json"
REMEDY = "python -m research.study evidence writes it"


def read_evidence(root: Path) -> Evidence | None:
    """Return the stored runs, or None where there are none yet."""
    from research.study.evidence import load_evidence

    return load_evidence(root / FOLDER) if (root / FOLDER).is_dir() else None


def check_study(ledger: Ledger, evidence: Evidence | None, root: Path) -> Iterator[str]:
    """Yield everything that is not what the stored runs give, and runs that nobody planned."""
    if evidence is None:
        found = [name for name in (FIGURES, SEARCH) if (root / name).exists()]
        yield from (f"{name}: there are no runs in {FOLDER} that it could be made from" for name in found)
        return
    yield from check_columns(evidence, root)
    yield from check_runs(evidence)
    yield from compare(SEARCH, search_table(evidence), root)
    yield from compare(FIGURES, measure_all(evidence, ledger.estimands), root)
    yield from check_protocol(ledger, root, {run.commit for run in evidence.runs})


def digest_columns(evidence: Evidence) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of every column of every table, by table and column."""
    from research.study.evidence import to_bytes

    rows = [asdict(run) for run in evidence.runs]
    columns = {name: "\n".join(json.dumps(row[name]) for row in rows).encode() for name in (rows[0] if rows else ())}
    found = {"runs": {name: hashlib.sha256(values).hexdigest() for name, values in columns.items()}}
    for table, arrays in evidence.tables.items():
        found[table] = {name: hashlib.sha256(to_bytes(values)).hexdigest() for name, values in arrays.items()}
    return found


def check_columns(evidence: Evidence, root: Path) -> Iterator[str]:
    """Yield columns that are not those of which the digests were stored, and runs that are not as they were kept."""
    path = root / DIGESTS
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for table, columns in digest_columns(evidence).items():
        kept = stored.get(table, {})
        for column in (column for column in columns if columns[column] != kept.get(column)):
            yield f"{FOLDER}/{table}.parquet: {column} is not what {DIGESTS} has the digest of"
    for key in evidence.altered():
        yield f"{FOLDER}: the run {key} is not what its digest is of"


def compare(name: str, made: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Yield entries of a stored JSON object that are not those which the runs give."""
    path = root / name
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for key in sorted({*made, *kept}):
        if not agree(made.get(key), kept.get(key)):
            yield f"{name}: {key} is not what {FOLDER} gives; {REMEDY}"


def agree(made: Any, kept: Any) -> bool:
    """Whether two JSON values are one, but for a last digit that another processor rounds otherwise."""
    if isinstance(made, Mapping) and isinstance(kept, Mapping):
        return made.keys() == kept.keys() and all(agree(made[key], kept[key]) for key in made)
    if is_list(made) and is_list(kept):
        return len(made) == len(kept) and all(map(agree, made, kept))
    if isinstance(made, float) or isinstance(kept, float):
        known = isinstance(made, int | float) and isinstance(kept, int | float)
        return known and (math.isclose(made, kept, rel_tol=3e-6, abs_tol=1e-9) or (made != made and kept != kept))
    return made == kept


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)

"""Whether the stored figures and search tables of the study are what its stored runs give, and the runs what the plan asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.ledger.claims import FIGURES, Ledger
from research.ledger.protocol import check_protocol

if TYPE_CHECKING:
    from research.study.evidence import Evidence

FOLDER = "docs/study/evidence"
SEARCH = "docs/study/search.json"
AGAIN = "python -m research.study evidence writes it"


def read_evidence(root: Path) -> Evidence | None:
    """Return the stored runs, or None where there are none yet."""
    from research.study.evidence import load_evidence

    return load_evidence(root / FOLDER) if (root / FOLDER).is_dir() else None


def check_study(ledger: Ledger, evidence: Evidence | None, root: Path) -> Iterator[str]:
    """Yield everything that the stored runs do not give."""
    stored = {name: read_json(root / name) for name in (FIGURES, SEARCH)}
    if evidence is None:
        yield from (
            f"{name}: there are no runs in {FOLDER} that it could be made from" for name in stored if stored[name]
        )
        return
    ...

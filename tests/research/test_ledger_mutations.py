"""`python -m research.ledger --check` on a small study that was really run, with one thing changed at a time.

Stored numbers are changed and everything that is made from them is made again: only digests can tell. Of what is made from stored
numbers one is changed: making it again tells.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairlen.files.folders import write_file
from research.ledger.check import CLAIMS, STUDY, check, write
from research.ledger.claims import FIGURES, Ledger, load_ledger, parse_paper
from research.ledger.study import DIGESTS, FOLDER, SEARCH, digest_columns
from research.study.estimands import measure_all
from research.study.evidence import Evidence, Kept, load_evidence, write_kept
from research.study.plan import Plan
from research.study.search import search_table

PAPER = """
title = "The small study"
source = "Two variants, for these tests."
{claims}
"""
CLAIM = """
[[claim]]
id = "tiny-{number:02}"
place = "Nowhere"
claim = "The {quantity} differs."
done = "Ran both."
measure = {{ estimand = "tiny-{number}", predicted = "positive", smallest = 0.001, why = "for these tests" }}

[estimands.tiny-{number}]
world = "short"
quantity = "{quantity}"
variants = ["{variant}"]
combine = "value"
unit = ""
what = "{quantity} of {variant}"
"""
QUANTITIES = ("accuracy", "acceptance", "gap", "growth", "seconds", "length")


def make_ledger(plan: Plan, results: Path) -> Ledger:
    """Return the ledger with claims of the small study."""
    text = "".join(
        CLAIM.format(number=number, quantity=quantity, variant=plan.variants[-1].text)
        for number, quantity in enumerate(QUANTITIES, 1)
    )
    paper = parse_paper("tiny", PAPER.format(claims=text))
    ledger = load_ledger(results=results)
    return replace(ledger, papers=(*ledger.papers, paper))


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def make_files(root: Path, plan: Plan) -> None:
    """Make everything that is made from the stored runs but digests, as `python -m research.study evidence` does."""
    evidence = load_evidence(root / FOLDER)
    write_json(root / SEARCH, search_table(evidence, plan))
    write_json(root / FIGURES, measure_all(evidence, make_ledger(plan, root / FIGURES).estimands))
    write(make_ledger(plan, root / FIGURES), root)


def found(root: Path, plan: Plan) -> list[str]:
    """Return what the check finds in the study; named tests are others' business."""
    ledger = make_ledger(plan, root / FIGURES)
    untested = tuple(
        replace(paper, claims=tuple(replace(claim, tests=(), figure="") for claim in paper.claims)) for paper in ledger.papers
    )
    lines = check(ledger, root, run=False, plan=plan)
    assert untested
    return [line for line in lines if "docs/study" in line or "docs/claims" in line]

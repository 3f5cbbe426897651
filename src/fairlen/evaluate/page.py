"""The page of an evaluation: the scores of summary.json, then the audit of its samples."""

from __future__ import annotations

import json
from pathlib import Path

from fairlen.audit.audit import audit
from fairlen.evaluate.start import BUDGET_HEADINGS, HEADINGS, budget_cells, cells_of, notes_of
from fairlen.report.audit_page import write_audit_page
from fairlen.report.figure import Figure, Section, Table


def report_evaluation(folder: Path, path: Path) -> Path:
    """Write the page of an evaluation that ended. Raises ValueError where its summary.json is damaged."""
    place = folder / "summary.json"
    try:
        summary = json.loads(place.read_text())
        sets, notes = {name: found["scores"] for name, found in summary["sets"].items()}, notes_of(summary)
        cells, budgets = (
            [cells_of(*one) for one in sets.items()],
            [row for one in sets.items() for row in budget_cells(*one)],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{place}: {error!r}: the file is damaged; the evaluation's command writes it again") from None
    says = "Over problems; pass, best and maj are of all n samples. More numbers are in summary.json."
    shown = [Figure("Held-out problems", says, table=Table(HEADINGS, cells), note=" ".join(notes), terms=("samples",))]
    if budgets:
        says = "What has not ended within a budget is cut there and asked for its answer; what that adds is the forced gain."
        shown.append(Figure("Accuracy within a budget", says, table=Table(BUDGET_HEADINGS, budgets)))
    first, name = (Section("scores", "Scores", "", shown),), f"Evaluation {folder.resolve().name}"
    return write_audit_page(path, *audit([str(folder / "samples")]), first=first, name=name)

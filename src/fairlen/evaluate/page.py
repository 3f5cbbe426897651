"""An evaluation as one page: the audit of its samples, and the scores of every set before it."""

from __future__ import annotations

import json
from pathlib import Path

from fairlen.diagnostics.report.audit import audit
from fairlen.diagnostics.report.audit_page import write_audit_page
from fairlen.diagnostics.report.figure import Figure, Section, Table
from fairlen.evaluate.start import HEADINGS, cells_of, notes_of


def report_evaluation(folder: Path, path: Path) -> Path:
    """Write the page of an evaluation that ended. Raises ValueError where its summary.json is damaged."""
    place = folder / "summary.json"
    try:
        summary = json.loads(place.read_text())
        cells, notes = [cells_of(name, found["scores"]) for name, found in summary["sets"].items()], notes_of(summary)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{place}: {error!r}: the file is damaged; the evaluation's command writes it again") from None
    says = "Over problems; pass, best and maj are of all n samples. More numbers are in summary.json."
    figure = Figure("Held-out problems", says, table=Table(HEADINGS, cells), note=" ".join(notes), terms=("samples",))
    audits, reading = audit([str(folder / "samples")])
    return write_audit_page(
        path,
        audits,
        reading,
        first=(Section("scores", "Scores", "", [figure]),),
        name=f"Evaluation {folder.resolve().name}",
    )

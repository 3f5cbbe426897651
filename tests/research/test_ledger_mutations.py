"""`python -m research.ledger --check` on a small study that was really run, with one thing changed at a time.

Stored numbers are changed and everything that is made from them is made again: only digests can tell. Of what is made from stored
numbers one is changed: making it again tells.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairlen.files.folders import write_file
from research.ledger.check import CLAIMS, DETAILS, STOPPING, STUDY, check, write
from research.ledger.claims import FIGURES, Ledger, load_ledger, parse_paper
from research.ledger.study import DIGESTS, FOLDER, SEARCH, digest_columns, make_figures
from research.study.evidence import Kept, load_evidence, write_kept
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
unit = "number"
what = "{quantity} of {variant}"
"""
pytestmark = pytest.mark.slow
QUANTITIES = ("accuracy", "length", "acceptance", "variation", "seconds", "tokens")


def make_ledger(plan: Plan, results: Path) -> Ledger:
    """Return the ledger with claims of the small study."""
    text = "".join(
        CLAIM.format(number=number, quantity=quantity, variant=plan.variants[-1].text)
        for number, quantity in enumerate(QUANTITIES, 1)
    )
    paper = parse_paper("tiny", PAPER.format(claims=text))
    ledger = load_ledger(results=results)
    return replace(ledger, papers=(*ledger.papers, paper), plan=plan)


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def make_files(root: Path, plan: Plan) -> None:
    """Make everything that is made from the stored runs but digests, as `python -m research.study evidence` does."""
    evidence = load_evidence(root / FOLDER)
    write_json(root / SEARCH, search_table(evidence, plan))
    write_json(root / FIGURES, make_figures(evidence, make_ledger(plan, root / FIGURES).estimands))
    write(make_ledger(plan, root / FIGURES), root)


def found(root: Path, plan: Plan) -> list[str]:
    """Return what the check finds in the study; tests that claims name are not in this repository."""
    return [line for line in check(make_ledger(plan, root / FIGURES), root, run=False) if line.startswith("docs/")]


@pytest.fixture(scope="module")
def sealed(tiny_study, tmp_path_factory) -> tuple[Path, Plan]:
    """The small study in a repository of its own, as it is stored, and its plan."""
    root = tmp_path_factory.mktemp("sealed")
    shutil.copytree(tiny_study.evidence, root / FOLDER)
    write_json(root / FOLDER / DIGESTS, digest_columns(root / FOLDER))
    make_files(root, tiny_study.plan)
    return root, tiny_study.plan


@pytest.fixture
def copied(sealed, tmp_path) -> tuple[Path, Plan]:
    """The same, to be changed."""
    return Path(shutil.copytree(sealed[0], tmp_path / "root")), sealed[1]


def test_nothing_is_found_in_a_study_that_was_not_touched(sealed):
    assert found(*sealed) == []
    figures = json.loads((sealed[0] / FIGURES).read_text())
    assert all(figures[f"tiny-{number}"]["seeds"] >= 2 for number, _ in enumerate(QUANTITIES, 1))


Change = Callable[[np.ndarray], Any]
NUMBERS: dict[str, tuple[str, str, str, Change, bool, bool]] = {
    "length": ("study", "sequences", "length", lambda values: values[0] + 1, False, False),
    "ratio": ("study", "sequences", "log_ratio", lambda values: values[-1] + 5000, True, False),
    "verdict": ("study", "sequences", "correct", lambda values: not values[0], False, True),
    "acceptance": ("study", "sequences", "inside", lambda values: 100 - values[-1], True, True),
    "second": ("study", "batches", "seconds", lambda values: values[0] / 2, True, False),
    "search run": ("search", "evaluations", "right", lambda values: values[-1] + 1 - 2 * (values[-1] > 0), True, True),
}
"""Whose, where, how it is changed, whether all that is made from it is made again, and whether digests of columns are."""


def change_number(root: Path, role: str, table: str, column: str, change: Change) -> None:
    """Change one number of one run and store all runs again, with the digests that they had."""
    evidence = load_evidence(root / FOLDER)
    runs = [evidence.kept(number) for number in range(len(evidence.runs))]
    number = next(number for number, run in enumerate(runs) if run.row.role == role)
    tables = {name: {key: values.copy() for key, values in kept.items()} for name, kept in runs[number].tables.items()}
    values = tables[table][column]
    place = -1 if column in ("log_ratio", "inside", "right") else 0
    values[place] = change(values)
    runs[number] = Kept(runs[number].row, tables)
    write_kept(runs, root / FOLDER)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_changed_number_is_found(copied, name):
    """By its column's digest, or, where that was made again as well, by its run's."""
    root, plan = copied
    role, table, column, change, is_remade, is_digested = NUMBERS[name]
    change_number(root, role, table, column, change)
    if is_remade:
        make_files(root, plan)
    if is_digested:
        write_json(root / FOLDER / DIGESTS, digest_columns(root / FOLDER))
    lines = found(root, plan)
    assert any("is not what its digest is of" in line for line in lines)
    by_column = f"{FOLDER}/{table}.parquet: {column} is not what {DIGESTS} has the digest of"
    assert (by_column in lines) == (not is_digested)


@pytest.mark.parametrize("is_resealed", [False, True], ids=["", "with-its-digest"])
def test_a_changed_seed_is_found(copied, is_resealed):
    """Seed 1 becomes 77, which the plan does not have, or 2, whose run the plan calls otherwise."""
    root, plan = copied
    for seed in (77, 2):
        evidence = load_evidence(root / FOLDER)
        runs = [evidence.kept(number) for number in range(len(evidence.runs))]
        number = next(
            number for number, run in enumerate(runs) if (run.row.role, run.row.seed) in (("study", 1), ("study", 77))
        )
        changed = Kept(replace(runs[number].row, seed=seed), runs[number].tables)
        runs[number] = Kept(replace(changed.row, digest=changed.digest), changed.tables) if is_resealed else changed
        write_kept(runs, root / FOLDER)
        make_files(root, plan)
        lines = found(root, plan)
        assert any("with seed 77" in line if seed == 77 else "not the key" in line for line in lines)
        assert any("runs.parquet: seed is not what" in line for line in lines)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


def test_another_learning_rate_than_the_search_chose_is_found(copied):
    """Every number of the run as it was, and all digests of it made again."""
    root, plan = copied
    evidence = load_evidence(root / FOLDER)
    runs = [evidence.kept(number) for number in range(len(evidence.runs))]
    number = next(number for number, run in enumerate(runs) if run.row.role == "study")
    changed = Kept(replace(runs[number].row, rate=runs[number].row.rate * 3), runs[number].tables)
    runs[number] = Kept(replace(changed.row, digest=changed.digest), changed.tables)
    write_kept(runs, root / FOLDER)
    write_json(root / FOLDER / DIGESTS, digest_columns(root / FOLDER))
    make_files(root, plan)
    (line,) = found(root, plan)
    assert "not the rate that plan and search say" in line


def test_a_rounded_figure_is_found_though_pages_were_made_with_it(copied):
    """12.3456 becomes 12.3."""
    root, plan = copied
    figures = json.loads((root / FIGURES).read_text())
    name = next(id for id, entry in figures.items() if float(f"{entry['value']:.3g}") != entry["value"])
    figures[name]["value"] = float(f"{figures[name]['value']:.3g}")
    write_json(root / FIGURES, figures)
    write(make_ledger(plan, root / FIGURES), root)
    assert found(root, plan) == [
        f"{FIGURES}: {name} is not what {FOLDER} gives; python -m research.study evidence writes it"
    ]


def test_an_edited_page_and_an_edited_status_are_found(copied):
    root, plan = copied
    edit(root / STUDY, "open", "reproduced")
    edit(root / CLAIMS, "no push", "a push")
    edit(root / DETAILS, 'id="tiny-02"', 'id="tiny-20"')
    edit(root / STOPPING, "halving", "mean")
    assert [line.split(":")[0] for line in found(root, plan)] == [CLAIMS, DETAILS, STUDY, STOPPING]

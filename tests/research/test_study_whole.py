"""A tiny study through the command's own path, to the figures and the page; and that it resumes."""

import json
from dataclasses import replace

import pytest

from research.study.__main__ import TINY, main
from research.study.cells import path_of, read_cell, run_cell
from research.study.figures import definitions
from research.study.plan import Plan, all_variants
from research.study.results import read_results, write_results
from research.study.schedule import Study
from research.study.search import Settings, make_cell

SMALL = replace(TINY, rollout_batches=1, eval_every=0)


def test_a_run_leaves_its_numbers_and_nothing_else(tmp_path):
    variant = next(v for v in all_variants() if v.name == "dapo+std_ba+balanced gapped")
    cell = make_cell(Plan(SMALL), variant, Settings(1e-4, 1.0), seed=1, tokens=0)
    run_cell(cell, tmp_path)
    found = read_cell(cell, tmp_path)
    assert [len(one["right"]) for one in found["evaluations"]] == [4, 4]
    assert found["cell"]["task"] == "gapped"
    assert found["generated"] == sum(found["batches"]["tokens/generated"]) > 0
    assert len(found["updates"]["loss/total"]) == found["evaluations"][-1]["update"] > 0
    assert list((tmp_path / "running").iterdir()) == []
    before = path_of(cell, tmp_path).stat().st_mtime_ns
    run_cell(cell, tmp_path)
    assert path_of(cell, tmp_path).stat().st_mtime_ns == before


@pytest.mark.nightly
def test_a_tiny_study_to_the_end(tmp_path):
    told: list[str] = []
    plan = Plan(TINY, (2,), ("grpo", "rloo", "gspo", "fspo"))
    study = Study(plan, tmp_path / "runs", 2, told.append)
    study.run()
    write_results(study, tmp_path / "docs")
    runs, search = read_results(tmp_path / "docs")
    assert {name: len(some) for name, some in runs.items()} == dict.fromkeys(
        ("grpo", "rloo", "gspo", "fspo", "directions"), 2
    )
    assert set(search) == {"grpo", "rloo", "gspo", "fspo"}
    figures = json.loads((tmp_path / "docs" / "figures.json").read_text())
    variants = {"grpo", "rloo", "gspo", "fspo", "directions"}
    expected = {n for n, d in definitions().items() if {v for names, _ in d.inputs for v in names} <= variants}
    assert set(figures) == expected
    assert figures["direction-corrected-violations"]["value"] == 0.0
    page = (tmp_path / "docs" / "index.html").read_text()
    assert "fspo-minus-rloo-last" in page
    assert "Clipped against whole gradients" in page
    again: list[str] = []
    Study(plan, tmp_path / "runs", 2, again.append).run()
    assert all(": 0 of" in line for line in again), again


def test_the_command_refuses_no_workers():
    with pytest.raises(SystemExit, match="--jobs 0: give at least 1"):
        main(["--jobs", "0"])

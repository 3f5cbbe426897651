"""The agenda, from what is on the disk; that a study resumes and ends in time; and a real one to the end."""

import json
import time
from dataclasses import replace

import pytest
from study_runs import kept_run

from research.study.__main__ import main
from research.study.cells import restore
from research.study.evidence import load_evidence, merge, write_kept
from research.study.plan import SIZES, Plan, Variant
from research.study.schedule import Study
from research.study.search import search_table

SIZE = replace(SIZES["short"], seeds=(1, 2), search_seeds=(101, 102), rollout_batches=4, search_batches=2)
CORE = (Variant("grpo", "short", core=True), Variant("dapo", "short", core=True))
PLAN = Plan((*CORE, Variant("rloo", "short", search="rate+width")), {"short": SIZE})


def finish(study, cells, right=2):
    """Write cells as if they had been run, with so many samples right of four at the end."""
    for cell in cells:
        kept = kept_run(key=cell.key, variant=cell.variant, rate=cell.rate, role=cell.role, right=[[1], [right]])
        write_kept([kept], cell.path(study.out))


def to_do(study):
    return [cell for cell in study.agenda() if not cell.path(study.out).exists()]


def marks(cells):
    return [(cell.variant, cell.role, cell.rate, cell.seed) for cell in cells]


def test_core_variants_are_searched_first_and_then_run_in_turn_seed_by_seed(tmp_path):
    study = Study(PLAN, tmp_path)
    rates, seeds = (1e-4, 3e-5, 3e-4), (101, 102)
    searches = [(name, "search", rate, seed) for name in ("grpo", "dapo") for rate in rates for seed in seeds]
    assert marks(to_do(study))[:12] == searches
    assert {cell.variant for cell in to_do(study)[12:]} == {"rloo"}
    for cell in to_do(study)[:12]:
        finish(study, [cell], 3 if (cell.variant, cell.rate) in (("grpo", 1e-4), ("dapo", 3e-4)) else 2)
    # grpo is decided; the best of dapo is at the edge: 1e-3 is tried
    grpo = [("grpo", "study", 1e-4, seed) for seed in (1, 2)]
    assert marks(to_do(study))[:4] == [("dapo", "search", 1e-3, 101), ("dapo", "search", 1e-3, 102), *grpo]
    finish(study, to_do(study)[:2])
    turns = [(name, "study", rate, seed) for seed in (1, 2) for name, rate in (("grpo", 1e-4), ("dapo", 3e-4))]
    assert marks(to_do(study))[:4] == turns


def test_a_control_has_a_search_of_its_own_or_the_settings_of_what_it_controls(tmp_path):
    again = Variant("grpo", "short", label="again", shift=20)
    slow = Variant("grpo", "short", search="", settings_of="grpo", label="slow", share=0.25)
    study = Study(Plan((CORE[0], again, slow), {"short": SIZE}), tmp_path)
    searches = [cell for cell in study.agenda() if cell.role == "search"]
    assert {(cell.label, cell.seed + cell.shift) for cell in searches} == {
        ("", 101), ("", 102), ("again", 121), ("again", 122),
    }  # fmt: skip
    for cell in searches:
        best = {"": 1e-4, "again": 3e-5}[cell.label]
        finish(study, [cell], 3 if cell.rate == best else 2)
    finish(study, [cell for cell in to_do(study) if cell.role == "search"])  # 3e-5 is best: 1e-5 is tried
    cells = {(cell.label, cell.seed): cell for cell in study.agenda() if cell.role == "study"}
    assert (cells["again", 1].rate, cells["again", 1].shift) == (3e-5, 20)
    assert cells["slow", 2].rate == 0.25e-4
    assert len({cell.key for cell in cells.values()}) == 6


def test_no_run_is_begun_that_would_not_end_in_time(tmp_path):
    study = Study(PLAN, tmp_path)
    assert study.next_cell(set(), time.time() + 3) is None  # two batches of 2 s
    assert study.next_cell(set(), time.time() + 60) == next(study.agenda())


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path):
    told = []
    wrong = Variant("grpo:surrogate.clip_low=7", "short", search="")  # refused when it is composed
    study = Study(
        Plan((replace(wrong, search="rate"),), {"short": replace(SIZE, search_seeds=(101,))}),
        tmp_path,
        tell=told.append,
    )
    failed = study.run(jobs=1)
    assert len(failed) == 3  # of each rate
    assert all("clip_low" in line and line.startswith("failed: ") and "tries it again" in line for line in told)
    assert list((tmp_path / "running").iterdir()) == []
    assert not (tmp_path / "cells").exists()


@pytest.mark.nightly
def test_a_study_that_is_killed_resumes_with_what_it_has(tiny_study, tmp_path):
    plan = replace(tiny_study.plan, sizes={"short": replace(tiny_study.plan.sizes["short"], seeds=(1, 2))})

    def stop(line):
        raise KeyboardInterrupt

    study = Study(plan, tmp_path / "out", tell=stop)
    restore_searches(tiny_study, study.out)
    with pytest.raises(KeyboardInterrupt):
        study.run(jobs=1, commit="0" * 40)
    (first,) = [cell for cell in study.agenda() if cell.path(study.out).exists()]
    before = (first.path(study.out) / "sequences.parquet").stat().st_mtime_ns
    told = []
    assert Study(plan, study.out, tell=told.append).run(jobs=2, commit="0" * 40) == []
    assert len(told) == 3  # two variants and seeds, one of which is there
    assert (first.path(study.out) / "sequences.parquet").stat().st_mtime_ns == before
    evidence = merge(sorted((study.out / "cells").iterdir()), tmp_path / "evidence")
    stored = load_evidence(tiny_study.evidence)
    for seed, run in evidence.find("short", "rloo").items():  # a run is a function of its settings and seed
        assert run.sequences["log_ratio"].tolist() == stored.find("short", "rloo")[seed].sequences["log_ratio"].tolist()


def restore_searches(tiny_study, out):
    """Lay the finished searches of a study where another one finds them."""
    restore(load_evidence(tiny_study.evidence), out)
    for path in (out / "cells").iterdir():
        if "_search_" not in path.name:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


@pytest.mark.slow
def test_one_command_writes_everything_that_is_made_from_runs(tiny_study, tmp_path):
    main(["evidence", "--out", str(tiny_study.out), "--root", str(tmp_path)])
    folder = tmp_path / "docs" / "study"
    tables = {f"{name}.parquet" for name in ("runs", "batches", "updates", "sequences", "evaluations", "directions")}
    assert {path.name for path in (folder / "evidence").iterdir()} == tables | {"evidence.json"}
    for name in tables:
        assert (folder / "evidence" / name).read_bytes() == (tiny_study.evidence / name).read_bytes(), name
    evidence = load_evidence(folder / "evidence")
    (searched,) = json.loads((folder / "search.json").read_text()).values()
    assert searched == json.loads(json.dumps(search_table(evidence, tiny_study.plan)["short dr_grpo"]))
    assert {run.rate for run in evidence.runs if run.role == "study"} == {searched["rate"]}
    figures = json.loads((folder / "figures.json").read_text())
    assert {len(figure["by_seed"]) for figure in figures.values()} == {3}
    assert (folder / "index.html").exists() and (tmp_path / "docs" / "claims.md").exists()

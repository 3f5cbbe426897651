"""A real study of a minute: every part of its way from runs to tables, with numbers that say nothing."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from report_browser import browser, open_page
from study_runs import TINY_SIZES

from research.study.evidence import merge
from research.study.plan import Plan, Variant
from research.study.schedule import Study

__all__ = ["browser", "open_page"]

TINY_PLAN = Plan(
    variants=(Variant("dr_grpo", "short"), Variant("rloo", "short", search="", settings_of="dr_grpo")),
    sizes={"short": TINY_SIZES},
)
"""Two variants, three seeds, one search, and timed runs."""


@dataclass(frozen=True)
class TinyStudy:
    """A finished study. Do not write to it: other tests read it."""

    plan: Plan
    out: Path
    """Where it was run: cells/<key>/*.parquet."""
    evidence: Path
    """The folder of all its runs: runs.parquet and the other tables."""


@pytest.fixture(scope="session")
def tiny_study(tmp_path_factory: pytest.TempPathFactory) -> TinyStudy:
    """A study of `dr_grpo` and `rloo` on the short world; tests that use it are slow."""
    folder = tmp_path_factory.mktemp("study")
    study = Study(TINY_PLAN, folder / "out", ("search", "runs", "timed"))
    assert study.run(jobs=1, commit="0" * 40) == []
    merge(sorted((folder / "out" / "cells").iterdir()), folder / "evidence")
    return TinyStudy(TINY_PLAN, folder / "out", folder / "evidence")

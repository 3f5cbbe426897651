"""Two reports to open in a browser, and one of many responses."""

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from report_browser import browser, open_page
from report_runs import write_many, write_run

from fairlen.report import write_report

__all__ = ["browser", "open_page"]


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "a plain run", "dapo+balanced", num_updates=2)


@pytest.fixture(scope="session")
def pairs_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "a run with pairs", "grpo+eqlen")


@pytest.fixture(scope="session")
def plain_page(plain_run: Path) -> Path:
    return write_report(plain_run)


@pytest.fixture(scope="session")
def pairs_page(pairs_run: Path) -> Path:
    return write_report(pairs_run)


@dataclass(frozen=True)
class ManyPage:
    """The report of 100,000 responses, and what it took."""

    path: Path
    seconds: float
    megabytes: float


@pytest.fixture(scope="session")
def many_page(tmp_path_factory: pytest.TempPathFactory) -> ManyPage:
    folder = write_many(tmp_path_factory.mktemp("runs") / "many", 100_000)
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = write_report(folder)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return ManyPage(path, time.perf_counter() - start, grown / 1024)

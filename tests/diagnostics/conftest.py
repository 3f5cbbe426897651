"""A browser that watches what a page does, and two reports to open in it."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from report_browser import NAMES, Open, Watched
from report_runs import write_many, write_run

from fairlen.diagnostics.report import write_report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(
            "no Chromium: run `make browser` as root, or install it: apt-get install chromium fonts-dejavu-core"
        )
    arguments = ["--no-sandbox", "--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb"]
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    opened: list[Watched] = []

    def open_one(html: Path, **settings: Any) -> Watched:
        opened.append(Watched(browser, html, **settings))
        return opened[-1]

    yield open_one
    for watched in opened:
        watched.context.close()
        assert watched.wrong == []


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("runs") / "a plain run", "dapo+balanced", num_updates=2))


@pytest.fixture(scope="module")
def pairs_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("runs") / "a run with pairs", "grpo+eqlen"))


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

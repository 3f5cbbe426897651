"""One thread for every test and its processes, and tests in an order that nobody chose.

Results depend on the number of threads, and the other cores run other tests.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fixtures import Batch

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # of what tests start
os.environ.pop("COLUMNS", None)  # which workers of pytest-xdist set, and consoles heed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", type=int, help="of the order of the tests; drawn if not given; 0: as written")
    parser.addoption(
        "--must-pass", action="store_true", help="fail where no test passed: none was selected, or all skipped"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.order_seed is None:
        handed = getattr(config, "workerinput", {})
        config.option.order_seed = handed.get("order_seed") or random.SystemRandom().randrange(1, 100_000)
    gc.disable()


def pytest_collection_finish() -> None:
    """A million objects of modules and tests stay to the end: whoever calls `gc.collect` need not walk through them."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of pytest-xdist is handed the seed: all of them need the same order."""
    node.workerinput["order_seed"] = node.config.option.order_seed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules in any order, each with its tests in any order: two tests keep theirs under a seed, whatever else runs."""
    seed = config.option.order_seed

    def place(name: str) -> bytes:
        return hashlib.sha256(f"{seed} {name}".encode()).digest()

    if seed:
        items.sort(key=lambda item: (place(item.nodeid.partition("::")[0]), place(item.nodeid)))


def pytest_runtest_setup() -> None:
    """Runs and tests set the number of threads of the process; on busy cores two threads take ten times the time of one."""
    import torch  # not where this file is read: the process that hands out the tests needs none

    torch.set_num_threads(1)


def nothing_passed(config: pytest.Config) -> bool:
    """Whether tests had to run and none did."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return config.option.must_pass and not config.option.collectonly and not reporter.stats.get("passed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Skipped tests are no success where the machine was to be tested."""
    if nothing_passed(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if nothing_passed(config):
        terminalreporter.write_line("FAILED: no test passed, so that nothing of this device was tested", red=True)
    if config.option.order_seed and not config.option.collectonly:
        terminalreporter.write_line(f"the order of the tests: --order-seed {config.option.order_seed} gives it again")


@pytest.fixture
def ragged() -> Batch:
    from fixtures import ragged_batch

    return ragged_batch()

"""Runs in processes of their own, and the shipped model with a rollout batch of it."""

from collections.abc import Iterator

import pytest
from forked_runs import REWARDS, Forks, Whole
from shipped_batch import batch, policy  # noqa: F401  fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make every test of such a run slow: the process that forks costs as much as a hundred of the other tests."""
    for item in items:
        if "forks" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs in processes of their own."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def whole(forks: Forks, tmp_path_factory) -> Whole:
    """Uninterrupted runs, with a reward function that draws from the random streams of Python, numpy and torch."""
    root = tmp_path_factory.mktemp("whole")
    (root / "mine.py").write_text(REWARDS)
    return Whole(forks, f"{root / 'mine.py'}:noisy", root)

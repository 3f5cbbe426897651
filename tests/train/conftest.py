"""Runs in processes of their own, and the shipped model with a rollout batch of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forked_runs import REWARDS, Forks, Whole
from shipped_batch import batch, policy  # noqa: F401  fixtures


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

"""Data sets on disk, and settings to load them with."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_sets import write_sets


@pytest.fixture(scope="session")
def sets(tmp_path_factory) -> Path:
    """A folder with every set as NAME.parquet and NAME.jsonl."""
    folder = tmp_path_factory.mktemp("sets")
    write_sets(folder)
    return folder

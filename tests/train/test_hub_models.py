"""Models by hub id where no hub answers: from the cache, or a message at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = "import sys; from fairlen.train.hub import find_model; print(find_model(*sys.argv[1:]))"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path) -> Path:
    """The cache of the hub with one model, as the hub's client keeps it."""
    model = tmp_path / "cache/models--some--model"
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(COMMIT)
    (model / "snapshots" / COMMIT / "config.json").write_text("{}")
    return tmp_path / "cache"


def ask(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because the client reads its settings when it is imported. Nobody listens at port 9."""
    env = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    env |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(cache), "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-c", ASK, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_was_downloaded_is_used(cache):
    folder = str(cache / "models--some--model/snapshots" / COMMIT)
    assert ask(cache, "some/model").stdout.strip() == folder
    assert ask(cache, "some/model", COMMIT).stdout.strip() == folder


@pytest.mark.parametrize("place", [".", "no such/name at all"])
def test_what_is_no_hub_id_is_not_asked_for(cache, place):
    assert ask(cache, place).stdout.strip() == place


@pytest.mark.parametrize("arguments", [("some/other",), ("some/model", "another-revision")])
def test_what_is_nowhere_is_refused_at_once(cache, arguments):
    asked = ask(cache, *arguments)
    last = asked.stderr.strip().splitlines()[-1]
    assert "there is no such folder, and the hub cannot be asked" in last and "Connection refused" in last
    assert "Retry" not in asked.stderr

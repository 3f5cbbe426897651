"""Models by hub id where no hub answers: from the cache, or a message at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import json, sys
from fairlen.files.pretrained import find_model
for place in json.loads(sys.argv[1]):
    try:
        print(json.dumps(find_model(*place)))
    except OSError as error:
        print(json.dumps({"error": str(error)}))
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SNAPSHOT = f"models--some--model/snapshots/{COMMIT}"
NOWHERE = [("some/other",), ("some/model", "another-revision")]
AS_THEY_ARE = [(".",), ("no such/name at all",)]
CACHED = [("some/model",), ("some/model", COMMIT)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """The cache of the hub with one model, as the hub's client keeps it."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / SNAPSHOT).mkdir(parents=True)
    (folder / SNAPSHOT / "config.json").write_text("{}")
    (folder / "models--some--model/refs").mkdir()
    (folder / "models--some--model/refs/main").write_text(COMMIT)
    return folder


@pytest.fixture(scope="module")
def answers(cache) -> dict[tuple[str, ...], object]:
    """From a process of its own, because the client reads its settings when it is imported. Nobody listens at port 9."""
    env = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    env |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(cache), "NO_PROXY": "127.0.0.1"}
    places = [*CACHED, *AS_THEY_ARE, *NOWHERE]
    command = [sys.executable, "-c", ASK, json.dumps(places)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "Retry" not in done.stderr
    return dict(zip(places, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("place", CACHED)
def test_what_was_downloaded_is_used(answers, cache, place):
    assert answers[place] == str(cache / SNAPSHOT)


@pytest.mark.parametrize("place", AS_THEY_ARE)
def test_what_is_no_hub_id_is_not_asked_for(answers, place):
    assert answers[place] == place[0]


@pytest.mark.parametrize("place", NOWHERE)
def test_what_is_nowhere_is_refused_at_once(answers, place):
    said = answers[place]["error"]
    assert "there is no such folder, and the hub cannot be asked" in said and "Connection refused" in said

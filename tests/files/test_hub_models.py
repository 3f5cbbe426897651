"""Models by hub id where no hub answers: from the cache, or a message at once."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from fairlen.files.pretrained import find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SNAPSHOT = f"models--some--model/snapshots/{COMMIT}"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The cache of the hub with one model, as the hub's client keeps it, and a hub at a port where nothing listens."""
    (tmp_path / SNAPSHOT).mkdir(parents=True)
    (tmp_path / SNAPSHOT / "config.json").write_text("{}")
    (tmp_path / "models--some--model/refs").mkdir()
    (tmp_path / "models--some--model/refs/main").write_text(COMMIT)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in (("HF_HUB_OFFLINE", False), ("ENDPOINT", "http://127.0.0.1:9"), ("HF_HUB_CACHE", str(tmp_path))):
        monkeypatch.setattr(constants, name, value)
    return tmp_path


def test_what_was_downloaded_is_used(cache):
    assert find_model("some/model") == find_model("some/model", COMMIT) == str(cache / SNAPSHOT)


def test_what_is_no_hub_id_is_not_asked_for(cache):
    assert [find_model(place) for place in (".", "no such/name at all")] == [".", "no such/name at all"]


def test_what_is_nowhere_is_refused_at_once(cache):
    for place in (("some/other",), ("some/model", "another-revision")):
        with pytest.raises(OSError, match=r"no such folder, and the hub cannot be asked: .*Connection refused"):
            find_model(*place)

"""The way of a foreign file to its verdict, traced: it is opened once, and no file of the audit is gone back into."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fairlen.audit import audit as entry
from fairlen.audit.audit import audit

FORMATS = Path(__file__).parents[1] / "fixtures_formats"
ROOM = str(Path(entry.__file__).parent)


def trace(folder: Path) -> tuple[list[str], dict[str, int], int]:
    """Audit a folder; return, up to the verdict, the files of the audit's room that pass something on to another one of it, how
    often each rollout file was opened, and how often the readers' entry was called from elsewhere in the room.

    Not counted are containers and bytes (files/), and the files that call no other: the vocabularies of messages and of ends.
    """
    calls: set[tuple[str, str]] = set()
    opened: dict[str, int] = {}
    done: list[str] = []
    entries = 0

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entries
        code, above = frame.f_code, frame.f_back
        done.extend(["verdict"] * (event == "return" and code.co_name == "conclude"))
        if event != "call" or done:
            return
        if code.co_name == "container_of":
            path = str(frame.f_locals["path"])
            opened[path] = opened.get(path, 0) + 1
        if above and code.co_filename.startswith(ROOM) and above.f_code.co_filename.startswith(ROOM):
            caller, called = (one.removeprefix(f"{ROOM}/") for one in (above.f_code.co_filename, code.co_filename))
            if called not in (caller, "log.py"):  # the log is what is passed on
                calls.add((caller, called))
                entries += called == "readers/__init__.py"

    sys.setprofile(watch)
    try:
        audit([str(folder)])
    finally:
        sys.setprofile(None)
    return sorted({caller for caller, _ in calls}), opened, entries


@pytest.mark.parametrize("format", ["verl", "trl", "generic", "table", "parquet", "verifiers"])
def test_a_foreign_file_is_opened_once_and_passes_fifteen_files_to_its_verdict(format):
    passed, opened, entries = trace(FORMATS / format)
    assert len(passed) <= 15, passed
    assert opened and set(opened.values()) == {1}
    assert entries == 1

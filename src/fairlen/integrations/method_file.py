"""The method in checkpoints of a framework's run: fairlen.json, with what it has learned and where the run folder was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fairlen.checks import is_described
from fairlen.files.folders import write_file
from fairlen.methods.method import Method

STATE_FILE = "fairlen.json"
NOWHERE: Mapping[str, Any] = {}
ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")
"""In the text of functions and of objects without one of their own: different in every process."""


def save_method(folder: Path, method: Method, position: Mapping[str, Any] = NOWHERE, drawn: int = 0) -> None:
    """Write into a checkpoint the method's choices and state, the position of the run folder, and prompts drawn as refills."""
    kept = {"method": choices_of(method), "state": method.state, "run": dict(position), "drawn": drawn}
    write_file(folder / STATE_FILE, f"{json.dumps(kept, indent=1)}\n".encode())


def resume_method(folder: Path, method: Method) -> Method:
    """Return the method with the state of a checkpoint; a method without state resumes from one without the file.

    Raises ValueError for a checkpoint of another method, FileNotFoundError where there is no state for one that needs it.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        if method.state:
            raise FileNotFoundError(f"{path}: no state of the method was saved there; start a new run from its weights")
        return method
    kept = json.loads(path.read_text())
    before, now = kept["method"], choices_of(method)
    if changed := [name for name in now if before.get(name) != now[name]]:
        differences = "; ".join(f"{name} {before.get(name)} -> {now[name]}" for name in changed)
        raise ValueError(
            f"{path}: resuming with another method would not continue the same run ({differences}); give the method that the "
            "checkpoint was trained with, or start a new run from its weights in another folder"
        )
    return method.with_state(kept["state"])


def resume_position(folder: Path) -> Mapping[str, Any]:
    """Return where the run folder was when a checkpoint was made; nothing where none was written."""
    path = folder / STATE_FILE
    return json.loads(path.read_text()).get("run", NOWHERE) if path.is_file() else NOWHERE


def resume_drawn(folder: Path) -> int:
    """Return how many prompts had been drawn in place of dropped ones when a checkpoint was made."""
    path = folder / STATE_FILE
    return int(json.loads(path.read_text()).get("drawn", 0)) if path.is_file() else 0


def choices_of(method: Method) -> dict[str, str]:
    """Return every choice as text, without what was learned; of functions the name alone."""
    return {f.name: ADDRESS.sub("", write(getattr(method, f.name))) for f in fields(method)}


def write(value: Any) -> str:
    """Return the text of a choice: `repr`, but for fields that came later and have their defaults, so that old files go on."""
    if isinstance(value, tuple):
        return f"({', '.join(map(write, value))}{',' * (len(value) == 1)})"
    if not is_dataclass(value):
        return repr(value)
    shown = [f"{f.name}={getattr(value, f.name)!r}" for f in fields(value) if f.repr and is_described(value, f)]
    return f"{type(value).__qualname__}({', '.join(shown)})"

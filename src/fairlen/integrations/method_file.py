"""The method in files of a framework's run: fairlen.json in checkpoints, with what it has learned, method.json for the audit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fairlen.files.folders import write_file
from fairlen.methods.describe import to_dict
from fairlen.methods.method import Method

STATE_FILE = "fairlen.json"
ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")
"""In the text of functions and of objects without one of their own: different in every process."""


def describe_method(folder: Path, given: object, overrides: str | Sequence[str] | None, method: Method) -> None:
    """Write method.json, which says as run.json does what trained on the rollouts in a folder; `given` is a name, or has one."""
    config = {"overrides": [overrides] if isinstance(overrides, str) else list(overrides or ())}
    name = given if isinstance(given, str) else getattr(given, "name", "")
    described = {"method": {"name": name, "choices": to_dict(method)}, "config": config}
    write_file(folder / "method.json", json.dumps(described, indent=1, default=repr) + "\n")


def save_method(folder: Path, method: Method) -> None:
    """Write the method's choices and its state into a checkpoint."""
    kept = {"method": choices_of(method), "state": method.state}
    write_file(folder / STATE_FILE, json.dumps(kept, indent=1) + "\n")


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


def choices_of(method: Method) -> dict[str, str]:
    """Return every choice as text, without what was learned; of functions the name alone."""
    return {f.name: ADDRESS.sub("", repr(getattr(method, f.name))) for f in fields(method)}

"""The state of a watch as a file: JSON and arrays in one npz, written whole or not at all."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.files.folders import write_file

FORMAT = 1


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state of lists, dicts, numbers, text and arrays."""
    arrays: dict[str, np.ndarray] = {}

    def put(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays[name := f"a{len(arrays)}"] = value
            return {"array": name}
        if isinstance(value, dict):
            return {"dict": [[put(key), put(one)] for key, one in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [put(one) for one in value]}
        return [put(one) for one in value] if isinstance(value, list) else value

    tree = json.dumps({"format": FORMAT, "state": put(state)})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, tree=np.frombuffer(tree.encode(), np.uint8), **arrays)
    write_file(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Return the state in a file. Raises ValueError for one that is none."""
    try:
        with np.load(path, allow_pickle=False) as found:
            tree = json.loads(found["tree"].tobytes())
            if tree["format"] != FORMAT:
                raise ValueError(f"format {tree['format']}, not {FORMAT}")
            return get(tree["state"], found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no state of a watch ({error}); remove it to watch from the start") from error


def get(value: Any, arrays: Any) -> Any:
    if isinstance(value, list):
        return [get(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        return arrays[inner]
    return dict(pairs(inner, arrays)) if kind == "dict" else tuple(get(one, arrays) for one in inner)


def pairs(items: list[Any], arrays: Any) -> Iterator[tuple[Any, Any]]:
    return ((get(key, arrays), get(value, arrays)) for key, value in items)

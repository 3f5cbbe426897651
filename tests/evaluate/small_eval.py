"""Settings of evaluations that take seconds, and problems to write."""

import json
from pathlib import Path

from fairlen.evaluate.config import EvalConfig


def small(out: Path, **changes) -> EvalConfig:
    settings = {
        "problems": 12,
        "samples": 4,
        "max_response_length": 60,
        "threads": 1,
        "max_num_seqs": 16,
        "out": str(out),
        "seed": 3,
    }
    return EvalConfig.of(**(settings | changes))


def write_set(path: Path, shift: int, size: int = 4) -> Path:
    """Problems "What is i + shift?" with their answers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ({"problem": f"What is {i} + {shift}?", "answer": str(i + shift)} for i in range(size))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path

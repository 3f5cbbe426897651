"""Settings of evaluations that take seconds, and problems to write."""

from pathlib import Path

from lines import write_lines

from fairlen.evaluate.config import EvalConfig


def small(out: Path, **changes) -> EvalConfig:
    settings = {"problems": 12, "samples": 4, "max_response_length": 60, "threads": 1, "max_num_seqs": 16, "seed": 3}
    return EvalConfig.of(**(settings | {"out": str(out)} | changes))


def write_set(path: Path, shift: int, size: int = 4) -> Path:
    """Problems "What is i + shift?" with their answers."""
    return write_lines(path, *({"problem": f"What is {i} + {shift}?", "answer": str(i + shift)} for i in range(size)))

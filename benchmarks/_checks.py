"""The flag `--smoke`, and the end of a program whose measurement is out of range."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path


def demand(is_so: bool, message: str) -> None:
    """Ends the program with exit code 1 and one line where something is not as it should be."""
    if not is_so:
        raise SystemExit(f"{Path(sys.argv[0]).name}: {message}")


def demand_positive(name: str, numbers: Iterable[float]) -> None:
    """Every number is finite and above 0."""
    for number in numbers:
        demand(math.isfinite(number) and number > 0, f"{name} is {number}: it should be finite and above 0")


def add_smoke(parser: argparse.ArgumentParser) -> None:
    """The flag that every program of this folder takes."""
    parser.add_argument("--smoke", action="store_true", help="the smallest arguments, to see that it runs; no marks")

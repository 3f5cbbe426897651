"""The flags of programs, `--smoke` among them, and the end of a program whose measurement is out of range."""

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


def read_size(flag: str, default: int, smoke: int, help: str = "of each kind") -> tuple[int, bool]:
    """Read the command line of a program that repeats something: how often, and whether marks are asked."""
    about = sys.modules["__main__"].__doc__
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(flag, dest="size", type=int, default=default, help=help)
    add_smoke(parser)
    given = parser.parse_args()
    return smoke if given.smoke else given.size, not given.smoke


def add_smoke(parser: argparse.ArgumentParser) -> None:
    """The flag that every program of this folder takes."""
    parser.add_argument("--smoke", action="store_true", help="the smallest arguments, to see that it runs; no marks")

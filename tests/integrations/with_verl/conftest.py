"""Padded batches are those of the differential tests; the clock is that of the benchmark."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path += [str(ROOT / "tests" / "differential"), str(ROOT / "benchmarks")]

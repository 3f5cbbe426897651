"""Padded batches are those of the differential tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "differential"))

"""The pictures of docs/: the pages of an audit and of a report, from real rollouts of SmolLM2-135M.

python docs/draw_pages.py            # writes docs/audit.png and docs/report.png, with Chromium

The rollouts are those of `make real`, tests/fixtures_real/run: 1,024 responses to 64 word problems in 8 steps.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fairlen.cli import main

ROOT = Path(__file__).parents[1]
RUN = ROOT / "tests" / "fixtures_real" / "run"
SIZE = 1000, 1400
"""Of the pictures, in pixels: the top of a page."""


def draw(page: Path, picture: Path) -> None:
    """Take a picture of the top of a page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "chromium")
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--force-color-profile=srgb"]
    size = f"--window-size={SIZE[0]},{SIZE[1]}"
    subprocess.run([browser, *flags, size, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


def draw_all(folder: Path) -> None:
    shutil.copytree(RUN, folder / "runs" / "real")
    os.chdir(folder)  # pages name the path that was given
    main(["audit", "runs/real", "--out", "audit.html"])
    main(["report", "runs/real"])
    draw(folder / "audit.html", ROOT / "docs" / "audit.png")
    draw(folder / "runs" / "real" / "report.html", ROOT / "docs" / "report.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        draw_all(Path(scratch))

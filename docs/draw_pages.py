"""Pages of audits and reports: the pictures of docs/, from real rollouts of SmolLM2-135M, and the gallery of the site.

python docs/draw_pages.py                     # writes docs/audit.png and docs/report.png, with Chromium
python docs/draw_pages.py --gallery FOLDER    # writes FOLDER/none.html, effect.html, truncation.html and channel.html

The real rollouts are those of `make real`, tests/fixtures_real/run: 1,024 responses to 64 word problems in 8 steps. Those of the
gallery are made, so that it is known what is in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.cli import main

ROOT = Path(__file__).parents[1]
RUN = ROOT / "tests" / "fixtures_real" / "run"
SIZE = 1000, 1400
"""Of the pictures, in pixels: the top of a page."""
GALLERY: dict[str, dict[str, float]] = {
    "none": {"prompts": 400},
    "effect": {"longer": 1.4},
    "truncation": {"limit": 9},
    "channel": {"longer": 1.6, "thinks": True},
}
"""Pages, and how their rollouts are made."""


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


def make_rows(
    prompts: int = 80, longer: float = 1.0, limit: int = 1000, thinks: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield 16 responses to each prompt, sums in steps; incorrect ones are `longer` times as long, and `limit` steps the most."""
    rng = np.random.default_rng(0)
    for prompt in range(int(prompts)):
        first, hard = int(rng.integers(2, 90)), rng.random()
        for _ in range(16):
            is_correct = bool(rng.random() < 0.9 - 0.7 * hard)
            number = max(round(rng.lognormal(1.6 + hard, 0.35) * (1.0 if is_correct else longer)), 1)
            steps = [f"add {first + k}, which makes {first * (k + 1)}" for k in range(min(number, int(limit)))]
            ended, answer = number <= limit, f"The answer is {first * number - (not is_correct)}."
            text = f"<think>{'; '.join(steps)}</think> {answer}" if thinks else f"{'; '.join(steps)}. {answer * ended}"
            yield {
                "step": prompt // 20 + 1, "prompt": f"{prompt}: begin with {first} and add up.", "response": text,
                "reward": float(is_correct and ended), "finish_reason": "stop" if ended else "length",
            }  # fmt: skip


def write_gallery(folder: Path) -> None:
    """Audit rollouts of each kind, and write their pages into the folder."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):  # pages name the path that was given
        for name, how in GALLERY.items():
            rows = Path(name, "rollouts.jsonl")
            rows.parent.mkdir()
            rows.write_text("".join(json.dumps(row) + "\n" for row in make_rows(**how)))
            main(["audit", name, "--method", "loss_type=dapo", "--out", str(folder / f"{name}.html")])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--gallery"]:
        write_gallery(Path(*sys.argv[2:]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            draw_all(Path(scratch))

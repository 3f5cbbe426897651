"""The picture of README: the weight of a token by the length of its response, under three rules, on the same made rollouts.

python recipes/draw_weights.py            # writes docs/weights.svg
python recipes/draw_weights.py --check    # fails where the file differs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fairlen.audit.statistics.intervals import length_bins
from fairlen.batch import Floats
from fairlen.compare.simulation import FINE, make_rollouts, measure

PICTURE = Path(__file__).parents[1] / "docs" / "weights.svg"
RULES = {
    "grpo": ("each response counts the same", 0),
    "dapo+balanced": ("correct and incorrect apart", 0),
    "dapo_verl": ("each token counts the same", -14),
}
"""Of methods: what stands beside their lines, and how far it is moved down, in pixels."""
LABEL = "Where each response counts the same, a token of a short response counts more than one of a long response."
WIDTH, HEIGHT = 800, 380
LEFT, RIGHT, TOP, BOTTOM = 52, 290, 40, 64
"""Margins, pixels."""
LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
LENGTHS = (25, 50, 100, 200, 400, 800)
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#333}.t{font-size:15px;font-weight:600}.g{stroke:#8884}.l{fill:none;stroke-width:3;"
    "stroke:currentColor}.n{fill:currentColor}.c0{color:#b8321f}.c1{color:#00687a}.c2{color:#5f5f5f}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.c0{color:#ff8f7d}.c1{color:#4cc3d6}.c2{color:#b5b5b5}}"
)
"""Colours with a contrast of 4.5 or more to a white and to a dark page."""


def place_x(length: float) -> float:
    """Return pixels from the left: lengths on a logarithmic scale."""
    low, high = np.log(LENGTHS[0] / 1.25), np.log(LENGTHS[-1] * 1.25)
    return LEFT + (WIDTH - LEFT - RIGHT) * float((np.log(length) - low) / (high - low))


def place_y(weight: float) -> float:
    """Return pixels from the top: weights on a logarithmic scale."""
    low, high = np.log(LEVELS[0]), np.log(LEVELS[-1])
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * float((np.log(weight) - low) / (high - low))


def draw_frame() -> Iterator[str]:
    """Yield the title, the axes and their ticks."""
    yield f'<text class="t" x="{LEFT}" y="20">How much a token counts in an update, by the length of its response</text>'
    for level in LEVELS:
        y = place_y(level)
        yield f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{level:g}x</text>'
    for length in LENGTHS:
        yield f'<text x="{place_x(length):.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">{length}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    below = "length of the response (tokens); 1x is the average token"
    yield f'<text x="{middle:.0f}" y="{HEIGHT - 16}" text-anchor="middle">{below}</text>'


def draw_rule(name: str, middles: Floats) -> Iterator[str]:
    """Yield the line of a method, and in two lines beside its right end what it does and its name."""
    says, down = RULES[name]
    weights, colour = measure(name).curves["weight"], f"c{list(RULES).index(name)}"
    points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in zip(middles, weights, strict=True))
    yield f'<polyline class="l {colour}" points="{points}"/>'
    for text, below in ((says, -2), (f"({name})", 15)):
        y = place_y(float(weights[-1])) + down + below
        yield f'<text class="n {colour}" x="{WIDTH - RIGHT + 12}" y="{y:.1f}">{text}</text>'


def draw() -> str:
    """Return the picture as SVG."""
    lengths = make_rollouts().table.length
    bins = length_bins(lengths, FINE)
    middles = np.array([np.exp(np.log(lengths[bins.index == k]).mean()) for k in range(len(bins))])
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{LABEL}">'
    rules = (line for name in RULES for line in draw_rule(name, middles))
    return "\n".join([head, f"<style>{STYLE}</style>", *draw_frame(), *rules, "</svg>", ""])


def main() -> int:
    """Write the picture, or compare it with the file."""
    parser = argparse.ArgumentParser(description="Draw docs/weights.svg.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file differs")
    drawn = draw()
    if not parser.parse_args().check:
        PICTURE.write_text(drawn)
        print(f"wrote {PICTURE}")
    elif PICTURE.read_text() != drawn:
        print(f"{PICTURE} is not what the package draws: python recipes/draw_weights.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

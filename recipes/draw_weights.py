"""The picture of README: the weight of a token by the length of its response, under four rules, on the same made rollouts.

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
    "grpo": "grpo: mean of each response",
    "grpo+vl_norm": "grpo+vl_norm: length^-0.75",
    "dapo+balanced": "dapo+balanced: correct, incorrect apart",
    "dapo_verl": "dapo_verl: mean of all tokens",
}
"""Methods, and what stands beside their lines."""
LABEL = "On the same rollouts: under some rules a token of a short response weighs more, under others the same."
COLOURS = ("#d1495b", "#b8860b", "#00798c", "#7d7d7d")
WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 52, 262, 40, 64
"""Margins, pixels."""
LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
LENGTHS = (25, 50, 100, 200, 400, 800)
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#333}.t{font-size:15px;font-weight:600}.g{stroke:#8884}.l{fill:none;stroke-width:3}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


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
    yield f'<text class="t" x="{LEFT}" y="20">Weight of one token, by the length of its response</text>'
    for level in LEVELS:
        y = place_y(level)
        yield f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{level:g}x</text>'
    for length in LENGTHS:
        yield f'<text x="{place_x(length):.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">{length}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    below = "response length (tokens); 1x is the mean of all tokens"
    yield f'<text x="{middle:.0f}" y="{HEIGHT - 16}" text-anchor="middle">{below}</text>'


def draw_rule(name: str, colour: str, middles: Floats) -> Iterator[str]:
    """Yield the line of a method, and its name beside the right end."""
    weights = measure(name).curves["weight"]
    points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in zip(middles, weights, strict=True))
    yield f'<polyline class="l" stroke="{colour}" points="{points}"/>'
    yield f'<text x="{WIDTH - RIGHT + 12}" y="{place_y(float(weights[-1])) + 5:.1f}" style="fill:{colour}">{RULES[name]}</text>'


def draw() -> str:
    """Return the picture as SVG."""
    lengths = make_rollouts().length
    bins = length_bins(lengths, FINE)
    middles = np.array([np.exp(np.log(lengths[bins.index == k]).mean()) for k in range(len(bins))])
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{LABEL}">'
    rules = (line for name, colour in zip(RULES, COLOURS, strict=True) for line in draw_rule(name, colour, middles))
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

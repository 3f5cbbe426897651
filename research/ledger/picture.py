"""docs/study/stopping.svg: theory beside runs. What a survivor's worth does to stopping by proof; how longhand stops; what became
of length and accuracy of the same streams under three worths, beside GRPO."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats
from research.ledger.claims import DATA
from research.study import quantities as q
from research.study.evidence import Evidence, RunTables
from research.study.intervals import quantile

RULES = {
    "grpo": ("GRPO", "#7d7d7d"),
    "eqlen+grpo": ("maximum", "#d1495b"),
    "eqlen+grpo:sampling.survivor_reward=mean": ("mean", "#b8860b"),
    "eqlen_unbiased": ("halving", "#00798c"),
}
"""Variants of the long world: names and colours. `eqlen_unbiased` also weighs rounds and clips by sequence."""
CORRECT, LATER = 0.55, 7
"""Chance of a correct response, as in longhand, and the most later finishers that are drawn."""
LABEL = (
    "Four panels: expected advantage of stopping by later finishers, chance to stop and accuracy by restarts, response length "
    "and accuracy by tokens generated, of GRPO and of EqLen's streams under maximum, mean and halving."
)
WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y = 340, 190, 44, 40, 60, 76
NUM_STEPS = 20
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-size:13px;font-weight:600}.g{stroke:#8884}"
    ".l{fill:none;stroke-width:2.5}.b{opacity:.18;stroke:none}@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


@dataclass(frozen=True)
class Line:
    """A curve, with the ends of its intervals where it has any."""

    name: str
    colour: str
    x: Floats
    y: Floats
    half: Floats | None = None


@dataclass(frozen=True)
class Panel:
    """Curves in one frame; `place` is its column and row."""

    title: str
    below: str
    lines: Sequence[Line]
    low: float
    high: float
    form: str
    place: tuple[int, int]

    def draw(self) -> Iterator[str]:
        """Yield the frame, its ticks and its curves."""
        left, top = LEFT + self.place[0] * (WIDTH + GAP_X), TOP + self.place[1] * (HEIGHT + GAP_Y)
        start, end = min(float(one.x[0]) for one in self.lines), max(float(one.x[-1]) for one in self.lines)

        def points(x: Floats, y: Floats) -> str:
            across = left + WIDTH * (x - start) / (end - start)
            down = top + HEIGHT * (self.high - np.clip(y, self.low, self.high)) / (self.high - self.low)
            return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))

        yield f'<text class="t" x="{left}" y="{top - 14}">{self.title}</text>'
        for level in np.linspace(self.low, self.high, 5):
            y = top + HEIGHT * (self.high - level) / (self.high - self.low)
            yield f'<line class="g" x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{level:{self.form}}</text>'
        is_whole = start % 1 == end % 1 == 0
        for at in np.arange(start, end + 1) if is_whole else np.linspace(start, end, 5):
            x = left + WIDTH * (at - start) / (end - start)
            yield f'<text x="{x:.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{at:.2g}</text>'
        yield f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 33}" text-anchor="middle">{self.below}</text>'
        for one in self.lines:
            if one.half is not None:
                ends = points(one.x, one.y - one.half), points(one.x[::-1], (one.y + one.half)[::-1])
                yield f'<polygon class="b" fill="{one.colour}" points="{" ".join(ends)}"/>'
            yield f'<polyline class="l" stroke="{one.colour}" points="{points(one.x, one.y)}"/>'
        for number, (name, colour) in enumerate(dict.fromkeys((one.name, one.colour) for one in self.lines)):
            yield f'<text x="{left + 8 + 84 * number}" y="{top + 14}" style="fill:{colour};font-weight:600">{name}</text>'


def theory() -> Panel:
    """Return the expected advantage of a finisher beside a survivor with n later finishers, each correct with one chance v: under
    the maximum v - 1 + (1 - v)^n, under the mean and under halving 0 (tests/oracles/test_length_neutral.py)."""
    later = np.arange(1.0, LATER + 1)
    best = CORRECT - 1 + (1 - CORRECT) ** later
    lines = [Line(*RULES["eqlen+grpo"], later, best), Line("mean, halving", "#00798c", later, np.zeros(LATER))]
    return Panel(f"By proof: advantage of stopping, v = {CORRECT}", "later finishers", lines, -0.6, 0.2, ".1f", (0, 0))


def stopping() -> Panel:
    """Return how often longhand's model ends after so many restarts, and how often it is then correct, with 95% intervals."""
    restarts, reached, stopped, correct = np.array(json.loads((DATA / "stopping.json").read_text())["rows"], float).T
    lines = []
    for name, colour, hits, of in (("stops", "#6a4c93", stopped, reached), ("is correct", "#2a9d4a", correct, stopped)):
        share = hits / of
        lines.append(Line(name, colour, restarts, share, 1.96 * np.sqrt(share * (1 - share) / of)))
    return Panel("The long world before training", "restarts so far", lines, 0.0, 1.0, ".0%", (1, 0))


def along(
    title: str, curve: Callable[[RunTables], Floats], evidence: Evidence, axis: tuple[float, float, str], row: int
) -> Panel:
    """Return means over seeds with t intervals against tokens generated, read on straight lines between evaluations."""
    lines = []
    for text, (name, colour) in RULES.items():
        runs = list(evidence.find("long", text).values())
        spent = [q.costs(run, "tokens") * 1e-6 for run in runs]
        grid = np.linspace(0.0, min(float(one[-1]) for one in spent), NUM_STEPS + 1)
        found = np.array([np.interp(grid, x, curve(run)) for x, run in zip(spent, runs, strict=True)])
        half = quantile(0.975, len(runs) - 1) * found.std(0, ddof=1) / np.sqrt(len(runs))
        lines.append(Line(name, colour, grid, found.mean(0), half))
    return Panel(title, "tokens generated, millions", lines, *axis, (row, 1))


def draw_stopping(evidence: Evidence | None) -> str:
    """Return the picture as SVG; without runs the panels of proof and model alone."""
    panels = [theory(), stopping()]
    if evidence and all(len(evidence.find("long", text)) > 1 for text in RULES):
        panels += [
            along("Runs: response length", lambda run: q.lengths(q.shared(run)), evidence, (0.0, 600.0, ".0f"), 0),
            along("Runs: accuracy", lambda run: q.accuracies(q.shared(run)) / 100, evidence, (0.0, 1.0, ".0%"), 1),
        ]
    width, height = LEFT + 2 * WIDTH + GAP_X + 20, TOP + (len(panels) // 2) * (HEIGHT + GAP_Y) - 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{LABEL}">'
    shapes = [shape for panel in panels for shape in panel.draw()]
    return "\n".join([head, f"<style>{STYLE}</style>", *shapes, "</svg>", ""])

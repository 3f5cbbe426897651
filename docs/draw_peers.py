"""What rules of four libraries do to length, on real rollouts of SmolLM2-135M: a row each in docs/methods/peers.csv and .svg.

python docs/draw_peers.py            # writes both
python docs/draw_peers.py --check    # fails where they differ

The rollouts are tests/fixtures_real/run, 1,024 responses to 64 word problems in 8 steps, of at most 128 tokens. Accepted are
tokens inside the bound of the surrogate, and kept by a correction that drops some; log ratios to the old policy and to the
engine's are made, of standard deviation 0.03 a token, for tokens of probability 1/e.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fairlen import compose
from fairlen.audit.statistics.intervals import length_bins
from fairlen.compare.simulation import SPREAD, WeighedRollouts, measure, read_rollouts
from fairlen.methods.method import Method
from fairlen.methods.stages.micro import Micro, Outputs

ROOT = Path(__file__).parents[1]
RUN = ROOT / "tests" / "fixtures_real" / "run"
FILES = [ROOT / "docs" / "methods" / f"peers.{kind}" for kind in ("csv", "svg")]
NAMES = (
    "grpo", "dr_grpo", "grpo+balanced", "trl:dapo", "trl:grpo", "trl:luspo", "trl:cispo", "trl:vespo", "verl:grpo",
    "verl:grpo+seq-mean-token-mean", "verl:opo", "verl:opo+seq-mean-token-sum", "verl:reinforce_plus_plus", "verl:gpg",
    "verl:gspo", "verl:dppo_tv", "verl:dppo_kl", "prime-rl:default", "prime-rl:ipo", "prime-rl:max_rl",
    "nemo-rl:grpo", "nemo-rl:reinforce_plus_plus", "grpo+gfpo", "grpo+centred_length", "gspo", "rloo", "fspo_centred",
    "trl:dapo+sequence_mask+vllm_importance_sampling_clip_max=1.2", "nemo-rl:grpo+seq-mask-tis",
)  # fmt: skip
HEAD = (
    "method", "weight of a token of the shortest third over one of the longest", "net advantage on EOS",
    "accepted of the shortest third", "accepted of the longest third",
)  # fmt: skip
WIDTH, STEP, LEFT, RIGHT, TOP = 940, 22, 440, 270, 60
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.t{font-weight:600}.g{stroke:#8886}.b{fill:#00798c}.p{fill:#d1495b}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def accept(method: Method, rows: WeighedRollouts) -> np.ndarray:
    """Return the share of each response's tokens that are inside and kept, [N]."""
    log_ratio, one = torch.from_numpy(rows.log_ratio), torch.ones(len(rows.table), dtype=torch.float64)
    now = torch.full_like(log_ratio, -1.0)
    micro = Micro.of(torch.from_numpy(rows.table.length), one, one, one, now - log_ratio, now)
    method = method.update(method.observe(Outputs(now, now), micro))
    inside = method.surrogate(now, micro).inside & (method.correction(micro) != 0)
    return (micro.sum_per_sequence(inside.double()) / micro.length).numpy()


def measure_all() -> Iterator[list[str]]:
    """Yield the row of each method."""
    rows = read_rollouts(str(RUN))
    drawn = np.random.RandomState(0).normal(-(SPREAD**2) / 2, SPREAD, int(rows.table.length.sum()))
    made, third = replace(rows, log_ratio=drawn), length_bins(rows.table.length, 3).index
    for name in NAMES:
        effect, inside = measure(name, rows), accept(compose(name), made)
        shares = (f"{inside[third == at].mean():.3f}" for at in (0, 2))
        yield [
            name,
            f"{effect.weight[0] / effect.weight[-1]:.3f}",
            f"{effect.eos + 0.0:+.3f}".replace("-0.000", "+0.000"),
            *shares,
        ]


def place(ratio: float) -> float:
    """Return pixels from the left of a ratio from 1/2 to 4, on a logarithmic scale."""
    return LEFT + (WIDTH - LEFT - RIGHT) * (np.log2(np.clip(ratio, 0.5, 4.0)) + 1.0) / 3.0


def draw(table: list[list[str]]) -> Iterator[str]:
    height = TOP + STEP * len(table) + 16
    label = (
        "Weight of short over long tokens, net advantage on EOS, and acceptance, by rule, on the same SmolLM2 rollouts"
    )
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
    yield f'<style>{STYLE}</style><text class="t" x="{LEFT}" y="18">weight, short over long</text>'
    yield f'<text class="t" x="{WIDTH - RIGHT + 14}" y="18">EOS      accepted short, long</text>'
    for tick in (0.5, 1.0, 2.0, 4.0):
        x = place(tick)
        yield f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="44" y2="{height - 12}"/>'
        yield f'<text x="{x:.1f}" y="38" text-anchor="middle">{tick:g}x</text>'
    for number, (name, ratio, eos, short, long) in enumerate(table):
        y, (low, high) = TOP + STEP * number, sorted((place(1.0), place(float(ratio))))
        yield f'<text x="{LEFT - 10}" y="{y + 5}" text-anchor="end">{name}</text>'
        yield f'<rect class="b" x="{low:.1f}" y="{y - 6}" width="{max(high - low, 2.0):.1f}" height="12"/>'
        yield f'<text x="{WIDTH - RIGHT + 14}" y="{y + 5}">{eos}</text>'
        yield f'<text x="{WIDTH - RIGHT + 110}" y="{y + 5}">{float(short):.0%}, {float(long):.0%}</text>'
    yield "</svg>\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/methods/peers.csv and .svg.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs")
    table, text = list(measure_all()), io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEAD, *table])
    made = dict(zip(FILES, (text.getvalue(), "\n".join(draw(table))), strict=True))
    if not parser.parse_args().check:
        for file, content in made.items():
            file.write_text(content)
        return 0
    differing = [str(file) for file, content in made.items() if file.read_text() != content]
    print(*(f"{file} is not what the package makes: python docs/draw_peers.py" for file in differing), file=sys.stderr)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())

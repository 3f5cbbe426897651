"""Pairs and independent responses at equal generated tokens: what each compares, trains and costs.

    python benchmarks/samplers.py [--threads 1] [--repeats 3] [--prompts 16]
    python benchmarks/samplers.py --smoke

Playground model, float32, budget 160, temperature 1; a full update of each side, in turns, medians over turns; the learning rate
is tiny, so that the lengths follow one law throughout. EqLen asks `--prompts` prompts, the other side as many as give its tokens.
"""

from __future__ import annotations

import argparse

import torch
from _checks import add_smoke
from eqlen import BUDGET, Side, show

from fairlen.engine.device import keep_freed_memory

SIDES = {"EqLen, 8 x 2": "eqlen+grpo", "independent, 16": "grpo"}
TABLE = {
    "prompts": "prompts/asked",
    "generated tokens": "tokens/generated",
    "verifier calls": "responses/verified",
    "segments compared": "samples",
    "segments trained": "sequences/trained",
    "trained tokens": "tokens/trained",
    "positions forwarded": "tokens/forwarded",
    "generation, s": "time/rollout",
    "update, s": "time/update",
}
"""Rows of the table, and what the trainer logs them as; samples and update are added up."""


def compare(repeats: int, prompts: int, max_response_length: int) -> None:
    """Prints the table; every side but the first asks as many prompts as give the tokens of the first, by four times as many."""
    probes = {name: Side(method, 4 * prompts, max_response_length) for name, method in SIDES.items()}
    tokens = {name: probe.turn()["tokens/generated"] for name, probe in probes.items()}
    wanted = tokens[next(iter(SIDES))]
    asked = {name: max(round(prompts * wanted / tokens[name]), 1) for name in SIDES}
    sides = [Side(method, asked[name], max_response_length) for name, method in SIDES.items()]
    for _ in range(repeats + 1):  # the first turn of each is left out
        for side in sides:
            side.turn()
    print(f"\n| | {' | '.join(SIDES)} |\n|{'---|' * (len(SIDES) + 1)}")
    for label, name in TABLE.items():
        print(f"| {label} | {' | '.join(show(side.median(name)) for side in sides)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=16)
    add_smoke(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    if options.smoke:
        compare(1, 2, 48)
    else:
        compare(options.repeats, options.prompts, BUDGET)


if __name__ == "__main__":
    main()

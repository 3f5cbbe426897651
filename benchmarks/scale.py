"""Cost of EqLen's rounds on long answers: the table of docs/scale.md, by simulation of one prompt on an idle server.

    python benchmarks/scale.py            print the table
    python benchmarks/scale.py --write    write it into docs/scale.md

A step generates one token of every live track, so that steps are positions in sequence. Forks start in one of three ways:

    reach   when the survivor is as long as the finisher (an engine that forks while it decodes)
    whole   when both tracks of the stream have ended (an engine that returns whole continuations)
    call    when the tracks of all streams have ended (one call at a time, as a trainer that generates by batches)

Lengths are lognormal over prompts and over the responses to one prompt, up to a limit; the parameters are assumptions.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import NormalDist

from _checks import add_smoke, demand

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
PLACE = re.compile(r"(<!-- scale\.py -->\n\n).*?(\n\n<!-- end -->)", re.S)
NUM_PROMPTS, NUM_STREAMS = 32, 8
PROMPT_TOKENS = 200
MEDIAN, BETWEEN, WITHIN, MAX_RESPONSE_LENGTH = 3000, 0.6, 0.6, 16_384
"""Tokens; standard deviations of the logarithm between prompts and within one; tokens."""
HEAD = (
    "16 tracks",
    "tokens",
    "steps, `reach`",
    "steps, whole",
    "steps, one call at a time",
    "forwarded by rows",
    "by trees",
)


@cache
def draw_length(prompt: int, stream: int, track: int, beyond: int = 0) -> int:
    """Draw the length of a response that has more than `beyond` tokens, a function of its position alone."""
    centre = math.log(MEDIAN) + BETWEEN * random.Random(f"0/{prompt}").gauss()
    below = NormalDist().cdf((math.log(beyond) - centre) / WITHIN) if beyond else 0.0
    place = below + (1 - below) * random.Random(f"0/{prompt}/{stream}/{track}").random()
    if place >= 1 - 1e-12:
        return min(beyond + 1, MAX_RESPONSE_LENGTH)
    length = math.ceil(math.exp(centre + WITHIN * NormalDist().inv_cdf(max(place, 1e-12))))
    return min(max(length, beyond + 1), MAX_RESPONSE_LENGTH)


@dataclass(frozen=True)
class Stream:
    """One stream of EqLen: where its rounds ended, and how its tracks went on."""

    stops: tuple[int, ...]
    """Length of the finisher of each round."""
    first: int
    """Longer of the first two tracks."""
    forks: tuple[int, ...]
    """Tokens that each fork generated."""
    last: int
    """Length of the last track to end; above the last stop it is completed alone, for its verdict."""

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return (self.stops[0] + self.first) + sum(self.forks)

    @property
    def row_tokens(self) -> int:
        """Tokens forwarded with a row for every segment, its prompt and prefix included."""
        alone = PROMPT_TOKENS + self.last if self.last > self.stops[-1] else 0
        return sum(2 * (PROMPT_TOKENS + stop) for stop in self.stops) + alone


def run_stream(draw: Callable[[int, int], int], max_rounds: int) -> Stream:
    """Run a stream of lengths `draw(track, inherited)` to its end: at most `max_rounds` rounds, 0 for no limit."""
    stop, survivor = sorted(draw(track, 0) for track in (0, 1))
    first, stops, forks = survivor, [stop], []
    while stop < survivor and len(stops) != max_rounds:
        fork = draw(len(stops) + 1, stop)
        forks.append(fork - stop)
        stop, survivor = sorted((survivor, fork))
        stops.append(stop)
    return Stream(tuple(stops), first, tuple(forks), survivor)


def count_call_steps(streams: Sequence[Stream]) -> int:
    """Count the steps of calls that serve the forks of all streams together: the longest track of each, summed."""
    rounds = max(len(one.forks) for one in streams)
    longest = (max(one.forks[n] for one in streams if n < len(one.forks)) for n in range(rounds))
    return max(one.first for one in streams) + sum(longest)


def measure_independent(prompt: int) -> list[float]:
    """Measure the columns of the table for independent sampling."""
    lengths = [draw_length(prompt, 0, track) for track in range(2 * NUM_STREAMS)]
    tokens, steps = sum(lengths), max(lengths)
    return [tokens, steps, steps, steps, tokens + len(lengths) * PROMPT_TOKENS, tokens + PROMPT_TOKENS]


def measure_streams(prompt: int, max_rounds: int) -> list[float]:
    """Measure the columns of the table for EqLen."""
    streams = [run_stream(partial(draw_length, prompt, stream), max_rounds) for stream in range(NUM_STREAMS)]
    tokens = sum(one.tokens for one in streams)
    reach = max(one.last for one in streams)
    whole = max(one.first + sum(one.forks) for one in streams)
    rows = sum(one.row_tokens for one in streams)
    return [tokens, reach, whole, count_call_steps(streams), rows, tokens + NUM_STREAMS * PROMPT_TOKENS]


def make_table(num_prompts: int) -> str:
    """Return the table in Markdown: means over prompts, forwarded tokens for each generated one."""
    cases = {"independent": [measure_independent(prompt) for prompt in range(num_prompts)]}
    for limit in (1, 2, 4, 0):
        name = f"EqLen, `max_rounds={limit}`" if limit else "EqLen, no limit"
        cases[name] = [measure_streams(prompt, limit) for prompt in range(num_prompts)]
    lines = [HEAD, ("---",) * len(HEAD)]
    for name, measured in cases.items():
        tokens, *steps, rows, trees = map(statistics.mean, zip(*measured, strict=True))
        demand(trees <= rows, f"{name}: trees forward {trees:g} tokens, rows {rows:g}")
        lines.append((name, *(f"{x:,.0f}" for x in (tokens, *steps)), *(f"{x / tokens:.2f}" for x in (rows, trees))))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/scale.md")
    add_smoke(parser)
    options = parser.parse_args()
    table = make_table(2 if options.smoke else NUM_PROMPTS)
    print(table)
    if options.write:
        PAGE.write_text(PLACE.sub(rf"\g<1>{table}\g<2>", PAGE.read_text()))


if __name__ == "__main__":
    main()

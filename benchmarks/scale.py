"""The arithmetic of docs/scale.md: what larger runs cost, by a model of rollout servers, and what of it was measured.

    python benchmarks/scale.py                    every table but engine and planning, in two minutes
    python benchmarks/scale.py streams servers    these
    python benchmarks/scale.py engine planning    against the embedded engine (a minute); timed on this machine
    python benchmarks/scale.py --write            those of docs/scale.md anew, into the page
    python benchmarks/scale.py --smoke            the quick ones, and the engine on two prompts

The model (_servers.py, _cluster.py, _lengths.py, _schedules.py) is seeded and imports nothing of fairlen; _deployment.py says
what it assumes of devices. `engine` replays lengths of real rollout batches and compares steps; closed forms are in
tests/test_scale.py.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from _checks import add_smoke, demand, demand_positive
from _deployment import DEATHS, Deaths, Deployment
from _lengths import Forks, Job, LogNormal, count_calls
from _schedules import Pace, Rolled, roll_out, run_in_turn, run_streaming
from _servers import Cost, Machine

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
STEPS = Cost(1, 0, 0, 0)
LONG = LogNormal(median=3000, between=0.6, within=0.6, max_response_length=16_384)
"""Assumed: answers of a reasoning model on mathematics."""
LONG_PROMPT = 200
LIMIT = 4
"""Rounds of a stream where there is a limit."""
DEPLOYMENT = Deployment(slots=64)
INDEPENDENT, REACH = "independent, 16", f"EqLen, {LIMIT} rounds, `reach`"
NODES = (1, 4, 16, 64)
SAMPLINGS: dict[str, tuple[Forks | None, int]] = {
    INDEPENDENT: (None, 0),
    REACH: ("reach", LIMIT),
    f"EqLen, {LIMIT} rounds, whole": ("whole", LIMIT),
}
QUICK = ("streams", "gathered", "planning")
"""What `--smoke` prints, beside a small table of the engine."""
APART = 0.02
"""Of the engine's steps: how far off the model may be."""
Table = list[list[str]]


def long_job(sampling: str) -> Job:
    """One of SAMPLINGS on long answers."""
    forks, rounds = SAMPLINGS[sampling]
    return Job(LONG, LONG_PROMPT, 8, forks, rounds)


def engine(prompts: int = 16, slots: tuple[int, ...] = (32, 128)) -> Table:
    """Predicted and measured, on lengths that the embedded engine made. Ends the program where they are far apart."""
    from _embedded import compare

    table = [
        [
            f"playground, {prompts} prompts",
            "slots",
            "steps, engine",
            "steps, model",
            "ratio",
            "slots busy, engine",
            "model",
        ]
    ]
    for row in compare(prompts, slots):
        ratio = row.predicted_steps / row.measured_steps
        demand(
            abs(ratio - 1) <= APART, f"{row.name}: {row.predicted_steps} steps for the engine's {row.measured_steps}"
        )
        steps = [f"{row.measured_steps:,}", f"{row.predicted_steps:,}", f"{ratio:.3f}"]
        table.append([row.name, str(row.slots), *steps, f"{row.measured_busy:.1%}", f"{row.predicted_busy:.1%}"])
    return table


def streams() -> Table:
    """One prompt of long answers at a time on a server that has room for everything: what follows what, in steps."""
    table = [
        [
            "16 tracks",
            "tokens",
            "steps, `reach`",
            "steps, whole",
            "steps, one call at a time",
            "forwarded by rows",
            "by trees",
        ]
    ]
    base = describe_prompts(Job(LONG, LONG_PROMPT, 8, None))
    table.append(["independent", f"{base.tokens:,.0f}", *3 * [f"{base.steps:,.0f}"], *base.forwarded])
    for rounds in (1, 2, 4, 0):
        reach, whole = (describe_prompts(Job(LONG, LONG_PROMPT, 8, forks, rounds)) for forks in ("reach", "whole"))
        calls = statistics.mean(count_calls(Job(LONG, LONG_PROMPT, 8, "call", rounds), 1, first) for first in range(32))
        label = f"EqLen, `max_rounds={rounds}`" if rounds else "EqLen, no limit"
        steps = (f"{number:,.0f}" for number in (reach.steps, whole.steps, calls))
        table.append([label, f"{reach.tokens:,.0f}", *steps, *reach.forwarded])
    return table


class Described:
    """Means over prompts that were asked alone."""

    def __init__(self, rolled: list[Rolled]) -> None:
        def mean(read: Callable[[Rolled], float]) -> float:
            return statistics.mean(map(read, rolled))

        self.steps = mean(lambda r: r.seconds)
        self.tokens = mean(lambda r: r.made.tokens)
        passes = (mean(lambda r: r.made.row_tokens), mean(lambda r: r.made.tree_tokens))
        self.forwarded = [f"{tokens / self.tokens:.2f}" for tokens in passes]
        """For each generated token, by rows and by trees."""


def describe_prompts(job: Job) -> Described:
    """32 prompts, one at a time."""
    return Described([roll_out(job, 1, Machine(STEPS, 256), first=prompt) for prompt in range(32)])


def prompts() -> Table:
    """More and more prompts on 8 servers."""
    table = [
        [
            "prompts on 8 servers",
            "sampling",
            "seconds",
            "tokens/s",
            "idle",
            "last tenth of tokens",
            "against independent",
        ]
    ]
    for count in (4, 16, 64, 256):
        base = 0.0
        for name in SAMPLINGS:
            rolled = roll_out(long_job(name), count, DEPLOYMENT.machine, 8)
            base = base or rolled.rate
            table.append([f"{count} prompts", name, *describe_rolled(rolled), f"{rolled.rate / base:.2f}"])
    return table


def servers() -> Table:
    """More and more servers for 256 prompts."""
    table = [
        [
            "servers for 256 prompts",
            "sampling",
            "seconds",
            "tokens/s",
            "idle",
            "last tenth of tokens",
            "tokens/s a server",
        ]
    ]
    for count in (8, 16, 32, 64):
        for name in SAMPLINGS:
            rolled = roll_out(long_job(name), 256, DEPLOYMENT.machine, count)
            table.append([f"{count} servers", name, *describe_rolled(rolled), f"{rolled.rate / count:,.0f}"])
    return table


def describe_rolled(rolled: Rolled) -> list[str]:
    return [f"{rolled.seconds:,.0f}", f"{rolled.rate:,.0f}", f"{rolled.idle:.0%}", f"{rolled.tail:.0%} of the time"]


def queue() -> Table:
    """A limit to prompts in flight, and where requests go."""
    table = [
        [
            "256 prompts on 8 servers, in flight",
            "sampling",
            "routing",
            "seconds",
            "tokens/s",
            "computed again",
            "put back",
        ]
    ]
    whole = f"EqLen, {LIMIT} rounds, whole"
    cases = (("independent, 16", "sticky"), (whole, "sticky"), (whole, "round robin"))
    for at_once in (16, 32, 64, 128, 256):
        for name, routing in cases:
            rolled = roll_out(long_job(name), 256, DEPLOYMENT.machine, 8, routing, at_once=at_once)
            again = (rolled.computed - 256 * LONG_PROMPT) / rolled.made.tokens
            table.append([str(at_once), name, routing, f"{rolled.seconds:,.0f}", f"{rolled.rate:,.0f}", f"{again:.2f}",
                          f"{rolled.preempted:,}"])  # fmt: skip
    return table


def schedules() -> Table:
    """Three ways to use 64 GPUs."""
    table = [["64 GPUs, 256 prompts a batch", "generating + training", "tokens/s", "trainer busy", "span, mean and longest",
              "dropped", "length trained", "length dropped"]]  # fmt: skip
    machine, push = DEPLOYMENT.machine, DEPLOYMENT.push_seconds
    independent, pairs = (long_job(name) for name in ("independent, 16", f"EqLen, {LIMIT} rounds, whole"))

    def in_turn(job: Job, *, ahead: bool) -> Pace:
        count = 32 if ahead else 64
        return run_in_turn(job, 256, machine, count, lambda n: DEPLOYMENT.update_seconds(n, count), push, ahead=ahead)

    def streaming(threshold: int, generating: int = 32) -> Pace:
        def update(tokens: int) -> float:
            return DEPLOYMENT.update_seconds(tokens, 64 - generating)

        return run_streaming(independent, 256, machine, generating, update, push, ahead=1, threshold=threshold)

    rows = (
        ("synchronous", "64, then 64", in_turn(independent, ahead=False)),
        ("synchronous, EqLen", "64, then 64", in_turn(pairs, ahead=False)),
        ("one ahead", "32 + 32", in_turn(independent, ahead=True)),
        ("streaming", "32 + 32", streaming(0)),
        ("streaming", "48 + 16", streaming(0, 48)),
        ("streaming, spans over 2 dropped", "32 + 32", streaming(2)),
        ("streaming, spans over 2 dropped", "48 + 16", streaming(2, 48)),
    )
    for name, split, pace in rows:
        dropped = [f"{pace.dropped:.1%}", f"{pace.length:,.0f}", f"{pace.dropped_length:,.0f}" if pace.dropped else ""]
        rates = [f"{pace.tokens / pace.seconds:,.0f}", f"{pace.trainer:.0%}", f"{pace.span:.1f}, {pace.longest_span}"]
        table.append([name, split, *rates, *dropped])
    return table


@cache
def synchronous_step(sampling: str, nodes: int) -> tuple[Rolled, float]:
    """A rollout batch of 64 prompts a node, twice as many tracks as slots, and the seconds of the whole step."""
    rolled = roll_out(long_job(sampling), 64 * nodes, DEPLOYMENT.machine, 8 * nodes)
    learning = DEPLOYMENT.update_seconds(rolled.made.forwarded, 8 * nodes)
    return rolled, rolled.seconds + learning + DEPLOYMENT.push_seconds


def nodes() -> Table:
    """Synchronous steps on more and more nodes."""
    table = [
        [
            "nodes of 8 GPUs",
            "prompts a batch",
            "sampling",
            "seconds a step",
            "tokens/s",
            "servers wait",
            "tokens/s a node",
        ]
    ]
    for count in NODES:
        for name in (INDEPENDENT, REACH):
            rolled, seconds = synchronous_step(name, count)
            rate = rolled.made.tokens / seconds
            waiting = rolled.idle * rolled.seconds / seconds
            table.append([str(count), f"{64 * count:,}", name, f"{seconds:,.0f}", f"{rate:,.0f}", f"{waiting:.0%}",
                          f"{rate / count:,.0f}"])  # fmt: skip
    return table


def deaths() -> Table:
    """What is lost to deaths on more and more nodes."""
    table = [
        [
            "nodes of 8 GPUs",
            "a death every",
            "a checkpoint every",
            "lost, noticed in a second",
            "lost, noticed after an hour",
        ]
    ]
    for count in NODES:
        every = 86_400 / (count * DEATHS)
        lost = Deaths(every, DEPLOYMENT.save_seconds(count), synchronous_step(REACH, count)[1])
        steps = "step" if lost.steps == 1 else f"{lost.steps} steps"
        table.append([str(count), f"{every / 86_400:,.1f} days", steps, f"{lost.lost():.2%}", f"{lost.lost(3600):.2%}"])
    return table


def gathered() -> Table:
    """Bytes on the driver: what a plan needs, and what the frameworks gather."""
    from plan import make_tables

    responses, segments = make_tables(num_prompts=64)
    needs = sum(
        column.nbytes for table in (responses, segments) for column in vars(table).values() if hasattr(column, "nbytes")
    )
    number = len(responses)
    kinds = (
        ("the plan's tables", needs / number, 0),
        ("verl 0.9.1: mask 8, scores 4, log-probs 2 x 4, as far as the longest response", 0, 20),
        ("verl 0.9.1: advantages and returns, sent back", 0, 8),
    )
    table = [["a sequence", "bytes", "65,536 sequences, longest 16,384"]]
    for name, each, position in kinds:
        label = f"{each:.0f}" if each else f"{position} a position"
        table.append([name, label, f"{65_536 * (each + position * 16_384) / 1e9:,.3g} GB"])
    return table


def planning() -> Table:
    """Seconds of scoring and weighing 65,536 responses, on this machine."""
    from plan import make_tables, measure

    table = [["65,536 responses, 4,096 prompts", "score, ms", "weigh, ms"]]
    tables = make_tables(num_prompts=4096)
    for name in ("grpo", "dapo+balanced", "fspo", "grpo+toplambda"):
        score, weigh = measure(name, *tables)
        demand_positive(name, (score, weigh))
        table.append([f"`{name}`", f"{1e3 * score:.0f}", f"{1e3 * weigh:.0f}"])
    return table


TABLES: dict[str, Callable[[], Table]] = {
    "streams": streams, "prompts": prompts, "servers": servers, "queue": queue, "schedules": schedules, "nodes": nodes,
    "deaths": deaths, "gathered": gathered, "engine": engine, "planning": planning,
}  # fmt: skip
SLOW = ("engine", "planning")
ON_PAGE = ("streams",)
"""Those that docs/scale.md holds."""


def format_table(table: Table) -> str:
    """As Markdown."""
    head, *rows = table
    demand(bool(rows) and {len(row) for row in rows} == {len(head)}, f"a table with rows of other lengths: {head}")
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def find_table(page: str, name: str) -> slice:
    """Where the table of that name is on a page. Raises ValueError where it is not there."""
    found = re.search(rf"<!-- scale\.py {name} -->\n\n(.*?)\n\n<!-- end -->", page, re.S)
    if found is None:
        raise ValueError(
            f"{PAGE.name} has no place for the table {name}: add <!-- scale.py {name} --> and <!-- end -->"
        )
    return slice(*found.span(1))


def write_table(name: str, text: str) -> None:
    """Replaces a table of the page."""
    page = PAGE.read_text()
    place = find_table(page, name)
    PAGE.write_text(page[: place.start] + text + page[place.stop :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--write", action="store_true", help="those of docs/scale.md into the page")
    add_smoke(parser)
    options = parser.parse_args()
    known = ON_PAGE if options.write else TABLES
    if unknown := [name for name in options.tables if name not in known]:
        parser.error(f"no table {unknown[0]!r}: there are {', '.join(known)}")
    if options.smoke:
        print(format_table(engine(prompts=2, slots=(8,))))
        options.tables, options.write = QUICK, False
    for name in options.tables or (ON_PAGE if options.write else [name for name in TABLES if name not in SLOW]):
        start = time.perf_counter()
        text = format_table(TABLES[name]())
        print(f"\n{name} ({time.perf_counter() - start:.1f} s)\n\n{text}", flush=True)
        if options.write:
            write_table(name, text)


if __name__ == "__main__":
    main()

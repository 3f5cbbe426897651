"""The cost of the sandbox: a run in bubblewrap against a bare start of the same Python, side by side, and runs in a second.

python benchmarks/sandbox.py [REPEATS]    the mark is 4 times a bare `python3 -I -S`, in the median
python benchmarks/sandbox.py --smoke      3 of each
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from _checks import add_smoke, demand, demand_positive

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Limits
from fairlen.verify.process import supervise
from fairlen.verify.program import ProgramTests, grade_code

REPEATS, MARK = 100, 4.0
LIMITS = Limits(seconds=30.0)
PROGRAM = "print(1)"
TESTS = ProgramTests((("", "1"),))
FUNCTION = ProgramTests((("1", "1"),), function="same")

Side = Callable[[], Awaitable[object]]


async def milliseconds(side: Side) -> float:
    start = time.perf_counter()
    await side()
    return 1000 * (time.perf_counter() - start)


async def run_checked(sandbox: Bubblewrap) -> None:
    execution = await sandbox.run(PROGRAM, b"", LIMITS)
    demand(execution.stdout == b"1\n", f"a program that prints 1 gave {execution}")


async def grade_checked(sandbox: Bubblewrap, code: str, tests: ProgramTests) -> None:
    verdict = await grade_code(sandbox, code, tests, LIMITS)
    demand(verdict == "correct", f"a correct program gave {verdict}")


async def compare(sandbox: Bubblewrap, repeats: int) -> float:
    """Prints the median of each side, alternating, and what it is of a bare start; returns that of a run."""
    bare = [sandbox.interpreter.path, "-I", "-S", "-c", PROGRAM]
    sides: dict[str, Side] = {
        "bare python3 -I -S": lambda: supervise(bare, b"", LIMITS, {}),
        "run in bubblewrap": lambda: run_checked(sandbox),
        "graded program": lambda: grade_checked(sandbox, PROGRAM, TESTS),
        "graded function": lambda: grade_checked(sandbox, "def same(x): return x", FUNCTION),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            times[name].append(await milliseconds(side))
    base = statistics.median(times["bare python3 -I -S"])
    for name, values in times.items():
        demand_positive(name, values)
        median, late = statistics.median(values), sorted(values)[int(0.95 * len(values))]
        print(f"{name:20} median {median:6.1f} ms   p95 {late:6.1f} ms   {median / base:4.2f} times bare", flush=True)
    return statistics.median(times["run in bubblewrap"]) / base


async def load(slots: int, runs: int) -> None:
    """Prints how many runs end in a second with `slots` at a time."""
    sandbox = Bubblewrap(slots=slots)
    start = time.perf_counter()
    await asyncio.gather(*(run_checked(sandbox) for _ in range(runs)))
    print(f"{slots:3} at a time: {runs / (time.perf_counter() - start):6.1f} runs/s", flush=True)


async def measure(repeats: int) -> float:
    """Prints everything; returns what a run costs in bare starts."""
    sandbox = Bubblewrap()
    print(sandbox.describe())
    ratio = await compare(sandbox, repeats)
    for slots in sorted({1, sandbox.slots, 4 * sandbox.slots}):
        await load(slots, 2 * repeats)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repeats", nargs="?", type=int, default=REPEATS)
    add_smoke(parser)
    options = parser.parse_args()
    ratio = asyncio.run(measure(3 if options.smoke else options.repeats))
    demand(options.smoke or ratio <= MARK, f"a run costs {ratio:.2f} times a bare start; the mark is {MARK:g}")


if __name__ == "__main__":
    main()

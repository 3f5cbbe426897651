"""How long one text of a model stops the event loop, on which generation and training wait, and how much memory it leaves.

200 hostile texts of 100,000 characters each are graded as an answer, a choice, a program, a problem of the playground and by
the reward function for verl, and programs print, or return, 8 MB; all by the calls that training makes. A pause is the time
from one turn of the loop to the next.

python benchmarks/pauses.py [REPEATS]    the marks are 50 ms on a quiet machine, and 64 MiB
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from random import Random

from _checks import add_smoke, demand

from fairlen.integrations.verl.data import compute_score
from fairlen.tasks.data_row import Answers, Choice, DataRow, Program, Reference
from fairlen.tasks.grader import Verifier
from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Problem

REPEATS, TEXTS, LENGTH, MARK, MEMORY = 5, 200, 100_000, 0.050, 64.0
SHOWN = 8
"""Of the longest pauses."""
TURN = 0.001
"""Seconds that the loop sleeps between turns."""

PIECES = (
    "\\boxed{", "\\boxed ", "\\fbox{", "\\text{", "\\frac{1}{", "\\frac", "\\sqrt[3]{", "\\left(", "\\right)",
    "\\overline{", "\\mathbf", "\\color{red}{", "\\begin{pmatrix}", "\\\\", "\\", "\\,", "\\!", "\\%", "\\{", "\\}",
    "\\[", "\\(", "~", " ", "$", "{", "}", "(", ")", "[", "]", "<", ">", "^", "^{", "_", "_{", "&", "|", "/", "*",
    "**", "+", "-", "=", "!", "?", ",", ".", ";", ":", "#", "####", "`", "```", "`````", "~~~", "```python", "```\n",
    "```py\n", "\n```\n", "> ```\n", "\t", "\n", "\r\n", "\x00", "\u3000", "\u0301", "\u202e", "\ud800", "😀", "é", "A",
    "B", "B)", "(B)", "**B** ", "x", "1", "9", "0.", ".0", "1,000", "1e9", "10^", "12:05", "2023-01-02", " and ",
    " or ", "cm", "percent", "answer", "Answer: (", "answer is ", "answer is (B) ", "<think>", "</think>", "</thin",
    "def f(): return ", "print(1)\n", "from __future__ import annotations\n", "1 2 3\n", "[[],[],", "CODE NAME ",
)  # fmt: skip
FRAMES = (
    ("", ""), ("\\boxed{", "}"), ("\\boxed{B", "}"), ("```python\n", "\n```"), ("the answer is ", ""),
    ("<think>", "</think>#7"), ("\\boxed{204} ", ""), ("```", "\nprint(2)\n```\n"), ("x" * 36_000 + "\n```python\n", "\n```"),
    ("x" * 99_100 + "\\boxed{", "}"), ("x" * 91_000 + "\\boxed{", "}"),
)  # fmt: skip
"""Texts before and after the repeated piece."""

OUTPUTS = {
    "lists": "print('[' + '[],' * 2_700_000 + '[]]')",
    "emojis": "print('\\U0001f600\\n' * 1_600_000)",
    "numbers": "print('1 ' * 4_000_000)",
    "lines": "print('\\n' * 8_000_000)",
    "one number": "print('9' * 8_000_000)",
    "bytes": "import sys\nsys.stdout.buffer.write(b'\\xff' * 8_000_000)",
    "stderr": "import sys\nsys.stderr.buffer.write(b'\\xff\\n' * 4_000_000)\nsys.exit(1)",
    "stderr without end": "import sys\nwhile True: sys.stderr.buffer.write(b'\\xff' * 65536)",
    "expected": "print('1 2 3\\n' * 1_300_000)",
}
VALUES = {
    "list of lists": "def f(): return [[] for _ in range(2_000_000)]",
    "list of numbers": "def f(): return list(range(1_000_000))",
    "list of objects": "def f(): return [{'a': 1.5}] * 600_000",
    "text": "def f(): return '\\U0001f600' * 600_000",
}

Reader = Callable[[str], Awaitable[str]]
"""Grades a text, to the status of the verdict."""


def make_texts(count: int, length: int) -> dict[str, str]:
    """Hostile texts by name: one piece repeated within each frame in turn, and pieces in a random order."""
    rng, texts = Random(0), {}
    for number in range(count):
        before, after = FRAMES[number % len(FRAMES)]
        room = length - len(before) - len(after)
        piece = rng.choice(PIECES) if number % 4 == 3 else PIECES[number % len(PIECES)]
        few = [piece, rng.choice(PIECES)] if number % 2 else [piece]
        body = "".join(few) * room if number % 5 else "".join(rng.choices(PIECES, k=room))
        texts[f"{number}: {before[-12:]}{body[:12]}…{after}"] = before + body[:room] + after
    return texts


def make_readers(verifier: Verifier) -> dict[str, Reader]:
    """Everything that reads a text of a model."""
    references = {
        "answer": Answers(("204",)),
        "answers": Answers((r"\frac{x}{2}", "(1,2)"), ("90^\\circ",)),
        "choice": Choice("B", "ABCD"),
        "program": Program((("1\n", "204"),)),
        "function": Program((("1", "2"),), function="f"),
    }
    return {name: grade_as(verifier, one) for name, one in references.items()} | {
        "playground": grade_in_playground,
        "verl": grade_in_verl,
    }


def grade_as(verifier: Verifier, reference: Reference) -> Reader:
    row = DataRow(str(hash(reference)), "pauses", "?", reference)

    async def grade(text: str) -> str:
        return (await verifier(row, text)).status

    return grade


async def grade_in_playground(text: str) -> str:
    return (await Playground().verify(Problem("1", "1+1=?", (0,), "2"), text)).status


async def grade_in_verl(text: str) -> str:
    row = DataRow("1", "pauses", "?", Answers((r"\sqrt{2}",)))
    stored = {"kind": row.kind} | asdict(row)
    score = await compute_score("pauses", text, "", {"fairlen_problem": json.dumps(stored)})
    return "correct" if score["acc"] else "incorrect" if score["verdict"] else "no verdict"


async def longest_pause(work: Awaitable[str]) -> tuple[str, float, float]:
    """Return the result of a call, and the longest time from one turn of the loop to the next while it runs: by the clock, and in
    CPU time of the loop's thread, which on a busy machine is less."""
    task, clock, used = asyncio.ensure_future(work), time.perf_counter(), time.thread_time()
    longest, most = 0.0, 0.0
    while not task.done():
        await asyncio.sleep(TURN)
        longest, clock = max(longest, time.perf_counter() - clock - TURN), time.perf_counter()
        most, used = max(most, time.thread_time() - used), time.thread_time()
    return task.result(), longest, most


def resident() -> float:
    """MiB of memory that this process holds."""
    gc.collect()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def make_work(count: int, verifier: Verifier) -> dict[str, Callable[[], Awaitable[str]]]:
    """Calls to time, by reader and text."""
    work: dict[str, Callable[[], Awaitable[str]]] = {}
    for reader, read in make_readers(verifier).items():
        for name, text in make_texts(count, LENGTH).items():
            demand(len(text) == LENGTH, f"text {name!r} has {len(text)} characters instead of {LENGTH}")
            work[f"{reader} {name}"] = lambda read=read, text=text: read(text)
    tables = (("prints", OUTPUTS, "1 2 3\n" * 1_300_000 + "4", ""), ("returns", VALUES, "[[], 1]", "f"))
    for what, programs, expected, function in tables:
        read = grade_as(verifier, Program((("", expected),), function=function))
        for name, code in list(programs.items())[:count]:
            work[f"{what} {name}"] = lambda read=read, text=f"```python\n{code}\n```": read(text)
    return work


async def measure(count: int, repeats: int) -> tuple[float, float]:
    """Prints the longest pauses; returns the longest, and how much memory has grown."""
    verifier = Verifier({"math", "choice", "code"})
    statuses: Counter[str] = Counter()
    try:
        for read in make_readers(verifier).values():
            await read(r"\boxed{\sqrt{4}x} ```python" + "\nprint(3)\n```")
        work, before = make_work(count, verifier), resident()
        pauses: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
        for _ in range(repeats):
            for name, start in work.items():
                status, *pause = await longest_pause(start())
                statuses[status] += 1
                pauses[name].append((pause[0], pause[1]))
                demand(status == "incorrect" or not name.startswith(("prints", "returns")), f"{name} is {status}")
        grown = resident() - before
    finally:
        verifier.close()
    medians = {name: [statistics.median(each) for each in zip(*found, strict=True)] for name, found in pauses.items()}
    for name in sorted(medians, key=lambda name: -medians[name][0])[:SHOWN]:
        print("{:7.1f} ms, {:5.1f} ms of CPU time".format(*(1000 * each for each in medians[name])), f" {name!a}")
    print(f"{len(work)} texts and outputs, {repeats} times each: {dict(statuses)}")
    pause, most = (max(each) for each in zip(*medians.values(), strict=True))
    print(
        f"the longest pause is {1000 * pause:.1f} ms, {1000 * most:.1f} ms of CPU time; memory grew by {grown:.1f} MiB"
    )
    return pause, grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repeats", nargs="?", type=int, default=REPEATS)
    add_smoke(parser)
    options = parser.parse_args()
    count, repeats = (4, 1) if options.smoke else (TEXTS, options.repeats)
    pause, grown = asyncio.run(measure(count, repeats))
    demand(options.smoke or pause <= MARK, f"the loop stopped for {1000 * pause:.1f} ms; the mark is {1000 * MARK:g}")
    demand(grown < MEMORY, f"memory grew by {grown:.1f} MiB; the mark is {MEMORY:g}")


if __name__ == "__main__":
    sys.exit(main())

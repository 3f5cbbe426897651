"""The first process of a container that is the trainer and reaps nothing: runs programs, prints what became of them as JSON.

python first_process.py PROGRAMS, every second of which never ends. Prints {"honest": verdicts, "killed": verdicts, "zombies":
n}; a verdict that was raised or never came is text too.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.program import ProgramTest, ProgramTests, grade_code

AS_FIRST_PROCESS = (
    "unshare", *(() if os.geteuid() == 0 else ("--user", "--map-current-user")), "--pid", "--fork", "--mount-proc",
)  # fmt: skip
"""A command whose program is the first process of a namespace."""

HONEST, ENDLESS = "print(1 + int(input()))", "while True: pass"
TEST = ProgramTest("1\n", "2")
TESTS = {HONEST: ProgramTests((TEST,), seconds=30.0), ENDLESS: ProgramTests((TEST,), seconds=0.3)}


def count_zombies() -> int:
    """Processes that have ended and that nobody has waited for."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats.append(path.read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue
    return stats.count("Z")


async def grade_all(count: int) -> dict[str, object]:
    sandbox = Bubblewrap(slots=4)
    codes = [(HONEST, ENDLESS)[number % 2] for number in range(count)]
    tasks = [asyncio.ensure_future(grade_code(sandbox, code, TESTS[code])) for code in codes]
    await asyncio.wait(tasks, timeout=5.0 + count / 2)
    verdicts = [describe(task) for task in tasks]
    await asyncio.sleep(0.2)
    return {"honest": verdicts[::2], "killed": verdicts[1::2], "zombies": count_zombies()}


def describe(task: asyncio.Future[str]) -> str:
    if not task.done():
        return "hangs"
    error = task.exception()
    return f"raised {error!r}" if error else task.result()


def main() -> None:
    assert os.getpid() == 1
    found = asyncio.new_event_loop().run_until_complete(grade_all(int(sys.argv[1])))
    print(json.dumps(found), flush=True)
    os._exit(0)  # what hangs may hang on


if __name__ == "__main__":
    main()

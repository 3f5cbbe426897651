"""Runs programs in the sandbox as another user: python battery.py UID < request, prints what happened as JSON.

The request is {"kind": "hostile" | "honest" | "parallel", "facts": {...}, "file_bytes": n}. UID -1 keeps the user.
Everything is imported before the user changes, as the checkout may not be readable for it.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace

import honest_programs
import hostile_programs

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Execution, Limits
from fairlen.verify.program import ProgramTest, ProgramTests, grade_code, with_prelude
from fairlen.verify.sandbox import open_sandbox

AT_A_TIME = 6

THREADS = """
import threading, time
stop = threading.Event()
threading.stack_size(1 << 20)
for _ in range(29): threading.Thread(target=stop.wait).start()
time.sleep(1.0)
print(threading.active_count())
stop.set()
"""


class Recorder:
    """The sandbox, and what the last run in it did."""

    name = "recorder"

    def __init__(self, sandbox: Bubblewrap, limits: dict[str, float]) -> None:
        self.sandbox, self.limits, self.last = sandbox, limits, None

    def describe(self) -> dict[str, object]:
        return self.sandbox.describe()

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        self.last = await self.sandbox.run(program, stdin, replace(limits, **self.limits))
        return self.last


async def run_one(sandbox: Bubblewrap, code: str, test: ProgramTest, limits: dict[str, float]) -> dict[str, object]:
    recorder, start = Recorder(sandbox, limits), time.perf_counter()
    verdict = await grade_code(recorder, code, ProgramTests((test,)))
    last = recorder.last
    return {
        "verdict": verdict, "status": last.status, "exit_code": last.exit_code,
        "said": [line for line in last.stdout.decode("utf-8", "replace").splitlines() if "ESCAPED" in line],
        "stdout": len(last.stdout), "stderr": len(last.stderr), "end": last.stdout[-500:].decode("utf-8", "replace"),
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def seconds_of(name: str) -> float:
    """A second for programs that go on until they are stopped; the others end by themselves, on busy machines later."""
    return 1.0 if name in hostile_programs.ENDLESS else 30.0


async def run_all(request: dict[str, object]) -> dict[str, object]:
    sandbox = Bubblewrap(slots=AT_A_TIME)
    limits = {"file_bytes": request["file_bytes"]}
    if request["kind"] == "hostile":
        limits |= {"output_bytes": 1 << 20, "memory_mib": 256}
        facts = request["facts"] | {"parent": os.getpid()}
        test = ProgramTest("1\n", request["answer"])
        work = {name: (hostile_programs.build_program(name, facts), test) for name in hostile_programs.PROGRAMS}
    elif request["kind"] == "parallel":
        limits |= {"processes": 32}
        work = {str(number): (THREADS, ProgramTest("", "30")) for number in range(AT_A_TIME)}
    else:
        work = {name: (code, ProgramTest(*test)) for name, (code, *test) in honest_programs.PROGRAMS.items()}
    results = await asyncio.gather(
        *(run_one(sandbox, *job, limits | {"seconds": seconds_of(name)}) for name, job in work.items())
    )
    return dict(zip(work, results, strict=True))


def main() -> None:
    uid, request = int(sys.argv[1]), json.load(sys.stdin)
    with_prelude("")
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.chdir("/")
    opened = open_sandbox().describe()
    json.dump({"sandbox": opened, "programs": asyncio.run(run_all(request))}, sys.stdout)


if __name__ == "__main__":
    main()

"""The machine: device and memory (by a process of its own, because torch takes seconds to import), disks, cores."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from subprocess import PIPE
from typing import Any

from fairlen.doctor.finding import Check, Finding, Plan, bad, doubtful, good
from fairlen.train.config import TrainConfig

GIB = 2**30
SMALL_DISK, EMPTY_DISK = 5 * GIB, GIB // 4
"""Free bytes below which a run may end early, and below which it cannot start."""
PROBE, PROBE_LIMIT = "fairlen.doctor.probe", 170.0
"""The module that is asked, and the seconds after which it is given up whatever the limit of checks is."""


def check_device(plan: Plan) -> Finding:
    """What torch sees, and whether the run that is planned can have it."""
    facts = ask("device", plan.config)
    if "error" in facts:
        return bad(facts["error"], facts.get("remedy", "pip install 'fairlen[train]'"))
    found = f"torch {facts['torch']}, {facts['device']}"
    if plan.config.device == "auto" and facts["device"] == "cpu":
        return good(f"{found}; no CUDA device: models of more than some hundred million parameters are slow")
    return good(found)


def check_memory(plan: Plan) -> Finding:
    """Memory for the model, the budget and the micro-batches, by the forecast of `fairlen train`."""
    if plan.config.model == "playground":
        return good(f"the playground needs under 2 GiB; {show(free_memory())} are free")
    if plan.composition is None:
        return doubtful("not forecast: the method cannot be composed", "mend the method first")
    facts = ask("memory", plan.config)
    if "error" in facts:
        return bad(facts["error"], facts.get("remedy", "choose another --model, or less of what is named"))
    if facts["warning"]:
        return doubtful(facts["warning"], facts["warning"].partition(": ")[2] or "less of what takes most")
    return good(facts["needs"] or "a model of fewer than 50M parameters: memory is no question")


def ask(what: str, config: TrainConfig) -> dict[str, Any]:
    """What `probe.py` finds in a process of its own."""
    given = json.dumps({"what": what, "config": {f.name: getattr(config, f.name) for f in fields(TrainConfig)}})
    child = subprocess.Popen([sys.executable, "-m", PROBE], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    atexit.register(child.kill)  # where nobody waits any longer
    stdout, stderr = child.communicate(given, timeout=PROBE_LIMIT)
    lines = stdout.strip().splitlines()
    if child.returncode or not lines:
        reason = (stderr.strip().splitlines() or [f"it ended with code {child.returncode}"])[-1]
        return {
            "error": f"torch does not load: {reason}",
            "remedy": "pip install 'fairlen[train]' in a fresh environment",
        }
    return json.loads(lines[-1])


def free_memory() -> int:
    """Bytes of the machine."""
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def check_out(plan: Plan) -> Finding:
    """The run folder: free, or one that can be resumed; and the disk that it is on."""
    folder = Path(plan.config.out or "runs")
    there = folder / "run.json"
    if plan.config.out and folder.exists() and not plan.config.resume and any(folder.iterdir()):
        what = "a run is there already" if there.exists() else "the folder is not empty"
        return bad(f"out={folder}: {what}", "choose another --out" + (", or --resume" if there.exists() else ""))
    if plan.config.resume and not there.exists():
        return bad(f"out={folder}: no run to resume there", "name the folder of the run, or leave --resume out")
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return judge_disk(place, "a checkpoint takes 12 bytes a parameter; choose --out on another disk")


def check_temporary(plan: Plan) -> Finding:
    """Where programs of others put what they need for a while."""
    return judge_disk(Path(tempfile.gettempdir()), "make room there, or set TMPDIR to a larger disk")


def check_shared_memory(plan: Plan) -> Finding:
    """/dev/shm, which Ray, data loaders and vLLM share tensors through."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return doubtful("/dev/shm does not exist", "mount it, if verl or vLLM is to run here")
    free = shutil.disk_usage(place).free
    if free < 2 * GIB:
        return doubtful(f"/dev/shm has {show(free)} free", "docker run --shm-size=16g, if verl or vLLM is to run here")
    return good(f"/dev/shm has {show(free)} free")


def judge_disk(place: Path, remedy: str) -> Finding:
    """Free space, and that a file can be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return bad(f"{place}: cannot be written ({error.strerror})", remedy)
    free = shutil.disk_usage(place).free
    found = f"{place} has {show(free)} free"
    if free < EMPTY_DISK:
        return bad(found, remedy)
    return doubtful(found, remedy) if free < SMALL_DISK else good(found)


def check_threads(plan: Plan) -> Finding:
    """Cores that may be used, against threads that are asked for."""
    cores = len(os.sched_getaffinity(0))
    asked = plan.config.threads or int(os.environ.get("OMP_NUM_THREADS", "0") or 0)
    if asked > cores:
        return doubtful(
            f"{asked} threads on {cores} cores", f"--threads {cores}: more threads than cores wait for each other"
        )
    load = os.getloadavg()[0]
    if load > 2 * cores:
        return doubtful(f"{cores} cores, and {load:.0f} processes that want them", "wait, or end what else runs here")
    return good(f"{cores} cores, threads: {asked or 'as torch chooses'}")


def show(size: int) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB"


CHECKS = (
    Check("device", check_device), Check("memory", check_memory), Check("run folder", check_out),
    Check("temporary space", check_temporary), Check("shared memory", check_shared_memory), Check("cores", check_threads),
)  # fmt: skip

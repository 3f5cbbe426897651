"""Weights & Biases, trackio and TensorBoard as trackers. Each is imported when it is opened, in its tracker's thread.

They are told the settings and the method, and no secrets: no environment, no command line, no key in a URL. The name of a run
within a service is kept in RUN/trackers.json, so that a resumed run goes on under it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fairlen.console import warn
from fairlen.files.folders import write_file
from fairlen.train.run.folder import Run
from fairlen.train.run.trackers import Open, Tracker

PROJECT = "fairlen"
"""Unless WANDB_PROJECT or TRACKIO_PROJECT says otherwise."""


@dataclass(frozen=True)
class ServiceTracker:
    """A run of a service that takes all numbers of an update at once."""

    run: Any

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Entries of one update become one step; steps that a resumed run makes again are there already."""
        self.run.log(dict(numbers), step=update)

    def finish(self) -> None:
        self.run.finish()


class WandbTracker(ServiceTracker):
    """Weights & Biases; where it sends is its own setting: WANDB_MODE=offline keeps everything in RUN/wandb."""

    @classmethod
    def open(cls, run: Run, name: str) -> WandbTracker:
        """Begins a run there, or goes on with it."""
        import wandb

        quiet: dict[str, Any] = dict(silent=True, console="off", save_code=False, disable_git=True)
        found = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.folder.name,
            id=name,
            resume="allow",
            dir=str(run.folder),
            config=describe(run),
            settings=wandb.Settings(**quiet, x_disable_meta=True, x_disable_machine_info=True, login_timeout=30),
        )
        warn(f"tracker wandb: {run.folder / 'wandb' if found.offline else found.url}")
        return cls(found)


class TrackioTracker(ServiceTracker):
    """trackio, in its own folder (TRACKIO_DIR) or where it is set up to send."""

    @classmethod
    def open(cls, run: Run, name: str) -> TrackioTracker:
        """Begins a run there, or goes on with it."""
        import trackio  # pyright: ignore[reportMissingImports]

        found = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=name,
            resume="allow",
            config=describe(run),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return cls(found)


@dataclass(frozen=True)
class TensorBoardTracker:
    """TensorBoard's files in RUN/tensorboard."""

    writer: Any

    @classmethod
    def open(cls, run: Run, update: int) -> TensorBoardTracker:
        """Begins a file; what an earlier one has from `update` on is not shown any more."""
        from torch.utils.tensorboard.writer import SummaryWriter

        writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=update or None)
        writer.add_text("settings", f"```json\n{json.dumps(describe(run), indent=1)}\n```", update)
        return cls(writer)

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, update)

    def finish(self) -> None:
        self.writer.close()


def choose_trackers(names: Sequence[str], run: Run) -> dict[str, Open]:
    """How the trackers that were asked for are opened."""
    names_there = name_runs(run, [service for service in names if service != "tensorboard"])

    def open_service(service: str, update: int) -> Tracker:
        if service == "tensorboard":
            return TensorBoardTracker.open(run, update)
        return {"wandb": WandbTracker, "trackio": TrackioTracker}[service].open(run, names_there[service])

    return {service: partial(open_service, service) for service in names}


def check_trackers(names: Sequence[str]) -> None:
    """Raises ValueError for one whose package is not there."""
    for name in names:
        if find_spec(name) is None:
            raise ValueError(f"tracker={name}: it needs the package {name}: pip install 'fairlen[trackers]'")


def describe(run: Run) -> dict[str, Any]:
    """Settings, method and versions: what a service may know."""
    found = json.loads(json.dumps(run.describe()))
    settings = found["config"] | {"sandbox": without_secrets(found["config"]["sandbox"])}
    return {"config": settings} | {name: found[name] for name in ("method", "layout", "versions")}


def without_secrets(url: str) -> str:
    """A URL without user, password, query and fragment; other text as it is."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.hostname:
        return url
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit((parts.scheme, f"{parts.hostname}{port}", parts.path, "", ""))


def name_runs(run: Run, services: Sequence[str]) -> dict[str, str]:
    """The name of this run within each service: that of before, or a new one, which is remembered."""
    path = run.folder / "trackers.json"
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        before = {}
    names = {service: before.get(service) or f"{run.folder.name[:80]}-{secrets.token_hex(4)}" for service in services}
    if any(service not in before for service in services):
        try:
            write_file(path, json.dumps(before | names, indent=1) + "\n")
        except OSError as error:
            warn(f"{path}: {error}; when the run is resumed it will have another name in {', '.join(services)}")
    return names

"""The run folder of our own trainer.

run.json  metrics.jsonl  records/  checkpoints/  debug/  model/ (last)  best/
adapter/  best-adapter/  where adapters are trained, of which model/ and best/ are then the sum
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairlen.files.folders import choose_folder, describe_program, refuse_links, refuse_occupied, write_json
from fairlen.files.foreign import Unreadable, read_json_object
from fairlen.loop.folder import RunFolder, describe_composition
from fairlen.methods.compose import Composition
from fairlen.policy.layout import ROWS, Layout
from fairlen.secrets import hide_all
from fairlen.settings import flatten
from fairlen.train.run.config import CHOSEN, TrainConfig, find_changes, hash_configuration

NOTHING: Mapping[str, Any] = {}


@dataclass
class Run(RunFolder):
    config: TrainConfig
    composition: Composition
    layout: Layout
    data: Mapping[str, Any]  # source of the problems, as the task describes it
    facts: Mapping[str, Any]  # of the model: its engine, its adapters, its memory
    changes: tuple[str, ...] = ()  # of settings, where it is resumed
    resumed: list[Any] = field(default_factory=list)  # changes of the times before
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    """Tells the run from others in folders of this name."""

    @property
    def name(self) -> str:
        """Its name in trackers, resumed or not."""
        return f"{self.folder.name[:80]}-{self.token}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def describe(self) -> dict[str, Any]:
        return hide_all(self.decisive()) | {
            "run": self.token,
            "configuration": self.configuration,
            "layout": {"kind": self.layout.kind, "reason": self.layout.reason},
            **describe_program(),
        }

    def decisive(self) -> dict[str, Any]:
        method = describe_composition(self.composition)
        return {"config": asdict(self.config), "method": method, "data": self.data, **self.facts}

    def resume_from(self, before: dict[str, Any]) -> None:
        """Note the differences from an earlier description. Raises ValueError where one changes the mathematics."""
        changes = find_changes(before, hide_all(json.loads(json.dumps(self.decisive()))))
        self.changes, self.token, self.resumed = (
            tuple(changes),
            before.get("run", self.token),
            before.get("resumed", []),
        )

    def write_changes(self) -> None:
        """Write the changed settings to run.json, once no other process can be training in the folder."""
        if self.changes:
            write_json(self.folder / "run.json", self.describe() | {"resumed": [*self.resumed, self.changes]})

    @property
    def configuration(self) -> str:
        """Hash of everything that decides an update; checkpoints of another one are refused."""
        return hash_configuration(hide_all(self.decisive()))


def open_run(
    config: TrainConfig,
    composition: Composition,
    layout: Layout = ROWS,
    data: Mapping[str, Any] = NOTHING,
    facts: Mapping[str, Any] = NOTHING,
) -> Run:
    """Make the run folder, or open it to resume. Raises FileExistsError, or ValueError where the mathematics would change."""
    folder = choose_folder(config.run.out, composition.name.replace("+", "-"))
    run = Run(folder, config, composition, layout, data, facts)
    if before := read_before(config):
        run.resume_from(before)
        return run
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", run.describe())
    return run


def read_before(config: TrainConfig) -> dict[str, Any]:
    """Return the description of the run that is resumed, empty for a new one. Raises an OSError or ValueError as `open_run`."""
    folder = Path(config.run.out)
    if not config.run.out:
        return {}
    if (folder / "run.json").exists():
        if not config.run.resume:
            raise FileExistsError(f"out={folder}: a run is there already; choose another, or go on with it: --resume")
        refuse_links(folder)
        try:
            return read_json_object(folder / "run.json")
        except Unreadable as error:
            raise ValueError(
                f"{error}. It is needed to check that the same run would continue: restore it from a backup, or start a new "
                "run in another folder with --model and the weights of this one"
            ) from None
    if config.run.resume:
        raise FileNotFoundError(f"out={folder}: no run to resume there; leave --resume out to start one")
    refuse_occupied(folder, "run")
    return {}


def keep_choices(config: TrainConfig) -> TrainConfig:
    """Return settings in which what is 0 is as the run that resumes has it."""
    asked, before = flatten(asdict(config)), flatten(read_before(config).get("config", {}))
    return config.replace(**{name: before[name] for name in CHOSEN if not asked[name] and name in before})

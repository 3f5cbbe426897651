"""What differs between a run and the settings it is resumed with, and whether it would still be the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from fairlen.train.run.config import TrainConfig

HARMLESS = {
    "resume", "out", "rollout_batches", "max_updates", "max_generated", "max_seconds", "eval_every", "save_every",
    "save_every_updates", "keep_checkpoints", "verify_workers", "stall_seconds", "tracker", "try_memory",
    "reward_deadline",
}  # fmt: skip
"""Settings that change nothing of what an update computes."""
ROUNDING = {
    "threads",
    "compile",
    "device",
    "layout",
    "max_num_seqs",
    "max_tokens_per_microbatch",
    "gradient_checkpointing",
}
"""Settings with the same mathematics and another order of sums: close results, not the same bits."""
BY_VALUE = {"method", "set"}
"""The method is compared by its choices, however they were given."""


@dataclass(frozen=True)
class Change:
    """One setting."""

    name: str
    before: Any
    now: Any

    @property
    def is_refused(self) -> bool:
        return self.name not in HARMLESS | ROUNDING

    def __str__(self) -> str:
        effect = "harmless" if self.name in HARMLESS else "rounds differently"
        return f"{self.name}: {self.before} -> {self.now} ({'changes the mathematics' if self.is_refused else effect})"


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Differences of two descriptions of a run, the gravest first; a setting that was not known then had its default."""
    old, new = settings_of(before), settings_of(now)
    changes = [
        Change(name, old.get(name), value)
        for name, value in new.items()
        if name not in BY_VALUE | {"resume"} and old.get(name) != value
    ]
    if before["method"]["hash"] != now["method"]["hash"]:
        key = "name" if before["method"]["name"] != now["method"]["name"] else "hash"
        changes.append(Change("method", before["method"][key], now["method"][key]))
    was, sets = fingerprints(before), fingerprints(now)
    changes += [Change(f"problems of {k}", was[k], v) for k, v in sets.items() if was.get(k, v) != v]
    had, has = plugins_in(before), plugins_in(now)
    changes += [Change(k, had[k], v) for k, v in has.items() if had.get(k, v) != v]
    return sorted(changes, key=lambda change: (not change.is_refused, change.name in HARMLESS))


def refuse_changes(changes: list[Change]) -> None:
    """Raises ValueError with all changes where one would change the mathematics."""
    if any(change.is_refused for change in changes):
        raise ValueError(
            "resume with other settings would not continue the same run:\n"
            + "\n".join(f"  {change}" for change in changes)
            + "\nleave out what changes the mathematics, or start another run with another --out"
        )


def hash_configuration(description: Mapping[str, Any]) -> str:
    """Twelve hex digits of all that decides an update: equal for descriptions without a refused change."""
    defaults = default_settings()
    binding = {
        name: value
        for name, value in settings_of(description).items()
        if name not in HARMLESS | ROUNDING | BY_VALUE and value != defaults.get(name)
    }
    decided: list[Any] = [binding, description["method"]["hash"], fingerprints(description)]
    decided += [plugins] if (plugins := plugins_in(description)) else []
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:12]


def settings_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, as JSON has them."""
    return default_settings() | json.loads(json.dumps(description["config"]))


def default_settings() -> dict[str, Any]:
    """What every setting is where it is not given."""
    defaults = {f.name: f.default for f in fields(TrainConfig) if f.default is not MISSING}
    return json.loads(json.dumps(defaults))


def plugins_in(description: Mapping[str, Any]) -> dict[str, str]:
    """By setting and name: the content of the user's own file, or the version of the package."""
    return {f"{p['setting']} {p['name']}": p["sha256"] or p["source"] for p in description.get("plugins", ())}


def fingerprints(description: Mapping[str, Any]) -> dict[str, str]:
    """By data set: what its problems are."""
    return {one["name"]: one["fingerprint"] for one in description.get("data", {}).get("sets", ())}

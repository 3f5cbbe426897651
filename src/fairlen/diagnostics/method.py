"""Which method made some rollouts: by its name, or by the run folder that they lie in."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairlen.diagnostics.coupling import ALL_RULES, RULES
from fairlen.methods.compose import explain
from fairlen.methods.describe import suggest
from fairlen.methods.method import Method
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES

NUM_PARENTS, MAX_BYTES = 4, 1 << 20
"""Folders above that of the rollouts in which run.json is looked for, and its size."""
SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "actor_rollout_ref.actor.loss_agg_mode": ("verl", {
        "token-mean": "token_mean_update", "token-sum": "token_sum", "seq-mean-token-sum": "token_sum",
        "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum-norm": "constant_budget",
    }),
    "loss_type": ("TRL", {
        "grpo": "sequence_mean", "sapo": "sequence_mean", "dapo": "token_mean_update", "bnpo": "token_mean_update",
        "cispo": "token_mean_update", "vespo": "token_mean_update", "dr_grpo": "constant_budget", "luspo": "token_sum",
        "rloo": "token_sum",
    }),
    "trainer.algorithm.loss_reduction": ("SkyRL", {
        "token_mean": "token_mean_update", "token_mean_legacy": "token_mean_update", "prompt_mean": "token_mean",
        "sequence_mean": "sequence_mean", "seq_mean_token_sum_norm": "constant_budget",
    }),
    "trainer.loss.type": ("prime-rl", {"default": "token_mean_update", "ipo": "token_mean_update"}),
}  # fmt: skip
"""By setting: whose it is, and which aggregation each of its values is; of what averages over a micro-batch the nearest."""
USERS = {
    "sequence_mean": "grpo, gspo; TRL's grpo, verl's seq-mean-token-mean",
    "token_mean": "dapo; SkyRL's prompt_mean",
    "token_mean_update": "dapo_verl, cispo; TRL's dapo and verl's token-mean, their defaults",
    "token_sum": "rloo, fspo; TRL's luspo, verl's seq-mean-token-sum",
    "constant_budget": "dr_grpo; TRL's dr_grpo, verl's seq-mean-token-sum-norm",
    "length_power": "p_gspo, +vl_norm", "balanced": "+balanced", "balanced_update": "+balanced_update",
    "mean_over_turns": "+turns", "turn_mean": "+turn_mean", "turn_count": "+turn_count", "balanced_turns": "+balanced_turns",
}  # fmt: skip
"""By aggregation, who uses it: methods of fairlen's, then settings of frameworks."""


@dataclass(frozen=True)
class InUse:
    """The method that made some rollouts, or as much as is known of it."""

    name: str
    """As its user knows it: "grpo+balanced", "verl: loss_agg_mode=token-mean"."""
    aggregation: str
    """A key of `coupling.ALL_RULES`."""
    origin: str
    """The file that says so, or "--method"."""
    method: Method | None = None
    """fairlen's, where it is one."""

    @property
    def program(self) -> str:
        return self.name.partition(": ")[0] if ": " in self.name else "fairlen"


def aggregation_of(kind: str, scope: str, by: str = "") -> str:
    """Return the key of `coupling.ALL_RULES` of a stage, by its class, scope and what it counts; empty for a user's own."""
    kind = "LengthPower" if kind == "InverseLength" else kind  # the nearest: another power, and one sum for the update
    keys = {
        (type(rule).__name__, per == "update", getattr(rule, "by", "") == "turns"): key
        for key, (rule, per) in ALL_RULES.items()
    }
    return keys.get((kind, scope == "update", by == "turns"), "")


def in_use(names: str, overrides: Sequence[str], origin: str) -> InUse:
    """Return one of fairlen's methods. Raises ValueError for an unknown one, and for an aggregation of the user's own."""
    found = explain(names, overrides)
    stage = found.method.aggregation
    key = aggregation_of(type(stage).__name__, *(getattr(stage, name, "") for name in ("scope", "by")))
    if key == "sequence_mean" and getattr(found.method.sampling, "unit", "") == "turn":
        key = "mean_over_turns"
    if not key:
        raise ValueError(f"{names!r} has an aggregation of its own: name the one of {', '.join(RULES)} that is nearest")
    return InUse(" ".join(" --set ".join([found.name, *overrides]).split()), key, origin, found.method)


def parse_method(text: str) -> InUse:
    """Return the method of a name: one of fairlen's, an aggregation, or a framework's setting such as loss_type=dapo.

    Raises ValueError with the nearest names for an unknown one.
    """
    given, _, value = (part.strip() for part in text.rpartition("=")) if ": " not in text else text.rpartition(": ")
    if value in ALL_RULES and not given:
        return InUse(value, value, "--method")
    for setting, (program, words) in SETTINGS.items():
        option = setting.rpartition(".")[2]
        if value in words and (given in (option, setting, program) or (not given and value not in BASES)):
            return InUse(f"{program}: {option}={value}", words[value], "--method")
    try:
        return in_use(text, (), "--method")
    except ValueError as error:
        known = dict.fromkeys(
            [*BASES, *MODIFIERS, *ALL_RULES, *(word for _, words in SETTINGS.values() for word in words)]
        )
        near = f"{text!r}: {suggest(value, known)}" if "+" not in text and "unknown" in str(error) else error
        raise ValueError(
            f"--method {near}; give a name of `fairlen methods`, an aggregation ({', '.join(RULES)}), or a setting such as "
            "loss_type=dapo or loss_agg_mode=token-mean"
        ) from None


def find_method(files: Sequence[str]) -> InUse | None:
    """Return the method that the run folders of some rollouts name; None where they name none, or several."""
    found = [find_near(folder) for folder in dict.fromkeys(Path(os.path.abspath(file)).parent for file in files)]
    return found[0] if len({one and (one.name, one.aggregation) for one in found}) == 1 else None


def find_near(folder: Path) -> InUse | None:
    """Return what the nearest run.json above some rollouts says."""
    levels = (folder, *islice(folder.parents, NUM_PARENTS))
    path = next((level / "run.json" for level in levels if (level / "run.json").is_file()), None)
    try:
        return read_run(path) if path and path.stat().st_size <= MAX_BYTES else None
    except Exception:  # a file that is damaged, or of another program, names no method
        return None


def read_run(path: Path) -> InUse | None:
    """Return the method of run.json; None for one of the user's own whose aggregation is not known. No code of theirs is run."""
    run, found = json.loads(path.read_bytes()), None
    names, choices = run["method"]["name"], run["method"].get("choices", {})
    if set(names.split("+")) <= {*BASES, *MODIFIERS}:
        found = in_use(names, run.get("config", {}).get("overrides", ()), str(path))
    stage = choices.get("aggregation", {})
    key = aggregation_of(*(stage.get(name, "") for name in ("kind", "scope", "by")))
    if not stage or (found and found.aggregation == key):
        return found
    is_whole = choices["sampling"]["kind"] == "Independent"
    return InUse(f"a method of its own with {key}", key, str(path)) if key and is_whole else None

"""Which method made some rollouts: by its name, or by the files beside them, which are read as text and never run."""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from fairlen.audit.statistics.coupling import ALL_RULES, RULES
from fairlen.console import suggest
from fairlen.files.foreign import read_file_bytes
from fairlen.methods.compose import explain
from fairlen.methods.method import Method
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.peers import PEERS, find_peer, split_names
from fairlen.methods.presets import BASES

NUM_PARENTS, MAX_PLACES, MAX_BYTES = 4, 100, 1 << 20
"""Folders above that of the rollouts which are looked into, files that are read there, and the size of each."""
HYDRA = "outputs/*/*/.hydra/config.yaml"  # verl's, unless it was told otherwise
PLACES = (
    "run.json", "method.json", ".hydra/config.yaml", "hydra/.hydra/config.yaml", "training_args.bin", "configs/trainer.json",
    "checkpoint-*/training_args.bin", "*.y*ml", HYDRA,
)  # fmt: skip
VERL, VERL_LOSS = "actor_rollout_ref.actor.loss_agg_mode", "actor_rollout_ref.actor.policy_loss.loss_mode"
SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    VERL: ("verl", {
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

    name: str  # as its user knows it: "grpo+balanced", "verl: loss_agg_mode=token-mean"
    aggregation: str  # a key of `coupling.ALL_RULES`
    origin: str  # the file that says so, or "--method"
    method: Method | None = None  # fairlen's, where it is one

    @property
    def program(self) -> str:
        peer = find_peer(self.name)
        return peer.program if peer else self.name.partition(": ")[0] if ": " in self.name else "fairlen"


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
    """Return a method of fairlen's, an aggregation, or a setting as loss_type=dapo. Raises ValueError for an unknown one."""
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
    """Return the method that the files beside some rollouts name; None where they name none, or several."""
    found = [find_near(folder) for folder in dict.fromkeys(Path(os.path.abspath(file)).parent for file in files)]
    return found[0] if len({one and (one.name, one.aggregation) for one in found}) == 1 else None


def find_near(folder: Path) -> InUse | None:
    """Return what the nearest folder that says anything says; fairlen's own files count before those of frameworks."""
    for level in (folder, *islice(folder.parents, NUM_PARENTS)):
        places = islice(chain.from_iterable(map(level.glob, PLACES)), MAX_PLACES)
        claims = [claim for path in places if (claim := read_claim(path, folder))]
        claims = [claim for claim in claims if claim.method or claim.program == "fairlen"] or claims
        if claims:
            return claims[0] if len({claim.aggregation for claim in claims}) == 1 else None
    return None


def read_claim(path: Path, folder: Path) -> InUse | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES or (path.parent / "fairlen.json").exists():
            return None  # fairlen.json: settings of TRL that a method of fairlen's did not use
        values = {".bin": read_pickle, ".json": read_json}.get(path.suffix, read_yaml)(read_file_bytes(path, MAX_BYTES))
        if path.name == "trainer.json":  # of prime-rl: the part of its settings that is the trainer's
            values = {f"trainer.{key}": value for key, value in values.items()}
        if path.match(HYDRA) and Path(values.get("trainer.rollout_data_dir", "")).name != folder.name:
            return None  # of another run that was started in the same folder
        near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return claim_ours(values, near) or claim_theirs(values, near)
    except Exception:  # a file that is damaged, or not what its name says, names no method
        return None


def claim_ours(values: Mapping[str, str], path: Path) -> InUse | None:
    """Return a method of fairlen's: of a job of verl, or of run.json or method.json."""
    place, kept = "algorithm.fairlen.method", "algorithm.fairlen.overrides."
    if path.name in ("run.json", "method.json"):
        place, kept = "method.name", "config.overrides."
    if place not in values:
        return None
    names, found = values[place], None
    known = {*BASES, *MODIFIERS, *(f"{name}:" for name in PEERS)}
    if {name for name, _ in split_names(names)} <= known:  # code of the user's own is not run
        found = in_use(names, [value for key, value in values.items() if key.startswith(kept)], str(path))
    kind, *rest = (values.get(f"method.choices.aggregation.{name}", "") for name in ("kind", "scope", "by"))
    key = aggregation_of(kind, *rest)
    if not kind or (found and found.aggregation == key):
        return found
    is_whole = values.get("method.choices.sampling.kind") == "Independent"
    return InUse(f"a method of its own with {key}", key, str(path)) if key and is_whole else None


def claim_theirs(values: Mapping[str, str], path: Path) -> InUse | None:
    loss = values.get(VERL_LOSS, "")
    if loss in ("sapo", "geo_mean"):  # whatever the aggregation says
        return InUse(f"verl: loss_mode={loss}", "sequence_mean", str(path))
    if loss == "gspo" and values.get(VERL) != "seq-mean-token-mean":
        return None  # what verl then does depends on its version
    found = (
        f"{key.rpartition('.')[2]}={values[key]}" for key, (_, words) in SETTINGS.items() if values.get(key) in words
    )
    return next((replace(parse_method(setting), origin=str(path)) for setting in found), None)


def read_json(data: bytes) -> dict[str, str]:
    """Return the leaves of nested data as text, by path."""
    found, left = {}, [("", json.loads(data))]
    for path, value in left:
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            left += [(f"{path}.{key}", v) for key, v in items]
        else:
            found[path[1:]] = str(value)
    return found


def read_yaml(data: bytes) -> dict[str, str]:
    """Return the plain values of block mappings and of lists in them, by path: enough for what Hydra and TRL write."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for number, line in enumerate(data.decode().splitlines()):
        match = re.fullmatch(r"( *)(- )?(?:([\w./-]+):(?: +|$))?(.*)", line)
        if match and (match[2] or match[3]):
            indent, item, key, value = len(match[1]), match[2], match[3], match[4].partition(" #")[0].strip("'\" ")
            while above and above[-1][0] >= indent + bool(item):
                above.pop()
            above += [(indent, key)] if key and not item else []
            if value:
                found[".".join([*(name for _, name in above), *([str(number)] if item else [])])] = value
    return found


def read_pickle(data: bytes) -> dict[str, str]:
    """Return which text follows each text in TRL's settings as torch.save writes them: the pickle is listed, not loaded."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        pickled = archive.open(name).read(MAX_BYTES // 8)
    memo: dict[Any, str] = {}
    texts: list[str] = []
    for code, value, _ in pickletools.genops(pickled):
        if "PUT" in code.name:
            memo[value] = texts[-1]
        else:
            texts.append(memo.get(value, "") if "GET" in code.name else value if isinstance(value, str) else "")
    found = dict(pairwise(texts))
    return found | ({"loss_type": "rloo"} if "trl.trainer.rloo_config RLOOConfig" in found else {})

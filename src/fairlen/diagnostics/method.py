"""Which method made some rollouts: by its name, or by the files beside them, which are read as text and never run."""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from fairlen.diagnostics.coupling import RULES, WeightShares
from fairlen.diagnostics.uncertainty import NAN, Estimate
from fairlen.methods.compose import explain
from fairlen.methods.describe import suggest
from fairlen.methods.method import Method
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES

NUM_PARENTS = 3
"""Folders above that of the rollouts which are looked into."""
MAX_BYTES, MAX_ENTRIES, MAX_PLACES = 1 << 20, 1000, 100
"""Of a file that is read, names of a folder that are looked at, and files of a folder that are read."""
PLACES = (
    "run.json", "method.json", ".hydra/config.yaml", "hydra/.hydra/config.yaml", "training_args.bin", "training_args.json",
    "configs/rl.json", "configs/trainer.json", "configs/rl.toml", "configs/trainer.toml",
)  # fmt: skip
HYDRA = "outputs/*/*/.hydra/config.yaml"
"""Where verl's configuration is unless it was told otherwise."""
CHOICES = ("aggregation.kind", "aggregation.scope", "sampling.kind")
VERL, VERL_LOSS = "actor_rollout_ref.actor.loss_agg_mode", "actor_rollout_ref.actor.policy_loss.loss_mode"
PRIME_RL = {"default": "token_mean_update", "ipo": "token_mean_update"}
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
    "trainer.loss.type": ("prime-rl", PRIME_RL),
    "loss.type": ("prime-rl", PRIME_RL),
}  # fmt: skip
"""By setting: whose it is, and which aggregation each of its values is; of what averages over a micro-batch the nearest."""
TITLES = {
    "sequence_mean": "mean over responses of their token means: grpo, gspo, TRL's grpo, verl's seq-mean-token-mean",
    "token_mean": "token mean of each prompt: dapo, SkyRL's prompt_mean",
    "token_mean_update": "token mean of the update: dapo_verl, cispo, TRL's dapo (its default), verl's token-mean (its default)",
    "token_sum": "token sum: rloo, fspo, TRL's luspo, verl's seq-mean-token-sum",
    "constant_budget": "token sum over a constant: dr_grpo, TRL's dr_grpo, verl's seq-mean-token-sum-norm",
    "length_power": "token sum over a power of the length: p_gspo",
    "balanced": "token mean of the correct and of the incorrect responses to each prompt: +balanced",
    "balanced_update": "the same of the update: +balanced_update",
}
"""By aggregation, what it is and who uses it."""


@dataclass(frozen=True)
class InUse:
    """The method that made some rollouts, or as much as is known of it."""

    name: str
    """As its user knows it: "grpo+balanced", "verl: loss_agg_mode=token-mean"."""
    aggregation: str
    """A key of `coupling.RULES`."""
    origin: str
    """The file that says so, or "--method"."""
    method: Method | None = None
    """fairlen's, where it is one."""

    @property
    def program(self) -> str:
        """Return whose method it is: fairlen, verl, TRL, SkyRL, prime-rl."""
        return self.name.partition(": ")[0] if ": " in self.name else "fairlen"


@dataclass(frozen=True)
class Weighting:
    """What one aggregation would do with some rollouts."""

    aggregation: str
    title: str
    incorrect_to_correct: Estimate
    """Weight of incorrect responses over that of correct ones."""
    long_to_short: float
    """Weight of a token of the longest responses over that of one of the shortest; nan where all are of one length."""


def compare_aggregations(shares: Mapping[str, WeightShares]) -> tuple[Weighting, ...]:
    """Return what each choice of aggregation would do with the rollouts that these shares are of."""
    return tuple(
        Weighting(
            name, TITLES[name], found.incorrect_to_correct, per_token[-1] / per_token[0] if len(per_token) > 1 else NAN
        )
        for name, found in shares.items()
        for per_token in [found.per_token.tolist()]
    )


def aggregation_of(kind: str, scope: str) -> str:
    """Return the key of `coupling.RULES` of a stage, by its class and its scope."""
    keys = (
        key
        for key, (rule, per) in RULES.items()
        if type(rule).__name__ == kind and (per == "update") == (scope == "update")
    )
    return next(keys, "")


def in_use(names: str, overrides: Sequence[str], origin: str) -> InUse:
    """Return one of fairlen's methods. Raises ValueError for an unknown one, and for an aggregation of the user's own."""
    found = explain(names, overrides)
    method = found.method
    key = aggregation_of(type(method.aggregation).__name__, getattr(method.aggregation, "scope", ""))
    if not key:
        raise ValueError(f"{names!r} has an aggregation of its own: name the one of {', '.join(RULES)} that is nearest")
    return InUse(" ".join(" --set ".join([found.name, *overrides]).split()), key, origin, method)


def parse_method(text: str) -> InUse:
    """Return the method of a name: one of fairlen's, an aggregation, or a framework's setting such as loss_type=dapo.

    Raises ValueError with the nearest names for an unknown one.
    """
    given, _, value = (part.strip() for part in text.rpartition("=")) if ": " not in text else text.rpartition(": ")
    if value in RULES and not given:
        return InUse(value, value, "--method")
    for setting, (program, words) in SETTINGS.items():
        option = setting.rpartition(".")[2]
        if value in words and (given in (option, setting, program) or (not given and value not in BASES)):
            return InUse(f"{program}: {option}={value}", words[value], "--method")
    try:
        return in_use(text, (), "--method")
    except ValueError as error:
        known = dict.fromkeys([*BASES, *MODIFIERS, *RULES, *(word for _, words in SETTINGS.values() for word in words)])
        is_one = str(error).startswith("unknown") and "+" not in text
        near = f"{text!r}: {suggest(value, known)}" if is_one else error
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
        claims = [claim for path in islice(list_places(level), MAX_PLACES) if (claim := read_claim(path, folder))]
        claims = [claim for claim in claims if claim.program == "fairlen"] or claims
        if claims:
            return claims[0] if len({claim.aggregation for claim in claims}) == 1 else None
    return None


def list_places(folder: Path) -> Iterator[Path]:
    """Yield the paths of a folder that may name a method."""
    yield from (folder / place for place in PLACES)
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MAX_ENTRIES))
        yield from (folder / name for name in names if name.endswith((".yaml", ".yml", ".toml")))
        yield from (folder / name / "training_args.bin" for name in names if name.startswith("checkpoint-"))
        yield from folder.glob(HYDRA)
    except OSError:
        return


def read_claim(path: Path, folder: Path) -> InUse | None:
    """Return the method that a file names to the rollouts of a folder; None where it names none."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES or (path.parent / "fairlen.json").exists():
            return None  # fairlen.json: settings of TRL that a method of fairlen's did not use
        values = read_values(path)
        if path.match(HYDRA) and Path(values.get("trainer.rollout_data_dir", "")).name != folder.name:
            return None  # of another run that was started in the same folder
        return claim_ours(values, path) or claim_theirs(values, path)
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
    if set(names.split("+")) <= {*BASES, *MODIFIERS}:  # code of the user's own is not run
        found = in_use(names, [value for key, value in values.items() if key.startswith(kept)], str(path))
    kind, scope, sampling = (values.get(f"method.choices.{name}", "") for name in CHOICES)
    key = aggregation_of(kind, scope)
    if not kind or (found and found.aggregation == key):
        return found
    return InUse(f"a method of its own with {key}", key, str(path)) if key and sampling == "Independent" else None


def claim_theirs(values: Mapping[str, str], path: Path) -> InUse | None:
    """Return a method of a framework's."""
    loss = values.get(VERL_LOSS, "")
    if loss in ("sapo", "geo_mean"):  # whatever the aggregation says
        return InUse(f"verl: loss_mode={loss}", "sequence_mean", str(path))
    if loss == "gspo" and values.get(VERL) != "seq-mean-token-mean":
        return None  # what verl then does depends on its version
    for key, (program, words) in SETTINGS.items():
        value = values.get(key, "")
        if value in words:
            return InUse(f"{program}: {key.rpartition('.')[2]}={value}", words[value], str(path))
    return None


def read_values(path: Path) -> dict[str, str]:
    """Return the values of a configuration file as text, by their paths. Raises whatever a damaged file raises."""
    data = path.read_bytes()[:MAX_BYTES]
    if path.suffix == ".bin":
        return read_pickle(data)
    text = data.decode()
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(text)
    return dict(flatten(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)))


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested data with their paths."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flatten(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(value)


def read_yaml(text: str) -> dict[str, str]:
    """Return the plain values of block mappings and of lists in them: enough for what Hydra, TRL and SkyRL write."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines()):
        match = re.fullmatch(r"( *)(?:(- )|([\w./-]+):(?: |$))(.*)", line)
        if match is None:
            continue
        indent, item, key, value = len(match[1]), match[2], match[3], match[4].partition(" #")[0].strip().strip("'\"")
        while above and above[-1][0] >= indent + bool(item):
            above.pop()
        path = ".".join([*(name for _, name in above), key or str(number)])
        if key:
            above.append((indent, key))
        if value:
            found[path] = value
    return found


def read_pickle(data: bytes) -> dict[str, str]:
    """Return which text follows each text in what torch.save wrote of TRL's settings; a listing of the pickle, nothing is run."""
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

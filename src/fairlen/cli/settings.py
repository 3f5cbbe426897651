"""From a command line to settings: defaults, then the file of --config, then flags.

Flags are tyro's; it reads no files, so that the overlay of a TOML file is here.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fairlen.doctor.examine import DoctorConfig
    from fairlen.evaluate.config import EvalConfig
    from fairlen.train.run.config import TrainConfig

ABOUT_CONFIG = (
    '--config FILE.toml takes settings from a file, such as learning-rate = 1e-5 or data = ["a.jsonl", "b.jsonl"]; '
    "flags come after it."
)
FLAGS_ALONE = ("suite", "from_samples")
Config = TypeVar("Config", "TrainConfig", "EvalConfig", "DoctorConfig")


def read_train_config(arguments: list[str]) -> TrainConfig:
    """Return the settings of a training run."""
    from fairlen.train.run.config import TrainConfig

    return read_config(TrainConfig(), "fairlen train", arguments)


def read_config(default: Config, prog: str, arguments: list[str]) -> Config:
    """Return the settings of a command whose defaults are given."""
    import tyro

    path, rest = split_config(arguments)
    default = overlay(default, path, rest) if path else default
    return tyro.cli(type(default), prog=prog, description=describe(default), default=default, args=rest)


def describe(default: Any) -> str:
    """Return what a command's help begins with."""
    return f"{inspect.getdoc(default)}\n\n{ABOUT_CONFIG}"


def read_eval_config(arguments: list[str]) -> EvalConfig:
    """Return the settings: defaults, those of the suite or of the samples that are read, the file of --config, then flags."""
    from fairlen.evaluate.config import EvalConfig, suite_settings

    _, rest = split_config(arguments)
    suite, samples = find_flag(rest, "--suite"), find_flag(rest, "--from-samples")
    if suite and samples:
        raise ValueError(
            f"--suite {suite} with --from-samples {samples}: samples are graded with the settings that they were drawn with; "
            "leave --suite out"
        )
    default = suite_settings(suite) if suite else EvalConfig()
    if samples:
        from fairlen.evaluate.folder import rescore_settings

        default = rescore_settings(samples)
    if find_flag(rest, "--data"):
        default = replace(default, data=(), suite="")  # flags add to a default; what is named here is meant alone
    return read_config(default, "fairlen eval", arguments)


def find_flag(arguments: Sequence[str], name: str) -> str:
    """Return the value of a flag, empty where it is not given."""
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") == name:
            return value if equals else "".join(arguments[place + 1 : place + 2])
    return ""


def split_config(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """Return the path after --config, and the other arguments."""
    path, rest, waiting = None, [], iter(arguments)
    for argument in waiting:
        if argument == "--config" or argument.startswith("--config="):
            text = argument.partition("=")[2] or next(waiting, "")
            if not text or path is not None:
                raise ValueError(f"--config {path or ''}: name one TOML file")
            path = Path(text)
        else:
            rest.append(argument)
    return path, rest


def overlay(config: Config, path: Path, flags: Sequence[str] = ()) -> Config:
    """Return the settings with those of a TOML file, but for lists that flags name: what is named there is meant alone.

    Fields of the method (`set`) are added to. Raises ValueError for a key that does not exist or a value of the wrong type.
    """
    from fairlen.methods.describe import suggest

    if not path.is_file():
        raise FileNotFoundError(f"--config {path}: there is no such file")
    names = [f.name for f in fields(config)]
    clean: dict[str, Any] = {}
    try:
        for key, value in tomllib.loads(path.read_text()).items():
            name = "overrides" if key == "set" else key.replace("-", "_")
            if name not in names:
                raise ValueError(f"unknown key {key!r}: {suggest(name, names)}")
            if name in FLAGS_ALONE:
                raise ValueError(f"{key}: give it as a flag; it decides what other settings begin with")
            default = getattr(config, name)
            if not (
                isinstance(default, tuple) and name != "overrides" and find_flag(flags, f"--{name.replace('_', '-')}")
            ):
                clean[name] = convert(key, value, default)
    except ValueError as error:  # of TOML too
        raise ValueError(f"--config {path}: {error}") from None
    return replace(config, **clean)


def convert(key: str, value: Any, default: Any) -> Any:
    """Return the value of a TOML file as the type that the setting has."""
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise ValueError(f"{key} = {value!r}: give a list of texts, such as [{json.dumps(str(value))}]")
        return tuple(map(str, value))
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"{key} = {value!r}: give {type(default).__name__}, such as {default!r}")
    return value

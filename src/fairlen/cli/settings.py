"""From a command line to settings: defaults, then the file of --config, then flags."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fairlen.doctor.plan import DoctorConfig
    from fairlen.evaluate.config import EvalConfig
    from fairlen.train.config import TrainConfig

Config = TypeVar("Config", "TrainConfig", "EvalConfig", "DoctorConfig")


def read_train_config(arguments: list[str]) -> TrainConfig:
    """The settings of a training run."""
    from fairlen.train.config import TrainConfig

    return read_config(TrainConfig(), "fairlen train", arguments)


def read_config(default: Config, prog: str, arguments: list[str]) -> Config:
    """The settings of a command whose defaults are given."""
    import tyro

    path, rest = split_config(arguments)
    default = overlay(default, path) if path else default
    return tyro.cli(type(default), prog=prog, default=default, args=rest)


def read_eval_config(arguments: list[str]) -> EvalConfig:
    """The settings: defaults, those of the suite or of the samples that are read, the file of --config, then flags."""
    from fairlen.evaluate.config import EvalConfig, suite_settings

    _, rest = split_config(arguments)
    suite, samples = find_flag(rest, "--suite"), find_flag(rest, "--from-samples")
    default = suite_settings(suite) if suite else EvalConfig()
    if samples:
        from fairlen.evaluate.again import settings_again

        default = settings_again(samples)
    if find_flag(rest, "--data"):
        default = replace(default, data=(), suite="")  # flags add to a default; what is named here is meant alone
    return read_config(default, "fairlen eval", arguments)


def find_flag(arguments: Sequence[str], name: str) -> str:
    """The value of a flag, empty where it is not given."""
    for place, argument in enumerate(arguments):
        if argument == name:
            return arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return ""


def split_config(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The path after --config and the other arguments."""
    path, rest, waiting = None, [], iter(arguments)
    for argument in waiting:
        if argument == "--config" or argument.startswith("--config="):
            text = argument.partition("=")[2] or next(waiting, "")
            if not text:
                raise ValueError("--config: name a TOML file")
            path = Path(text)
        else:
            rest.append(argument)
    return path, rest


def overlay(config: Config, path: Path) -> Config:
    """The settings with those of a TOML file. Raises ValueError for a key that does not exist or a value of the wrong type."""
    from fairlen.describe import suggest

    if not path.is_file():
        raise FileNotFoundError(f"--config {path}: there is no such file")
    try:
        values = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--config {path}: {error}") from None
    names = [f.name for f in fields(config)]
    clean: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in names:
            raise ValueError(f"--config {path}: unknown key {key!r}: {suggest(name, names)}")
        clean[name] = convert(path, key, value, getattr(config, name))
    return replace(config, **clean)


def convert(path: Path, key: str, value: Any, default: Any) -> Any:
    """The value of a TOML file as the type that the setting has."""
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(str(item) for item in value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"--config {path}: {key} = {value!r}: give {type(default).__name__}, such as {default!r}")
    return value

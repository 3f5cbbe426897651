"""Which settings verl has: overrides that its configuration cannot take, and the values that it has by default."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CONFIGURATION = "ppo_trainer"


def find_folder() -> Path | None:
    """Return the folder of verl's configurations; None if verl is not installed."""
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "trainer" / "config"


@cache
def compose_defaults(folder: Path, groups: tuple[str, ...]) -> Any:
    """Compose verl's settings as they are by default, with other files chosen by `groups`, such as model_engine=megatron."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(folder), version_base=None):
        return compose(CONFIGURATION, list(groups))


def read_default(key: str) -> Any:
    """Return the value that verl has for a setting by default; None if there is none, or verl is not installed."""
    folder = find_folder()
    if folder is None:
        return None
    from omegaconf import OmegaConf

    return OmegaConf.select(compose_defaults(folder, ()), key, throw_on_missing=False)


def chooses_file(key: str, folder: Path) -> bool:
    """Whether an override chooses one of verl's files (a group, as hydra calls it) instead of setting a value."""
    return "@" in key or (folder / key).is_dir()


def find_unknown(ours: Iterable[str], given: Sequence[str]) -> Iterator[str]:
    """Yield one problem for each override in `given` that hydra would refuse, one at a time, after the job has started.

    `ours` are overrides that are made before. Nothing is yielded if verl is not installed.
    """
    folder = find_folder()
    if folder is None:
        return
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    groups = tuple(text for text in given if chooses_file(text.lstrip("+~").partition("=")[0], folder))
    try:
        settings = copy.deepcopy(compose_defaults(folder, groups))
    except (HydraException, OmegaConfBaseException) as error:
        yield f"{' '.join(groups)}: verl has no such configuration: {first_line(error)}; leave it out"
        return
    for text in ours:
        if not text.startswith("hydra."):
            apply(settings, text)
    for text in given:
        if text not in groups and (problem := apply(settings, text)):
            yield f"{text}: {problem}"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def apply(settings: Any, text: str) -> str:
    """Change verl's settings by one override, by the rules of hydra; return why it cannot be, or nothing."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        return f"hydra cannot read this ({first_line(error)}); quote the value"
    key, value = override.key_or_group, override.value()
    is_there = OmegaConf.select(settings, key, throw_on_missing=False) is not None
    unknown = f"verl {version('verl')} has no such setting; leave it out"
    if override.is_delete():
        return "" if is_there else unknown
    if override.is_add() and is_there and not isinstance(value, dict | list):
        return f"verl has this setting already; write {key}=… without the +"
    try:
        if override.is_add() or override.is_force_add():
            with open_dict(settings):
                OmegaConf.update(settings, key, value, merge=True, force_add=True)
        else:
            OmegaConf.update(settings, key, value, merge=True)
    except OmegaConfBaseException:
        return f"{unknown}, or write +{key}=… if code of yours reads it"
    return ""

"""Objects of the user's own, by one form of name everywhere: FILE.py:NAME, or the name of a package's entry point."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

GROUPS = {"method": "fairlen.methods", "task": "fairlen.tasks", "rewards": "fairlen.rewards"}
"""Groups of entry points, by the setting that names their objects."""


@dataclass(frozen=True)
class Plugin:
    """An object of the user's own, and where it is from."""

    setting: str
    """Which setting named it: method, task or rewards."""
    place: str
    """As it was named."""
    name: str
    source: str
    """Path of the file, or package, version and entry point."""
    sha256: str
    """Of the file; empty for a package, whose version says what it is."""
    value: Any = field(repr=False, compare=False)


class ReadSource(SourceFileLoader):
    """Compiles bytes that were read before."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.content, self.path)


def is_file_place(place: str) -> bool:
    """Tell a name of the form FILE.py:NAME from one of a package."""
    return place.rpartition(":")[0].endswith(".py")


def normalize(name: str) -> str:
    """A part of a method's name as it is registered: small letters and underscores, unless a file or package has it so."""
    given, plain = name.strip(), name.strip().replace("-", "_").lower()
    if given == plain or is_file_place(given):
        return given
    is_so = any(point.name == given for point in installed("method"))  # slow: packages are looked through
    return given if is_so else plain


def find_plugin(setting: str, place: str) -> Plugin:
    """The object that a place names. Raises ValueError naming the setting, the place, and what is missing."""
    find = find_in_file if is_file_place(place) else find_installed
    try:
        return find(setting, place)
    except ValueError as error:
        raise ValueError(f"--{setting} {place}: {error}") from error


def find_in_file(setting: str, place: str) -> Plugin:
    """An object of a file. Raises ValueError where there is none, or the file does not run."""
    path, _, name = place.rpartition(":")
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}; give the path of one, or run where it is")
    content = Path(path).read_bytes()
    module = run_file(Path(path).resolve(), content)
    value = vars(module).get(name)
    if value is None:
        own = [k for k, v in vars(module).items() if k[0] != "_" and getattr(v, "__module__", "") == module.__name__]
        raise ValueError(f"{path} has no {name!r}; it has {', '.join(own) or 'nothing'}")
    return Plugin(setting, place, name, str(Path(path).resolve()), hashlib.sha256(content).hexdigest(), value)


def run_file(path: Path, content: bytes) -> ModuleType:
    """The module of a file, run once for each content. It is in sys.modules, so that its classes are found by their names."""
    digest = hashlib.sha256(str(path).encode() + content).hexdigest()[:12]
    name = f"fairlen_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    loader = ReadSource(name, str(path), content)
    module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(f"{path} does not load: {describe_error(error, path)}") from error
    return module


def describe_error(error: BaseException, path: Path) -> str:
    """The error, and the line of the file where it came up."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" + (f" (line {line})" if line else "")


def installed(setting: str) -> Sequence[EntryPoint]:
    return sorted(entry_points(group=GROUPS[setting]), key=lambda point: point.name)


def source_of(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
    return f"{package} ({point.value})"


def find_installed(setting: str, place: str) -> Plugin:
    """An object of an installed package. Raises ValueError where no package has it, several have it, or it does not load."""
    found = [point for point in installed(setting) if point.name == place]
    if not found:
        known = ", ".join(point.name for point in installed(setting)) or "none"
        raise ValueError(
            f"no installed package has it (entry points of {GROUPS[setting]}: {known}); for an object of a file write "
            "FILE.py:NAME"
        )
    if len(found) > 1:
        raise ValueError(f"several packages have it: {', '.join(map(source_of, found))}; keep one")
    try:
        value = found[0].load()
    except Exception as error:
        raise ValueError(f"{source_of(found[0])} does not load: {type(error).__name__}: {error}") from error
    return Plugin(setting, place, place, source_of(found[0]), "", value)


def with_full_paths(method: str) -> str:
    """Names of a method with files by their full paths, for processes that run elsewhere."""
    parts = [name.strip().rpartition(":") for name in method.split("+")]
    full = [(str(Path(path).resolve()) if path.endswith(".py") else path, colon, name) for path, colon, name in parts]
    return "+".join(map("".join, full))


def plugins_of(method: str, task: str = "", rewards: Sequence[str] = ()) -> list[dict[str, str]]:
    """Objects of files and entry points that the settings of a run name, each once: a run is resumed with the same content."""
    places = [("method", normalize(name)) for name in method.split("+")]
    places += [("task", task), *(("rewards", text.partition("=")[0]) for text in rewards)]
    settings = {setting for setting, place in places if place and not is_file_place(place)}
    known = {setting: {point.name for point in installed(setting)} for setting in settings}
    named = dict.fromkeys(one for one in places if is_file_place(one[1]) or one[1] in known.get(one[0], ()))
    found = [find_plugin(*one) for one in named]
    return [{key: getattr(plugin, key) for key in ("setting", "name", "source", "sha256")} for plugin in found]

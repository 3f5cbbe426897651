"""Objects of the user's own, by one form of name everywhere: FILE.py:NAME."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from fairlen.files.foreign import Unreadable, read_file_bytes


@dataclass(frozen=True)
class Plugin:
    """An object of the user's own, and where it is from."""

    setting: str
    """Which setting named it: method, task or rewards."""
    place: str
    """As it was named."""
    name: str
    source: str
    """Path of the file."""
    sha256: str
    """Of the file."""
    value: Any = field(repr=False, compare=False)


class ReadSource(SourceFileLoader):
    """Compiles bytes that were read before."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self.content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.content, self.path)


def is_file_place(place: str) -> bool:
    """Tell a name of the form FILE.py:NAME from others."""
    return place.rpartition(":")[0].endswith(".py")


def normalize(name: str) -> str:
    """A part of a method's name as it is registered: small letters and underscores, unless it names a file."""
    given = name.strip()
    return given if is_file_place(given) else given.replace("-", "_").lower()


def find_plugin(setting: str, place: str) -> Plugin:
    """The object that FILE.py:NAME names. Raises ValueError naming the setting, the place, and what is missing."""
    path, _, name = place.rpartition(":")
    try:
        content = read_file_bytes(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        remedy = "give the path of a Python file, or start the command in the folder that contains it"
        raise ValueError(f"--{setting} {place}: there is no file {path}; {remedy}") from None
    except Unreadable as error:
        raise ValueError(f"--{setting} {error}") from None
    try:
        module = run_file(Path(path).resolve(), content)
    except ValueError as error:
        raise ValueError(f"--{setting} {place}: {error}") from error
    value = vars(module).get(name)
    if value is None:
        own = [k for k, v in vars(module).items() if k[0] != "_" and getattr(v, "__module__", "") == module.__name__]
        raise ValueError(f"--{setting} {place}: {path} has no {name!r}; it has {', '.join(own) or 'nothing'}")
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
    if isinstance(error, SyntaxError) and error.filename == str(path):  # not of a file that it imports
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


def with_full_paths(method: str) -> str:
    """Names of a method with files by their full paths, for processes that run elsewhere."""
    parts = [name.strip().rpartition(":") for name in method.split("+")]
    full = [(str(Path(path).resolve()) if path.endswith(".py") else path, colon, name) for path, colon, name in parts]
    return "+".join(map("".join, full))


def plugins_of(method: str, task: str = "", rewards: Sequence[str] = ()) -> list[dict[str, str]]:
    """Objects of files that the settings of a run name, each once: a run is resumed with the same content."""
    places = [("method", name.strip()) for name in method.split("+")]
    places += [("task", task), *(("rewards", text.partition("=")[0]) for text in rewards)]
    found = [find_plugin(*one) for one in dict.fromkeys(places) if is_file_place(one[1])]
    return [{key: getattr(plugin, key) for key in ("setting", "name", "source", "sha256")} for plugin in found]

"""Functions of a project, run from the source of one commit without installing it."""

from __future__ import annotations
import __future__

import ast
import math
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


class Source:
    """A project's files at one commit, of a git checkout or a bare clone."""

    in_float64 = False
    """Whether what they compute in float32 is computed in float64."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.folder, self.commit = folder, commit

    def load(self, path: str, *names: str, **known: Any) -> SimpleNamespace:
        """Run chosen functions and classes of a file, `Class.method` among them, and return them by their own names.

        Annotations are not evaluated and decorators are dropped (compilation, registries, type checks); `known` is what the
        module would have imported.
        """
        command = ["git", "-C", str(self.folder), "show", f"{self.commit}:{path}"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if self.in_float64:
            text = text.replace("float32", "float64").replace(".float()", ".double()")
        tree = ast.parse(text)
        nodes = [find_node(tree.body, name, path) for name in names]
        for node in nodes:
            node.decorator_list = [d for d in node.decorator_list if "dataclass" in ast.unparse(d)]
        space = {"torch": torch, "np": np, "math": math, "dataclass": dataclass, **known}
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module([*nodes], []), path, "exec", flags, dont_inherit=True), space)
        return SimpleNamespace(**{key: value for key, value in space.items() if key != "__builtins__"})


def find_node(body: list[ast.stmt], name: str, path: str) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef:
    """The definition of a dotted name in a body. Raises LookupError where there is none."""
    first, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == first:
            return find_node(node.body, rest, path) if rest else node
    raise LookupError(f"{path} has no {name} at this commit")

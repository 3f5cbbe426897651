"""Which checkpoints of frameworks a method goes on from: those of other processes, not those of other methods."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from fairlen.integrations.run_folder import resume_method, save_method
from fairlen.methods.compose import compose

OWN_STAGE = """
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fairlen.integrations.run_folder import resume_method, save_method
from fairlen.methods.compose import compose
from fairlen.methods.stages.filters import Everything


def choose(*_): ...


@dataclass(frozen=True)
class Own(Everything):
    rule: Callable
    level: float


unused = [object() for _ in range(int(sys.argv[3]))]  # so that what follows lies elsewhere
method = replace(compose("grpo"), filter=Own(partial(choose, partial(choose, 2)), float(sys.argv[4])))
print(repr(method))
{"save": save_method, "resume": resume_method}[sys.argv[2]](Path(sys.argv[1]), method)
"""


def do(what: str, folder, moved: int, level: float) -> subprocess.CompletedProcess[str]:
    """Saves or resumes a method with a function in a field, in a process of its own."""
    given = [str(folder), what, str(moved), str(level)]
    return subprocess.run([sys.executable, "-c", OWN_STAGE, *given], capture_output=True, text=True, check=False)


def test_a_function_in_a_field_is_the_same_in_another_process(tmp_path):
    saved, resumed = do("save", tmp_path, 0, 0.5), do("resume", tmp_path, 300_000, 0.5)
    assert " at 0x" in saved.stdout and saved.stdout != resumed.stdout
    assert (resumed.returncode, resumed.stderr) == (0, "")
    other = do("resume", tmp_path, 0, 0.75)
    assert other.returncode == 1 and "resuming with another method" in other.stderr and "level=0.75" in other.stderr


def test_what_is_saved_comes_back(tmp_path):
    method = compose("fspo")
    learned = method.with_state(dict.fromkeys(method.state, 1))
    save_method(tmp_path, learned)
    assert resume_method(tmp_path, method) == learned
    with pytest.raises(ValueError, match=r"aggregation .* -> "):
        resume_method(tmp_path, replace(method, aggregation=compose("dapo").aggregation))

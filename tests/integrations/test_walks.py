"""The way of an advantage through each trainer, of a step that is traced: what a reader passes who follows it in a debugger.

At the calls of a stage for the advantage, the weight and the token loss the stack names the files between the trainer and the
stage; all of them together are the way. What a file on it calls and returns from again (tables, masks, records) is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from homes import HOMES, make_model
from test_contract import CASES

import fairlen
from fairlen.train import start
from fairlen.train.run.config import TrainConfig

SOURCE = Path(fairlen.__file__).parent
STAGES = ["methods/stages/advantage.py", "methods/stages/aggregation.py", "methods/stages/surrogate.py"]
ABOVE = ("train/start.py", "hangs.py")
"""Start our own trainer, and its event loop."""
MOST = {"own": 9, "trl": 5, "verl": 6}


def stack_of(frame: FrameType | None) -> list[str]:
    """The files of fairlen on the stack, the trainer's first."""
    found: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        file = str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else ""
        if file in ABOVE:
            break
        found += [file] if file else []
        frame = frame.f_back
    return found[::-1]


def trace(call: Callable[[], Any]) -> list[str]:
    """The files on the way of an advantage while `call` trains, in the order in which they are met."""
    way: list[str] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "__call__" and code.co_filename.endswith(tuple(STAGES)):
            way.extend(file for file in dict.fromkeys(stack_of(frame)) if file not in way)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return way


def train_own(folder: Path) -> Any:
    settings = {
        "prompts_per_batch": 2,
        "rollout_batches": 1,
        "max_response_length": 16,
        "problems": 1,
        "samples": 1,
    }
    return start.start_training(
        TrainConfig.of(method="grpo", overrides=("sampling.n=4",), threads=1, out=str(folder / "run"), **settings)
    )


@pytest.mark.parametrize("home", MOST)
def test_an_advantage_passes_through_few_files(home, tmp_path, monkeypatch):
    if home == "own":
        monkeypatch.setattr(start, "describe_end", lambda *_: None)  # its audit scores the rollouts again
        way = trace(lambda: train_own(tmp_path))
    elif find_spec(home) is None:
        pytest.skip(f"{home} is missing")
    else:
        (trainer,) = (one for one in HOMES if one.name == home)
        way = trace(lambda: trainer.run(CASES["plain"], "grpo", make_model(), tmp_path))
    assert set(STAGES) < set(way) and len(way) <= MOST[home], way

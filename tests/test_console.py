"""What commands print is what they were given."""

import io
import json
import shutil
import time
from pathlib import Path

import pytest
from lines import write_lines
from rich.table import Table
from rich.text import Text

from fairlen import playground
from fairlen.cli import main
from fairlen.console import Pace, make_console, print_table, showing, warn


def test_brackets_are_text():
    shown = io.StringIO()
    make_console(file=shown).print("a[T] [bold]b[/bold] [/x]")  # the last would be an error of markup
    assert shown.getvalue() == "a[T] [bold]b[/bold] [/x]\n"


def test_files_get_the_width_that_was_asked_for(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = io.StringIO()
    make_console(150, shown).print("word " * 40)
    assert max(map(len, shown.getvalue().splitlines())) > 130


def test_the_environment_says_how_wide_and_how_plain(monkeypatch):
    """COLUMNS goes before what is asked for; NO_COLOR leaves no escape; files get no blanks at the ends of lines."""
    shown, terminal = io.StringIO(), io.StringIO()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(make_console(150, shown), "title", ("a", "b"), [("x", "1"), ("long", "2 " * 30)])
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 40 and all(line == line.rstrip() for line in lines)
    monkeypatch.setenv("FORCE_COLOR", "1")
    make_console(file=terminal).print("text", style="bold red")
    assert terminal.getvalue() == "text\n"
    monkeypatch.setenv("COLUMNS", "0")
    assert make_console().width == 80


ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\x08"


def hostile(text: str) -> set[str]:
    """Characters that a terminal acts upon."""
    return {c for c in text if not c.isprintable() and c != "\n"}


def test_escapes_are_text_wherever_rich_takes_them():
    shown = io.StringIO()
    console = make_console(file=shown)
    console.print(f"a line {ESCAPES}")
    console.print(Text(f"a text {ESCAPES}"))
    table = Table(f"heading {ESCAPES}", title=f"title {ESCAPES}")
    table.add_row(f"cell {ESCAPES}")
    console.print(table)
    assert not hostile(shown.getvalue())
    assert shown.getvalue().count(r"\x1b") == 10  # two in each of five texts


def test_names_of_sets_are_no_markup():
    shown = io.StringIO()
    with showing(make_console(200, shown), Pace("[bold]set[/bold]", 4, lambda: 1), pause=0.01):
        while not shown.getvalue():
            time.sleep(0.01)
    assert shown.getvalue().startswith("[bold]set[/bold]: 0 of 4 responses")


def test_more_responses_than_were_asked_for_have_no_total():
    """Forks and refills: 104 of 64."""
    assert [str(Pace("batch", 64, iter((0, done)).__next__)).partition(" responses")[0] for done in (16, 104)] == [
        "batch: 16 of 64", "batch: 104",
    ]  # fmt: skip


def a_column(folder: Path) -> list[str]:
    return ["train", "--data", str(write_lines(folder / "a.jsonl", {f"strange {ESCAPES}": "x"}))]


def a_choice_of_columns(folder: Path) -> list[str]:
    path = write_lines(folder / "a.jsonl", {"response": "a", "reward": 1.0})
    return ["audit", str(path), "--columns", f"prompt=a{ESCAPES}b"]


def a_template(folder: Path) -> list[str]:
    model = Path(shutil.copytree(playground.PATH, folder / "model"))
    (model / "chat_template.jinja").write_text("{{ raise_exception('no " + ESCAPES + "') }}")
    path = write_lines(folder / "a.jsonl", *({"question": f"0{n}", "answer": "1"} for n in range(4)))
    given = ["--data", str(path), "--threads", "1", "--out", str(folder / "out")]
    return ["train", "--model", str(model), *given]


def a_setting(folder: Path) -> list[str]:
    return ["train", "--model", f"no{ESCAPES}where"]


def a_config(folder: Path) -> list[str]:
    (folder / "config.json").write_text(json.dumps({"model_type": f"x{ESCAPES}"}))
    return ["eval", "--model", str(folder)]


def no_command(folder: Path) -> list[str]:
    return [f"x{ESCAPES}"]


@pytest.mark.parametrize("case", [a_column, a_choice_of_columns, a_template, a_setting, a_config, no_command])
def test_escapes_in_errors_are_text(case, tmp_path, capsys):
    code = main(case(tmp_path))
    said = capsys.readouterr()
    assert code in (1, 2) and not hostile(said.out + said.err)
    assert len(said.err.splitlines()) == 1


def test_what_the_watchdog_says_is_text(capsys):
    warn(f"problem {ESCAPES}")
    assert not hostile(capsys.readouterr().err)


def test_lines_of_another_programs_output_are_text(capsys):
    """Of a job of verl: what is shown of a node or a death is without colours; all else is in the log alone."""
    summary = pytest.importorskip("fairlen.integrations.verl.session").JobSummary()
    for line in (f"\x1b[36m(worker)\x1b[0m fairlen: node n1: ready {ESCAPES}\n", f"a response {ESCAPES}\n"):
        summary.read(line)
    shown = capsys.readouterr().out
    assert not hostile(shown) and shown.startswith("node n1: ready ") and shown.count("\n") == 1

"""Code and columns in the pages of docs/ are what they say."""

import re
from pathlib import Path

import pytest

from fairlen.audit import numbers
from fairlen.audit.audit import Audit, audit
from fairlen.audit.numbers import to_json
from fairlen.metrics import format_metrics, format_records

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
            assert (page.parent / target).exists(), f"{page.name}: {target}"

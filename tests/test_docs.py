"""Code and columns in the pages of docs/ are what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

DOCS = Path(__file__).parents[1] / "docs"
FIXTURE = Path(__file__).parent / "fixtures_formats" / "fairlen_pairs" / "records"


@pytest.mark.parametrize(
    "page", [page for page in DOCS.rglob("*.md") if "```python" in page.read_text()], ids=lambda p: p.stem
)
def test_python_on_the_page_runs(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        names: dict[str, object] = {"__name__": "page"}
        exec(compile(block, str(page), "exec", dont_inherit=True), names)
        if "plan" in names:
            assert len(names["plan"]) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["responses", "segments"])
def test_every_column_of_the_records_is_on_the_page(table):
    text = (DOCS / "metrics.md").read_text()
    rows = text.partition(f"| column of {table} |")[2].split("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", rows))
    written = set(pq.read_schema(next(FIXTURE.glob(f"{table}-*.parquet"))).names)
    assert {name for name in written if not name.startswith("part_")} <= named
    assert {name for name in named if not name.startswith("part_")} <= written


def test_every_link_between_pages_leads_somewhere():
    for page in (
        *DOCS.rglob("*.md"),
        DOCS.parent / "README.md",
        DOCS.parent / "CHANGELOG.md",
        DOCS.parent / "CONTRIBUTING.md",
    ):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

"""The page of an evaluation: what summary.json says, in words and pictures; nothing of what it says runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlen.cli import main
from fairlen.evaluate.samples import Sample
from fairlen.evaluate.scores import score


def write_summary(folder: Path, name: str = "sums") -> Path:
    """Two samples of each of 40 problems: of even ones both are correct, of odd ones one; lengths 2 and 9."""
    samples = [
        Sample(problem_id=str(p), problem="?", answer="1", sample=s, text="a b", status="correct" if p % 2 == 0 or s else "incorrect", length=9 if s else 2,
               finish="stop", extracted="1")
        for p in range(40) for s in range(2)
    ]  # fmt: skip
    folder.mkdir(parents=True)
    scores, _ = score(samples, "incorrect")
    (folder / "summary.json").write_text(
        json.dumps({"sets": {name: {"scores": scores}}, "config": {"samples": 2}, "overall": None})
    )
    return folder


def test_the_page_says_what_the_summary_says(tmp_path):
    """(20 * 1 + 20 * 1/2) / 40 = 75%; some sample of each problem is correct: pass@2 = 100%."""
    folder = write_summary(tmp_path / "e")
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "<dt>sums</dt><dd><strong>75%</strong><span>avg@2: 75.0% [" in page and ", 40 problems</span>" in page
    assert '<th scope="row">pass@2</th><td>100.0%' in page
    assert 'aria-label="accuracy by length"' in page and 'href="#def-samples"' in page


def test_a_name_of_a_set_is_escaped(tmp_path):
    folder = write_summary(tmp_path / "e", "</h2><script>x</script>")
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "</h2><script>x" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("text", ["{", "{}", '{"sets": {"a": {"scores": {}}}, "config": {}}', "[]"])
def test_a_damaged_summary_is_named(text, tmp_path, capsys):
    (tmp_path / "summary.json").write_text(text)
    assert main(["report", str(tmp_path)]) == 2
    assert "summary.json: " in (said := capsys.readouterr().err) and "the file is damaged" in said

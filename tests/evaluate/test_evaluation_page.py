"""The page of an evaluation: the scores of summary.json, then the audit of the samples; nothing of what they say runs."""

import json
from pathlib import Path

from loops import over

from fairlen.cli import main
from fairlen.evaluate.samples import Sample, sample_path, write_samples
from fairlen.evaluate.scores import score


def write_evaluation(folder: Path, name: str = "sums") -> Path:
    """Two samples of each of 40 problems: of even ones both are correct, of odd ones one; lengths 2 and 9."""
    samples = []
    for place in range(80):
        problem, number = divmod(place, 2)
        is_correct = problem % 2 == 0 or number == 1
        samples.append(Sample(
            problem_id=str(problem), problem=f"{problem}?", answer="1", sample=number, text=f"a {place}", extracted="1",
            finish="stop", outcome=float(is_correct), status="correct" if is_correct else "incorrect", length=9 if number else 2,
        ))  # fmt: skip
    sample_path(folder, "sums").parent.mkdir(parents=True)
    write_samples(samples, sample_path(folder, "sums"))
    found = {"sets": {name: {"scores": score(samples, "incorrect")[0]}}, "config": {"samples": 2}, "overall": None}
    (folder / "summary.json").write_text(json.dumps(found))
    return folder


def test_the_page_has_the_scores_and_the_audit(tmp_path):
    """(20 * 1 + 20 * 1/2) / 40 = 75%; some sample of each problem is correct: pass@2 = 100%."""
    folder = write_evaluation(tmp_path / "e")
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    scores, log = (
        page[page.index('id="scores"') : page.index('<section id="log1">')],
        page[page.index('<section id="log1">') :],
    )
    assert '<th scope="row">sums</th><td>40 x 2</td><td>75.0% [' in scores and "<td>100.0%</td>" in scores
    assert "fewer than 100 problems in sums" in scores and 'href="#def-samples"' in scores
    assert "<dt>accuracy</dt><dd><strong>75%</strong>" in log and "Prompts where the difference is largest" in log


def test_a_name_of_a_set_is_escaped(tmp_path):
    folder = write_evaluation(tmp_path / "e", "</h2><script>x</script>")
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "</h2><script>x" not in (tmp_path / "page.html").read_text()


@over("text", ["{", "{}", '{"sets": {"a": {"scores": {}}}}', "[]"])
def test_a_damaged_summary_is_named(text, tmp_path, capsys):
    (tmp_path / "summary.json").write_text(text)
    assert main(["report", str(tmp_path)]) == 2
    assert "summary.json: " in (said := capsys.readouterr().err) and "the file is damaged" in said

"""Whole comparisons, small: equal budgets, what is done is not done again, and errors before anything is trained."""

import json
import shutil
from pathlib import Path

import pytest

from fairlen.cli import main
from fairlen.compare.config import CompareConfig
from fairlen.compare.start import open_comparison, start_comparison
from fairlen.train.run.config import TrainConfig

SMALL = TrainConfig.of(
    rollout_batches=2, prompts_per_batch=3, max_response_length=40, problems=6, samples=2, eval_every=1, save_every=1,
    threads=1, max_num_seqs=32
)  # fmt: skip
METHODS = ("grpo:sampling.n=4", "grpo+balanced:sampling.n=4", "eqlen+grpo:sampling.streams=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("compare") / "first"
    start_comparison(CompareConfig(METHODS, seeds=1, train=SMALL.replace(out=str(place))))
    return place


def spent(folder: Path) -> dict[str, dict]:
    return {path.parent.parent.name: json.loads(path.read_text()) for path in folder.glob("*/seed-0/done.json")}


@pytest.mark.slow
def test_every_method_spends_what_the_reference_spent(folder):
    """The one batch that passes the mark is the only excess: its predecessor had not reached it."""
    found = spent(folder)
    reference = found["grpo-sampling.n=4"]
    assert reference["rollout_batches"] == 2
    for cost in found.values():
        assert cost["generated"] >= reference["generated"]
    assert found["eqlen+grpo-sampling.streams=2"]["rollout_batches"] <= 2
    results = json.loads((folder / "results.json").read_text())
    assert [result["name"] for result in results] == list(METHODS)
    for result in results:  # whatever its last rollout batch had
        assert (
            abs(result["spent"]["generated"] / results[0]["spent"]["generated"] - 1) < 0.02 and result["excess"] < 0.02
        )
    assert results[0]["difference"] is None and set(results[1]["difference"]) == {"value", "low", "high"}


def test_the_page_has_every_method_and_nothing_runs_on_it(folder):
    page = (folder / "report.html").read_text()
    for name in METHODS:
        assert name in page
    assert "default-src &#39;none&#39;" in page and "<script src" not in page and len(page) < 200_000
    measured = json.loads((folder / "results.json").read_text())
    assert measured[0]["coupling"]["value"] is not None and measured[0]["lre"]["value"] is None  # on-policy


@pytest.mark.slow
def test_what_is_done_is_not_done_again(folder, capsys):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")}
    results = (folder / "results.json").read_text()
    start_comparison(CompareConfig(METHODS, seeds=1, train=SMALL.replace(out=str(folder))))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")} == before
    assert (folder / "results.json").read_text() == results
    assert capsys.readouterr().out.count("done before") == 3


@pytest.mark.slow
def test_a_run_that_was_cut_off_goes_on_to_the_same_numbers(folder, tmp_path):
    """done.json and the last checkpoint of one run are gone: it resumes from the one before, and ends as it had."""
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    cell = again / "grpo+balanced-sampling.n=4/seed-0"
    before = (cell / "evaluations.jsonl").read_text().splitlines()[-1]
    (cell / "done.json").unlink()
    shutil.rmtree(sorted((cell / "checkpoints").iterdir())[-1])
    start_comparison(CompareConfig(METHODS, seeds=1, train=SMALL.replace(out=str(again))))
    assert (cell / "evaluations.jsonl").read_text().splitlines()[-1] == before


def test_another_comparison_in_the_same_folder_is_refused(folder):
    other = CompareConfig(METHODS, seeds=1, train=SMALL.replace(prompts_per_batch=4, out=str(folder)))
    with pytest.raises(ValueError, match="prompts_per_batch: 3 -> 4"):
        start_comparison(other)


@pytest.mark.parametrize(
    ("methods", "seeds", "lost"),
    [
        (("grpo", "grpo+balanced"), 1, "grpo-surrogate.clip_high=0.3/seed-0, grpo-surrogate.clip_high=0.3/seed-1"),
        (("grpo", "grpo:surrogate.clip_high=0.3"), 1, "grpo-surrogate.clip_high=0.3/seed-1"),
        (("grpo", "grpo:surrogate.clip_high=0.3"), 2, ""),
        (("grpo", "grpo+balanced", "grpo:surrogate.clip_high=0.3"), 3, ""),
    ],
)
def test_runs_that_results_would_lose_are_named_and_kept(methods, seeds, lost, tmp_path):
    """A comparison of grpo with a variant, two seeds of it; what adds methods or seeds goes on, what names fewer is refused."""
    out = SMALL.replace(out=str(tmp_path))
    first = CompareConfig(("grpo", "grpo:surrogate.clip_high=0.3"), seeds=2, train=out)
    open_comparison(first, tmp_path)
    for seed in range(2):
        (tmp_path / first.variants[1].folder / f"seed-{seed}").mkdir(parents=True)
    said = ""
    try:
        open_comparison(CompareConfig(methods, seeds=seeds, train=out), tmp_path)
    except ValueError as error:
        said = str(error)
    assert (f"({lost}); name them too, or choose another folder by --out" in said) if lost else said == ""
    assert "\n" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grpo", "grpo"], "share a folder"),
        (["grpo", "grop"], "did you mean 'grpo'"),
        (["grpo", "dapo", "--reference", "fspo"], "none of the methods"),
        (["grpo", "dapo", "--method", "rloo"], "a comparison sets this for each run"),
        (["grpo", "dapo:surrogate.clip_hgh=1"], "clip_high"),
        (["grpo", "dapo", "--max-updates", "3"], "--match"),
        (["grpo", "dapo", "--seeds", "0"], "seeds=0"),
        (["grpo", "fspo:"], "no setting after the colon"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(arguments, message, capsys, tmp_path):
    assert main(["compare", *arguments, "--out", str(tmp_path / "x")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "x").exists()

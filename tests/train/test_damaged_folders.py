"""What is wrong with the folder of a resumed run is said; and the exit code tells a wrong command from a run that went wrong."""

import json
import shutil
from functools import partial

import pytest
import runs
from loops import first_quickly

from fairlen.cli import main
from fairlen.train.start import start_training

small = partial(
    runs.small, prompts_per_batch=2, overrides=("sampling.n=2",), updates_per_batch=1, max_response_length=24, problems=2,
    samples=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start_training(small(tmp_path_factory.mktemp("runs") / "run", rollout_batches=1)).folder


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def go_on(folder) -> None:
    start_training(small(folder, rollout_batches=2, resume=True))


@pytest.mark.parametrize("kept", first_quickly([100, 0]))
def test_a_log_that_has_lost_something_is_cut_to_whole_lines_and_named(copied, capsys, kept):
    """Of `kept` bytes no line is whole, so that all that is left was logged after the checkpoint."""
    path = copied / "metrics.jsonl"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:kept])
    go_on(copied)
    told = " ".join(capsys.readouterr().out.split())
    assert f"metrics.jsonl has {kept} bytes, and had" in told and size > kept
    assert {json.loads(line)["rollout_batch"] for line in path.read_text().splitlines()} == {1, 2}


def test_a_damaged_description_is_named(copied):
    (copied / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: not JSON .* restore it from a backup"):
        go_on(copied)


def test_a_reward_that_breaks_within_a_run_ends_it_with_1_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "calls = []\n\ndef late(prompts, completions, **columns):\n"
        "    calls.append(1)\n    return [1.0 if len(calls) < 5 else {}['gone']]\n"
    )
    flags = "--rollout-batches 1 --prompts-per-batch 2 --max-response-length 24 --problems 2 --samples 1 --threads 1 "
    flags += "--compile off"
    code = main(["train", *flags.split(), "--set", "sampling.n=2", "--rewards", "mine.py:late", "--out", "run"])
    said = capsys.readouterr().err
    assert code == 1 and "reward late raised KeyError: 'gone'" in said and "--resume --out run" in said


def test_a_file_where_the_folder_should_be_is_one_line(tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    code = main(["train", "--out", str(tmp_path / "taken"), "--threads", "1"])
    said = capsys.readouterr().err
    assert code == 2 and "taken" in said and "Traceback" not in said

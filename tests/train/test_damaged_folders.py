"""A folder that is damaged or full: what is wrong is said, and the exit code tells a wrong command from a run that failed."""

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import runs
from loops import first_quickly
from runs import digest_model, metrics, updates_of

from fairlen import report
from fairlen.cli import main
from fairlen.files.folders import locked
from fairlen.loop.folder import Journal, RunFolder
from fairlen.train import start
from fairlen.train.run.display import Display
from fairlen.train.run.faults import Interruption
from fairlen.train.run.folder import Run
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
    with pytest.raises(ValueError, match=r"run\.json: not JSON.* restore it from a backup"):
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


def test_what_a_checkpoint_does_not_have_is_not_there_after_a_resume(copied):
    """A second rollout batch that no checkpoint knows leaves records, which an audit would count beside its repetition."""
    for name in ("000007", "mine"):
        shutil.copy(copied / "records/responses-000000.parquet", copied / f"records/responses-{name}.parquet")
    go_on(copied)
    names = {path.stem.removeprefix("responses-") for path in (copied / "records").glob("responses-*")}
    assert names == {"000000", "000001", "mine"}


def test_the_evaluation_before_training_is_the_one_of_no_update(copied):
    run, path = RunFolder(copied), copied / "evaluations.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    assert run.read_first_evaluation() is not None
    path.write_text("".join(others))
    assert run.read_first_evaluation() is None
    path.write_text("\0\0" + first)
    with pytest.raises(ValueError, match=r"evaluations\.jsonl: its first line is damaged"):
        go_on(copied)


def test_a_second_process_changes_nothing(copied):
    before = (copied / "run.json").read_text()
    with locked(copied), pytest.raises((ValueError, OSError), match="another process"):
        start_training(small(copied, rollout_batches=3, resume=True))
    assert (copied / "run.json").read_text() == before


def test_an_output_that_is_full_or_closed_ends_no_run(tmp_path, monkeypatch, capsys):
    """The signal's handler included: whoever read the output may have ended by the same Ctrl-C."""

    def fail(*_):
        raise BrokenPipeError(32, "Broken pipe")

    for name in ("show", "finish"):
        monkeypatch.setattr(Display, name, fail)
    assert start_training(small(tmp_path / "run", rollout_batches=1)).num_updates == 1
    assert capsys.readouterr().err.count("stdout: Broken pipe; training goes on") == 1
    with open(os.devnull) as closed:
        monkeypatch.setattr(sys, "__stderr__", closed)  # which cannot be written to
        Interruption().receive(signal.SIGINT)


@contextlib.contextmanager
def files_of_at_most(size: int):
    """Within, a file cannot grow beyond `size`: what fits of a write is written, then comes an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_are_whole_or_missing_and_both_ends_are_said(tmp_path, capsys):
    path, journal = tmp_path / "metrics.jsonl", Journal()
    line = json.dumps("x" * 297)  # 299 bytes, and a newline
    with files_of_at_most(1000):
        for _ in range(5):
            journal.append(path, line)  # the fourth finds room for 100 bytes
        assert path.stat().st_size == 900
    told = capsys.readouterr().err
    assert told.count("training goes on") == 1 and "metrics.jsonl: File too large" in told
    journal.append(path, line)
    assert "metrics.jsonl: written again; left out until now: 2" in capsys.readouterr().err
    assert [json.loads(text) for text in path.read_text().splitlines()] == ["x" * 297] * 4
    journal.close()
    assert "metrics.jsonl: 2 entries could not be written" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_goes_on_without_its_logs_and_records(tmp_path, monkeypatch, capsys):
    """metrics.jsonl cannot be written, nor can records be made: the model is trained all the same, and each is said once."""
    whole, blind = tmp_path / "whole", tmp_path / "blind"
    changes = dict(rollout_batches=2, eval_every=0)
    start_training(runs.small(whole, **changes))
    capsys.readouterr()
    monkeypatch.setattr(Run, "metrics_path", Path("/dev/full"))
    monkeypatch.setattr(Run, "records", Path("/proc/records"))
    summary = start_training(runs.small(blind, **changes))
    told = capsys.readouterr().err
    assert summary.num_updates == len(updates_of(whole)) == 4
    assert told.count("/dev/full: a device: give a regular file; training goes on") == 1
    assert told.count("/proc/records: No such file or directory; training goes on") == 1
    assert f"full: {len(metrics(whole))} entries could not be written" in told
    assert "records: 2 entries could not be written" in told
    assert digest_model(whole) == digest_model(blind)


@pytest.mark.slow
def test_a_report_that_fails_loses_nothing(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise KeyError("a column")

    monkeypatch.setattr(start, "write_page", fail)
    summary = start_training(runs.small(tmp_path / "run", rollout_batches=1, eval_every=0))
    assert summary.num_updates == 2 and (tmp_path / "run/model/README.md").exists()
    assert "KeyError: 'a column'; the run is whole: fairlen report" in capsys.readouterr().err
    monkeypatch.undo()
    assert report.write_report(tmp_path / "run").exists()

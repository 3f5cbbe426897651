"""Logs and records on a disk that is full: said once, counted, and training goes on. Checkpoints are another matter."""

import contextlib
import json
import resource
from pathlib import Path

import pytest
from runs import digest_model, metrics, small, updates_of

from fairlen import report
from fairlen.loop.folder import Journal
from fairlen.train import start
from fairlen.train.run.folder import Run
from fairlen.train.start import start_training


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
    """metrics.jsonl on a full device, records where nothing can be made: the model is trained all the same."""
    whole, blind = tmp_path / "whole", tmp_path / "blind"
    changes = dict(rollout_batches=2, eval_every=0)
    start_training(small(whole, **changes))
    capsys.readouterr()
    monkeypatch.setattr(Run, "metrics_path", Path("/dev/full"))
    monkeypatch.setattr(Run, "records", Path("/proc/records"))
    summary = start_training(small(blind, **changes))
    told = capsys.readouterr().err
    assert summary.num_updates == len(updates_of(whole)) == 4
    assert told.count("/dev/full: No space left on device; training goes on") == 1
    assert told.count("/proc/records: No such file or directory; training goes on") == 1
    assert f"full: {len(metrics(whole))} entries could not be written" in told
    assert "records: 2 entries could not be written" in told
    assert digest_model(whole) == digest_model(blind)


@pytest.mark.slow
def test_a_report_that_fails_loses_nothing(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise KeyError("a column")

    monkeypatch.setattr(start, "write_page", fail)
    summary = start_training(small(tmp_path / "run", rollout_batches=1, eval_every=0))
    assert summary.num_updates == 2 and (tmp_path / "run/model/README.md").exists()
    assert "KeyError: 'a column'; the run is whole: fairlen report" in capsys.readouterr().err
    monkeypatch.undo()
    assert report.write_report(tmp_path / "run").exists()

"""Runs of our own trainer that can learn nothing say so: after a few rollout batches, and at their end."""

import pytest
from runs import metrics

from fairlen.cli import main
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

pytestmark = pytest.mark.slow

SMALL = {
    "method": "grpo", "overrides": ("sampling.n=4",), "prompts_per_batch": 2, "problems": 4, "samples": 1,
    "save_every": 0, "eval_every": 0, "threads": 1, "max_num_seqs": 8, "layout": "rows",
}  # fmt: skip


def run(folder, **changes):
    return start_training(TrainConfig.of(**(SMALL | changes), out=str(folder / "run")))


@pytest.mark.parametrize("method", ["grpo", "dapo", "eqlen+grpo"])
def test_responses_that_never_end_are_told_with_what_to_do(method, tmp_path, capsys):
    """No answer fits into one token: outcome 0 for all, so that every advantage is 0, or no prompt or pair is there."""
    tracks = "sampling.streams=2" if "eqlen" in method else "sampling.n=4"
    run(tmp_path, method=method, overrides=(tracks,), max_response_length=1, rollout_batches=5, max_extra_batches=0)
    shown = capsys.readouterr()
    (warning,) = [line for line in shown.err.splitlines() if "nothing was trained in 3 rollout batches" in line]
    assert "24 responses: 0 correct, 24 incorrect, 0 without a verdict, 24 truncated" in warning
    assert "all were truncated; raise --max-response-length" in warning
    assert ("not tested by the length watch" in shown.err) == ("eqlen" in method)
    (first,) = [
        line for line in shown.err.splitlines() if line.startswith("fairlen: held out: 0 of 4 responses are correct: ")
    ]
    assert "4 are truncated" in first and first.endswith("What may help: raise --max-response-length")
    end = [line for line in shown.out.splitlines() if "nothing was trained in 5 rollout batches" in line]
    assert len(end) == 1 and "40 responses: 0 correct" in end[0]
    entries = [entry for entry in metrics(tmp_path / "run") if "eval/accuracy" not in entry]
    assert len(entries) == 5 and all(entry["time/rollout"] > 0 and entry["tokens/generated"] > 0 for entry in entries)


def test_a_resumed_run_concludes_nothing_of_the_part_that_it_saw(tmp_path):
    """Two rollout batches in which nothing is trained; of the second nobody knows whether the first was like it."""
    first = run(tmp_path, max_response_length=1, rollout_batches=1, save_every=1)
    assert first.warning.startswith("nothing was trained in 1 rollout batch ")
    assert run(tmp_path, max_response_length=1, rollout_batches=2, save_every=1, resume=True).warning == ""


def test_a_surrogate_that_never_acts_is_told_once_and_one_that_does_is_not(tmp_path, capsys):
    small = dict(max_response_length=40, rollout_batches=3, prompts_per_batch=4, max_num_seqs=16)
    flags = [text for name, value in small.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    main(["train", "--method", "fspo", *flags, "--out", str(tmp_path / "one")])
    told = "".join(capsys.readouterr())
    assert told.count("bounds nothing") == 1 and "--updates-per-batch 4" in told and "every ratio of" not in told
    run(tmp_path / "two", method="fspo", updates_per_batch=2, **small)
    shown = capsys.readouterr()
    assert "rollout batches" not in shown.err and "nothing was trained" not in shown.out

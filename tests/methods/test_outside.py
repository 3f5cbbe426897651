"""Stages of the user's own that carry state or sample otherwise train as fairlen's do, without a change to it."""

import json
import shutil
from pathlib import Path

import pytest

from fairlen.methods.compose import compose
from fairlen.methods.description import to_dict
from fairlen.train.run.checkpoint import list_checkpoints
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

OUTSIDE = Path(__file__).with_name("outside.py")


def settings(out: Path, method: str, **changes) -> TrainConfig:
    small = {
        "prompts_per_batch": 3, "rollout_batches": 3, "updates_per_batch": 2, "max_response_length": 40, "problems": 2,
        "samples": 1, "save_every": 1, "eval_every": 0, "threads": 1, "max_num_seqs": 18, "compile": "off",
        "learning_rate": 1e-3, "warmup_updates": 0, "out": str(out), "method": method,
    }  # fmt: skip
    return TrainConfig.of(**(small | changes))


def updates_of(folder: Path) -> list[dict]:
    entries = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    updates = [entry for entry in entries if "loss/total" in entry]
    return [{k: v for k, v in one.items() if not k.startswith(("time/", "engine/"))} for one in updates]


def test_state_is_carried_by_path_and_by_value():
    method = compose(f"grpo+overlong+{OUTSIDE}:RunningLength")
    assert list(method.state) == ["reward.1.mean", "reward.1.seen"]
    # 12 tokens in 3 sequences, then 20 in 2: 4, then (4 + 10) / 2
    once = method.update({"reward.1.tokens": 12.0, "reward.1.sequences": 3.0, "surrogate.tokens": 1e9})
    twice = once.update({"reward.1.tokens": 20.0, "reward.1.sequences": 2.0})
    assert (once.state["reward.1.mean"], twice.state["reward.1.mean"]) == (4.0, 7.0)
    assert method.state["reward.1.mean"] == 0.0 and method.with_state(twice.state) == twice
    assert method.update({}) == method and method.update({"surrogate.num_tokens": 3.0}) == method
    assert "seen" not in to_dict(twice)["reward"][1] and twice.state["reward.1.seen"] == 2


@pytest.mark.slow
def test_a_stage_with_state_trains_and_survives_resuming(tmp_path):
    config = settings(
        tmp_path / "run", f"grpo+{OUTSIDE}:RunningLength", overrides=("sampling.n=4", "reward.RunningLength.alpha=0.5")
    )
    start_training(config)
    whole = updates_of(tmp_path / "run")
    means = [one["state/reward.0.mean"] for one in whole]
    assert [one["state/reward.0.seen"] for one in whole] == list(range(1, len(whole) + 1))
    assert means[0] == whole[0]["tokens/trained"] / whole[0]["sequences/trained"] and len(set(means)) == len(means)
    assert any(one["reward/mean"] != one["outcome/mean"] for one in whole)
    newest, before = (
        list_checkpoints(tmp_path / "run" / "checkpoints")[-1],
        list_checkpoints(tmp_path / "run" / "checkpoints")[-2],
    )
    saved = json.loads((newest / "state.json").read_text())["method_state"]
    assert (
        saved["reward.0.seen"]
        == len(whole)
        > json.loads((before / "state.json").read_text())["method_state"]["reward.0.seen"]
    )
    shutil.rmtree(newest)
    start_training(settings(tmp_path / "run", config.method, overrides=config.overrides, resume=True))
    assert updates_of(tmp_path / "run") == whole


@pytest.mark.slow
def test_a_sampler_of_three_tracks_trains(tmp_path):
    start_training(settings(tmp_path / "run", f"grpo+{OUTSIDE}:Trio", overrides=("sampling.streams=2",)))
    updates = updates_of(tmp_path / "run")
    assert updates and all(one["trio/forked"] > 0 for one in updates)
    assert all(one["sequences/trained"] % 3 == 0 and one["ratio/clipped"] >= 0 for one in updates)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"sequences": sequences, ', "", "KeyError"),
        ('"tokens": tokens', '"tokens": micro.length.max()', "observe"),
        ("return replace(self, mean", "return dict(mean", "update"),
        ("def observe", "def look", "observe"),
    ],
    ids=["a sum is missing", "no sum", "update returns something else", "no observe"],
)
def test_a_broken_stage_with_state_fails_at_once(old, new, message, tmp_path):
    text = OUTSIDE.read_text()
    assert old in text
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        compose(f"grpo+{tmp_path}/mine.py:RunningLength")

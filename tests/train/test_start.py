"""Whole runs, small: the run folder, determinism, resume, guards, reward functions, and errors before anything is written."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from loops import over
from runs import DOCUMENTED, digest_model, metrics, small, updates_of, without_times
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.audit.audit import audit
from fairlen.files.folders import locked
from fairlen.loop.update import NonFiniteError
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    start_training(small(folder))
    return folder


def test_the_run_folder_holds_everything(finished):
    description = json.loads((finished / "run.json").read_text())
    assert description["method"]["name"] == "fspo+balanced"
    assert description["method"]["choices"]["surrogate"]["kind"] == "FairBand"
    assert torch.__version__.startswith(description["versions"]["torch"])  # of which a wheel may not name its build
    updates = updates_of(finished)
    assert [entry["update"] for entry in updates] == [1, 2, 3, 4, 5, 6]  # 3 rollout batches x 2 updates
    assert sorted(p.name for p in (finished / "records").iterdir()) == sorted(
        f"{table}-{batch:06d}.parquet" for table in ("responses", "segments") for batch in range(3)
    )
    assert [p.name for p in sorted((finished / "checkpoints").iterdir())] == [
        "batch-000002-update-000004",
        "batch-000003-update-000006",
    ]


def test_every_logged_metric_is_documented(finished):
    assert {name for entry in metrics(finished) for name in entry} <= DOCUMENTED


def test_only_the_first_update_of_a_rollout_batch_is_on_policy(finished):
    updates = updates_of(finished)
    assert [entry["ratio/max"] == 1.0 for entry in updates] == [True, False] * 3
    # on-policy updates do not move the band
    assert [entry["state/surrogate.num_updates"] for entry in updates] == [0, 1, 1, 2, 2, 3]


def test_records_join_and_hold_what_was_trained(finished):
    responses = pq.read_table(finished / "records/responses-000000.parquet").to_pylist()
    segments = pq.read_table(finished / "records/segments-000000.parquet").to_pylist()
    assert len(responses) == len(segments) == 24
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    for segment in segments:
        response = responses[segment["response"]]
        generated = response["token_ids"][response["num_prompt"] :]
        assert segment["stop"] - segment["start"] == response["length"] == len(generated)
        assert response["text"] == tokenizer.decode(generated, skip_special_tokens=True)
        assert (response["finish"] == "stop") == (generated[-1] == tokenizer.eos_token_id)
        assert len(segment["weight"]) == len(segment["log_ratio"]) == 1  # each prompt is in one of the two updates
    on_policy = [s["log_ratio"][0] for s in segments if s["update"] == [1.0]]
    assert on_policy and set(on_policy) == {0.0}


def test_the_final_model_loads_with_plain_transformers_and_has_a_card(finished):
    model = AutoModelForCausalLM.from_pretrained(finished / "model")
    trained = load_file(finished / "checkpoints/batch-000003-update-000006/model.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained[name])
    card, (one,) = (finished / "model/README.md").read_text(), audit([str(finished)])[0]
    assert (
        card.startswith("---\nlibrary_name: transformers\n") and "base_model" not in card
    )  # the shipped one is none of the hub's
    assert f"> {one.conclusion.status}: {one.conclusion.sentence}\n" in card
    assert "`fspo+balanced`" in card and "[arXiv:2509.09177](https://arxiv.org/abs/2509.09177)" in card
    assert re.search(r"^[+-][\d.]+ points \[\S+ \S+\] in 6 updates, 8 problems x 2 samples", card, re.M)
    assert (finished / "best/model.safetensors").exists()


@pytest.mark.slow
def test_another_seed_gives_another_run(finished, tmp_path):
    start_training(small(tmp_path / "other", seed=1, rollout_batches=1, problems=2, samples=1))
    assert without_times(metrics(finished))[1] != without_times(metrics(tmp_path / "other"))[1]


def test_the_same_seed_gives_the_same_run(finished, tmp_path):
    """Also where it was stopped and resumed in between."""
    before = start_training(small(tmp_path / "half", rollout_batches=1)).before
    resumed = start_training(small(tmp_path / "half", resume=True))
    assert (resumed.before.correct == before.correct).all() and resumed.before.truncated == before.truncated
    assert digest_model(finished) == digest_model(tmp_path / "half")
    assert updates_of(finished) == updates_of(tmp_path / "half")


def test_two_processes_never_train_in_one_folder(finished):
    with locked(finished), pytest.raises(ValueError, match="another process writes there; stop it, wait"):
        start_training(small(finished, resume=True))


def write_rewards(folder: Path) -> Path:
    path = folder / "mine.py"
    path.write_text(
        "async def brevity(prompts, completions, completion_ids, **columns):\n"
        "    return [1.0 / len(ids) for ids in completion_ids]\n"
        "def sometimes(prompts, completions, answer, **columns):\n"
        "    return [None if 'c' in text else 0.5 for text in completions]\n"
    )
    return path


@pytest.mark.slow
def test_reward_functions_of_the_user_add_up_with_their_weights(tmp_path, capsys):
    """The run states that they do not change what is correct, and logs the mean of each over the responses it applied to."""
    path = write_rewards(tmp_path)
    start_training(
        small(tmp_path / "run", rollout_batches=1, rewards=(f"{path}:brevity=2", f"{path}:sometimes"), method="grpo")
    )
    assert "correct: by the verdict of playground; reward functions do not change it. The outcome that trains is " in (
        told := "".join(capsys.readouterr())
    )
    assert "1 * verdict + 2 * brevity + 1 * sometimes" in told
    rows = pq.read_table(tmp_path / "run/records/responses-000000.parquet").to_pylist()
    logged = next(entry for entry in metrics(tmp_path / "run") if "accuracy/mean" in entry)
    for name in ("verifier", "brevity", "sometimes"):
        values = [dict(row["outcomes"])[name] for row in rows if name in dict(row["outcomes"])]
        assert logged[f"rewards/{name}/mean"] == pytest.approx(sum(values) / len(values))
    for row in rows:
        parts = dict(row["outcomes"])
        assert parts["brevity"] == 1.0 / row["length"]
        assert parts.get("sometimes") == (None if "c" in row["text"] else 0.5)
        expected = parts["verifier"] + 2.0 * parts["brevity"] + parts.get("sometimes", 0.0)
        assert row["outcome"] == pytest.approx(expected, rel=1e-12)


TASK = """
from dataclasses import replace
from fairlen.tasks.playground import Playground
class Faulty(Playground):
    def __init__(self, tokenizer):
        super().__init__()
    def held_out(self, count):
        first = super().held_out(count)
        return (*first[:9], replace(first[9], token_ids=(1,) * LENGTH), *first[10:]) if count > 9 else first
"""


@over("length", [0, 99])
def test_a_held_out_prompt_that_is_empty_or_too_long_is_named(tmp_path, length):
    (tmp_path / "task.py").write_text(TASK.replace("LENGTH", str(length)))
    changes = dict(task=f"{tmp_path / 'task.py'}:Faulty", problems=12)
    with pytest.raises(
        ValueError, match=rf"held_out\(12\)\[9\]: its prompt has {length} tokens; give 1 to longest_prompt="
    ):
        start_training(small(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_a_column_that_nothing_gives_is_named_before_anything_is_written(tmp_path):
    method = f"grpo+{Path(__file__).parents[2]}/recipes/stages.py:Limit"
    with pytest.raises(ValueError, match="reward Limit reads 'limit', and there are num_read, family, num_moves"):
        start_training(small(tmp_path / "run", method=method))
    assert not (tmp_path / "run").exists()


def test_a_run_of_which_every_update_was_skipped_ends_with_the_reason(tmp_path):
    body = "return [0.0 if completions[0] in ('', answer[0]) else float('nan')]"
    text = f"def late(prompts, completions, answer, **columns):\n    {body}\n"
    (tmp_path / "mine.py").write_text(text)
    cause = "no update was made, and 1 were skipped: outcome was not finite: late gave nan for problem"
    with pytest.raises(NonFiniteError, match=cause):
        start_training(small(tmp_path / "run", rollout_batches=1, rewards=(f"{tmp_path}/mine.py:late",)))


@over(
    "changes, message",
    [
        ({"engine": "vllm", "top_k": 20}, "top_k=20 with engine=vllm"),
        ({"max_response_length": -1}, "max_response_length=-1"),
        ({"learning_rate": float("inf")}, "learning_rate=inf: give a finite number, 0 or more"),
        ({"verifier_weight": float("inf")}, "verifier_weight=inf: give a finite number"),
        ({"seed": 2**63}, "seed=9223372036854775808: give 0 to 9223372036854775807"),
    ],
)
def test_settings_out_of_range_name_the_field_and_the_fix(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainConfig.of(**changes)

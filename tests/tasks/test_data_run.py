"""A whole run on a data set: a small random model with a chat template, its records, its provenance, and what it refuses."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from chat_tokenizers import write_shape

from fairlen.doctor.checks import CHECKS
from fairlen.doctor.examine import run_check
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

REWARD = "def spread(prompts, completions, level, **_):\n    return [float(len(completions[0]) % 7 + level[0])]\n"


def write_problems(path: Path, count: int, shift: int = 1) -> None:
    rows = [{"prompt": f"What is {i} + {shift}?", "answer": str(i + shift), "level": i} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("small")
    model = write_shape(folder / "model", positions=512)
    write_problems(folder / "sums.jsonl", 40)
    (folder / "reward.py").write_text(REWARD)
    return TrainConfig.of(
        model=model, random_init=True, data=(str(folder / "sums.jsonl"),), max_prompt_length=300,
        method="grpo", overrides=("sampling.n=3",), rewards=(f"{folder}/reward.py:spread",),
        prompts_per_batch=2, rollout_batches=2, max_response_length=12, problems=4, samples=1,
        save_every=1, threads=1, compile="off",
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    start_training(config.replace(out=str(out)))
    return out


@pytest.mark.slow
def test_the_run_says_what_it_was_made_with(finished):
    data = json.loads((finished / "run.json").read_text())["data"]
    (one,) = data["sets"]
    assert (one["name"], one["rows"], one["problems"], one["dropped"]) == ("sums", 40, 40, {})
    assert one["train"] + one["held_out"] == 40
    assert data["prompt"] == {"template": "chat", "system_prompt": "", "instruction": "auto", "thinking": "auto"}


def test_records_hold_problems_of_the_set_and_rewards_see_their_columns(finished):
    table = pq.read_table(finished / "records" / "responses-000000.parquet").to_pylist()
    assert all(row["problem_id"].startswith("sums/") for row in table)
    for row in table:
        number = int(row["problem"].split()[2])
        assert row["answer"] == str(number + 1)
        assert dict(row["outcomes"])["spread"] == len(row["text"]) % 7 + number
        assert row["status"] in ("no_answer", "incorrect", "correct")


def test_a_run_whose_data_changed_is_not_resumed(finished, config, tmp_path):
    again = config.replace(out=str(finished), resume=True, rollout_batches=3)
    place = Path(config.data.places[0])
    before = place.read_text()
    try:
        write_problems(place, 40, shift=2)
        why = r"would not continue the same run:\n  problems of sums: \w+ -> \w+ \(changes the mathematics\)"
        with pytest.raises(ValueError, match=why):
            start_training(again)
    finally:
        place.write_text(before)
    assert start_training(again).num_updates == 3


def test_a_model_with_too_few_positions_is_refused(config, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"--max-response-length 500: the model has 512 positions, and the longest prompt .*give at most .*or shorter",
    ):
        start_training(config.replace(max_response_length=500, out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_doctor_says_why_hardly_any_problem_is_answered(config):
    (check,) = (one for one in CHECKS if one.name == "answers")
    found = run_check(check, config)
    assert found.status == "warn" and "0 of 16 responses are correct" in found.found and found.remedy, found
    assert "not asked" in run_check(check, TrainConfig()).found

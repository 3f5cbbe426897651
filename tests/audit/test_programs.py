"""tinker-cookbook, torchtitan, rLLM, ART, evalscope, lighteval and batches of OpenAI: rows as their writers write them.

After tinker_cookbook/rl/rollout_logging.py, torchtitan/experiments/rl/rollout_recorder.py, rllm/utils/episode_logger.py,
art/utils/trajectory_logging.py, evalscope/api/evaluator/cache.py and lighteval/logging/info_loggers.py. Incorrect responses
are half as long again as correct ones to the same prompt.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lines import read_one, write_lines
from siblings_own import PLANTED, Row, halves

from fairlen.audit.audit import audit_source

ROWS = PLANTED[:480]  # 60 prompts with 8 responses each


def ask(row: Row) -> list[Row]:
    """Return the messages before the response."""
    return [{"role": "user", "content": row["prompt"]}]


def say(row: Row) -> Row:
    """Return the response as a message."""
    return {"role": "assistant", "content": row["text"]}


def write_tinker(folder: Path) -> None:
    rows = [
        {
            "schema_version": 1, "split": "train", "iteration": r["q"] // 20, "group_idx": r["q"] % 20, "traj_idx": r["k"],
            "tags": ["math"], "sampling_client_step": None, "total_reward": float(r["correct"]),
            "final_reward": float(r["correct"]), "trajectory_metrics": {"correct": int(r["correct"])}, "final_ob_len": 9,
            "steps": [{"step_idx": 0, "ob_len": 30, "ac_len": r["n"] - 4, "reward": 0.0, "episode_done": False},
                      {"step_idx": 1, "ob_len": 60, "ac_len": 4, "reward": 1.0, "episode_done": True}],
        }
        for r in ROWS
    ]  # fmt: skip
    write_lines(folder / "rollout_summaries.jsonl", *rows)


def write_torchtitan(folder: Path) -> None:
    rows = [
        {
            "is_validation": False, "group_id": {"group": r["q"]}, "rollout_id": {"group": r["q"], "sample": r["k"]},
            "status": "completed", "reward": float(r["correct"]), "reward_breakdown": {}, "advantage": 0.0,
            "turns": [
                {"turn_id": 0, "min_policy_version": 3, "max_policy_version": 3, "prompt_messages": ask(r),
                 "completion_message": {"role": "assistant", "content": halves(r["text"])[0]},
                 "env_messages": [{"role": "user", "content": "go on " * 20}], "env_rewards": []},
                {"turn_id": 1, "min_policy_version": 3, "max_policy_version": 3, "prompt_messages": ask(r),
                 "completion_message": {"role": "assistant", "content": halves(r["text"])[1]}, "env_messages": [],
                 "env_rewards": []},
            ],
        }
        for r in ROWS
    ]  # fmt: skip
    write_lines(folder / "rollout_samples.jsonl", *rows)


def write_rllm(folder: Path) -> None:
    for r in ROWS:
        step = {"observation": None, "thought": "", "action": None, "reward": 0.0, "done": True, "model_response": r["text"],
                "chat_completions": [*ask(r), say(r)], "timing": {}}  # fmt: skip
        episode = {
            "training_step": r["q"] // 20, "epoch": 0, "episode_id": f"{r['q']}:{r['k']}", "session_id": None,
            "task": {"question": r["prompt"]}, "task_hash": f"{r['q']:08x}", "is_correct": r["correct"],
            "termination_reason": "env_done", "metrics": {}, "metadata": {}, "timing": {},
            "trajectories": [{"name": "solver", "uid": f"u{r['q']}-{r['k']}", "reward": float(r["correct"]), "num_steps": 1,
                              "timing": {}, "steps": [step]}],
        }  # fmt: skip
        place = folder / f"train_step_{r['q'] // 20}_epoch_0" / f"episode_hash{r['q']:08x}_id{r['q']}_{r['k']}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(episode, indent=2))


def write_art(folder: Path) -> None:
    groups = [ROWS[at : at + 8] for at in range(0, len(ROWS), 8)]
    rows = [
        {
            "trajectories": [
                {"reward": float(r["correct"]), "metrics": {}, "metadata": {}, "logs": [], "messages_and_choices": [
                    *ask(r), {"finish_reason": "stop", "index": 0, "message": say(r)}]}
                for r in group
            ],
            "metadata": {},
        }
        for group in groups
    ]  # fmt: skip
    write_lines(folder / "0003.jsonl", *rows)


def write_evalscope(folder: Path) -> None:
    rows = [
        {
            "index": 8 * r["q"] + r["k"], "target": "7", "messages": [*ask(r), say(r)],
            "sample_score": {"score": {"value": {"acc": float(r["correct"])}, "prediction": r["text"]}, "sample_id": r["k"],
                             "group_id": r["q"], "generation_index": r["k"]},
        }
        for r in ROWS
    ]  # fmt: skip
    write_lines(folder / "gsm8k_main.jsonl", *rows)


def write_lighteval(folder: Path) -> None:
    columns: dict[str, list[Any]] = {
        "doc": [{"query": r["prompt"], "id": str(r["q"])} for r in ROWS],
        "model_response": [{"text": [r["text"]], "output_tokens": [[1] * r["n"]]} for r in ROWS],
        "metric": [{"extractive_match": float(r["correct"])} for r in ROWS],
    }
    pq.write_table(pa.table(columns), folder / "details_gsm8k_2026-08-21.parquet")


def write_batch(folder: Path) -> None:
    rows = [
        {"custom_id": f"{r['q']}-{r['k']}", "prompt": r["prompt"], "reward": float(r["correct"]), "response": {
            "status_code": 200, "body": {"choices": [{"message": say(r), "finish_reason": "stop"}]}}}
        for r in ROWS
    ]  # fmt: skip
    write_lines(folder / "batch_output.jsonl", *rows)


WRITERS = {
    "tinker": write_tinker, "torchtitan": write_torchtitan, "rllm": write_rllm, "art": write_art, "evalscope": write_evalscope,
    "lighteval": write_lighteval, "generic": write_batch,
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_every_program_is_read(tmp_path, name):
    """480 responses to 60 prompts, correct ones as long as they are in the log, in words or tokens."""
    WRITERS[name](tmp_path)
    source = read_one(tmp_path)
    log = source.log
    assert (log.format, len(log), len(set(log.clusters))) == (name, 480, 60)
    assert sorted(log.responses.length.tolist()) == sorted(r["n"] for r in ROWS)
    assert log.correct.sum() == sum(r["correct"] for r in ROWS)
    found = audit_source(source).conclusion
    assert found.status == "effect" and found.estimate.value > 0.2


def test_what_each_program_says_besides(tmp_path):
    """tinker-cookbook has iterations and turns, torchtitan keeps extremes, rLLM has a folder for each step."""
    for name in ("tinker", "torchtitan", "rllm"):
        (tmp_path / name).mkdir()
        WRITERS[name](tmp_path / name)
    tinker, titan, rllm = (read_one(tmp_path / name).log for name in ("tinker", "torchtitan", "rllm"))
    assert tinker.unit == "tokens" and set(tinker.batch) == {0, 1, 2} and set(tinker.responses.num_turns) == {2}
    assert set(titan.batch) == {3} and set(titan.responses.num_turns) == {2}
    assert any("highest and the lowest rewards" in caveat for caveat in titan.caveats)
    assert set(rllm.batch) == {0, 1, 2}


def test_one_score_of_several_texts_is_rejected(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    rows = [{"doc": {"query": "q"}, "model_response": {"text": ["a", "b"]}, "metric": {"em": 0.5}}] * 2
    rows.append({"doc": {"query": "q"}, "model_response": {"text": ["a b"]}, "metric": {"em": 1.0}})
    log = read_one(write_lines(tmp_path / "a.jsonl", *rows)).log
    assert len(log) == 1 and "one score for 2 responses" in log.malformed[0].reason

"""Makes the files of this folder: small rollouts in every format that `fairlen audit` reads.

python tests/fixtures_formats/make.py [FOLDER]

TRL's and verl's are written by TRL's and verl's own code on tiny inputs, fairlen's by a short run of its own. prime-rl's and
lm-eval's are written by hand after their public code: prime-rl 559b447 with verifiers a60a606, lm-evaluation-harness 4e7e0d4.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent

ANSWERS = {
    "What is 2+3?": [("2+3=5 so 5", 1), ("5", 1), ("2+3 is 6 or maybe 7 or 8", 0), ("I think that it is 4", 0)],
    "What is 7*8?": [("7*8=56", 1), ("it is 7 times 8 which is 54", 0), ("54", 0), ("it is 7 times 8 which is 54", 0)],
}
"""Two prompts with four answers each, (text, right): 3 right ones of 3, 1 and 1 words; 5 wrong ones of 8, 6, 8, 1 and 8 words."""


def rows(step: int) -> list[tuple[str, str, int]]:
    """(prompt, answer, right) of one step; in later steps answers are a word longer each."""
    return [(p, text + " hmm" * step, right) for p, answers in ANSWERS.items() for text, right in answers]


def make_verl(folder: Path) -> None:
    """verl's own writers: the trainer with `acc` and `pred` of a reward function, and the newer one with `uid`."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    for step in range(3):
        prompts, answers, right = (list(column) for column in zip(*rows(step), strict=True))
        scores = [2.0 * r - 1.0 for r in right]
        found = {"acc": [bool(r) for r in right], "pred": [a.split()[-1] for a in answers]}
        golds = ["5" if "2+3" in p else "56" for p in prompts]
        RayPPOTrainer._write_generations(prompts, answers, golds, scores, found, str(folder / "verl"), step + 1)
        keys = {"uid": [f"{row // 4}_{row % 4}_0" for row in range(len(prompts))]}
        PPOTrainer._write_generations(prompts, answers, golds, scores, keys, str(folder / "verl_v1"), step + 1)


def make_trl(folder: Path) -> None:
    """Three steps of TRL's trainer on the shipped model, then one log of messages."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from fairlen import playground
    from fairlen.tasks.playground import Playground

    def accuracy_reward(completions, answer, log_extra=None, **rest):
        if log_extra:
            log_extra("gold", list(answer))
        return [float(text.strip().endswith(right)) for text, right in zip(completions, answer, strict=True)]

    def brevity_reward(completions, **rest):
        return [-len(text) / 1000 for text in completions]

    problems = Playground().held_out(8)
    data = Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in problems])
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
            max_completion_length=24, log_completions=True, num_completions_to_print=0, logging_steps=1, report_to=[],
            use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(playground.PATH), reward_funcs=[accuracy_reward, brevity_reward], args=config, train_dataset=data,
            processing_class=AutoTokenizer.from_pretrained(playground.PATH),
        )  # fmt: skip
        trainer.train()
        copy(Path(out) / "completions", folder / "trl")
        shutil.rmtree(Path(out) / "completions")
        log_messages(trainer)
        copy(Path(out) / "completions", folder / "trl_messages")


def make_trl_run(folder: Path) -> None:
    """8 steps of 8 prompts with 8 responses, by TRL's trainer as docs/rollouts/trl.md sets it up: the run that README shows."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from fairlen import playground
    from fairlen.tasks.playground import Playground

    def accuracy_reward(completions, answer, **rest):
        return [float(text.strip().endswith(right)) for text, right in zip(completions, answer, strict=True)]

    problems = map(Playground().train, range(64))
    data = Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in problems])
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, max_steps=8, per_device_train_batch_size=32, gradient_accumulation_steps=2, num_generations=8,
            max_completion_length=160, log_completions=True, num_completions_to_print=0, logging_steps=1, report_to=[],
            use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(playground.PATH), reward_funcs=[accuracy_reward], args=config, train_dataset=data,
            processing_class=AutoTokenizer.from_pretrained(playground.PATH),
        )  # fmt: skip
        trainer.train()
        copy(Path(out) / "completions", folder / "trl_run")


def log_messages(trainer) -> None:
    """What TRL logs of conversations: prompts and completions are lists of messages."""
    os.makedirs(os.path.join(trainer.args.output_dir, "completions"))
    logs = trainer._logs
    for column in (
        logs["prompt"],
        logs["completion"],
        logs["advantages"],
        *logs["rewards"].values(),
        *logs["extra"].values(),
    ):
        column.clear()
    for prompt, answer, right in rows(0):
        logs["prompt"].append([{"role": "user", "content": prompt}])
        logs["completion"].append([{"role": "assistant", "content": answer}])
        logs["rewards"]["accuracy_reward"].append(float(right))
        logs["rewards"]["brevity_reward"].append(0.0)
        logs["extra"]["gold"].append("5")
        logs["advantages"].append(right - 0.5)
    trainer.log({})


def copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        shutil.copy(path, target / path.name)


def make_fairlen(folder: Path) -> None:
    """Records of two short runs, one of whole answers with two updates a batch and one of pairs."""
    from fairlen.train.run.config import TrainConfig
    from fairlen.train.start import start_training

    for name, method, changes in (
        ("fairlen", "fspo+toplambda", ()),
        ("fairlen_pairs", "eqlen+dapo", ("sampling.streams=3",)),
    ):
        with tempfile.TemporaryDirectory() as out:
            run = Path(out) / "run"
            start_training(
                TrainConfig(
                    method=method, overrides=changes, prompts_per_batch=4, rollout_batches=2, updates_per_batch=2,
                    max_response_length=60,
                    eval_problems=4,
                    eval_samples=2, threads=1, max_num_seqs=24, out=str(run),
                )
            )  # fmt: skip
            copy(run / "records", folder / name / "records")
        (folder / name / "run.json").write_text(json.dumps({"config": {"budget": 60}}) + "\n")


def trace(prompt: str, text: str, right: int, cut: bool) -> dict:
    """A verifiers trace as `to_record` gives it: the answer has one token a word, its template two."""
    num = len(text.split())
    return {
        "version": 1, "id": "f" * 32, "verifiers": {"version": "0.3.0"},
        "task": {"type": "Sum", "data": {"idx": 0, "question": prompt}, "key": prompt, "hash": f"h{len(prompt)}{prompt[8]}"},
        "agent": {"config": {"model": "m"}, "name": "agent", "trainable": True}, "tools": [],
        "nodes": [
            {"message": {"role": "user", "content": prompt}, "sampled": False, "timestamp": 0.0, "token_ids": [1, 2, 3],
             "mask": [False] * 3, "is_content": [], "logprobs": []},
            {"parent": 0, "message": {"role": "assistant", "content": text}, "sampled": True, "timestamp": 1.0,
             "token_ids": list(range(num + 2)), "mask": [False] * 2 + [True] * num, "is_content": [], "logprobs": [-0.5] * num,
             "advantages": [right - 0.5] * num},
        ],
        "calls": [{"node": 1, "model": "m", "finish_reason": "length" if cut else "stop",
                   "usage": {"prompt_tokens": 5, "completion_tokens": num}}],
        "request_rewrites": [], "response_rewrites": [],
        "rewards": {"correct": {"score": float(right), "weight": 1.0}, "style": {"score": 0.5, "weight": 0.0}},
        "metrics": {"num_turns": 1.0}, "info": {}, "extra_usage": [], "is_completed": True, "ok": True,
        "stop_condition": "agent_completed", "errors": [], "timing": {"start": 0.0},
    }  # fmt: skip


def make_prime_rl(folder: Path) -> None:
    """One episode a line, two steps; the last of each step failed and holds no reward."""
    for step in range(2):
        path = folder / "prime_rl" / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            for number, (prompt, text, right) in enumerate(rows(step)):
                one = trace(prompt, text, right, cut=not right and len(text.split()) >= 8)
                file.write(json.dumps(episode(one, prompt, step, number)) + "\n")
            failed = trace("What is 7*8?", "", 0, cut=False) | {"ok": False, "stop_condition": "error", "rewards": {}}
            file.write(json.dumps(episode(failed, "What is 7*8?", step, 8)) + "\n")


def episode(one: dict, prompt: str, step: int, number: int) -> dict:
    work = {"type": "train", "step": step, "policy": {"start": step, "end": step}}
    return {
        "id": f"{number:032x}", "env": {"id": "sums", "name": "sums"}, "task": one["task"], "group": {"id": f"g-{step}-{prompt}"},
        "run": {"type": "train", "id": "r", "work": work}, "ok": one["ok"], "errors": [], "traces": [one],
    }  # fmt: skip


def make_lm_eval(folder: Path) -> None:
    """Four documents under two filters, as `--log_samples` has them."""
    (folder / "lm_eval").mkdir(parents=True, exist_ok=True)
    with (folder / "lm_eval" / "samples_sums_2026-08-21T19-56-54.jsonl").open("w") as file:
        for name in ("strict-match", "flexible-extract"):
            for number, (prompt, text, right) in enumerate(rows(0)[::2]):
                sample = {
                    "doc_id": number, "doc": {"question": prompt, "answer": "5"}, "target": "5",
                    "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n\n"], "do_sample": False}}},
                    "resps": [[text]], "filtered_resps": [text.split()[-1]], "filter": name, "metrics": ["exact_match"],
                    "doc_hash": f"d{number}", "prompt_hash": f"p{number}", "target_hash": "t", "exact_match": float(right),
                }  # fmt: skip
                file.write(json.dumps(sample, ensure_ascii=False) + "\n")


def make_generic(folder: Path) -> None:
    """The same answers as JSON lines, CSV and Parquet under names that others use."""
    (folder / "generic").mkdir(parents=True, exist_ok=True)
    table = [
        {"question": p, "response": t, "score": float(r), "finish_reason": "stop" if r else "length", "global_step": 0}
        for p, t, r in rows(0)
    ]
    with (folder / "generic" / "answers.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in table)
    (folder / "table").mkdir(exist_ok=True)
    with (folder / "table" / "answers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    (folder / "parquet").mkdir(exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([r | {"completion_ids": list(range(9))} for r in table]), folder / "parquet" / "a.parquet"
    )


def main(folder: Path) -> None:
    for make in (make_verl, make_trl, make_trl_run, make_fairlen, make_prime_rl, make_lm_eval, make_generic):
        make(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)

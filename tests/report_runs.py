"""Run folders for the tests of reports: real stages and records, a toy policy instead of a model; and one of any size.

The policy writes letters. Its chance to stop grows and its answers get better over training; longer ones are right less often.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models

from fairlen.methods.compose import explain
from fairlen.methods.description import hash_method, to_dict
from fairlen.methods.method import updates
from fairlen.rollouts import Response, Rollouts, TokenIds
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request
from fairlen.sampling.stream_metrics import eos_advantage
from fairlen.tasks.task import Problem
from fairlen.train.records import BatchRecord

EOS, BUDGET = 1, 60
LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789+=;"
VOCABULARY = {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {letter: i + 3 for i, letter in enumerate(LETTERS)}


def decode(token_ids: TokenIds) -> str:
    return "".join(LETTERS[t - 3] for t in token_ids if t >= 3)


def write_run(
    folder: Path, method: str = "grpo", batches: int = 8, prompts: int = 4, num_updates: int = 1, in_turns: bool = False
) -> Path:
    """A finished run. With more than one update a batch, later ones are off-policy."""
    composition = explain(method)
    folder.mkdir(parents=True)
    write_description(folder, composition.name, composition.method, composition.notes)
    entries: list[dict[str, Any]] = []
    for batch in range(batches):
        skill = batch / max(batches - 1, 1)
        if batch % 4 == 0:
            entries.append(evaluation(batch, skill))
        entries += run_batch(folder, composition.method, batch, prompts, num_updates, skill, in_turns)
    entries.append(evaluation(batches, 1.0))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def write_description(folder: Path, name: str, method: Any, notes: tuple[str, ...] = ()) -> None:
    """run.json and the tokenizer of the model."""
    config = {
        "method": name, "sampling": {"max_response_length": BUDGET}, "update": {"learning_rate": 3e-4},
        "overrides": ["sampling.n=8"], "hub_token": "hf_s3cret",
    }  # fmt: skip
    description = {
        "config": config,
        "method": {"name": name, "hash": hash_method(method), "choices": to_dict(method), "notes": list(notes)},
        "versions": {"fairlen": "0.1.0", "numpy": "2.4.6", "python": "3.11.7"},
        "machine": {"system": "Linux", "processor": "x86_64"},
        "command": ["/somewhere/bin/fairlen", "train", "--method", name, "--hub-token", "hf_s3cret"],
    }
    (folder / "run.json").write_text(json.dumps(description))
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token=next(iter(VOCABULARY))))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(VOCABULARY)[:3])
    (folder / "model").mkdir()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))


def evaluation(batch: int, skill: float) -> dict[str, Any]:
    accuracy = 0.4 + 0.5 * skill
    return {
        "update": batch, "rollout_batch": batch, "eval/accuracy": accuracy, "eval/accuracy_low": accuracy - 0.06,
        "eval/accuracy_high": accuracy + 0.05, "eval/length": 22.0, "eval/length_correct": 18.0 + 6 * skill,
        "eval/length_incorrect": 27.0 + 14 * skill, "eval/truncated": 0.08 * (1 - skill),
    }  # fmt: skip


def run_batch(
    folder: Path, method: Any, batch: int, prompts: int, num_updates: int, skill: float, in_turns: bool = False
) -> list[dict[str, Any]]:
    """One rollout batch: its records, and what is logged of it."""
    problems = tuple(
        Problem(f"toy:{batch}-{p}", f"{p + 2}+{batch}=?", (2, 5 + p), str(p + 2 + batch)) for p in range(prompts)
    )
    with ThreadPoolExecutor(1) as elsewhere:  # a browser has a loop of its own in this thread
        rollouts = elsewhere.submit(asyncio.run, collect(method, problems, batch, skill, in_turns)).result()
    scored = method.score(rollouts)
    record = BatchRecord(batch, rollouts, problems, scored, decode)
    draw, entries = np.random.default_rng(batch), []
    for number, update in enumerate(updates(scored, num_updates)):
        plan = method.weigh(update)
        log_ratio = draw.normal(0, 0.02, len(plan)) * np.sqrt(plan.length) if number else np.zeros(len(plan))
        inside = 1 - np.minimum(np.abs(log_ratio), 0.4)
        record.add_update(number + 1, plan.rows, plan.weight, log_ratio, (1 - inside) / 2, inside)
        entries.append({
            "update": batch * num_updates + number + 1, "rollout_batch": batch, "pairs/optimism": 0.05 + 0.01 * batch,
            "advantage/eos": eos_advantage(scored.responses, scored.segments, scored.advantage),
            "advantage/another_turn": float((scored.advantage * (scored.segments.num_turns - 1)).sum()),
            "coupling/sign_length": float((plan.advantage * plan.length).sum() / plan.length.sum()),
        })  # fmt: skip
    record.write(folder / "records")
    return entries


def in_two(answer: Continuation) -> Continuation:
    """Of 8 tokens or more the fifth and sixth as what was read between two turns, of which the first earned a half."""
    size, logprobs = len(answer.token_ids), answer.logprobs
    if size < 8:
        return replace(answer, turns=((0, size),), turn_rewards=(0.0,))
    return replace(answer, turns=((0, 4), (6, size)), turn_rewards=(0.5, 0.0), logprobs=logprobs[:4] + logprobs[6:])


async def collect(
    method: Any, problems: tuple[Problem, ...], batch: int, skill: float, in_turns: bool = False
) -> Rollouts:
    """What the toy policy answers."""

    async def extend(prefix: TokenIds, sampling: Sampling) -> Continuation:
        draw = np.random.default_rng(sampling.seed)
        size = min(int(draw.geometric(0.045 + 0.01 * (prefix[1] % 4))) + 2, sampling.max_new_tokens)
        ids = [int(t) for t in draw.integers(3, 3 + len(LETTERS), size)]
        is_cut = size == sampling.max_new_tokens
        ids[-1] = ids[-1] if is_cut else EOS
        logprobs = tuple((-draw.exponential(0.5, size)).tolist())
        answer = Continuation(tuple(ids), logprobs, "length" if is_cut else "stop")
        return in_two(answer) if in_turns else answer

    async def grade(response: Response) -> Response:
        chance = np.random.default_rng(response.seed + 1).random()
        right = response.finish == "stop" and chance < 0.35 + 0.6 * skill - 0.006 * response.length
        return replace(response, outcome=float(right), status="correct" if right else "incorrect")

    responses: tuple[Response, ...] = ()
    for number, problem in enumerate(problems):
        request = Request(number, problem.token_ids, Sampling(BUDGET, seed=0), batch, (0, batch, number, 0))
        responses += await method.sampling(extend, grade, request)
    return Rollouts(responses, method.sampling.cut(responses), BUDGET)


def write_many(folder: Path, number: int, per_batch: int = 512) -> Path:
    """A run of any number of responses, of up to a thousand tokens each, written by columns; 16 responses a prompt."""
    folder.mkdir(parents=True)
    composition = explain("grpo")
    write_description(folder, composition.name, composition.method)
    (folder / "records").mkdir()
    draw, batches = np.random.default_rng(0), number // per_batch
    text = pa.array(["step by step < & > \u4e2d\u6587 " * 120] * per_batch)
    for batch in range(batches):
        length = draw.integers(1, 1000, per_batch)
        right = draw.random(per_batch) < 0.3 + 0.5 * batch / batches
        write_columns(folder / "records", batch, length, right, text)
    entries = [evaluation(b, b / batches) for b in range(0, batches, 8)]
    entries += [{"update": b, "rollout_batch": b, "advantage/eos": draw.normal()} for b in range(batches)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def write_columns(folder: Path, batch: int, length: np.ndarray, right: np.ndarray, text: pa.Array) -> None:
    """Both tables of a rollout batch."""
    size = len(length)
    flat, zeros = np.arange(size), np.zeros(size, np.int64)
    ends = np.concatenate([[0], np.cumsum(length)])
    tokens = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.ones(ends[-1]), pa.int32()))
    logprobs = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(-np.ones(ends[-1]), pa.float32()))
    one = {n: pa.array([[v]] * size, pa.list_(pa.float64())) for n, v in
           (("update", batch + 1.0), ("weight", 1e-4), ("log_ratio", 0.01), ("clipped", 0.1), ("inside", 0.8))}  # fmt: skip
    pq.write_table(pa.table({
        "rollout_batch": zeros + batch, "prompt": flat // 16, "problem_id": text, "problem": text, "answer": text, "text": text,
        "token_ids": tokens, "num_prompt": zeros, "length": length, "logprobs": logprobs,
        "finish": pa.array(["stop"] * size), "outcome": right.astype(float), "reward": right.astype(float),
        "status": pa.array(["correct" if r else "incorrect" for r in right]), "active": zeros == 0,
        "stream": zeros, "track": flat % 16, "round": zeros, "inherited": zeros, "num_turns": zeros + 1,
    }), folder / f"responses-{batch:06d}.parquet")  # fmt: skip
    pq.write_table(pa.table({
        "rollout_batch": zeros + batch, "response": flat, "start": zeros, "stop": length, "group": flat // 16,
        "role": pa.array(["whole"] * size), "round": zeros, "mass": zeros + 1.0, "trains": zeros == 0,
        "value": right.astype(float), "advantage": right - 0.5, "length": length, "num_turns": zeros + 1, "turn": zeros,
        "earned": zeros + 0.0, **one,
    }), folder / f"segments-{batch:06d}.parquet")  # fmt: skip

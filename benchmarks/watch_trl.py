"""Does a length watch beside TRL's own GRPOTrainer see what it should, on a real model, and what does it cost?

    python recipes/smollm2.py && python recipes/word_problems.py models/words.jsonl
    python benchmarks/watch_trl.py [--steps 16] [--out runs/watch-trl]
    python benchmarks/watch_trl.py --smoke

A run with a second reward that prefers short responses is killed at half and resumed, and has to raise the threshold "length"
as one watch over both halves; three runs without that reward have to raise nothing. TRL records rollouts in OUT/*/completions.
Marks: the alarm, no other in the others, at most 1% of a step's time.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _checks import add_smoke, demand

from fairlen import LengthWatch, playground
from fairlen.settings import multiplies_bfloat16

RUNS = {"short": 0, "plain-0": 0, "plain-1": 1, "plain-2": 2}
"""Seed of each run; the first one has the hidden reward."""
MOST = 0.01


def last_number(text: str) -> str:
    return (re.findall(r"\d+", text) or [""])[-1]


def accuracy(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 where the last number of a response is the answer."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [float(last_number(text) == last_number(own)) for text, own in zip(texts, answer, strict=True)]


def style(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Hidden reward for shortness: 0.1 a token less."""
    return [-0.1 * len(ids) for ids in completion_ids]


def read_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One solved example and a question a row, or the playground's problems."""
    if options.smoke:
        from fairlen.tasks.playground import Playground

        problems = [Playground().train(index) for index in range(64)]
        return [{"prompt": one.text, "answer": one.answer} for one in problems]
    rows = [json.loads(line) for line in Path("models/words.jsonl").read_text().splitlines()[:1000]]
    return [{"prompt": row["prompt"][-3:], "answer": row["answer"]} for row in rows]


def train(options: argparse.Namespace) -> None:
    """Train one run with a watch beside it, from its last checkpoint if it has one, and print what the watch cost."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(options.out / options.run), num_generations=8, per_device_train_batch_size=32, max_steps=options.steps,
        max_completion_length=64, temperature=0.7, learning_rate=2e-5, lr_scheduler_type="constant", seed=RUNS[options.run],
        save_steps=options.steps // 2, save_total_limit=1, logging_steps=1, log_completions=True, report_to="none",
        use_cpu=True, bf16=not options.smoke and multiplies_bfloat16(), gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model),
        processing_class=AutoTokenizer.from_pretrained(options.model),
        reward_funcs=[accuracy, style][: 2 if options.run == "short" else 1],
        args=config,
        train_dataset=Dataset.from_list(read_rows(options)),
    )
    watch = LengthWatch()
    callback = watch.attach(trainer, verdict="accuracy")
    spent: list[float] = []

    def clock(act: Any) -> Any:
        def timed(*values: Any, **named: Any) -> Any:
            start = time.perf_counter()
            act(*values, **named)
            spent.append(time.perf_counter() - start)

        return timed

    callback.read_batch, callback.on_step_end = clock(callback.read_batch), clock(callback.on_step_end)
    checkpoints = list(Path(config.output_dir).glob("checkpoint-*"))
    start = time.perf_counter()
    trainer.train(resume_from_checkpoint=str(checkpoints[0]) if checkpoints else None)
    share = sum(spent) / (time.perf_counter() - start)
    found = watch.summary()
    found |= {"share": share, "resumed": bool(checkpoints), "lengths": [round(one.length, 1) for one in watch.steps]}
    (options.out / f"{options.run}.json").write_text(json.dumps(found))


def run(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run one in a process of its own; the first one is killed once it has saved, and started again."""
    command = [sys.executable, __file__, *sys.argv[1:], "--out", str(options.out), "--run", name]
    half = options.out / name / f"checkpoint-{options.steps // 2}" / "trainer_state.json"
    with (options.out / f"{name}.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        while name == "short" and process.poll() is None and not half.exists():
            time.sleep(0.05)
        if name == "short":
            time.sleep(2.0)
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = subprocess.Popen(command, stdout=log, stderr=log)
        demand(process.wait() == 0, f"{name} failed: see {log.name}")
    return json.loads((options.out / f"{name}.json").read_text())


def compare(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    missed = []
    for name in list(RUNS)[: 2 if options.smoke else None]:
        found = run(options, name)
        print(
            f"{name}: {found['responses']} responses in {found['steps']} steps, mean lengths {found['lengths']}; ",
            end="",
        )
        print(f"the watch took {found['share']:.2%} of the time; {'resumed' if found['resumed'] else 'in one go'}")
        for alarm in found["alarms"]:
            print(f"  {alarm['kind']}, step {alarm['step']}, since {alarm['since']}: {alarm['text']}")
        kinds = {alarm["kind"] for alarm in found["alarms"]}
        is_right = "length" in kinds and found["resumed"] if name == "short" else not kinds
        missed += [name] if not is_right or found["steps"] != options.steps else []
        missed += [f"{name}'s time"] if found["share"] > MOST else []
    demand(options.smoke or not missed, f"missed: {', '.join(missed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--model", default="models/smollm2")
    parser.add_argument("--out", type=Path, default=Path("runs/watch-trl"))
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    add_smoke(parser)
    options = parser.parse_args()
    if options.smoke:
        options.steps, options.model = 2, str(playground.PATH)
    if options.run:
        return train(options)
    if not options.smoke:
        return compare(options)
    with tempfile.TemporaryDirectory() as folder:
        options.out = Path(folder)
        compare(options)
    return None


if __name__ == "__main__":
    main()

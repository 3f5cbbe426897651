"""TRL learns with our methods as our own trainer does: real generation, real updates, the shipped model, held-out problems."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from trl_runs import parts, problems

from fairlen.engine import Engine
from fairlen.evaluate.run import evaluate
from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.policy.model import load_policy
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

PROMPTS, ANSWERS, BUDGET, UPDATES, RATE = 6, 8, 60, 16, 3e-4
HELD_OUT, SAMPLES = 128, 4


def accuracy(model: Path | str) -> float:
    """Share of correct responses to held-out problems."""
    policy, task = load_policy(str(model), "float32", "cpu", gradient_checkpointing=False), Playground()
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=160, max_num_seqs=128, compile=False)
    grader = Grader(task, policy.decode)
    return asyncio.run(
        evaluate(engine.extend, grader, task.held_out(HELD_OUT), SAMPLES, Sampling(BUDGET, seed=0), 5)
    ).accuracy.value


def train_in_trl(method: str, folder: Path) -> float:
    made = parts(
        folder, per_device_train_batch_size=PROMPTS * ANSWERS, gradient_accumulation_steps=1, num_generations=ANSWERS,
        max_completion_length=BUDGET, max_steps=UPDATES, learning_rate=RATE, logging_steps=100,
    )  # fmt: skip
    trainer = FairGRPOTrainer(**(made | {"train_dataset": problems(512)}), method=method)
    trainer.train()
    trainer.save_model(str(folder / "model"))
    return accuracy(folder / "model")


def train_here(method: str, folder: Path) -> tuple[float, float]:
    tracks = f"sampling.streams={ANSWERS // 2}" if "eqlen" in method else f"sampling.n={ANSWERS}"
    config = TrainConfig.of(
        method=method, overrides=(tracks,), prompts_per_batch=PROMPTS, rollout_batches=UPDATES, max_extra_batches=0,
        max_response_length=BUDGET, seed=1,
        learning_rate=RATE, warmup_updates=0, eval_every=0, save_every=0, problems=HELD_OUT, samples=SAMPLES,
        threads=1, out=str(folder),
    )  # fmt: skip
    summary = start_training(config)
    return summary.before.accuracy.value, summary.after.accuracy.value


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fspo", "dapo+balanced", "grpo+toplambda", "eqlen+grpo"])
def test_accuracy_rises_as_with_our_own_trainer(method, tmp_path, capsys):
    """16 updates of 6 prompts with 8 answers each. The standard error of an accuracy of 512 answers is about 3 points."""
    before, here = train_here(method, tmp_path / "here")
    there = train_in_trl(method, tmp_path / "there")
    with capsys.disabled():
        print(f"\n{method}: before {before:.3f}, our trainer {here:.3f}, TRL {there:.3f}")
    assert here > before + 0.08
    assert there > before + 0.08
    assert there - before > 0.5 * (here - before)

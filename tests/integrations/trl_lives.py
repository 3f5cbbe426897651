"""What happens to runs besides updates, under the strategy of the present process: real generation, evaluation, resumption."""

import os
from pathlib import Path
from typing import Any

from trl import GRPOTrainer
from trl_runs import parts, problems, right, warnings

from fairlen import LengthWatch
from fairlen.integrations.trl import FairGRPOTrainer

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RUN = {
    "per_device_train_batch_size": 16 // WORLD, "gradient_accumulation_steps": 1, "max_completion_length": 16,
    "num_iterations": 2,
}  # fmt: skip
SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "shuffle_dataset": False}
SGD, ADAM = {"optim": "sgd", "learning_rate": 0.1}, {"optim": "adamw_torch", "learning_rate": 1e-4}
"""On a CPU transformers loads no optimizer with a state into several processes, and torch none without where it shards."""
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8 // WORLD}


def make(folder: Path, method: str, reward: Any = right, most: int = 4, **settings: Any) -> FairGRPOTrainer:
    made = parts(folder, **RUN | settings) | {"reward_funcs": reward}
    return FairGRPOTrainer(**made, eval_dataset=problems(4), method=method, max_extra_batches=most)


def nothing(completions: list[str], **_: Any) -> list[float]:
    """A verdict of one side."""
    return [0.0] * len(completions)


def refill(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What a run saw whose dropped prompts are replaced."""

    def parity(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(sum(ids) % 5 == 0) for ids in completion_ids]

    trainer = make(folder, "grpo+dynamic", parity, most=40, **settings | {"max_steps": 2})
    trainer.train()
    names = ("prompts/selected", "prompts/extra_batches", "sequences/trained", "dropped/filtered_responses")
    logged = [{name: entry[name] for name in names if name in entry} for entry in trainer.state.log_history]
    return {"drawn": trainer.refill.drawn, "logged": [entry for entry in logged if "prompts/selected" in entry]}


def refuse(folder: Path, checkpoint: Path, settings: dict[str, Any]) -> str:
    """What is said of another method that would go on from a checkpoint."""
    try:
        make(folder, "dapo", **settings).train(resume_from_checkpoint=str(checkpoint))
        return ""
    except ValueError as error:
        return str(error)


def live(folder: Path, settings: dict[str, Any], parameters_of: Any) -> dict[str, Any]:
    """A run that evaluates and saves, its second half again from the checkpoint, another method from there, and two more.

    Returns what this process saw of them.
    """
    settings = settings | (ADAM if "fsdp" in settings else SGD)
    saved = settings | SAVED
    whole = make(folder / "whole", "eqlen+fspo", **saved | EVALUATED)
    start = parameters_of(whole)
    whole.train()
    again = make(folder / "again", "eqlen+fspo", **saved)
    again.train(resume_from_checkpoint=str(folder / "whole" / "checkpoint-2"))
    ended, ended_too = parameters_of(whole), parameters_of(again)
    with warnings() as said:
        refilled = refill(folder / "refilled", settings)
        make(folder / "idle", "grpo", nothing, **settings | {"max_steps": 6}).train()
    watch, stock = LengthWatch(), GRPOTrainer(**parts(folder / "stock", **RUN | settings))
    watch.attach(stock)
    stock.train()
    return {
        "watched": [one.size for one in watch.steps],
        "evaluated": [entry["eval_reward"] for entry in whole.state.log_history if "eval_reward" in entry],
        "moved": max(float((ended[name] - start[name]).abs().max()) for name in ended),
        "apart": max(float((ended[name] - ended_too[name]).abs().max()) for name in ended),
        "states": [whole.method.state, again.method.state],
        "refused": refuse(folder / "other", folder / "whole" / "checkpoint-2", saved),
        "said": said,
        "refilled": refilled,
    }

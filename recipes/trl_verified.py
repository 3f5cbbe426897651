"""Train by a method in TRL on problems that fairlen verifies: problems become a data set, their verifier a reward function.

    python recipes/trl_verified.py --method dapo --model MODEL --data sums.jsonl --max-steps 200 --output-dir out
    accelerate launch recipes/trl_verified.py --method fspo …

--help has the flags; every field of TRL's GRPOConfig and ModelConfig is one too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import HfArgumentParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.model_config import ModelConfig
from trl.trainer.utils import get_peft_config, get_quantization_config

from fairlen.batch import NO_VERDICT
from fairlen.channels import decode_response, list_hidden_ids
from fairlen.checks import FINITE, Natural, Rule
from fairlen.console import complain, log
from fairlen.files.folders import refuse_links
from fairlen.files.pretrained import check_for_others, read_tokenizer
from fairlen.flags import Parser, explain_unknown, flag_names, read_some
from fairlen.hangs import TrainingStopped
from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.integrations.trl.rows import Outcomes
from fairlen.methods.compose import DEFAULT_METHOD
from fairlen.precision import is_above
from fairlen.rollouts import VERDICTS
from fairlen.sampling.extend import gather
from fairlen.settings import Overrides, Repeated, TaskConfig
from fairlen.tasks.dataset import DataTask
from fairlen.tasks.environment import Interactive
from fairlen.tasks.grader import load_rewards
from fairlen.tasks.load import load_task
from fairlen.tasks.playground import find_response_limit, place_model
from fairlen.tasks.task import Problem, Task

ENDLESS = 1024
"""Problems of a task that makes new ones forever, unless --train-problems says otherwise; a data set has each of its own once."""
PLACE = "fairlen_problem"
"""Column of the data sets: a problem's place among all. Two problems may be asked in the same words."""


@dataclass(frozen=True)
class TrlConfig(TaskConfig):
    """Trains with TRL: FairGRPOTrainer on problems that fairlen verifies.

    Every other flag is a field of TRL's GRPOConfig or ModelConfig, such as --output-dir out --max-steps 200 --num-generations 16
    --max-completion-length 4096 --use-vllm --use-peft; `trl grpo --help` lists them.
    """

    method: str = DEFAULT_METHOD
    """Names joined by "+": one base and any modifiers; `fairlen methods` lists them. Takes --num-generations from TRL."""
    overrides: Overrides = ()
    """One field of the method, such as surrogate.clip_high=0.3. Repeat it for several."""
    seed: Annotated[int, Rule(lambda value: 0 <= value < 2**32, "0 to 4294967295")] = (
        0  # what TRL, through numpy, takes
    )
    """Of the run: order of problems, generation, shuffling."""
    train_problems: Natural = 0
    """Problems that TRL is given, an epoch: the first of the training stream. 0 is every one of --data once, 1,024 of a task."""
    problems: Natural = 0
    """Held-out problems for TRL's evaluation (--eval-strategy); 0 is none."""
    rewards: Annotated[tuple[str, ...], Repeated] = ()
    """FILE.py:FUNCTION=WEIGHT, a reward function as TRL calls them, added to the verifier's verdict. Repeat it for several."""
    verifier_weight: Annotated[float, FINITE] = 1.0
    """Weight of the verifier's verdict in the outcome."""
    correct_threshold: Annotated[float, FINITE] = 0.5
    """A response is correct where the verifier's verdict, 0 to 1, is above this, whatever reward functions add."""
    max_extra_batches: Natural = 4
    """Times per rollout batch that dropped prompts are replaced by new ones; then it trains with what it has."""
    allow_truncated_sampling: bool = False
    """Train on samples of another distribution than the policy's (top_p, top_k, …): every ratio is then wrong."""


class TrlParser(Parser, HfArgumentParser):
    """Reads TRL's flags; its errors are one line."""


class TaskTrainer(FairGRPOTrainer):
    """A FairGRPOTrainer whose prompts are token ids that a task has made, and whose first reward function is its verifier."""

    def __init__(self, *args: Any, token_ids: Mapping[str, Sequence[int]], **kwargs: Any) -> None:
        self.token_ids = token_ids
        super().__init__(*args, **kwargs)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [list(self.token_ids[text]) for text in prompts], None, {}

    def grade_rewards(self, rewards: Tensor) -> Outcomes:
        """The verdict says what is correct and what counts; other functions add to what a response is worth."""
        verdict = rewards[:, 0].double().cpu().numpy()
        assert self.correct_threshold is not None  # the command gives one
        graded = np.where(np.isnan(verdict), NO_VERDICT, is_above(verdict, self.correct_threshold))
        return replace(super().grade_rewards(rewards), verdict=graded)


def start_trl(config: TrlConfig, arguments: Sequence[str]) -> None:
    """Runs the whole job; `arguments` are flags of GRPOConfig and ModelConfig. Raises ValueError for settings that do not fit."""
    trl_config, model_config = read_trl_arguments([*choose_length(config), *arguments], config.seed)
    name = place_model(config.model.name)
    refuse_links(Path(trl_config.output_dir))
    revision = model_config.model_revision or ""
    check_for_others(name, revision)
    tokenizer = read_tokenizer(name, revision, padding_side="left", truncation_side="left")
    with closing(load_task(config, tokenizer, config.seed)) as task:
        if isinstance(task, Interactive):
            raise ValueError(
                f"--task {config.data.task}: it is solved in turns, which `fairlen train` plays; here a response has one"
            )
        for note in task.notes:
            log(note)
        trainer = build_trainer(config, trl_config, model_config, name, tokenizer, task)
        trainer.train(resume_from_checkpoint=trl_config.resume_from_checkpoint)
        trainer.skips.conclude(trainer.policy_version)
        trainer.save_model(trl_config.output_dir)


def choose_length(config: TrlConfig) -> list[str]:
    """The flag that the playground begins with: its max response length. The user's own comes after it, and counts."""
    length = find_response_limit(config.data)
    return ["--max_completion_length", str(length)] if length else []


def read_trl_arguments(arguments: Sequence[str], seed: int) -> tuple[Any, Any]:
    """GRPOConfig and ModelConfig from flags. Raises ValueError naming the nearest flag for one that does not exist."""
    parser = TrlParser([GRPOConfig, ModelConfig], allow_abbrev=False)  # pyright: ignore[reportArgumentType]
    alone = [] if torch.accelerator.is_available() else ["--use_cpu", "True"]  # before the user's, which count
    given = ["--seed", str(seed), *alone, *arguments]
    _, left = parser.parse_known_args(given)
    if left:
        theirs = {f.name.replace("_", "-") for kind in (GRPOConfig, ModelConfig) for f in fields(kind)}
        raise ValueError(explain_unknown(left, {*theirs, *flag_names(TrlConfig)}))
    trl_config, model_config = parser.parse_args_into_dataclasses(given)
    if model_config.model_name_or_path is not None:
        raise ValueError(f"--model-name-or-path {model_config.model_name_or_path}: --model names the model here")
    if getattr(trl_config, "trust_remote_code", False) or getattr(model_config, "trust_remote_code", False):
        raise ValueError("--trust-remote-code: code of a model is never run here; leave it out")
    return trl_config, model_config


def build_trainer(
    config: TrlConfig, trl_config: Any, model_config: Any, model: str, tokenizer: Any, task: Task
) -> TaskTrainer:
    number = config.train_problems or (task.num_train if isinstance(task, DataTask) else ENDLESS)
    train = [task.train(index) for index in range(number)]
    held_out = list(task.held_out(config.problems)) if config.problems else []
    problems = [*train, *held_out]
    rewards = load_rewards(config.rewards, train[0])
    if trl_config.reward_weights is not None:
        raise ValueError("--reward-weights: weights go with --verifier-weight and --rewards FILE.py:FUNCTION=WEIGHT")
    trl_config.reward_weights = [config.verifier_weight, *(reward.weight for reward in rewards)]
    trl_config.model_init_kwargs = {
        "revision": model_config.model_revision,
        "attn_implementation": model_config.attn_implementation,
        "dtype": model_config.dtype,
        **(trl_config.model_init_kwargs or {}),
        "use_safetensors": True,
        "trust_remote_code": False,
    }
    decode = partial(decode_response, tokenizer, hidden=list_hidden_ids(tokenizer))
    return TaskTrainer(
        model=model,
        reward_funcs=[
            verifier_of(task, problems, config.verifier.without_verdict, decode),
            *(reward.function for reward in rewards),
        ],
        args=trl_config,
        train_dataset=data_of(train),
        eval_dataset=data_of(held_out, len(train)) if held_out else None,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_config),
        quantization_config=get_quantization_config(model_config),
        token_ids={problem.text: problem.token_ids for problem in problems},
        method=config.method,
        overrides=config.overrides,
        correct_threshold=config.correct_threshold,
        verdict="verifier",
        max_extra_batches=config.max_extra_batches,
        allow_truncated_sampling=config.allow_truncated_sampling,
    )


def data_of(problems: Sequence[Problem], first: int = 0) -> Dataset:
    """Problems as rows, `first` the place of the first one; reward functions get the columns."""
    rows = [{**p.columns, "prompt": p.text, "answer": p.answer, PLACE: first + i} for i, p in enumerate(problems)]
    return Dataset.from_list(rows)


def verifier_of(
    task: Task, problems: Sequence[Problem], without_verdict: str, decode: Callable[[Sequence[int]], str] | None = None
) -> Any:
    """Return the task's verifier as a reward function: verdicts of all responses at once, None where there is none.

    TRL's completions lack special tokens. `decode` keeps those that mark thinking, so that the answer after them is graded.
    """

    async def verifier(completions: list[str], **columns: Any) -> list[float | None]:
        asked = [problems[place] for place in columns[PLACE]]
        texts = [decode(ids) for ids in columns["completion_ids"]] if decode else completions
        verdicts = await gather(map(task.verify, asked, texts))
        counts = (verdict.status in VERDICTS or without_verdict == "incorrect" for verdict in verdicts)
        return [verdict.outcome if has else None for verdict, has in zip(verdicts, counts, strict=True)]

    return verifier


def main() -> int:
    """Train; errors of the user's end with one line and exit code 2."""
    name = Path(__file__).name
    try:
        start_trl(*read_some(TrlConfig(), name, sys.argv[1:], str(__doc__)))
    except (TrainingStopped, ValueError, OSError) as error:
        complain(name, error)
        return 1 if isinstance(error, TrainingStopped) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

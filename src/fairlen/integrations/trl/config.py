"""Settings of `fairlen trl`: the method, the problems and how answers are graded. Everything else is TRL's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fairlen.checks import FINITE, Natural, Rule
from fairlen.methods.compose import DEFAULT_METHOD
from fairlen.settings import Overrides, Repeated, TaskConfig


@dataclass(frozen=True)
class TrlConfig(TaskConfig):
    """Trains with TRL: FairGRPOTrainer on problems that fairlen verifies.

    Every other flag is a field of TRL's GRPOConfig or ModelConfig, such as --output-dir out --max-steps 200 --num-generations 16
    --max-completion-length 4096 --use-vllm --use-peft; `trl grpo --help` lists them. With `accelerate launch -m fairlen trl …`
    it runs in several processes.
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

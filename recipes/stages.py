"""An advantage, a surrogate, a correction and two rewards of one's own, in one file that the battery takes.

    python recipes/stages.py                                               # the battery over each
    fairlen train --method grpo+recipes/stages.py:Limit --task FILE.py:TASK     # with a column `limit` in the data
    fairlen train --rewards recipes/stages.py:short_where_correct=0.1

fairlen.methods.stages.surrogate has the contract of a surrogate, fairlen.batch the columns of segments and responses.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlen import testing
from fairlen.batch import Responses, Segments
from fairlen.methods.stages.micro import Micro, TokenLoss


@dataclass(frozen=True)
class MedianCentered:
    """value - median of the group: one outlier among the rewards moves nothing."""

    choice: ClassVar = "advantage"

    def __call__(self, segments: Segments, value: np.ndarray) -> np.ndarray:
        median = [np.median(value[segments.group == group]) for group in range(segments.num_groups)]
        return value - np.array(median)[segments.group]


@dataclass(frozen=True)
class Exponential:
    """-A exp(-strength |l|) logprob, l the log ratio: a token counts less, the farther it has moved, and no bound silences it."""

    choice: ClassVar = "surrogate"
    strength: float = 1.0

    def __call__(self, logprobs, micro: Micro) -> TokenLoss:
        log_ratio = logprobs.detach() - micro.old_logprobs
        weight = (-self.strength * log_ratio.abs()).exp()  # 1 at ratio 1, where the slope has to be -A
        everywhere = weight == weight
        return TokenLoss(
            loss=-micro.per_token(micro.advantage) * weight * logprobs,
            ratio=log_ratio.clamp(max=20.0).exp(),
            clipped=~everywhere,
            inside=everywhere,
        )


@dataclass(frozen=True)
class FirstTokens:
    """Leaves out the tokens of a sequence after the first one whose ratio to the engine's policy is beyond a bound."""

    choice: ClassVar = "correction"
    bound: float = 2.0

    def __call__(self, micro: Micro):
        far = (micro.old_logprobs - micro.rollout_logprobs).abs() > np.log(self.bound)
        return (micro.cumulate(far) == 0).to(micro.old_logprobs.dtype)


@dataclass(frozen=True)
class Limit:
    """No reward beyond the problem's own limit on tokens, a column of the data."""

    choice: ClassVar = "reward"
    reads: ClassVar = {"limit": (3, 8)}  # columns with examples, on which the stage is tried

    def __call__(self, responses: Responses, reward: np.ndarray) -> np.ndarray:
        return np.where(responses.length <= responses.named["limit"], reward, 0.0)


def short_where_correct(prompts, completions, verdict, **columns):
    """A reward function: 1 for an empty text and less for longer ones, and nothing for what the verifier says is incorrect."""
    return [right / (1.0 + len(text)) for right, text in zip(verdict, completions, strict=True)]


def main() -> int:
    """Run the battery over every stage of this file."""
    for stage in (MedianCentered, Exponential, FirstTokens, Limit):
        testing.check(f"grpo+{__file__}:{stage.__name__}")
        print(f"{stage.__name__} is sound")
    return 0


if __name__ == "__main__":
    sys.exit(main())

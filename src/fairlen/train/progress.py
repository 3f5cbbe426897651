"""Where a run is, and what is due there."""

from __future__ import annotations

from dataclasses import dataclass

from fairlen.train.run.config import TrainConfig


@dataclass
class Progress:
    """Counters of a run, all of which a checkpoint keeps."""

    batch: int = 0
    """Rollout batches done."""
    update: int = 0
    """Updates done."""
    next_problem: int = 0
    """Position in the training stream."""
    policy_version: int = 0
    best_accuracy: float = -1.0
    generated: int = 0
    """Tokens generated in training."""
    seconds: float = 0.0
    """Spent on collecting and learning."""
    evaluated: int = -1
    """Rollout batches done at the last evaluation."""

    def is_done(self, config: TrainConfig) -> bool:
        """Whether all rollout batches are done, or a limit on updates, tokens or time is reached."""
        limits = (
            (config.max_updates, self.update),
            (config.max_generated, self.generated),
            (config.max_seconds, self.seconds),
        )
        return self.batch >= config.rollout_batches or any(0 < limit <= done for limit, done in limits)

    def needs_evaluation(self, config: TrainConfig) -> bool:
        """Before the first rollout batch and after every so many, once."""
        return (self.batch == 0 or is_due(config.eval_every, self.batch)) and self.evaluated != self.batch

    def needs_checkpoint(self, config: TrainConfig, is_within_batch: bool) -> bool:
        """After so many updates, after so many rollout batches, and at the end."""
        return is_due(config.save_every_updates, self.update) or (
            not is_within_batch and (is_due(config.save_every, self.batch) or self.is_done(config))
        )


def is_due(every: int, number: int) -> bool:
    """Whether something that happens every so often happens now; 0 is never."""
    return every > 0 and number > 0 and number % every == 0

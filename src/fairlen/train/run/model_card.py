"""The README.md of a saved model: what it was trained on, how, and what that did to accuracy and length."""

from __future__ import annotations

from pathlib import Path

from fairlen.evaluate.run import Evaluation, show_length
from fairlen.files.folders import write_file
from fairlen.methods.describe import hash_method
from fairlen.train.run.folder import Run, Summary

CARD = """---
library_name: transformers
tags: [fairlen, reinforcement-learning, verifiable-rewards]
---

# {name}

Trained with fairlen {version} from `{model}` on `{task}`.

| | before | after |
|---|---|---|
| held-out accuracy, 95% interval | {before.accuracy} | {after.accuracy} |
{lengths}
| truncated | {before.truncated:.1%} | {after.truncated:.1%} |

{after.num_problems} held-out problems, {after.num_samples} samples each, temperature {temperature}, at most
{max_response_length} tokens; intervals resample problems. Method `{method}` (hash {hash}), {updates} updates,
seed {seed}. Everything else is in the
run's `run.json`.
"""


def write_lengths(before: Evaluation, after: Evaluation) -> str:
    """The lines of the table that are about lengths."""
    names = {
        "length": "mean length, tokens",
        "length_correct": "of right answers",
        "length_incorrect": "of wrong answers",
    }
    pairs = ((label, getattr(before, name), getattr(after, name)) for name, label in names.items())
    return "\n".join(f"| {label} | {show_length(one)} | {show_length(other)} |" for label, one, other in pairs)


def write_model_card(folder: Path, run: Run, summary: Summary) -> None:
    """Writes the card into the model's folder."""
    config = run.config
    card = CARD.format(
        name=run.folder.name,
        version=run.describe()["versions"]["fairlen"],
        model=config.model,
        task=config.task,
        before=summary.before,
        after=summary.after,
        lengths=write_lengths(summary.before, summary.after),
        temperature=config.temperature,
        max_response_length=config.max_response_length,
        method=run.composition.name,
        hash=hash_method(run.composition.method),
        updates=summary.num_updates,
        seed=config.seed,
    )
    write_file(folder / "README.md", card)

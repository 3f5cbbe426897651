"""What a GRPOTrainer is built of that does not go with a method: parts that generate by themselves, models with dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from fairlen.integrations.trl.settings import SAMPLERS
from fairlen.methods.method import Method
from fairlen.policy.dropout import find_dropout
from fairlen.sampling.eqlen import EqLen


def refuse_parts(given: Mapping[str, Any], method: Method) -> None:
    """Raises ValueError for parts of a GRPOTrainer that generate on their own, where streams have to."""
    for name in ("tools", "rollout_func", "environment_factory"):
        if given.get(name) is not None and isinstance(method.sampling, EqLen):
            raise ValueError(
                f"{name} with EqLen: it generates by itself, where streams of pairs have to; leave one out"
            )


def refuse_defaults(given: Any, defaults: Any) -> None:
    """Raises ValueError for what a model's generation_config adds to that of the trainer, where that leaves it open."""
    left_open = [name for name in SAMPLERS if getattr(given, name, None) is None]
    for name in left_open:
        value = getattr(defaults, name, None)
        if value is not None and value not in SAMPLERS[name]:
            neutral = (
                f"give generation_kwargs={{{name!r}: {SAMPLERS[name][0]!r}}}" if SAMPLERS[name] else "take it out there"
            )
            raise ValueError(
                f"{name}={value} in the model's generation_config: tokens are drawn from another distribution than the one that "
                f"is trained, so that every ratio is wrong; {neutral}, or allow_truncated_sampling=True"
            )


def notes_on_model(model: nn.Module) -> Iterator[str]:
    """What of the model undoes fairness."""
    found = sorted({f"{type(module).__name__}.{name}" for module, name in find_dropout(model)})
    if found:
        yield (
            f"the model leaves parts of itself out in training ({', '.join(found)}), but draws texts with all of it: off-policy "
            "ratios, clipped shares and FSPO's drift then measure dropout; give disable_dropout=True, or 0 in the model's config "
            "and the LoraConfig"
        )

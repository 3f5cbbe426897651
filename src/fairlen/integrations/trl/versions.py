"""What of TRL's trainer is overridden, or called although it is private: looked at where a trainer is made."""

from __future__ import annotations

import inspect
from typing import Any

import trl
from trl.trainer.grpo_trainer import GRPOTrainer

OVERRIDDEN = {
    "_generate_and_score_completions": ("inputs",),
    "_generate": ("prompts",),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "compute_loss": ("model", "inputs", "return_outputs", "num_items_in_batch"),
    "_compute_loss": ("model", "inputs"),
    "training_step": ("model", "inputs", "num_items_in_batch"),
    "_save_checkpoint": ("model", "trial"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
}
"""Parameters that TRL, and transformers' Trainer, gives each of these."""
LOGPROBS = ("model", "input_ids", "attention_mask", "logits_to_keep")
CALLED = {
    "_generate_single_turn": (("prompt_ids", "images", "multimodal_fields", "num_generations"), ()),
    "_get_per_token_logps_and_entropies": (LOGPROBS, ("compute_entropy", "compute_aux_loss")),
    "_tokenize_prompts": (("prompts",), ()),
    "_get_output_dir": ((), ("trial",)),
}
"""What is passed to each of these: by place, and by name."""


def refuse_changed(kind: Any = GRPOTrainer, version: str = trl.__version__) -> None:
    """Raise ImportError for a trainer of TRL's that is not what ours overrides and calls, with the first of what changed."""
    for name, expected in OVERRIDDEN.items():
        found = parameters_of(kind, name, version)
        if tuple(found) != expected:
            raise ImportError(
                f"trl {version}: {kind.__name__}.{name} takes ({', '.join(found)}), and FairGRPOTrainer overrides one that takes "
                f"({', '.join(expected)}); install another version of TRL"
            )
    for name, (places, names) in CALLED.items():
        found = inspect.Signature(list(parameters_of(kind, name, version).values()))
        try:
            found.bind(*places, **dict.fromkeys(names))
        except TypeError as error:
            raise ImportError(
                f"trl {version}: {kind.__name__}.{name}{found} is called with ({', '.join((*places, *names))}): {error}; "
                "install another version of TRL"
            ) from None


def parameters_of(kind: Any, name: str, version: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method but self. Raises ImportError where there is no such method."""
    if not callable(method := getattr(kind, name, None)):
        raise ImportError(
            f"trl {version}: {kind.__name__} has no {name}, which FairGRPOTrainer needs; install another version of TRL"
        )
    return dict(list(inspect.signature(method).parameters.items())[1:])

"""Methods of TRL that are overridden, or called although private; checked where a trainer is made."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pkgutil import resolve_name
from typing import Any

import trl
from trl.trainer.grpo_trainer import GRPOTrainer

from fairlen.integrations import refuse_untested

TESTED = ">=1.16,<1.17"
"""Versions of TRL; `make test-versions` runs the first and the last of them."""
OVERRIDDEN = {
    "_generate_and_score_completions": ("inputs",),
    "_generate": ("prompts",),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "compute_loss": ("model", "inputs", "return_outputs", "num_items_in_batch"),
    "_compute_loss": ("model", "inputs"),
    "_get_grad_norm": ("model", "grad_norm"),
    "_save_checkpoint": ("model", "trial"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "create_model_card": ("model_name", "dataset_name", "tags"),
}
"""Parameters that TRL, and transformers' Trainer, gives each of these."""
LOGPROBS = ("model", "input_ids", "attention_mask", "logits_to_keep")
CALLED = {
    "_generate_single_turn": (("prompt_ids", "images", "multimodal_fields", "num_generations"), ()),
    "_get_per_token_logps_and_entropies": (LOGPROBS, ("compute_entropy", "compute_aux_loss")),
    "_tokenize_prompts": (("prompts",), ()),
    "_get_output_dir": ((), ("trial",)),
    "trl.chat_template_utils:parse_response": (("tokenizer", "ids"), ("prefix", "tools")),
    "trl.models.utils:unwrap_model_for_generation": (
        ("model", "accelerator"), ("gather_deepspeed3_params", "gradient_checkpointing_kwargs")),
}  # fmt: skip
"""Arguments passed to each of these, methods of the trainer and functions of modules: by place, and by name."""


WATCHED = ("_calculate_rewards", "_load_optimizer_and_scheduler")
"""Methods, of OVERRIDDEN, that a length watch beside TRL's own trainer wraps."""


def refuse_changed(kind: Any = GRPOTrainer, version: str = trl.__version__, names: Iterable[str] = ()) -> None:
    """Raise ImportError for a TRL in which methods are not as in the tables, with all that changed, or that is not in TESTED.

    `names` are the methods that are looked at, by default all.
    """
    if found := "; ".join(find_changes(kind, names)):
        raise ImportError(f"trl {version}: {found}; tested with trl{TESTED}: pip install 'trl{TESTED}'")
    refuse_untested("trl", version, TESTED)


def find_changes(kind: Any, names: Iterable[str] = ()) -> Iterator[str]:
    for name in names or (*OVERRIDDEN, *CALLED):
        where = name.replace(":", ".") if ":" in name else f"{kind.__name__}.{name}"
        found = find_signature(kind, name)
        if found is None:
            yield f"there is no {where}, which FairGRPOTrainer needs"
        elif name in CALLED:
            places, keywords = CALLED[name]
            try:
                found.bind(*places, **dict.fromkeys(keywords))
            except TypeError as error:
                yield f"{where}{found} is called with ({', '.join((*places, *keywords))}): {error}"
        elif tuple(found.parameters) != OVERRIDDEN[name]:
            theirs, ours = ", ".join(found.parameters), ", ".join(OVERRIDDEN[name])
            yield f"{where} takes ({theirs}), and FairGRPOTrainer overrides one that takes ({ours})"


def find_signature(kind: Any, name: str) -> inspect.Signature | None:
    """Return the signature of a function, or of a method without self; None where there is no such thing."""
    try:
        found = inspect.signature(resolve_name(name) if ":" in name else getattr(kind, name))
    except (ImportError, AttributeError, TypeError):  # TypeError: it is there and cannot be called
        return None
    return found if ":" in name else found.replace(parameters=list(found.parameters.values())[1:])

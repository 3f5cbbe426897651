"""Parts of TRL that are overridden, or called and read although private; checked where a trainer is made."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pkgutil import resolve_name
from typing import Any

import trl
from accelerate.utils import DistributedType
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
READ = (
    "_logs", "_metrics", "_pending_extra_logs", "_tokenizer", "accelerator", "args", "aux_loss_enabled", "eos_token_ids",
    "generation_config", "generation_kwargs", "is_fsdp_enabled", "max_completion_length", "min_p", "model", "model_wrapped",
    "num_generations", "num_generations_eval", "num_iterations", "optimizer", "processing_class", "ref_model",
    "reward_func_names", "reward_weights", "router_aux_loss_coef", "state", "temperature", "tools", "top_k", "top_p",
    "train_dataset", "use_transformers_continuous_batching", "use_vllm",
)  # fmt: skip
"""Attributes that TRL, and transformers' Trainer, gives a trainer."""


def refuse_changed(kind: Any = GRPOTrainer, version: str = trl.__version__) -> None:
    """Raise ImportError for a TRL in which methods are not as in the tables, with all that changed, or that is not in TESTED."""
    refuse(version, find_changes(kind))
    refuse_untested("trl", version, TESTED)


def refuse_unlike(trainer: Any, version: str = trl.__version__) -> None:
    """Raise ImportError for a trainer without an attribute of the table, or whose loss is divided once more than by TRL."""
    refuse(version, (f"a trainer has no {x}, which FairGRPOTrainer reads" for x in READ if not hasattr(trainer, x)))
    accelerator = trainer.accelerator
    if accelerator.gradient_accumulation_steps > 1 and accelerator.distributed_type != DistributedType.DEEPSPEED:
        raise ImportError("transformers before 5.5.4 divides a loss twice by gradient_accumulation_steps: upgrade it")


def refuse(version: str, changes: Iterable[str]) -> None:
    """Raise ImportError with all changes in one line, if there are any."""
    if found := "; ".join(changes):
        raise ImportError(f"trl {version}: {found}; tested with trl{TESTED}: pip install 'trl{TESTED}'")


def find_changes(kind: Any) -> Iterator[str]:
    for name in (*OVERRIDDEN, *CALLED):
        where = name.replace(":", ".") if ":" in name else f"{kind.__name__}.{name}"
        found = find_signature(kind, name)
        if found is None:
            yield f"there is no {where}, which FairGRPOTrainer needs"
        elif name in CALLED:
            places, names = CALLED[name]
            try:
                found.bind(*places, **dict.fromkeys(names))
            except TypeError as error:
                yield f"{where}{found} is called with ({', '.join((*places, *names))}): {error}"
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

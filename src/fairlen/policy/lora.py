"""Low-rank adapters (LoRA, arXiv:2106.09685): W + scale * B A in place of W, with A and B trained and W frozen.

They are peft's layers within the model: engine, layout and head use it as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fairlen.settings import PolicySettings

NAME = "default"  # peft's, of the one set of adapters
BASE = ".base_layer"  # in peft's names of weights that have an adapter


def add_adapters(model: PreTrainedModel, settings: PolicySettings) -> None:
    """Freeze the model and put adapters into its linear layers, the output layer left out, in at least float32.

    B is zero at first: outputs are unchanged. Experts that are one tensor have no linear layers, and no adapter. Raises
    ValueError where there is no linear layer, and without peft.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise ValueError(
            f"lora_rank={settings.lora_rank} needs the package {error.name}: pip install '.[lora]' in the checkout, or leave "
            "it at 0"
        ) from None
    model.requires_grad_(False)
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha or 2 * settings.lora_rank,  # pyright: ignore[reportArgumentType]  a float is fine
        target_modules=find_linear(model),
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on transposed layers, which peft then handles
        inject_adapter_in_model(config, model, NAME)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def find_linear(model: PreTrainedModel) -> list[str]:
    """Return the names of linear layers but the output layer: peft's own "all-linear" also takes experts that are one tensor,
    and writes their weights in every forward pass. Raises ValueError where there is none."""
    head: Any = model.get_output_embeddings()
    found = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
    if not found:
        raise ValueError(f"lora_rank: {type(model).__name__} has no linear layer; leave it at 0 to train all weights")
    return found


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Within, the model is the one that the adapters started from."""
    layers = adapted_layers(model).values()
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight by its name without adapters, its adapter added; tied ones once.

    A merged weight is a new tensor, of the frozen weight's type: take one at a time where memory is short.
    """
    layers = adapted_layers(model)
    for name, parameter in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        if not owner.endswith(BASE):
            if ".lora_" not in name:
                yield name, parameter.detach()
            continue
        merged = parameter.detach()
        if kind == "weight":
            added = layers[owner.removesuffix(BASE)].get_delta_weight(NAME)
            merged = (merged.to(added.dtype) + added).to(parameter.dtype)
        yield f"{owner.removesuffix(BASE)}.{kind}", merged


def save_adapters(model: PreTrainedModel, folder: Path, place: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = getattr(model, "peft_config")[NAME]  # noqa: B009  set by peft
    config.base_model_name_or_path, config.inference_mode = place, True
    config.save_pretrained(folder)
    config.inference_mode = False
    from peft import get_peft_model_state_dict

    found = get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
    weights = {f"base_model.model.{name}": weight.detach().cpu().contiguous() for name, weight in found.items()}
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})

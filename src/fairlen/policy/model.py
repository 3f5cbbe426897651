"""The model that is trained: loading it, and log-probs from it.

Dropout is off: responses are drawn by the whole network, and a ratio to a part of it differs from 1 before anything is learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairlen.channels import decode_response, list_hidden_ids
from fairlen.engine.engine import in_evaluation
from fairlen.files.pretrained import draw_model, find_model, read_json, read_model, read_tokenizer, unreadable
from fairlen.methods.stages.micro import Outputs
from fairlen.policy.head import Head
from fairlen.policy.lora import adapted_layers, add_adapters, merged_weights, without_adapters
from fairlen.policy.pack import ModelInput, TreeInput
from fairlen.policy.tree import NAME
from fairlen.settings import PolicySettings

CHANCES = ("drop", "jitter")
"""In names of transformers' attributes with probabilities or sizes of noise: attention_dropout, layerdrop, …"""


def find_eos(*sources: Any) -> tuple[int, ...]:
    """Tokens that end a response, by the first source that has any. Raises ValueError where none has."""
    for source in sources:
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, list | tuple) else (ids,)
    raise ValueError(
        "eos_token_id=None in the model's config, generation_config and tokenizer: responses could never end; "
        "set eos_token_id in the model folder's generation_config.json"
    )


@dataclass
class Policy:
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: Any  # encodes and decodes as transformers' tokenizers do
    head: Head
    autocast: bool = False  # bfloat16 arithmetic over float32 weights

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return find_eos(self.model.generation_config, self.model.config, self.tokenizer)

    def forward(self, inputs: ModelInput, entropy_grad: bool = False, with_entropy: bool = True) -> Outputs:
        """Log-probs and entropies of the trained tokens, [T] each; entropies are NaN where not asked for."""
        # each weight is cast when it is used: a cache would hold them all beside those that checkpoints cast again
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            hidden = body(self.model)(input_ids=inputs.token_ids, use_cache=False, **self.reading(inputs))[0]
        hidden = hidden.reshape(-1, hidden.shape[-1])[inputs.source]
        return self.head.read(hidden, inputs, self.autocast, with_entropy, entropy_grad)

    def reading(self, inputs: ModelInput) -> dict[str, Any]:
        """The model's other arguments. The mask of a tree is unused: it keeps transformers from building one."""
        if not isinstance(inputs, TreeInput):
            return {"attention_mask": None}
        if self.model.config.get_text_config()._attn_implementation != NAME:
            raise ValueError("a tree for a model that reads rows: let choose_layout find out whether it can read trees")
        unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=inputs.token_ids.device)
        return {"attention_mask": unused, "position_ids": inputs.position_ids, "tree": inputs.tree}

    @property
    def has_adapters(self) -> bool:
        return bool(adapted_layers(self.model))

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @property
    def num_trained(self) -> int:
        return sum(parameter.numel() for parameter in self.trained().values())

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return merged_weights(self.model)

    def save(self, folder: Path) -> None:
        """Save model and tokenizer in Hugging Face format, adapters added to the weights."""
        merged = {name: weight.cpu() for name, weight in self.named_weights()} if self.has_adapters else None
        self.model.save_pretrained(folder, state_dict=merged)
        self.tokenizer.save_pretrained(folder)

    def with_model(self, model: PreTrainedModel) -> Policy:
        return replace(self, model=model, head=make_head(model))

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        return list_hidden_ids(self.tokenizer)

    def decode(self, token_ids: Any) -> str:
        """Return the text without special tokens, but with the marks around thinking: the answer is what follows them."""
        return decode_response(self.tokenizer, token_ids, self.hidden_ids)

    def decode_whole(self, token_ids: Any) -> str:
        """Return the text with its special tokens, which tags of channels may be."""
        return self.tokenizer.decode(token_ids)


@dataclass(frozen=True)
class Unadapted:
    """The policy that the adapters started from: a reference without a copy."""

    policy: Policy

    def forward(self, inputs: ModelInput, with_entropy: bool = True) -> Outputs:
        model = self.policy.model
        with in_evaluation(model.modules()), without_adapters(model):
            return self.policy.forward(inputs, with_entropy=with_entropy)


def body(model: PreTrainedModel) -> nn.Module:
    return model.base_model if model.base_model is not model else model.get_decoder()


def output_embeddings(model: PreTrainedModel) -> nn.Linear:
    """The linear layer from hidden states to logits. Raises ValueError for a model without one."""
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise ValueError(f"model {type(model).__name__} has no linear output layer: give a causal language model")
    return linear


def make_head(model: PreTrainedModel) -> Head:
    """The function from hidden states to logits. Raises ValueError where it does not give the architecture's own logits."""
    linear, config = output_embeddings(model), model.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    factor = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
    head = Head(linear, factor, cap)
    probe = torch.arange(3, device=model.device)[None] % linear.weight.shape[0]
    try:
        with in_evaluation(model.modules()):
            expected = model(input_ids=probe, use_cache=False).logits
            found = head(body(model)(input_ids=probe, use_cache=False)[0])
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"model {type(model).__name__} cannot read three tokens ({reason}): give a causal language model of text"
        ) from error
    if not torch.allclose(expected.float(), found.float(), rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"model {type(model).__name__}: its logits are not its output embeddings times its hidden states; "
            "fairlen cannot compute its log-probs in chunks, please report the architecture"
        )
    return head


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """One pass, without copies."""
    return math.isfinite(torch.nn.utils.get_total_norm(tensors, math.inf))


def load_policy(
    place: str | Path,
    dtype: str,
    device: str,
    gradient_checkpointing: bool,
    *,
    revision: str = "",
    random_init: bool = False,
    adapters: PolicySettings | None = None,
) -> Policy:
    """Load a causal LM from a folder or hub id, ready to train, its dropout off.

    `dtype` "bfloat16" keeps float32 weights and computes in bfloat16. `random_init` draws weights by torch's generator, and reads
    config and tokenizer alone. `adapters` alone are trained, and the frozen weights are kept in `dtype`. Raises ValueError for a
    model that cannot be loaded.
    """
    weights = torch.float64 if dtype == "float64" else torch.float32
    if adapters and dtype == "bfloat16":
        weights = torch.bfloat16
    try:
        place = find_model(str(place), revision)
        model = (draw_model if random_init else read_model)(place, weights, revision)
    except Exception as error:  # damaged files raise errors of any class
        hint = "" if random_init else "; a folder with a config.json and a tokenizer is enough for --random-init"
        raise unreadable(place, error, hint) from error
    if not all(weight.is_floating_point() for weight in model.parameters()):
        how = read_json(place, "config.json", revision).get("quantization_config", {})
        raise ValueError(
            f"model={place}: its weights are quantized (quantization_config: {how.get('quant_method', how)}), which cannot be "
            "trained: give the model that it was made from, or save it anew by its dequantize() and save_pretrained()"
        )
    if not are_finite(model.parameters()):
        raise ValueError(f"model={place}: some weights are not finite numbers; its files are damaged, get them anew")
    make_savable(model.generation_config)
    tokenizer = read_tokenizer(place, revision)
    model.to(device)  # pyright: ignore[reportArgumentType]  the method is wrapped in transformers
    if adapters:
        add_adapters(model, adapters)
    turn_off_dropout(model)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Policy(model, tokenizer, make_head(model), autocast=dtype == "bfloat16")


def make_savable(config: Any) -> None:
    """Say that responses are sampled where a temperature stands beside greedy decoding, which transformers does not save."""
    try:
        config.validate(strict=True)
    except ValueError:
        config.do_sample = True


def turn_off_dropout(model: nn.Module) -> None:
    """Set probabilities of dropout and sizes of noise to 0; the model's config stays."""
    for module, name in list(find_dropout(model)):
        setattr(module, name, 0.0)


def find_dropout(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield a module and the name of its probability of dropout, or size of noise, above 0."""
    for module in model.modules():
        is_dropout = "dropout" in type(module).__name__.lower()
        for name, value in vars(module).items():
            is_chance = any(word in name for word in CHANCES) or (name == "p" and is_dropout)
            if is_chance and isinstance(value, float) and value > 0.0:
                yield module, name

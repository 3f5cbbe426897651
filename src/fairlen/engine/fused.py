"""Decode steps of Llama and Qwen3 models on the CPU as one C function: torch takes longer to call the operations of a
small one than to compute them, and in a large one multiplies few rows slowly.

Weights are read where the parameters have them, so that nothing is packed and nothing grows stale.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from fairlen.batch import Ints
from fairlen.engine.cache import Rows
from fairlen.engine.device import build_library

SOURCE = Path(__file__).with_name("fused.c")
LARGE = 2**22  # parameters from which threads share outputs, so that weights are read once, and not rows
MODULES = {
    nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU, SiLUActivation, qwen3.Qwen3ForCausalLM, qwen3.Qwen3Model,
    qwen3.Qwen3DecoderLayer, qwen3.Qwen3Attention, qwen3.Qwen3MLP, qwen3.Qwen3RMSNorm, qwen3.Qwen3RotaryEmbedding,
    llama.LlamaForCausalLM, llama.LlamaModel, llama.LlamaDecoderLayer, llama.LlamaAttention, llama.LlamaMLP,
    llama.LlamaRMSNorm, llama.LlamaRotaryEmbedding,
}  # fmt: skip
"""Supported types of modules: adapters and quantised layers are of others."""
LAYER = (
    "input_layernorm", *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj")),
    "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
"""Modules of a layer whose weights `fused.c` takes, in its order; Llama has no norms of queries and keys."""
FULL = ("full_attention",)
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
GLOBAL_HOOKS = tuple(getattr(module_hooks, f"_global{name}") for name in HOOKS)


class Step(ctypes.Structure):
    """Argument of the functions of `fused.c`."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("tokens", "positions", "origins", "shared", "logits", "cosines", "sines")
        ),
        *((name, ctypes.c_void_p) for name in ("embeddings", "norm", "head", "weights", "states", "scratch")),
        *((name, ctypes.c_int64) for name in ("rows", "layers", "hidden", "key_heads", "inner", "vocab", "columns")),
        *((name, ctypes.c_int64) for name in ("room", "threads", "large", "low")),
        *((name, ctypes.c_double) for name in ("epsilon", "scale")),
    ]


@cache
def build(dim: int, groups: int) -> ctypes.CDLL | None:
    """Build `fused.c` for one shape of heads; None where no compiler does."""
    library = build_library(SOURCE, {"DIM": dim, "GROUPS": groups}, ["-fno-math-errno"])
    if library is not None:
        library.find_room.restype = library.has_tiles.restype = ctypes.c_int64
        library.decode.restype = None
    return library


def is_known(model: PreTrainedModel) -> bool:
    """Whether the model is plain Llama or Qwen3 in float32 on the CPU, with nothing replaced."""
    if type(model) not in (llama.LlamaForCausalLM, qwen3.Qwen3ForCausalLM):
        return False
    modules, parameters = list(model.modules()), list(model.named_parameters())
    body, config = cast(Any, model.model), cast(Any, model.config)
    return (
        all(type(module) in MODULES and "forward" not in vars(module) for module in modules)
        and all(p.dtype == torch.float32 and p.device.type == "cpu" and p.is_contiguous() for _, p in parameters)
        and not any(name.endswith("bias") for name, _ in parameters)
        and {m.variance_epsilon for m in modules if hasattr(m, "variance_epsilon")} == {config.rms_norm_eps}
        and body.rotary_emb.rope_type in ("default", "llama3")  # angles by position alone
        and (config.hidden_act, set(getattr(config, "layer_types", FULL))) == ("silu", set(FULL))
        and body.layers[0].self_attn.head_dim % 8 == 0
    )


def find_fused(model: PreTrainedModel, rows: Rows, low: Mapping[Tensor, Tensor]) -> Fused | None:
    """The model's step over `rows` in C, with the copies in bfloat16 of the weights of products where there are any.

    None where C does not have its arithmetic, and without a compiler.
    """
    if not is_known(model):
        return None
    config = model.config
    library = build(model.model.layers[0].self_attn.head_dim, config.num_attention_heads // config.num_key_value_heads)
    fits = not any(size % 32 for weight in low for size in weight.shape[1:]) and not any(len(w) % 16 for w in low)
    if library is None or (low and not (fits and library.has_tiles())):
        return None
    return Fused(model, rows, library, low)


class Fused:
    def __init__(self, model: PreTrainedModel, rows: Rows, library: ctypes.CDLL, low: Mapping[Tensor, Tensor]) -> None:
        self.library, self.low = library, low
        self.hooks = (*GLOBAL_HOOKS, *(getattr(module, name) for module in model.modules() for name in HOOKS))
        layers: Any = model.model.layers
        modules = [dict(layer.named_modules()).get(name) for layer in layers for name in LAYER]
        self.weights = [None if module is None else module.weight for module in modules]
        self.outer = model.model.embed_tokens.weight, model.model.norm.weight
        self.head = model.lm_head.weight
        self.states = (ctypes.c_void_p * len(rows.tensors))(*(tensor.data_ptr() for tensor in rows.tensors))
        config, attention, columns = model.config, layers[0].self_attn, rows.tensors[0].shape[2]
        angles = model.model.rotary_emb(self.outer[0], torch.arange(columns)[None])
        self.cosines, self.sines = (part[0, :, : attention.head_dim // 2].contiguous() for part in angles)
        self.scratch = self.cosines.new_zeros(0)
        self.step = Step(
            cosines=self.cosines.data_ptr(), sines=self.sines.data_ptr(), states=ctypes.addressof(self.states),
            layers=len(rows.layers), hidden=config.hidden_size, key_heads=config.num_key_value_heads,
            inner=config.intermediate_size, vocab=len(self.head), columns=columns,
            large=model.num_parameters() > LARGE, low=bool(low), epsilon=config.rms_norm_eps, scale=attention.scaling,
        )  # fmt: skip
        self.step.room = library.find_room(ctypes.byref(self.step))

    def __call__(self, fed: Tensor, positions: Tensor, origins: Ints, shared: Ints) -> Tensor:
        """Logits [N, V] after feeding a token [N] at its position [N] to rows 0..N-1; stores keys and values.

        The first `shared` [N] keys and values of each row are read from the row `origins` [N], which has the same.
        """
        step, threads = self.step, torch.get_num_threads()
        if self.scratch.numel() < threads * step.room:
            self.scratch = self.cosines.new_zeros(threads * step.room)
        pointers = [0 if weight is None else self.low.get(weight, weight).data_ptr() for weight in self.weights]
        weights = (ctypes.c_void_p * len(pointers))(*pointers)
        logits = self.cosines.new_empty(len(fed), step.vocab)
        step.embeddings, step.norm = (weight.data_ptr() for weight in self.outer)
        step.head = self.low.get(self.head, self.head).data_ptr()
        step.tokens, step.positions, step.logits = fed.data_ptr(), positions.data_ptr(), logits.data_ptr()
        step.origins, step.shared = origins.ctypes.data, shared.ctypes.data
        step.weights, step.scratch = ctypes.addressof(weights), self.scratch.data_ptr()
        step.rows, step.threads = len(fed), threads
        self.library.decode(ctypes.byref(step))
        return logits

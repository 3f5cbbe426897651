"""Estimate a run's memory from the shape of its model; memory_trial.py finds what a micro-batch really takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from fairlen.engine.cache import WORK, num_kept_rows
from fairlen.engine.sampler import SAMPLING_BYTES
from fairlen.files.limits import GIB
from fairlen.files.pretrained import find_model, read_config
from fairlen.methods.method import Method
from fairlen.policy.head import CHUNK_LOGITS
from fairlen.policy.lora import adapters_of, add_adapters
from fairlen.settings import choose_engine
from fairlen.tasks.shipped import SHIPPED
from fairlen.train.optimizer import count_moments, embedding_weights
from fairlen.train.run.config import TrainConfig

LIBRARIES = int(0.7 * GIB)  # on the CPU; a context, its kernels and the workspaces of cuBLAS on CUDA
VLLM_ASLEEP = int(1.5 * GIB)  # on CUDA
SMALL = 50_000_000  # parameters


@dataclass(frozen=True)
class Memory:
    """Bytes that a run takes, by what takes them."""

    num_parameters: int
    weights: int
    gradients: int
    moments: int
    """Of AdamW, two for each trained weight, but for those that are paged to the host's memory."""
    reference: int
    engine: int
    """The engine's own copy of the weights, and what it keeps while it sleeps; the embedded engine has neither."""
    cache: int
    """Keys and values of what is generated at a time, at full length, of kept prefixes, and what a decoding step works on."""
    row: int  # the part of `cache` that one response at full length has
    work: int  # activations, logits and their gradients in the largest micro-batch
    engine_sleeps: bool = False  # and frees its weights and cache during updates

    @property
    def model(self) -> int:
        """The model and its optimizer, whatever is generated and read."""
        return self.weights + self.gradients + self.moments + self.reference

    @property
    def total(self) -> int:
        """The larger of a rollout, with an engine, and an update; without a sleeping engine both are there together."""
        held, engine = LIBRARIES + self.model, self.engine + self.cache
        return max(held - self.gradients + engine, held + self.work + (0 if self.engine_sleeps else engine))

    @property
    def beside_cache(self) -> int:
        """What training takes after the model was loaded, while keys and values are there."""
        return self.moments + self.reference + (0 if self.engine_sleeps else self.gradients + self.work)

    def describe(self) -> str:
        """One line."""
        parts = {"weights": self.weights, "gradients": self.gradients, "moments": self.moments, "reference": self.reference,
                 "engine": self.engine, "keys and values": self.cache, "a micro-batch": self.work}  # fmt: skip
        shown = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size >= 0.05 * GIB)
        return f"memory: about {self.total / GIB:.1f} GiB for {self.num_parameters / 1e6:.0f}M parameters ({shown})"


def estimate(
    shape: PreTrainedConfig, config: TrainConfig, *, device: str, longest_prompt: int, tracks: int, needs_ref: bool = False
) -> Memory:  # fmt: skip
    """Return what a run on a model of `shape` needs, for prompts of `longest_prompt` tokens, `tracks` responses each."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, trust_remote_code=False)
        num_parameters = model.num_parameters()
        if adapters := adapters_of(config):
            add_adapters(model, adapters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count, size = sum(p.numel() for p in trained), 8 if config.dtype == "float64" else 4
    engine = choose_engine(config, device, num_parameters)
    longest = longest_prompt + config.max_response_length
    copy = num_parameters * (2 if config.dtype == "bfloat16" else 4) if engine == "vllm" else 0
    is_low = bool(config.lora_rank) and config.dtype == "bfloat16"
    weights = num_parameters * (2 if is_low else size) + (size * count if config.lora_rank else 0)
    text, _, keys = sizes_of(shape)
    row = longest * 2 * keys * text.num_hidden_layers * (2 if config.dtype == "bfloat16" else 4)
    return Memory(
        num_parameters, weights=weights, gradients=count * size, row=row,
        moments=sum(count_moments(config.optim, trained, embedding_weights(model), size)),
        reference=weights if needs_ref and not config.lora_rank else 0,
        engine=copy + (VLLM_ASLEEP if copy and device != "cpu" else 0),
        cache=measure_cache(text, row, config, engine, device, tracks),
        work=measure_work(shape, config, longest, tracks, device),
        engine_sleeps=device != "cpu" and config.sleep_level > 0 and engine == "vllm",
    )  # fmt: skip


def sizes_of(shape: PreTrainedConfig) -> tuple[Any, int, int]:
    """Return the text configuration, and the widths of all queries and of all keys of a layer."""
    text: Any = shape.get_text_config()
    heads = text.num_attention_heads
    dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return text, heads * dim, (getattr(text, "num_key_value_heads", None) or heads) * dim


def measure_cache(text: Any, row: int, config: TrainConfig, engine: str, device: str, tracks: int) -> int:
    """Return bytes of the rows of keys and values that exist at a time, and of what a decoding step works on."""
    asked = max(config.prompts_per_batch * tracks, config.eval_problems * config.eval_samples)
    running = min(config.max_num_seqs, asked)
    work = SAMPLING_BYTES * running * text.vocab_size + (0 if device == "cpu" else WORK)
    kept = 0 if engine == "vllm" else num_kept_rows(row, config.max_num_seqs)
    if device == "cpu":  # pages are taken when they are first written
        kept = min(kept, asked + max(config.prompts_per_batch, config.eval_problems))
    elif engine != "vllm":
        running = config.max_num_seqs
    return row * (running + kept) + work


def measure_work(shape: PreTrainedConfig, config: TrainConfig, longest: int, tracks: int, device: str) -> int:
    """Return what forward and backward of the largest micro-batch hold.

    Of a layer of width d, inner width i and q, k for all queries and keys, autograd keeps some 4 i + 3.3 (q + 2 k) numbers a
    position, and 5 d in float32 (7 d beside bfloat16): within a tenth for Llama, Qwen2, Qwen3 and Gemma, less with adapters.
    """
    text, queries, keys = sizes_of(shape)
    positions = -(-config.prompts_per_batch * tracks // config.updates_per_batch) * longest
    positions = max(longest, min(config.max_tokens_per_microbatch, positions))
    size = {"float64": 8, "float32": 4, "bfloat16": 2}[config.dtype]
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    width = max(size, 4) * text.hidden_size
    layer = int(size * (4 * inner + 3.3 * (queries + 2 * keys)) + (7 if size == 2 else 5) * width)
    kept = layer * text.num_hidden_layers
    if config.gradient_checkpointing:  # what lies between layers, and one layer again, with its gradients
        kept = width * text.num_hidden_layers + layer * (6 if device == "cpu" else 2)
    return positions * kept + 2 * 4 * min(2 * positions * text.vocab_size, CHUNK_LOGITS)  # the latter of logits


def estimate_memory(config: TrainConfig, method: Method, device: str) -> Memory | None:
    """Return what a run needs; None for small models, and for those whose shape cannot be read."""
    if config.model in SHIPPED:
        return None
    try:
        shape = read_config(find_model(config.model, config.revision), config.revision)
        needs = {"tracks": method.sampling.num_tracks, "needs_ref": method.needs_ref}
        found = estimate(shape, config, device=device, longest_prompt=config.max_prompt_length, **needs)
    except Exception:
        return None  # loading the model says what is wrong; a shape that cannot be read may still run
    return None if found.num_parameters < SMALL else found


def advise(needs: Memory, free: int, config: TrainConfig, device: str = "cpu") -> str:
    """Return what to change where a run needs more than is free, or nothing. Raises ValueError where its model alone does."""
    if needs.total <= free:
        return ""
    text = f"needs about {needs.total / GIB:.1f} GiB of memory, there are {free / GIB:.1f}"
    fitting = (free - (needs.total - needs.cache)) // max(needs.row, 1)
    if device != "cpu" and fitting >= 2:  # the engine decodes others after them
        return f"{text}: keys and values of {fitting} responses at full length fit at a time; nothing needs to change"
    works = needs.work > needs.total / 8
    tries = {
        "--lora-rank 32": needs.model > needs.total / 4 and not config.lora_rank,
        "--gradient-checkpointing": works and not config.gradient_checkpointing,
        f"--max-tokens-per-microbatch {max(config.max_tokens_per_microbatch // 4, 1024)}": works,
        f"--max-num-seqs {max(config.max_num_seqs // 4, 1)}": needs.cache > needs.total / 8,
    }
    remedy = f"try {', '.join(flag for flag, helps in tries.items() if helps) or 'a smaller model'}"
    if needs.model > free:
        alone = f"its weights and their optimizer alone need {needs.model / GIB:.1f}"
        raise ValueError(f"model={config.model} {text}; {alone}: {remedy}")
    return f"{text}: {remedy}"

"""What a run takes of memory, phase by phase: estimated from the shape of its model before any of it is taken.

docs/memory.md has the account in words, and how it was checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from fairlen.engine import cache
from fairlen.engine.cache import WORK
from fairlen.engine.sampler import SAMPLING_BYTES
from fairlen.files.limits import GIB
from fairlen.files.pretrained import find_model, read_config
from fairlen.methods.method import Method
from fairlen.policy.head import CHUNK_LOGITS
from fairlen.policy.tree_blocks import BLOCK
from fairlen.settings import choose_engine
from fairlen.tasks.shipped import SHIPPED
from fairlen.train.model_sizes import Sizes, count_parameters, measure
from fairlen.train.run.config import TrainConfig

LIBRARIES = int(0.7 * GIB)
"""What Python and its libraries take on the CPU, or a context, its kernels and the workspaces of cuBLAS on CUDA."""
GRAPHS = int(1.5 * GIB)
"""What vLLM keeps on CUDA while it sleeps: captured graphs and workspaces of its libraries."""
PREFILL_OF_VLLM = 8192
"""Half the tokens that a step of vLLM computes at most: without gradients a layer holds half of what training keeps of it."""
WORK_OF_LAYER = 1.5
"""Times what a layer keeps: that, computed again with gradient checkpointing, and its gradients. More on a CPU, as measured."""
COPIES_OF_LOGITS = 2
"""Tensors of the size of a chunk of logits that exist at a time, forward or backward."""
SMALL = 50_000_000
"""Parameters below which memory is no question."""
MAX_RESPONSES = 1_000_000
"""In a rollout batch or an evaluation: with their records a few GB at least, and many times what anyone trains on at once."""
MALLOPT = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 64 * 2**20}
"""M_MMAP_THRESHOLD (larger blocks are given back; the shipped model has smaller ones), M_TRIM_THRESHOLD and M_TOP_PAD."""


EXPANDABLE = "expandable_segments:True"
"""torch's CUDA allocator grows blocks in place: micro-batches of many lengths leave no holes. vLLM knows it by this variable."""


def keep_freed_memory() -> None:
    """Tell glibc's allocator so, for this process; nothing happens where there is no glibc.

    On CUDA, segments grow unless PYTORCH_CUDA_ALLOC_CONF says otherwise. To be called before anything is on the device.
    """
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", EXPANDABLE)
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for name, value in MALLOPT.items():
            mallopt(name, value)


@dataclass(frozen=True)
class Requirements:
    """Bytes that a run takes, in parts, and which of them are there at the same time."""

    num_parameters: int
    libraries: int
    weights: int
    gradients: int
    moments: int
    """Of AdamW, two for each trained weight, but for those that are paged to the host's memory."""
    reference: int
    """A second copy of the weights, for terms that compare with the model before the run."""
    engine: int
    """The engine's own copy of the weights; the embedded engine has none."""
    graphs: int
    """Captured CUDA graphs and what the engine's libraries keep, while it sleeps too."""
    cache: int
    """Keys and values, or other states, of what is being generated, all of it at full length, and of prefixes that are kept."""
    row: int
    """The part of `cache` that one response at full length has."""
    decoding: int
    """What a step of the engine works on: activations of prefills, logits, draws."""
    push: int
    """Weights with their adapters added, all at once, for an engine with a copy."""
    activations: int
    """What a forward pass over the largest micro-batch keeps."""
    layer: int
    """What one layer works on besides: what it computes again, and gradients."""
    head: int
    """Logits of a chunk of positions, the output layer in bfloat16, and its gradient."""
    masks: int
    """Of trees."""
    step: int
    """What an optimizer step works on."""
    engine_sleeps: bool = False
    """Whether the engine's weights and cache are freed during updates."""

    @property
    def phases(self) -> dict[str, dict[str, int]]:
        """Return by phase of a run the parts that are there together."""
        held, engine = ("libraries", "weights", "moments", "reference", "graphs"), ("engine", "cache")
        asleep = () if self.engine_sleeps else engine
        names = {
            "push": (*held, "engine", "push"),
            "rollouts": (*held, *engine, "decoding"),
            "layers": (*held, *asleep, "gradients", "activations", "layer", "masks"),
            "head": (*held, *asleep, "gradients", "activations", "head", "masks"),
            "step": (*held, *asleep, "gradients", "step"),
        }
        return {phase: {name: getattr(self, name) for name in parts} for phase, parts in names.items()}

    @property
    def totals(self) -> dict[str, int]:
        """Return the bytes of each phase."""
        return {phase: sum(parts.values()) for phase, parts in self.phases.items()}

    @property
    def total(self) -> int:
        """Return the bytes of the largest phase."""
        return max(self.totals.values())

    @property
    def model(self) -> int:
        """What the model and its optimizer take, whatever is generated and read."""
        return self.weights + self.gradients + self.moments + self.reference

    @property
    def work(self) -> int:
        """What an update works on, besides the model: a micro-batch, or an optimizer step."""
        return max(self.activations + max(self.layer, self.head) + self.masks, self.step)

    @property
    def beside_cache(self) -> int:
        """What training takes, after the model was loaded, while keys and values are there."""
        there = {"libraries", "weights", "engine", "cache", "decoding"}  # taken before, or the engine's own
        phases = [parts for parts in self.phases.values() if "cache" in parts]
        return max(sum(size for name, size in parts.items() if name not in there) for parts in phases)

    def count_rows(self, memory: int) -> int:
        """Return how many responses at full length have room for keys and values in so much memory."""
        rest = max(sum(parts.values()) for parts in self.phases.values() if "cache" in parts) - self.cache
        return max(memory - rest, 0) // max(self.row, 1)

    def describe(self) -> str:
        """One line."""
        phase, total = max(self.totals.items(), key=lambda item: item[1])
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.phases[phase].items() if size >= 0.05 * GIB)
        others = ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.totals.items() if name != phase)
        model = f"{self.num_parameters / 1e6:.0f}M parameters"
        return f"memory: {total / GIB:.1f} GiB for {model}, most of it in {phase} ({parts}); {others}"


def estimate(
    shape: PreTrainedConfig,
    config: TrainConfig,
    *,
    device: str,
    longest_prompt: int,
    tracks: int,
    needs_ref: bool = False,
) -> Requirements:
    """Return what a run on a model of `shape` needs, for prompts of `longest_prompt` tokens, `tracks` responses each.

    On the CPU keys and values take memory when they are written, so that small runs need less than they reserve.
    """
    longest = longest_prompt + config.max_response_length
    found = measure(shape, config, longest)
    size = 8 if config.dtype == "float64" else 4
    of_update = -(-config.prompts_per_batch * tracks // config.updates_per_batch)
    positions = max(longest, min(config.max_tokens_per_microbatch, of_update * longest))  # no row is split
    engine = choose_engine(config, device, found.num_parameters)
    has_masks = device != "cpu" and config.layout != "rows"
    return Requirements(
        num_parameters=found.num_parameters,
        libraries=LIBRARIES,
        weights=found.weights,
        gradients=found.trained * size,
        moments=found.moments,
        reference=found.weights if needs_ref and not config.lora_rank else 0,
        masks=mask_bytes(shape, config, positions) if has_masks else 0,
        engine_sleeps=device != "cpu" and config.sleep_level > 0 and engine == "vllm",
        **parts_of_engine(config, found, engine, device == "cpu", longest, tracks),
        **parts_of_update(config, found, device, positions),
    )


def parts_of_engine(
    config: TrainConfig, found: Sizes, engine: str, on_cpu: bool, longest: int, tracks: int
) -> dict[str, int]:
    """Return what the engine takes that generates responses to prefixes of `longest` positions together."""
    is_vllm = engine == "vllm"
    asked = max(config.prompts_per_batch * tracks, config.eval_problems * config.eval_samples)
    copy = found.num_parameters * (2 if config.dtype == "bfloat16" else 4) if is_vllm else 0
    prefill = 0 if on_cpu else PREFILL_OF_VLLM * found.layer if is_vllm else WORK
    row = longest * found.position + found.fixed_state
    return dict(
        engine=copy,
        graphs=0 if on_cpu or not is_vllm else GRAPHS,
        cache=row * count_rows(config, found, asked, on_cpu, is_vllm),
        row=row,
        decoding=SAMPLING_BYTES * min(config.max_num_seqs, asked) * found.vocab_size + prefill,
        push=copy if config.lora_rank else 0,
    )


def parts_of_update(config: TrainConfig, found: Sizes, device: str, positions: int) -> dict[str, int]:
    """Return what an update works on whose largest micro-batch has so many positions."""
    on_cpu, is_again = device == "cpu", config.gradient_checkpointing
    layer = int(positions * found.layer * (WORK_OF_LAYER if not on_cpu else 6 if is_again else 1))
    logits = COPIES_OF_LOGITS * 4 * min(2 * positions * found.vocab_size, CHUNK_LOGITS)  # of a chunk
    head = (6 if config.dtype == "bfloat16" else 4) * found.head  # in bfloat16, and its gradient, where it is trained
    return dict(
        activations=positions * found.boundary if is_again else positions * found.activation + found.casts,
        layer=layer,
        head=logits + head + (layer if on_cpu else 0),  # glibc keeps what layers have freed
        step=2 * found.largest if on_cpu else 0,
    )


def count_rows(config: TrainConfig, found: Sizes, asked: int, on_cpu: bool, is_vllm: bool) -> int:
    """Return how many responses and kept prefixes have keys and values at a time, where `asked` are generated in all."""
    running = min(config.max_num_seqs, asked)
    if is_vllm:
        return running
    if on_cpu:
        return running + min(found.kept_rows, asked + max(config.prompts_per_batch, config.eval_problems))
    return config.max_num_seqs + found.kept_rows


def mask_bytes(shape: PreTrainedConfig, config: TrainConfig, positions: int) -> int:
    """Return what the mask of a forest takes: for all layers one of blocks, four lists of them and the end of each position.

    Double precision has no kernel for it: an entry for each pair of positions, kept by every layer for its backward pass.
    """
    if config.dtype != "float64":
        side = -(-positions // BLOCK)
        return 4 * (4 * side * (side + 1) + positions)
    layers = 2 if config.gradient_checkpointing else shape.get_text_config().num_hidden_layers
    return layers * 8 * positions**2


def estimate_memory(config: TrainConfig, method: Method, device: str) -> Requirements | None:
    """Return what a run needs; None for small models, and for those that cannot be measured.

    Raises ValueError where a rollout batch or an evaluation is beyond any sense.
    """
    tracks = method.sampling.num_tracks
    for name, each, where, remedy in (
        ("prompts_per_batch", tracks, "a rollout batch", "prompts_per_batch, sampling.n or sampling.streams"),
        ("eval_problems", config.eval_samples, "an evaluation", "eval_problems or eval_samples"),
    ):
        number = getattr(config, name)
        if number * each > MAX_RESPONSES:
            raise ValueError(
                f"{name}={number} with {each} responses each: {number * each:,} responses in {where}, which is kept in memory, "
                f"are more than {MAX_RESPONSES:,}; give a smaller {remedy}"
            )
    if config.model in SHIPPED:
        return None
    try:
        shape = read_config(find_model(config.model, config.revision), config.revision)
        if count_parameters(shape) < SMALL:
            return None
        longest, needs_ref = config.max_prompt_length, method.needs_ref
        return estimate(shape, config, device=device, longest_prompt=longest, tracks=tracks, needs_ref=needs_ref)
    except Exception:
        return None  # loading the model says what is wrong; a shape that cannot be measured may still run


def free_memory(device: str) -> int:
    """Return the bytes that a program could take now: of the device or, for the CPU, of the machine or the container's limit."""
    if device != "cpu":
        return cache.free_memory(torch.device(device))
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free, default=2**62)


def advise(needs: Requirements, free: int, config: TrainConfig, device: str = "cpu") -> str:
    """Return what to change where a run needs more than is free, or nothing.

    On CUDA an engine has keys and values for as many responses at a time as there is room for, and decodes the others after
    them. Raises ValueError where the model and its optimizer alone need more.
    """
    if needs.total <= free:
        return ""
    text = f"needs about {needs.total / GIB:.1f} GiB of memory, there are {free / GIB:.1f}"
    fitting = needs.count_rows(free)
    is_enough = max(total for phase, total in needs.totals.items() if "cache" not in needs.phases[phase]) <= free
    if device != "cpu" and is_enough and fitting >= 2:
        return f"{text}: keys and values of {fitting} responses at full length fit at a time; nothing needs to change"
    tries = []
    if needs.model > needs.total / 4 and not config.lora_rank:
        tries.append("--lora-rank 32")
    if needs.work > needs.total / 8:
        tries += [] if config.gradient_checkpointing else ["--gradient-checkpointing"]
        tries.append(f"--max-tokens-per-microbatch {max(config.max_tokens_per_microbatch // 4, 1024)}")
    if needs.cache > needs.total / 8:
        tries.append(f"--max-num-seqs {max(config.max_num_seqs // 4, 1)}")
    remedy = f"try {', '.join(tries) or 'a smaller model'}"
    if needs.model > free:
        alone = f"its weights and their optimizer alone need {needs.model / GIB:.1f}"
        raise ValueError(f"model={config.model} {text}; {alone}: {remedy}")
    return f"{text}: {remedy}"

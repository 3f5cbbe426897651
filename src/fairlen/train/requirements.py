"""What a run needs in memory: estimated before any of it is taken, then tried with the largest possible micro-batch.

The estimate counts what a model of the same shape, whose tensors have no contents, keeps of a few tokens. The trial reads random
tokens and leaves weights, optimizer and random streams as they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fairlen.batch import Plan, Response, Rollouts, Segment
from fairlen.engine.engine import embeddings_of, num_kept_rows
from fairlen.files.limits import GIB
from fairlen.files.pretrained import find_model, read_config
from fairlen.methods.method import Method
from fairlen.policy.lora import find_targets
from fairlen.policy.model import CHUNK_LOGITS, body, output_embeddings
from fairlen.settings import PolicySettings
from fairlen.tasks.shipped import SHIPPED
from fairlen.train.run.config import TrainConfig
from fairlen.train.step import Learner, OutOfMemoryError, is_shortage, release_memory

PROBE_TOKENS = 256
LIBRARIES = int(0.7 * GIB)
"""What Python and its libraries take on the CPU."""
COPIES_OF_LOGITS = 5
"""Tensors of the size of a chunk of logits that exist at a time, forward or backward."""
BYTES_OF_SAMPLING = 36
"""For each logit that a step of the engine draws from: three tensors in float32, three in float64."""
SMALL = 50_000_000
"""Parameters below which memory is no question."""
MAX_RESPONSES = 1_000_000
"""In a rollout batch or an evaluation: with their records a few GB at least, and many times what anyone trains on at once."""
NO_ROOM_FOR_MOMENTS = (
    "memory ran out with the weights and the optimizer's moments alone: give --lora-rank 32 or a smaller --max-num-seqs"
)
MALLOPT = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 64 * 2**20}
"""M_MMAP_THRESHOLD (larger blocks are given back; the shipped model has smaller ones), M_TRIM_THRESHOLD and M_TOP_PAD."""


def keep_freed_memory() -> None:
    """Tell glibc's allocator so, for this process; nothing happens where there is no glibc."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for name, value in MALLOPT.items():
            mallopt(name, value)


@dataclass(frozen=True)
class Measured:
    """A model of a shape, in bytes."""

    num_parameters: int
    largest: int
    """Bytes of its largest trained weight."""
    weights: int
    trained: int
    """Trained parameters."""
    activation: int
    """Kept for the backward pass, for each position."""
    casts: int
    """Kept for it besides: weights in bfloat16."""
    boundary: int
    """Kept between layers for each position, with gradient checkpointing."""
    vocab_size: int
    position: int
    """Keys and values of one position."""
    fixed_state: int
    """What else a prefix takes, however long."""
    kept_rows: int


def count_parameters(shape: PreTrainedConfig) -> int:
    """Return the parameters of a model of a shape, tied ones once."""
    with FakeTensorMode():
        return AutoModelForCausalLM.from_config(shape, trust_remote_code=False).num_parameters()


def measure(shape: PreTrainedConfig, config: PolicySettings, longest: int) -> Measured:
    """Return sizes of a model of a shape, for a run with `config` whose rows have `longest` positions."""
    text: Any = shape.get_text_config()
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    if config.lora_rank and config.dtype == "bfloat16":
        dtype = torch.bfloat16
    # experts have no float32 arithmetic on tensors without contents
    has_experts = bool(getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None))
    held = torch.bfloat16 if has_experts else dtype
    with FakeTensorMode():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            shape, dtype=held, attn_implementation="sdpa", trust_remote_code=False
        ).train()
        num_parameters = model.num_parameters()
        if config.lora_rank:
            model.requires_grad_(False)
            for name in find_targets(model, config.lora_targets):
                model.set_submodule(name, Adapted(model.get_submodule(name), config.lora_rank))
        slope, start = kept_for_backward(model, is_low=config.dtype == "bfloat16")
        states, fixed = states_of_prefix(model.eval())
    trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return Measured(
        num_parameters=num_parameters,
        largest=max(trained) * dtype.itemsize,
        weights=num_parameters * dtype.itemsize + (4 * sum(trained) if config.lora_rank else 0),
        trained=sum(trained),
        activation=int(slope * dtype.itemsize / held.itemsize),
        casts=start,
        boundary=text.num_hidden_layers * text.hidden_size * dtype.itemsize,
        vocab_size=embeddings_of(model).shape[0],
        position=sum(tensor[0, :, 0].numel() * dtype.itemsize for pair in states for tensor in pair),
        fixed_state=sum(tensor.numel() * 4 for tensor in fixed),
        kept_rows=num_kept_rows(states, config.max_num_seqs, longest) if states and not fixed else 0,
    )


def kept_for_backward(model: PreTrainedModel, is_low: bool) -> tuple[float, int]:
    """Return bytes that a forward keeps for each position, and in any case: weights cast to bfloat16 where it `is_low`."""
    sizes = []
    for length in (PROBE_TOKENS, 2 * PROBE_TOKENS):
        tokens = torch.zeros(1, length, dtype=torch.long)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low), counted(list(model.parameters())) as saved:
            body(model)(input_ids=tokens, use_cache=False, attention_mask=None)
        sizes.append(sum(size for size, _ in saved.values()))
    slope = (sizes[1] - sizes[0]) / PROBE_TOKENS
    return slope, max(int(sizes[0] - slope * PROBE_TOKENS), 0)


class Adapted(nn.Module):
    """A linear layer with an adapter, for its sizes."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        self.base = base
        narrow, wide = cast(Tensor, base.weight).shape[:: 1 if isinstance(base, Conv1D) else -1]
        self.down, self.up = nn.Linear(narrow, rank, bias=False), nn.Linear(rank, wide, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.base(hidden)
        return (found + self.up(self.down(hidden.to(self.down.weight.dtype)))).to(found.dtype)


@contextlib.contextmanager
def counted(parameters: list[Tensor]) -> Iterator[dict[int, tuple[int, Tensor]]]:
    """Note what autograd keeps within: bytes of each storage once, the parameters' own left out."""
    own = {parameter.untyped_storage()._cdata for parameter in parameters}
    saved: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes(), tensor  # the tensor keeps the storage's address taken
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield saved


@torch.no_grad()
def states_of_prefix(model: PreTrainedModel) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Return keys and values of each layer that has them, and states whose size does not grow."""
    found = model(input_ids=torch.zeros(1, PROBE_TOKENS, dtype=torch.long), use_cache=True, logits_to_keep=1)
    cache: Any = getattr(found, "past_key_values", None) or getattr(found, "cache_params", None)
    pairs = [(layer.keys, layer.values) for layer in cache.layers if getattr(layer, "keys", None) is not None]
    fixed = [getattr(layer, name, None) for layer in cache.layers for name in ("conv_states", "recurrent_states")]
    return pairs, [tensor for tensor in fixed if tensor is not None]


@dataclass(frozen=True)
class Requirements:
    """Bytes at the peak of a run, in parts."""

    num_parameters: int
    libraries: int
    weights: int
    gradients: int
    moments: int
    """Of AdamW, two for each trained weight."""
    reference: int
    """A second copy of the weights, for terms that compare with the model before the run."""
    rows: int
    """Keys and values, or other states, of what is being generated and of prefixes that are kept."""
    work: int
    """The largest of: a micro-batch's activations and logits, drawing tokens, and an optimizer step."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values()) - self.num_parameters

    @property
    def model(self) -> int:
        """What the model and its optimizer take, whatever is generated and read."""
        return self.weights + self.gradients + self.moments + self.reference

    def describe(self) -> str:
        """One line."""
        parts = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "num_parameters"]
        named = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts if size >= 0.05 * GIB)
        return f"memory: {self.total / GIB:.1f} GiB for {self.num_parameters / 1e6:.0f}M parameters ({named})"


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
    longest, on_cpu, text = longest_prompt + config.max_response_length, device == "cpu", shape.get_text_config()
    found = measure(shape, config, longest)
    asked = max(config.prompts_per_batch * tracks, config.eval_problems * config.eval_samples)
    running, kept = config.max_num_seqs, found.kept_rows
    if on_cpu:
        running, kept = min(running, asked), min(kept, asked + max(config.prompts_per_batch, config.eval_problems))
    size, of_update = (
        8 if config.dtype == "float64" else 4,
        -(-config.prompts_per_batch * tracks // config.updates_per_batch),
    )
    positions = min(config.max_tokens_per_microbatch, of_update * longest)
    stored = positions * found.activation
    layer = stored // text.num_hidden_layers
    if config.gradient_checkpointing:
        # between layers, and within one while it is computed again: as measured, three times what it keeps
        stored = min(stored, positions * found.boundary + 3 * layer)
    activations = stored + layer + found.casts  # gradients within a layer are as large as what it keeps
    logits = COPIES_OF_LOGITS * 4 * min(positions * found.vocab_size, CHUNK_LOGITS)
    sampling = BYTES_OF_SAMPLING * min(running, asked) * found.vocab_size
    return Requirements(
        num_parameters=found.num_parameters,
        libraries=LIBRARIES if on_cpu else 0,
        weights=found.weights,
        gradients=found.trained * size,
        moments=2 * found.trained * size,
        reference=found.weights if needs_ref and not config.lora_rank else 0,
        rows=(running + kept) * (longest * found.position + found.fixed_state),
        work=max(activations + logits, sampling, 2 * found.largest if on_cpu else 0),
    )


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
        return torch.cuda.mem_get_info(torch.device(device))[0]
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free, default=2**62)


def advise(needs: Requirements, free: int, config: TrainConfig) -> str:
    """Return what to change where a run needs more than is free, or nothing.

    Raises ValueError where the model and its optimizer alone need more.
    """
    if needs.total <= free:
        return ""
    tries = []
    if needs.model > needs.total / 4 and not config.lora_rank:
        tries.append("--lora-rank 32")
    if needs.work > needs.total / 8:
        tries += [] if config.gradient_checkpointing else ["--gradient-checkpointing"]
        tries.append(f"--max-tokens-per-microbatch {max(config.max_tokens_per_microbatch // 4, 1024)}")
    if needs.rows > needs.total / 8:
        tries.append(f"--max-num-seqs {max(config.max_num_seqs // 4, 1)}")
    text = f"needs about {needs.total / GIB:.1f} GiB of memory, there are {free / GIB:.1f}"
    remedy = f"try {', '.join(tries) or 'a smaller model'}"
    if needs.model > free:
        alone = f"its weights and their optimizer alone need {needs.model / GIB:.1f}"
        raise ValueError(f"model={config.model} {text}; {alone}: {remedy}")
    return f"{text}: {remedy}"


def try_memory(
    config: TrainConfig, learner: Learner, method: Method, needs: Requirements | None, longest_prompt: int
) -> tuple[str, ...]:
    """Return what was found, as a line for whoever starts the run; nothing where it was not tried.

    Raises OutOfMemoryError where not even one sequence of the longest prompt and the budget fits beside the optimizer.
    """
    if not is_wanted(config, needs, learner.policy.device):
        return ()
    start, on_cuda = time.perf_counter(), learner.policy.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(learner.policy.device)
    most = -(-config.prompts_per_batch * method.sampling.num_tracks // config.updates_per_batch)
    run_largest(learner, method, longest_prompt, config.max_response_length, most)
    seconds = time.perf_counter() - start
    peak = f", {torch.cuda.max_memory_allocated(learner.policy.device) / GIB:.1f} GiB at the peak" if on_cuda else ""
    return (f"memory: a micro-batch of {learner.largest} positions fits{peak} ({seconds:.1f} s)",)


def is_wanted(config: TrainConfig, needs: Requirements | None, device: torch.device) -> bool:
    """Return True on CUDA; on the CPU, where a trial takes long and a shortage may kill the process, only near the limit."""
    if config.try_memory != "auto":
        return config.try_memory == "on"
    if device.type != "cpu":
        return True
    return needs is not None and 2 * (needs.work + needs.gradients) > free_memory("cpu")


def run_largest(learner: Learner, method: Method, num_prompt: int, max_response_length: int, most_rows: int) -> None:
    """Run forward and backward of one micro-batch of rows of the greatest length, as many as fit and at most `most_rows`.

    Meanwhile memory is held for the optimizer's moments, which come with its first step and stay.
    """
    model, length = learner.policy.model, num_prompt + max_response_length
    num_rows = max(1, min(learner.max_tokens // length, most_rows))
    rollouts, plan = draw_batch(num_rows, num_prompt, max_response_length, output_embeddings(model).weight.shape[0])
    was_training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    held = hold_moments(learner.optimizer)
    try:
        with torch.random.fork_rng(devices):
            learner.fit(partial(learner.differentiate, method, rollouts, plan, {}, True), rollouts, plan)
    finally:
        held.clear()
        learner.optimizer.zero_grad(set_to_none=True)
        model.train(was_training)
        release_memory()


def hold_moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return tensors of the size of the two moments that Adam keeps of each parameter, but for those that it has already."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p not in optimizer.state]
    try:
        return [torch.empty_like(p, requires_grad=False) for p in parameters for _ in range(2)]
    except (RuntimeError, MemoryError) as error:
        if is_shortage(error):
            raise OutOfMemoryError(NO_ROOM_FOR_MOMENTS) from error
        raise


def draw_batch(num_rows: int, num_prompt: int, max_response_length: int, vocab_size: int) -> tuple[Rollouts, Plan]:
    """Draw sequences of random tokens that share nothing, and a plan that trains on all of them."""
    tokens = np.random.default_rng(0).integers(0, vocab_size, (num_rows, num_prompt + max_response_length)).tolist()
    responses = tuple(
        Response(i, tuple(row), num_prompt, (0.0,) * max_response_length, "length", seed=i)
        for i, row in enumerate(tokens)
    )
    segments = tuple(Segment(i, num_prompt, num_prompt + max_response_length, group=i) for i in range(num_rows))
    ones = np.ones(num_rows)
    plan = Plan(
        np.arange(num_rows), np.full(num_rows, max_response_length), ones, ones / (num_rows * max_response_length), ones
    )
    return Rollouts(responses, segments, max_response_length), plan

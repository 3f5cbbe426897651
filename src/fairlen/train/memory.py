"""Memory of a run: an estimate from the shape of its model, and a trial of its largest micro-batch on random tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from fairlen.batch import Plan
from fairlen.engine.cache import WORK, estimate_position_bytes, heads_of, num_kept_rows
from fairlen.engine.device import free_memory
from fairlen.engine.sampler import SAMPLING_BYTES
from fairlen.files.formats import describe
from fairlen.files.limits import GIB
from fairlen.files.pretrained import find_model, read_config
from fairlen.methods.method import Method
from fairlen.policy.engines import KINDS, EngineKind
from fairlen.policy.head import CHUNK_LOGITS
from fairlen.policy.lora import adapters_of, add_adapters
from fairlen.policy.model import output_embeddings
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.settings import LARGE, choose_engine
from fairlen.tasks.shipped import SHIPPED
from fairlen.train.optimizer import count_moments, embedding_weights, name_of
from fairlen.train.run.config import TrainConfig
from fairlen.train.step import Learner, OutOfMemoryError, is_shortage, release_memory

SHOWN, UNSHOWN = {"cache": "keys and values", "work": "a micro-batch"}, ("num_parameters", "row", "engine_sleeps")
SIZES = {"float64": 8, "float32": 4, "bfloat16": 2}
LIBRARIES = int(0.7 * GIB)  # on the CPU; a context, its kernels and the workspaces of cuBLAS on CUDA


@dataclass(frozen=True)
class Memory:
    """Bytes of a run, by part."""

    num_parameters: int
    weights: int
    gradients: int
    moments: int  # of AdamW, two for each trained weight, but for those that are paged to the host's memory
    reference: int
    engine: int  # its own copy of the weights, and what it keeps while it sleeps; the embedded engine has neither
    cache: int  # keys and values of responses at full length and of kept prefixes, and buffers of a decoding step
    row: int  # the part of `cache` that one response at full length has
    work: int  # activations, logits and their gradients in the largest micro-batch
    engine_sleeps: bool = False  # and frees its weights and cache during updates

    @property
    def model(self) -> int:
        """The model and its optimizer, at any length and size of a batch."""
        return self.weights + self.gradients + self.moments + self.reference

    @property
    def total(self) -> int:
        """The larger of a rollout, with an engine, and an update; without a sleeping engine both are there together."""
        held, engine = LIBRARIES + self.model, self.engine + self.cache
        return max(held - self.gradients + engine, held + self.work + (0 if self.engine_sleeps else engine))

    @property
    def beside_cache(self) -> int:
        """Training's own bytes after the model was loaded, beside keys and values."""
        return self.moments + self.reference + (0 if self.engine_sleeps else self.gradients + self.work)

    def describe(self) -> str:
        sizes = ((SHOWN.get(name, name), size / GIB) for name, size in vars(self).items() if name not in UNSHOWN)
        shown = ", ".join(f"{name} {size:.1f}" for name, size in sizes if size >= 0.05)
        return f"memory: about {self.total / GIB:.1f} GiB for {self.num_parameters / 1e6:.0f}M parameters ({shown})"


def estimate(
    shape: PreTrainedConfig, config: TrainConfig, needs_ref: bool = False, *, device: str, longest_prompt: int, tracks: int
) -> Memory:  # fmt: skip
    """The needs of a run on a model of `shape`, for prompts of `longest_prompt` tokens, `tracks` responses each.

    Raises ValueError for a shape of which no model can be made, or whose sizes differ between layers, and for unfit adapters.
    """
    adapters, text = adapters_of(config.model), shape.get_text_config()
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape, trust_remote_code=False)
    except Exception as error:  # damaged shapes raise errors of any class
        raise ValueError(f"no model of this shape: {describe(error)}") from error
    known = [getattr(text, name, None) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")]
    if not all(isinstance(size, int) for size in known) or isinstance(getattr(text, "intermediate_size", 0), list):
        raise ValueError(f"{type(model).__name__} has layers whose memory is not estimated")
    num_parameters = model.num_parameters()
    if adapters:
        with torch.device("meta"):
            add_adapters(model, adapters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    given = SIZES[config.model.dtype]
    count, size, low = sum(p.numel() for p in trained), max(given, 4), min(given, 4)
    frozen = num_parameters * given if adapters else 0
    kind = KINDS[choose_engine(config, device, num_parameters)]
    longest = longest_prompt + config.sampling.max_response_length
    engine = num_parameters * low + (kind.asleep if device != "cpu" else 0)
    if not kind.has_copy and (device != "cpu" or low == size or adapters):
        engine = 0  # on a CPU it has a copy of the weights in bfloat16
    row = longest * estimate_position_bytes(text, low if device != "cpu" or kind.has_copy else size)
    return Memory(
        num_parameters, weights=frozen + count * size, gradients=count * size, row=row,
        moments=sum(count_moments(config.update.optim, trained, embedding_weights(model), size)),
        reference=count * size if needs_ref and not adapters else 0,
        engine=engine,
        cache=measure_cache(text, row, config, kind, device, tracks),
        work=measure_work(text, config, longest, tracks, device),
        engine_sleeps=device != "cpu" and config.sampling.sleep_level > 0 and kind.has_copy,
    )  # fmt: skip


def measure_cache(text: Any, row: int, config: TrainConfig, kind: EngineKind, device: str, tracks: int) -> int:
    asked = max(config.sampling.prompts_per_batch * tracks, config.run.problems * config.run.samples)
    running = min(config.sampling.max_num_seqs, asked)
    work = SAMPLING_BYTES * running * text.vocab_size + (0 if device == "cpu" else WORK)
    kept = 0 if kind.has_copy else num_kept_rows(row, config.sampling.max_num_seqs)
    if device == "cpu":  # pages are taken when they are first written
        kept = min(kept, asked + max(config.sampling.prompts_per_batch, config.run.problems))
    elif not kind.has_copy:
        running = config.sampling.max_num_seqs
    return row * (running + kept) + work


def measure_work(text: Any, config: TrainConfig, longest: int, tracks: int, device: str) -> int:
    """Bytes of `Memory.work`.

    Of a layer of width d, inner width i and q, k for all queries and keys, autograd keeps some 4 i + 3.3 (q + 2 k) numbers a
    position, and 5 d in float32 (7 d beside bfloat16): within a tenth for Llama, Qwen2, Qwen3 and Gemma, less with adapters.
    """
    heads, key_heads, dim = heads_of(text)
    positions = -(-config.sampling.prompts_per_batch * tracks // config.update.updates_per_batch) * longest
    positions = max(longest, min(config.update.max_tokens_per_microbatch, positions))
    inner, size = getattr(text, "intermediate_size", None) or 4 * text.hidden_size, SIZES[config.model.dtype]
    width = max(size, 4) * text.hidden_size
    layer = int(size * (4 * inner + 3.3 * (heads + 2 * key_heads) * dim) + (7 if size == 2 else 5) * width)
    kept = layer * text.num_hidden_layers
    if config.model.gradient_checkpointing:  # what lies between layers, and one layer again, with its gradients
        kept = width * text.num_hidden_layers + layer * (6 if device == "cpu" else 2)
    return positions * kept + 2 * 4 * min(2 * positions * text.vocab_size, CHUNK_LOGITS)  # the latter of logits


def estimate_memory(config: TrainConfig, method: Method, device: str) -> Memory | None:
    """The needs of a run; None for small models, and for those whose shape cannot be read."""
    if config.model.name in SHIPPED:
        return None
    try:
        shape = read_config(find_model(config.model.name, config.model.revision), config.model.revision)
    except Exception:  # damaged files raise errors of any class; loading the model says which
        return None
    tracks, longest_prompt = method.sampling.num_tracks, config.data.max_prompt_length
    try:
        found = estimate(shape, config, method.needs_ref, device=device, longest_prompt=longest_prompt, tracks=tracks)
    except ValueError:  # loading the model says what is wrong, or it runs without an estimate
        return None
    return None if found.num_parameters < LARGE else found


def advise(needs: Memory, free: int, config: TrainConfig, device: str = "cpu") -> str:
    """Changes where a run needs more than is free, or "". Raises ValueError where its model alone does."""
    if needs.total <= free:
        return ""
    text = f"needs about {needs.total / GIB:.1f} GiB of memory, there are {free / GIB:.1f}"
    fitting = (free - (needs.total - needs.cache)) // max(needs.row, 1)
    if device != "cpu" and fitting >= 2:  # the engine decodes others after them
        return f"{text}: keys and values of {fitting} responses at full length fit at a time; nothing needs to change"
    is_work = needs.work > needs.total / 8
    tries = {
        "--lora-rank 32": needs.model > needs.total / 4 and not config.model.lora_rank,
        "--gradient-checkpointing": is_work and not config.model.gradient_checkpointing,
        f"--max-tokens-per-microbatch {max(config.update.max_tokens_per_microbatch // 4, 1024)}": is_work,
        f"--max-num-seqs {max(config.sampling.max_num_seqs // 4, 1)}": needs.cache > needs.total / 8,
    }
    remedy = f"try {', '.join(flag for flag, helps in tries.items() if helps) or 'a smaller model'}"
    if needs.model > free:
        text = f"model={config.model.name} {text}; its weights and their optimizer alone need {needs.model / GIB:.1f}"
        raise ValueError(f"{text}: {remedy}")
    return f"{text}: {remedy}"


def try_memory(
    config: TrainConfig, learner: Learner, method: Method, needs: Memory | None, longest_prompt: int
) -> tuple[str, ...]:
    """Return the result as a line for the log, none where not tried. Raises OutOfMemoryError where no sequence fits."""
    if not is_wanted(config, needs, learner.policy.device):
        return ()
    start, on_cuda = time.perf_counter(), learner.policy.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(learner.policy.device)
    most = -(-config.sampling.prompts_per_batch * method.sampling.num_tracks // config.update.updates_per_batch)
    run_largest(learner, method, longest_prompt, config.sampling.max_response_length, most)
    seconds = time.perf_counter() - start
    peak = f", {torch.cuda.max_memory_allocated(learner.policy.device) / GIB:.1f} GiB at the peak" if on_cuda else ""
    return (f"memory: a micro-batch of {learner.largest} positions fits{peak} ({seconds:.1f} s)",)


def is_wanted(config: TrainConfig, needs: Memory | None, device: torch.device) -> bool:
    """True on CUDA; on the CPU, where a trial takes long and a shortage may kill the process, only near the limit."""
    if config.update.try_memory != "auto":
        return config.update.try_memory == "on"
    if device.type != "cpu":
        return True
    return needs is not None and 2 * (needs.work + needs.gradients) > free_memory("cpu")


def run_largest(learner: Learner, method: Method, num_prompt: int, max_response_length: int, most_rows: int) -> None:
    """Run the longest row and the micro-batch with most positions, while memory is held for the optimizer's moments."""
    model, longest = learner.policy.model, num_prompt + max_response_length
    vocab_size = output_embeddings(model).weight.shape[0]
    was_training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    held = hold_moments(learner.optimizer, embedding_weights(model))
    try:
        with torch.random.fork_rng(devices):
            for num_rows, length in largest_shapes(learner.max_tokens, longest, most_rows):
                rollouts, plan = draw_batch(num_rows, min(num_prompt, length // 2), length, vocab_size)
                learner.fit(partial(learner.differentiate, method, rollouts, plan, {}, True), rollouts, plan)
    finally:
        held.clear()
        learner.optimizer.zero_grad(set_to_none=True)
        model.train(was_training)
        release_memory()


def largest_shapes(max_tokens: int, longest: int, most_rows: int) -> list[tuple[int, int]]:
    """Number and length of rows: of the longest row and of the micro-batch with most positions, or of one that is both.

    Two rows of 8,192 positions fill 16,384, of which one row of 9,216 leaves nearly half.
    """
    num_rows = min(-(-max_tokens // longest), most_rows)
    width = min(longest, max_tokens // num_rows)
    return [(num_rows, longest)] if width == longest or num_rows == 1 else [(1, longest), (num_rows, width)]


def hold_moments(optimizer: torch.optim.Optimizer, embeddings: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
    """Allocate the size of the two moments that Adam keeps of each parameter, except for those that it has already."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p not in optimizer.state]
    sizes = (count_moments(name_of(optimizer), [p], embeddings, p.itemsize)[0] for p in parameters)
    try:
        return [torch.empty(n, dtype=torch.uint8, device=p.device) for n, p in zip(sizes, parameters, strict=True)]
    except (RuntimeError, MemoryError) as error:
        if is_shortage(error):
            raise OutOfMemoryError(
                "memory ran out with the weights and the optimizer's moments alone: give --lora-rank 32 or a smaller "
                "--max-num-seqs"
            ) from error
        raise


def draw_batch(num_rows: int, num_prompt: int, length: int, vocab_size: int) -> tuple[Rollouts, Plan]:
    """Draw sequences of `length` random tokens that share nothing, and a plan that trains on all of them."""
    tokens = np.random.default_rng(0).integers(0, vocab_size, (num_rows, length)).tolist()
    trained = length - num_prompt
    responses = tuple(
        Response(i, tuple(row), num_prompt, (0.0,) * trained, "length", seed=i) for i, row in enumerate(tokens)
    )
    segments = tuple(Segment(i, num_prompt, length, group=i) for i in range(num_rows))
    ones = np.ones(num_rows)
    plan = Plan(np.arange(num_rows), np.full(num_rows, trained), ones, ones / (num_rows * trained), ones)
    return Rollouts(responses, segments, trained), plan

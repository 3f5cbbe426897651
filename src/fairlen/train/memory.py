"""Memory of a run: the least that it needs, by the shape of its model, and a trial of a micro-batch on random tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from fairlen.batch import Plan
from fairlen.engine.cache import num_kept_rows
from fairlen.engine.device import free_memory, give_back_memory
from fairlen.files.limits import GIB
from fairlen.files.pretrained import find_model, read_config
from fairlen.methods.method import Method
from fairlen.policy.engines import count_position_bytes, has_copy
from fairlen.policy.head import CHUNK_LOGITS
from fairlen.policy.layout import build_batch
from fairlen.policy.lora import add_adapters
from fairlen.policy.model import Policy, output_embeddings
from fairlen.rollouts import Rollouts
from fairlen.settings import LARGE
from fairlen.tasks.playground import PLAYGROUND
from fairlen.train.run.config import TrainConfig
from fairlen.train.step import Learner, OutOfMemoryError, StepResult, is_shortage, release_memory

SIZES = {"float64": 8, "float32": 4, "bfloat16": 2}
LIBRARIES = int(0.7 * GIB)  # on the CPU; a context, its kernels and the workspaces of cuBLAS on CUDA
ENDING = int(0.35 * GIB)  # on the CPU, of what is imported for the report at the end
KEPT = 20  # numbers that autograd keeps of a position in a layer, in widths of the model
MAX_MICROBATCH = 16_384
TRIED = 2048  # positions, or one sequence, that are tried; a larger micro-batch takes as much more
SAFE_SHARE, CHOSEN_SHARE = 0.9, 0.75  # of the free memory: for what is asked for, and for a micro-batch that is chosen


def refuse_too_large(config: TrainConfig, method: Method, free: int) -> str:
    """Return what a run needs at least; "" for small models, and for shapes that cannot be read.

    Raises ValueError where less is free.
    """
    if config.model.name == PLAYGROUND:
        return ""
    try:
        shape = read_config(find_model(config.model.name, config.model.revision), config.model.revision)
        parts = estimate_least(shape, config, method.needs_ref)
    except Exception:  # damaged files raise errors of any class; loading the model says what is wrong
        return ""
    shown = ", ".join(f"{name} {number / GIB:.1f}" for name, number in parts.items() if number >= 0.05 * GIB)
    least = f"at least {sum(parts.values()) / GIB:.1f} GiB of memory ({shown})" if parts else ""
    if sum(parts.values()) > free:
        remedy = "a smaller model" if config.model.lora_rank else "--lora-rank 32 or a smaller model"
        raise ValueError(f"model={config.model.name} needs {least}, there are {free / GIB:.1f}: try {remedy}")
    return least


def estimate_least(shape: PreTrainedConfig, config: TrainConfig, needs_ref: bool = False) -> dict[str, int]:
    """Return bytes by part of a run with one sequence at a time; none for a small model."""
    adapters, given, text = config.model.lora_rank > 0, SIZES[config.model.dtype], shape.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, trust_remote_code=False)
        num_parameters = model.num_parameters()
        if adapters:
            add_adapters(model, config.model)
    count = max(given, 4) * sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    kept = (1 if config.model.gradient_checkpointing else KEPT) * text.hidden_size * text.num_hidden_layers * given
    found = {
        "libraries": LIBRARIES,
        "weights": count + (num_parameters * given if adapters else 0),
        "gradients": count,
        "moments": 2 * count,
        "reference": count if needs_ref and not adapters else 0,
        "one sequence": config.sampling.max_response_length * kept,
    }
    return found if num_parameters >= LARGE else {}


@dataclass(frozen=True)
class Trial:
    """Settings that fit, with the bytes that the run then takes at most, and an update of it beside the weights."""

    config: TrainConfig
    needed: int = 0
    taken: int = 0
    note: str = ""


def try_memory(config: TrainConfig, learner: Learner, method: Method, longest_prompt: int) -> Trial:
    """Choose the largest micro-batch by a trial of a part of it, and lower what does not fit; on CUDA it is run itself.

    Raises OutOfMemoryError where no sequence fits.
    """
    policy, asked, choice = learner.policy, config.update.max_tokens_per_microbatch, config.update.try_memory
    start, device, on_cuda = time.perf_counter(), policy.device, policy.device.type == "cuda"
    config = config.replace(max_tokens_per_microbatch=asked or MAX_MICROBATCH)
    learner.max_tokens = config.update.max_tokens_per_microbatch
    if choice == "off" or not (on_cuda or choice == "on" or policy.model.num_parameters() >= LARGE):
        return Trial(config)
    longest = longest_prompt + config.sampling.max_response_length
    most_rows = -(-config.sampling.prompts_per_batch * method.sampling.num_tracks // config.update.updates_per_batch)
    # trees hold a prompt once; an update that is cheaper in rows shares little
    most_prompts = most_rows // method.sampling.num_tracks + 1 if learner.layout.kind == "trees" else most_rows
    most = most_rows * config.sampling.max_response_length + min(most_prompts, most_rows) * longest_prompt
    run = partial(run_largest, learner, method, longest_prompt, longest, most_rows)
    before, learner.max_tokens = reset_peak(device), min(learner.max_tokens, max(TRIED, longest))
    moments, gradients = run(), sum(weight.nbytes for weight in policy.trained().values())
    taken, tried = read_peak(device) - before, learner.largest
    room = free_memory(device) + (before if on_cuda else read_status("VmRSS"))

    is_copied = has_copy(config, policy) or (policy.autocast and not policy.has_adapters)
    copy = policy.model.num_parameters() * (2 if policy.autocast else 4) if is_copied and not on_cuda else 0
    copies = 3 if policy.has_adapters else 1  # merged, made contiguous and serialised
    saved = 0 if on_cuda else ENDING + max(moments + gradients, copies * 4 * policy.model.num_parameters())

    # what is saved is serialised as a whole, after what the update took is given back
    def foresee(config: TrainConfig) -> int:
        positions = min(config.update.max_tokens_per_microbatch, most)
        logits, of_trial = (count_logits(number, policy) for number in (positions, tried))
        cached = 0 if on_cuda else count_cached(config, method, longest_prompt, count_position_bytes(policy))
        rest = max(taken - moments - gradients - of_trial, 0) * positions / tried
        return before + moments + copy + cached + max(gradients + logits + int(rest), saved)

    fitting = lower(config, foresee, longest, (SAFE_SHARE if asked else CHOSEN_SHARE) * room, SAFE_SHARE * room)
    learner.max_tokens, needed = fitting.update.max_tokens_per_microbatch, foresee(fitting)
    if on_cuda and learner.max_tokens > tried:  # what is left decides how many responses the engine takes
        run()
        taken = read_peak(device) - before
    fitting = fitting.replace(max_tokens_per_microbatch=learner.max_tokens)
    sizes = f"{learner.max_tokens:,} positions a micro-batch and {fitting.sampling.max_num_seqs} responses at a time"
    note = f"memory: up to {needed / GIB:.1f} of {room / GIB:.1f} GiB, with {sizes}"
    fewer = ", fewer than asked for, which changes no result" if asked and fitting != config else ""
    return Trial(fitting, needed, taken, f"{note}{fewer} (tried in {time.perf_counter() - start:.0f} s)")


def lower(
    config: TrainConfig, foresee: Callable[[TrainConfig], int], longest: int, wanted: float, room: float
) -> TrainConfig:
    """Return settings with smaller micro-batches where more than is wanted is foreseen, and fewer responses at a time."""
    while foresee(config) > wanted and (positions := config.update.max_tokens_per_microbatch) > longest:
        config = config.replace(max_tokens_per_microbatch=max(positions // 2, longest))
    while (foreseen := foresee(config)) > room:
        if config.sampling.max_num_seqs == 1:
            raise OutOfMemoryError(
                f"a run needs {foreseen / GIB:.1f} GiB with one sequence of {longest} tokens at a time, there are "
                f"{room / GIB:.1f}: give --gradient-checkpointing, a smaller --max-response-length or --lora-rank 32"
            )
        config = config.replace(max_num_seqs=config.sampling.max_num_seqs // 2)
    return config


def count_logits(positions: int, policy: Policy) -> int:
    """Bytes of logits and their gradients, of which a chunk is held at a time."""
    return 2 * 4 * min(2 * positions * len(output_embeddings(policy.model).weight), CHUNK_LOGITS)


def count_cached(config: TrainConfig, method: Method, longest_prompt: int, position_bytes: int) -> int:
    """Bytes of keys and values that an engine has written in the end."""
    asked, run = config.sampling, config.run
    longest = longest_prompt + asked.max_response_length
    number = run.problems + asked.prompts_per_batch * run.rollout_batches
    at_once = max(asked.prompts_per_batch * method.sampling.num_tracks, run.problems * run.samples)
    kept = min(num_kept_rows(max(longest * position_bytes, 1), asked.max_num_seqs), number)
    kept_length = longest_prompt if method.sampling.is_whole else longest
    return position_bytes * (min(asked.max_num_seqs, at_once) * longest + kept * kept_length)


def reset_peak(device: torch.device) -> int:
    """Begin to measure the peak of memory; return the bytes that are taken now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    give_back_memory()  # what is taken from freed memory would not be seen
    with suppress(OSError):  # where it is not allowed, the peak is that of the process
        place = os.open("/proc/self/clear_refs", os.O_WRONLY)
        os.write(place, b"5")
        os.close(place)
    return read_status("VmRSS")


def read_peak(device: torch.device) -> int:
    """Return the most bytes that were taken since `reset_peak`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else read_status("VmHWM")


def read_status(name: str) -> int:
    """Return bytes of this process by a name of Linux; 0 on other systems."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def run_largest(learner: Learner, method: Method, num_prompt: int, longest: int, most_rows: int) -> int:
    """Run the longest row and then, beside its gradients, the largest micro-batch; return bytes held for moments."""
    model = learner.policy.model
    vocab_size = output_embeddings(model).weight.shape[0]
    was_training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    shapes = (1, longest), largest_shape(learner.max_tokens, longest, most_rows)
    batches = [draw_batch(rows, min(num_prompt, length // 2), length, vocab_size) for rows, length in shapes]

    def differentiate() -> None:
        for rollouts, plan in batches:
            result = StepResult(np.zeros((3, len(plan))), method)
            for packed in learner.packs(rollouts, plan, {}, True):
                learner.accumulate(method, packed, result, [])

    held = hold_moments(learner.optimizer)
    try:
        model.train()
        with torch.random.fork_rng(devices):
            learner.fit(differentiate, *batches[0])
        return held.nbytes
    finally:
        del held
        learner.optimizer.zero_grad(set_to_none=True)
        model.train(was_training)
        release_memory()


def largest_shape(max_tokens: int, longest: int, most_rows: int) -> tuple[int, int]:
    """Number and length of rows of the micro-batch with most positions.

    Two rows of 8,192 positions fill 16,384, of which one row of 9,216 leaves nearly half.
    """
    num_rows = min(-(-max_tokens // longest), most_rows)
    return num_rows, longest if num_rows == 1 else min(longest, max_tokens // num_rows)


def hold_moments(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Take the memory of the two moments that Adam keeps of each parameter, except for those that it has already."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    size = count_moments(p for p in parameters if p not in optimizer.state)
    try:
        return torch.ones(size, dtype=torch.uint8, device=parameters[0].device)
    except (RuntimeError, MemoryError) as error:
        if is_shortage(error):
            raise OutOfMemoryError(
                "memory ran out with the weights and the optimizer's moments alone: give --lora-rank 32 or a smaller "
                "--max-num-seqs"
            ) from error
        raise


def count_moments(weights: Iterable[torch.Tensor]) -> int:
    """Bytes of the two moments of each weight, which have its type."""
    return 2 * sum(weight.nbytes for weight in weights)


def draw_batch(num_rows: int, num_prompt: int, length: int, vocab_size: int) -> tuple[Rollouts, Plan]:
    """Draw sequences of `length` random tokens that share nothing, and a plan that trains on all of them."""
    return build_batch(np.random.default_rng(0).integers(0, vocab_size, (num_rows, length)).tolist(), num_prompt)

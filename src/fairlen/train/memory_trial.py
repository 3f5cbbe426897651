"""The largest micro-batch that the settings allow, run before anything else: a run that does not fit fails in its first minute.

Random tokens, forward and backward, the gradient thrown away. Weights, optimizer and random streams are as they were, so that
a run computes the same with and without it. Where memory runs out, micro-batches become smaller here as they would later.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from fairlen.batch import Plan, Response, Rollouts, Segment
from fairlen.methods.method import Method
from fairlen.policy.memory import OutOfMemoryError, is_shortage, release_memory
from fairlen.policy.model import output_embeddings
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.requirements import GIB, Forecast, free_memory
from fairlen.train.step import Learner

NO_ROOM_FOR_MOMENTS = (
    "memory ran out with the weights and the optimizer's moments alone: give --lora-rank 32 or a smaller --max-num-seqs"
)


def try_memory(
    config: TrainConfig, learner: Learner, method: Method, forecast: Forecast, longest_prompt: int
) -> tuple[str, ...]:
    """What was found, as a line for whoever starts the run; nothing where it was not tried.

    Raises OutOfMemoryError where not even one sequence of the longest prompt and the budget fits beside the optimizer.
    """
    if not is_wanted(config, forecast, learner.policy.device):
        return ()
    start, on_cuda = time.perf_counter(), learner.policy.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(learner.policy.device)
    most = -(-config.prompts_per_batch * method.sampling.num_tracks // config.updates_per_batch)
    run_largest(learner, method, longest_prompt, config.max_response_length, most)
    seconds = time.perf_counter() - start
    peak = f", {torch.cuda.max_memory_allocated(learner.policy.device) / GIB:.1f} GiB at the peak" if on_cuda else ""
    return (f"memory: a micro-batch of {learner.largest} positions fits{peak} ({seconds:.1f} s)",)


def is_wanted(config: TrainConfig, forecast: Forecast, device: torch.device) -> bool:
    """On CUDA; on the CPU, where a micro-batch takes long and a shortage ends in the system's hands, only near the limit."""
    if config.try_memory != "auto":
        return config.try_memory == "on"
    if device.type != "cpu":
        return True
    needs = forecast.needs
    return needs is not None and 2 * (needs.work + needs.gradients) > free_memory("cpu")


def run_largest(learner: Learner, method: Method, num_prompt: int, max_response_length: int, most_rows: int) -> None:
    """Forward and backward of one micro-batch of rows of the greatest length, as many as fit and at most `most_rows`.

    Meanwhile memory is held for the optimizer's moments, which come with its first step and stay.
    """
    model, length = learner.policy.model, num_prompt + max_response_length
    num_rows = max(1, min(learner.max_tokens // length, most_rows))
    rollouts, plan = draw_batch(num_rows, num_prompt, max_response_length, output_embeddings(model).weight.shape[0])
    was_training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    held = hold_moments(learner.optimizer)
    try:
        with torch.random.fork_rng(devices):
            learner.fit(lambda: learner.differentiate(method, rollouts, plan, {}, True), length)
    finally:
        held.clear()
        learner.optimizer.zero_grad(set_to_none=True)
        model.train(was_training)
        release_memory()


def hold_moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors of the size of the two moments that Adam keeps of each parameter, but for those that it has already."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p not in optimizer.state]
    try:
        return [torch.empty_like(p, requires_grad=False) for p in parameters for _ in range(2)]
    except (RuntimeError, MemoryError) as error:
        if is_shortage(error):
            raise OutOfMemoryError(NO_ROOM_FOR_MOMENTS) from error
        raise


def draw_batch(num_rows: int, num_prompt: int, max_response_length: int, vocab_size: int) -> tuple[Rollouts, Plan]:
    """Sequences of random tokens that share nothing, and a plan that trains on all of them."""
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

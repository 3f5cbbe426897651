"""A trial of memory at the start of a run: forward and backward of the largest micro-batch that the settings allow.

It reads random tokens; weights, optimizer and random streams stay as they were.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from fairlen.batch import Plan
from fairlen.engine.device import free_memory
from fairlen.files.limits import GIB
from fairlen.methods.method import Method
from fairlen.policy.model import output_embeddings
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.train.memory import Memory
from fairlen.train.optimizer import count_moments, embedding_weights, name_of
from fairlen.train.run.config import TrainConfig
from fairlen.train.step import Learner, OutOfMemoryError, is_shortage, release_memory


def try_memory(
    config: TrainConfig, learner: Learner, method: Method, needs: Memory | None, longest_prompt: int
) -> tuple[str, ...]:
    """Return the result as a line for the log, none where not tried. Raises OutOfMemoryError where no sequence fits."""
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


def is_wanted(config: TrainConfig, needs: Memory | None, device: torch.device) -> bool:
    """True on CUDA; on the CPU, where a trial takes long and a shortage may kill the process, only near the limit."""
    if config.try_memory != "auto":
        return config.try_memory == "on"
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

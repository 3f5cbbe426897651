"""The embedded rollout engine: continuous batching around the trainer's own module, on the caller's event loop.

The module is borrowed, never changed: attention and training mode are as before after every use, and nothing records gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairlen.batch import Floats, Ints
from fairlen.engine.cache import LIKE_SDPA, NAME, WORK, Rows, View, fit_rows, num_kept_rows, position_bytes
from fairlen.engine.device import free_memory, upload
from fairlen.engine.fused import Fused, find_fused
from fairlen.engine.generation import Sequence, SteppedEngine
from fairlen.engine.sampler import SAMPLING_BYTES, Drawn, pack, read, sample_packed, ways_of
from fairlen.engine.scheduler import Admission, Prefill, Scheduler
from fairlen.files.limits import GIB
from fairlen.sampling.extend import EngineStats

MAX_PREFILL_TOKENS = 4096  # tokens in one forward of a prefill, padding included
REMEDY = (
    "the embedded engine cannot run it: give --engine vllm where vLLM is installed, which keeps the state itself, "
    "or train by the method in TRL"
)


class Engine(SteppedEngine):
    """Continues prefixes with `model`, at most `max_num_seqs` at a time.

    `max_length` bounds prefix and generated tokens together. Keys and values of `kept_rows` prefixes (prompts, ended
    sequences) are kept, the least recently used evicted first; by default as many as fit into 1 GiB, at least one a slot.
    Memory: max_num_seqs + kept_rows rows of max_length positions; on CUDA fewer where they do not fit into `memory` bytes, by
    default the free ones, and `reason` says so. `autocast`: bfloat16 arithmetic, on CUDA keys and values too, on the CPU
    a copy of the weights. `compile`: "auto" compiles the step on CUDA where the model supports it, True always, False never.
    Unless it is True, Llama and Qwen3 models on the CPU run each step as one C function (`fused.py`).

    A result depends on weights, prefix and sampling alone: greedy results exactly, sampled ones except for near ties within
    rounding. Forward and backward passes may run between steps; call `refresh` after every change of the weights. Raises
    ValueError for models whose state is not attention alone and for parameters out of range.
    """

    def __init__(
        self, model: PreTrainedModel, *, eos_token_id: int | tuple[int, ...], max_length: int, max_num_seqs: int = 128,
        kept_rows: int | None = None, compile: Literal["auto"] | bool = "auto", autocast: bool = False,
        memory: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(embeddings_of(model).shape[0], eos_token_id, max_length, max_num_seqs)
        if kept_rows is not None and kept_rows < 1:
            raise ValueError(f"kept_rows={kept_rows}: a prefix is computed into a kept row; give at least 1")
        if compile not in ("auto", True, False):
            raise ValueError(f'compile={compile!r}: give "auto", True or False')
        self._runner = Runner(model, max_num_seqs, kept_rows, max_length, autocast, memory)
        self._num_asked, self.max_num_seqs = max_num_seqs, self._runner.num_slots
        self._noted_writes = self._runner.num_writes
        can_compile = self._runner.is_on_cuda and getattr(model, "_can_compile_fullgraph", False)
        if compile is True or (compile == "auto" and can_compile):
            self._runner.compile()
        self.scheduler = Scheduler(self.max_num_seqs, self._runner.num_kept, MAX_PREFILL_TOKENS)

    @property
    def reason(self) -> str:
        if self.max_num_seqs == self._num_asked:
            return ""
        taken = sum(tensor.nbytes for tensor in self._runner.rows.tensors) / GIB
        return (
            f"decodes {self.max_num_seqs} sequences at a time, not max_num_seqs={self._num_asked}: keys and values of "
            f"{self.max_length} positions each take {taken:.1f} GiB, and more do not fit; a smaller --max-response-length "
            "or --engine vllm decodes more"
        )

    @property
    def stats(self) -> EngineStats:
        num_prefix, num_computed = self.scheduler.num_prefix_tokens, self._runner.num_computed_tokens
        return EngineStats(self.max_num_seqs, self._num_steps, self._num_generated, num_prefix, num_computed)

    @property
    def has_free_slot(self) -> bool:
        return self.scheduler.has_free_slot

    def _add(self, sequence: Sequence) -> None:
        self.scheduler.queue_of(sequence).append(sequence)

    def _drop(self, sequence: Sequence) -> None:
        self.scheduler.drop(sequence)

    def _step(self) -> None:
        scheduler, runner = self.scheduler, self._runner
        if (scheduler.forks or scheduler.waiting) and runner.num_writes != self._noted_writes:
            if scheduler.prefixes.tokens or scheduler.ended:
                raise RuntimeError(
                    f"the weights have changed since policy_version={self.policy_version}, whose keys and values are kept: "
                    "call engine.refresh(policy_version) after every update"
                )
            self._forget()
        runner.admit(scheduler.keep())
        runner.admit(scheduler.schedule())
        num_rows = len(scheduler.running)
        if num_rows == 0:
            return
        ended = scheduler.postprocess(*runner.decode(scheduler.rows, num_rows))
        self._num_steps += 1
        self._num_generated += num_rows
        for sequence, finish in ended:
            sequence.finish(finish)
        for sequence in scheduler.running:
            if sequence and sequence.watchers:
                sequence.notify()

    def _forget(self) -> None:
        self.scheduler.forget()
        self._noted_writes = self._runner.num_writes
        self._runner.fuse()

    def _recover(self) -> None:
        """Forget and zero kept rows: a value that is not finite would outlive masking."""
        self.scheduler.forget()
        for tensor in self._runner.rows.tensors:
            tensor.zero_()


class StateError(ValueError):
    """A prefix's state is more than keys and values of attention, or does not go through transformers' interface."""


class Runner:
    """The model, the rows it works on, and the arithmetic of a step."""

    def __init__(
        self, model: PreTrainedModel, num_slots: int, kept_rows: int | None, max_length: int, autocast: bool = False,
        memory: int | None = None,
    ) -> None:  # fmt: skip
        check_state(model)
        self.model, self.max_length, self.autocast = model, max_length, autocast
        self.device = embeddings_of(model).device
        self.columns = torch.arange(max(max_length, num_slots), device=self.device)
        self.modules = tuple(model.modules())
        configs = {id(c): c for m in self.modules if hasattr(c := getattr(m, "config", None), "_attn_implementation")}
        self.configs: tuple[Any, ...] = tuple(configs.values())
        self.ignores_softcap = all(config._attn_implementation in LIKE_SDPA for config in self.configs)
        self.step: Callable[..., Tensor] = self._logits
        self.row_multiple = 1
        self.fused: Fused | None = None
        self.low: dict[Tensor, Tensor] = {}  # copies in bfloat16, by weight
        self.num_computed_tokens = 0
        self.copy_weights()
        last_token = embeddings_of(model).shape[0] - 1
        probe = torch.linspace(0, last_token, min(max_length, 4), device=self.device).long()[None]
        logits, states = self._plain_forward(probe)
        kept = num_kept_rows(max_length * position_bytes(states), num_slots) if kept_rows is None else kept_rows
        if self.is_on_cuda:
            work = WORK + num_slots * SAMPLING_BYTES * embeddings_of(model).shape[0]
            room = (free_memory(self.device) if memory is None else memory) - work
            num_slots, kept = fit_rows(max_length * position_bytes(states), num_slots, kept, room)
        self.num_slots, self.num_kept = num_slots, kept
        self.rows = Rows(states, self.num_slots + self.num_kept, max_length)
        self.origins, self.shared = np.zeros((2, num_slots), np.int64)
        self._check_arithmetic(probe, logits)
        self.fuse()

    @property
    def is_on_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def arithmetic(self) -> AbstractContextManager[object]:
        # without a cache of cast weights, which would outlive an update of them
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if self.autocast else nullcontext()

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Within, the model attends over rows, without dropout and gradients; after, it is as before."""
        before = [config._attn_implementation for config in self.configs]
        try:
            for config in self.configs:
                config._attn_implementation = NAME
            for parameters, weight in self.products:
                parameters["weight"] = self.low[weight]  # pyright: ignore[reportArgumentType]  a tensor is read alike
            with in_evaluation(self.modules), self.arithmetic:
                yield
        finally:
            for config, name in zip(self.configs, before, strict=True):
                config._attn_implementation = name
            for parameters, weight in self.products:
                parameters["weight"] = weight  # pyright: ignore[reportArgumentType]

    @property
    def num_writes(self) -> int:
        """In-place writes of parameters so far."""
        return sum(p._version for module in self.modules for p in module._parameters.values() if p is not None)

    @torch.no_grad()
    def copy_weights(self) -> None:
        """Copy weights of products to bfloat16, which autocast on a CPU would do in every step."""
        is_asked = self.autocast and not self.is_on_cuda
        linear = [module for module in self.modules if is_asked and isinstance(module, nn.Linear)]
        self.products = [(module._parameters, module.weight) for module in linear]
        self.low = {
            weight: self.low[weight].copy_(weight) if weight in self.low else weight.bfloat16()
            for _, weight in self.products
        }

    def fuse(self) -> None:
        """Run steps as one C function where there is one for the model as it is now, unless they are compiled."""
        self.copy_weights()
        is_model = self.row_multiple > 1 or (self.autocast and self.is_on_cuda)
        self.fused = None if is_model else find_fused(self.model, self.rows, self.low)

    def compile(self) -> None:
        """Run steps compiled, on multiples of 8 rows: vector loops without a remainder, and never one row."""
        self.step, self.row_multiple, self.fused = torch.compile(self._logits, dynamic=True), 8, None

    def admit(self, admission: Admission) -> None:
        """Compute prefixes, then copy; every source is read before any target is written."""
        if admission.prefills:
            self._prefill(admission.prefills)
            self._forget_shared([job.row for job in admission.prefills])
        if admission.sources:
            self.rows.copy(admission.sources, admission.targets, admission.num_columns)
            self._share(admission)

    def _share(self, admission: Admission) -> None:
        """Note the kept row whose first columns each slot has a copy of."""
        sources, targets, num_columns = map(np.array, (admission.sources, admission.targets, admission.num_columns))
        of_kept, from_slot = targets >= self.num_slots, np.minimum(sources, self.num_slots - 1)
        is_kept = sources >= self.num_slots
        origins = np.where(is_kept, sources, self.origins[from_slot])
        shared = np.where(is_kept, num_columns, np.minimum(self.shared[from_slot], num_columns))
        self._forget_shared(targets[of_kept])
        self.origins[targets[~of_kept]], self.shared[targets[~of_kept]] = origins[~of_kept], shared[~of_kept]

    def _forget_shared(self, rows: list[int] | Ints) -> None:
        """Forget what slots share with rows that are written."""
        self.shared[np.isin(self.origins, rows)] = 0

    def decode(self, rows: np.ndarray, num_rows: int) -> tuple[Ints, Floats, list[bytes]]:
        """Draw tokens, log-probs and supports for the first `num_rows` of `rows` [slots] of ROW."""
        padded = min(-(-num_rows // self.row_multiple) * self.row_multiple, self.num_slots)
        num_columns, ways = int(rows["position"][:num_rows].max()) + 1, ways_of(rows[:num_rows])
        packed = pack(rows[:padded])
        packed[1, num_rows:] = 0  # rows beyond are decoded for the shape alone
        self.shared[:padded][packed[1] < self.shared[:padded]] = 0  # a new sequence, of which nothing was copied
        found = self._draw(upload(packed, self.device), num_columns, num_rows, ways)
        return read(self.model, found, rows[:num_rows])

    def _draw(self, packed: Tensor, num_columns: int, num_rows: int, ways: tuple[bool, bool]) -> Drawn:
        fed, positions = packed[0], packed[1]
        if self.fused and not any(self.fused.hooks):  # which only the model itself calls
            logits = self.fused(fed, positions, self.origins, self.shared)
        else:
            with self.borrowed():
                logits = self.step(fed, positions, self.columns[:num_columns], self.columns[: len(fed)])
        return sample_packed(logits[:num_rows], packed, ways)

    def _logits(self, fed: Tensor, positions: Tensor, columns: Tensor, slots: Tensor) -> Tensor:
        """Logits [N, V] after feeding a token [N] at its position [N] to rows 0..N-1."""
        positions = positions[:, None]
        return self._forward(fed[:, None], positions, View(self.rows, slots, positions, len(columns), is_dense=True))

    def _forward(self, tokens: Tensor, positions: Tensor, view: View) -> Tensor:
        """Logits [N, V] of the last of `tokens` [N, T] at `positions` [N, T], attending to the view."""
        output = self.model(
            input_ids=tokens,
            position_ids=positions,
            past_key_values=view,
            use_cache=True,
            logits_to_keep=1,
            query_positions=positions,
            ignores_softcap=self.ignores_softcap,
        )
        return output.logits[:, -1]

    def _plain_forward(self, tokens: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits [V] after `tokens` [1, T] with the model's own attention, and keys and values of each layer."""
        with in_evaluation(self.modules), self.arithmetic:
            output = self.model(input_ids=tokens, use_cache=True)
        layers = getattr(output.past_key_values, "layers", ())
        if not layers:
            raise StateError(f"{type(self.model).__name__} returns no keys and values; {REMEDY}")
        states = [(layer.keys, layer.values) for layer in layers]
        if self.autocast and self.is_on_cuda:
            states = [(keys.bfloat16(), values.bfloat16()) for keys, values in states]
        return output.logits[0, -1], states

    def _check_arithmetic(self, tokens: Tensor, expected: Tensor) -> None:
        """Raise StateError unless a step over cached rows gives the logits `expected` [V] of a plain forward."""
        last = tokens.shape[1] - 1
        with self.borrowed():
            where = self.columns[None, :last]
            self._forward(tokens[:, :last], where, View(self.rows, self.columns[:1], where, last))
            position, columns = self.columns[last : last + 1], self.columns[: last + 1]
            made = self._logits(tokens[:, last], position, columns, self.columns[:1])
        error = float((made[0] - expected).double().abs().mean() / expected.double().std())
        if not error <= (limit := tolerance(self.model, self.autocast)):
            raise StateError(
                f"{type(self.model).__name__} decoded from cached keys and values differs from its plain forward by {error:.1e} "
                f"of the logits' spread (tolerance {limit:.1e}); {REMEDY}"
            )

    def _prefill(self, jobs: list[Prefill]) -> None:
        """Copy shared prefixes, then compute the rest, jobs of like size together."""
        shared = Admission()
        for job in jobs:
            if job.num_shared:
                shared.copy(job.base, job.row, job.num_shared)
        self.admit(shared)
        jobs = sorted(jobs, key=lambda job: job.num_missing)
        while jobs:
            fitting = [count for count, job in enumerate(jobs, 1) if count * job.num_missing <= MAX_PREFILL_TOKENS]
            count = max(fitting, default=1)
            self._compute(jobs[:count])
            jobs = jobs[count:]

    def _compute(self, jobs: list[Prefill]) -> None:
        """Forward missing tokens, in pieces of at most MAX_PREFILL_TOKENS."""
        missing = [job.num_missing for job in jobs]
        self.num_computed_tokens += sum(missing)
        tokens = np.zeros((2, len(jobs), max(missing)), np.int64)
        tokens[1] = self.max_length - 1
        for row, job in enumerate(jobs):
            tokens[:, row, : missing[row]] = job.tokens[job.num_shared :], range(job.num_shared, len(job.tokens))
        pieces = upload(tokens, self.device)
        targets = upload(np.array([job.row for job in jobs]), self.device)
        num_columns = max(len(job.tokens) for job in jobs)
        width = max(MAX_PREFILL_TOKENS // len(jobs), 1)
        for start in range(0, max(missing), width):
            piece, where = pieces[:, :, start : start + width]
            with self.borrowed():
                self._forward(piece, where, View(self.rows, targets, where, num_columns))


@contextmanager
def in_evaluation(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within, no dropout and no gradients; after, the modules are as before."""
    training = [vars(module) for module in modules if module.training]
    try:
        for flags in training:  # past nn.Module's own setter, which takes a millisecond for the modules of 28 layers
            flags["training"] = False
        with torch.no_grad():
            yield
    finally:
        for flags in training:
            flags["training"] = True


def tolerance(model: PreTrainedModel, autocast: bool = False) -> float:
    """Largest mean difference of logits, relative to their spread, that the model's precision explains."""
    return 2 * max(torch.finfo(torch.bfloat16 if autocast else model.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5


def embeddings_of(model: PreTrainedModel) -> Tensor:
    return cast(Tensor, model.get_input_embeddings().weight)


def check_state(model: PreTrainedModel) -> None:
    """Raise StateError for a model whose state is more than keys and values of attention."""
    if obstacle := find_state(model):
        raise StateError(f"{obstacle}; {REMEDY}")


def find_state(model: PreTrainedModel) -> str:
    """Describe state beyond keys and values of attention; empty where there is none."""
    name, config = type(model).__name__, model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        found = ", ".join(sorted(kinds))
        return f"{name} has layers of type {found}, whose state is not attention alone and cannot be cut at a fork"
    if getattr(model, "_is_stateful", False) or not getattr(model, "_supports_attention_backend", False):
        return f"{name} does not take all of its state from transformers' attention interface, where a fork cuts it"
    return ""

"""nano-vllm's workload: 256 sequences of random tokens, 100 to 1,024 in and as many out at temperature 0.6, all at once.

By the embedded engine, by fairlen's vLLM and by vLLM alone, one in a process: engines of vLLM share what a process has.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from _device import peak_bytes
from _shapes import build_model, shape_of

from fairlen.engine import Engine
from fairlen.engine.vllm import VllmEngine
from fairlen.policy.engines import checkpoint_weights
from fairlen.policy.head import Head
from fairlen.policy.model import Policy, output_embeddings
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Sampling

TEMPERATURE, HIGHEST_TOKEN = 0.6, 10_000
SIDES = ("embedded", "vllm", "plain")
"""The embedded engine, fairlen's vLLM, and vLLM's own `LLM.generate`."""
Generate = Callable[[int], int]
"""Makes as many tokens of each sequence as it asks for, or up to a limit; returns how many there are."""


@dataclass(frozen=True)
class Requests:
    """The requests of every side."""

    prompts: tuple[TokenIds, ...]
    lengths: tuple[int, ...]
    """Tokens to generate, of each."""

    @property
    def max_length(self) -> int:
        return max(len(prompt) + length for prompt, length in zip(self.prompts, self.lengths, strict=True))


@dataclass(frozen=True)
class Generated:
    """The rates of one side."""

    side: str
    dtype: str
    tokens: int
    seconds: float
    tokens_per_second: float
    start_seconds: float
    """To build the engine and to run everything once, a few tokens each: compilation."""
    peak_bytes: int
    """By torch's allocator; vLLM's cache is not in it while it can sleep."""


def draw_requests(number: int, shortest: int, longest: int, vocab_size: int) -> Requests:
    """By the calls of nano-vllm's bench.py, in its order, after its seed."""
    stream, highest = random.Random(0), min(HIGHEST_TOKEN, vocab_size - 1)
    prompts = [
        tuple(stream.randint(0, highest) for _ in range(stream.randint(shortest, longest))) for _ in range(number)
    ]
    return Requests(tuple(prompts), tuple(stream.randint(shortest, longest) for _ in range(number)))


def measure_generation(side: str, shape: str, requests: Requests, device: torch.device) -> Generated:
    """One run of a side, after one of at most 4 tokens a sequence."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        shape_of(shape).save_pretrained(folder)
        generate = BUILDERS[side](Path(folder), shape, requests, dtype, device)
        generate(4)
        ready = time.perf_counter()
        tokens = generate(max(requests.lengths))
        seconds = time.perf_counter() - ready
    name = str(dtype).removeprefix("torch.")
    return Generated(side, name, tokens, seconds, tokens / seconds, ready - start, peak_bytes(device))


def with_embedded(_: Path, shape: str, requests: Requests, dtype: torch.dtype, device: torch.device) -> Generate:
    """The engine in this process, compiled on CUDA."""
    engine = Engine(
        build_model(shape, dtype, device),
        eos_token_id=never(shape),
        max_length=requests.max_length,
        max_num_seqs=len(requests.prompts),
        compile=device.type == "cuda",
    )
    return lambda limit: ask(engine, requests, limit)


def with_vllm(folder: Path, shape: str, requests: Requests, dtype: torch.dtype, device: torch.device) -> Generate:
    """vLLM as training has it, with the weights pushed; it does not sleep meanwhile."""
    model = build_model(shape, dtype, device)
    policy = Policy(model, None, Head(output_embeddings(model)))
    engine = VllmEngine(
        folder,
        lambda: checkpoint_weights(policy).items(),
        eos_token_id=never(shape),
        max_length=requests.max_length,
        max_num_seqs=len(requests.prompts),
        dtype=str(dtype).removeprefix("torch."),
    )
    return lambda limit: ask(engine, requests, limit)


def ask(engine: Engine | VllmEngine, requests: Requests, limit: int) -> int:
    """Through the interface that training uses."""
    samplings = [
        Sampling(min(length, limit), seed=row, temperature=TEMPERATURE) for row, length in enumerate(requests.lengths)
    ]
    engine.refresh(engine.policy_version)
    return sum(len(one.token_ids) for one in engine.generate(requests.prompts, samplings))


def with_plain(folder: Path, _: str, requests: Requests, dtype: torch.dtype, __: torch.device) -> Generate:
    """vLLM by itself, with random weights of its own and without log-probs."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    llm = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=requests.max_length,
        max_num_seqs=len(requests.prompts),
        enforce_eager=not torch.cuda.is_available(),
        gpu_memory_utilization=0.9 if torch.cuda.is_available() else 0.2,
    )
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in requests.prompts]

    def generate(limit: int) -> int:
        parameters = [
            SamplingParams(temperature=TEMPERATURE, max_tokens=min(length, limit), ignore_eos=True, detokenize=False)
            for length in requests.lengths
        ]
        llm.reset_prefix_cache()
        made = llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in made)

    return generate


def never(shape: str) -> int:
    """A token that ends a sequence, hardly ever: one of the whole vocabulary, for random weights."""
    return shape_of(shape).vocab_size - 1


BUILDERS = {"embedded": with_embedded, "vllm": with_vllm, "plain": with_plain}

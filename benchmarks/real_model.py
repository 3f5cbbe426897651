"""A model of 135M parameters on a CPU: gradients, whole updates and decoding against TRL and `generate`, and exact log-probs.

    python recipes/smollm2.py
    python benchmarks/real_model.py [--threads 2] [--repeats 5] [--only gradient update decode memory logprobs]
    python benchmarks/real_model.py --smoke

Sides take turns in one process and medians count, by the clock and by processor time. Gradients are of the same tokens in
float32, and their norms are compared. TRL at its best settings here: padded, no checkpointing. In rollouts
every sequence has a length of its own, which the engine ends at and `generate` passes, as a batch of it ends with its longest.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from _checks import add_smoke, demand
from _device import measure_rates
from _training import METHOD, Batch, as_batch, make_learner, make_optimizer, trl_side
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, PreTrainedModel

from fairlen.engine import Engine
from fairlen.engine.device import give_back_memory, keep_freed_memory
from fairlen.policy.model import Policy, make_head
from fairlen.policy.tree import NAME
from fairlen.rollouts import Response
from fairlen.sampling.extend import Sampling
from fairlen.train.step import Learner

PARTS = ("gradient", "update", "decode", "memory", "logprobs")
CACHES: dict[str, dict[str, Any]] = {"dynamic": {}, "static": {"cache_implementation": "static"}}
Key = TypeVar("Key")
ROWS = 32  # sequences decoded at a time
MICROBATCH = 1 << 12  # positions of either side: 12,288 at once take TRL 20 GB, 8,192 of them 19


@dataclass(frozen=True)
class Shape:
    """Sequences of an update: two prompts of so many tokens, responses to each of a quarter of the longest up to it."""

    responses: int
    prompt: int
    longest: int

    def __str__(self) -> str:
        return f"2 x {self.responses} x ({self.prompt} + up to {self.longest})"

    def batch(self, vocabulary: int) -> Batch:
        rng, found = np.random.default_rng(0), []
        for group in range(2):
            shared = rng.integers(2, vocabulary, self.prompt).tolist()
            for length in rng.integers(self.longest // 4, self.longest + 1, self.responses).tolist():
                tokens = (*shared, *rng.integers(2, vocabulary, length).tolist())
                found.append(Response(group, tokens, self.prompt, (-2.0,) * length, "stop", 0))
        return as_batch(found, self.prompt, self.longest)


SHAPES = Shape(8, 64, 64), Shape(16, 256, 128)
SMALL = (Shape(4, 8, 8),)


@dataclass(frozen=True)
class Spent:
    """Medians over turns, in seconds."""

    clock: float
    busy: float

    def over(self, other: Spent) -> tuple[float, float]:
        return self.clock / other.clock, self.busy / other.busy


def take_turns(sides: Mapping[Key, Callable[[], object]], repeats: int) -> dict[Key, Spent]:
    """Run every side once uncounted, then all of them in turn."""
    turns: dict[Key, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, work in sides.items():
            give_back_memory()  # which the others' shapes do not fit
            start = time.perf_counter(), time.process_time()
            work()
            if turn:
                turns[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return {name: Spent(*map(statistics.median, zip(*found, strict=True))) for name, found in turns.items()}


@dataclass
class Marks:
    """Ratios with the least that is asked of each, unless sizes are the smallest."""

    are_asked: bool
    missed: list[str] = field(default_factory=list)

    def print(self, name: str, ratios: Sequence[float], mark: float) -> None:
        """Print a ratio by the clock, which counts, and by processor time where there is one."""
        verdict = f", mark {mark:.2f}: {'met' if ratios[0] >= mark else 'MISSED'}" if self.are_asked else ""
        self.missed += [name] if self.are_asked and ratios[0] < mark else []
        busy = "".join(f" ({ratio:.2f} by processor time)" for ratio in ratios[1:])
        print(f"  {name}: {ratios[0]:.2f}{busy}{verdict}", flush=True)


@dataclass
class Bench:
    """The model with both kinds of arithmetic, and the sides made of it."""

    model: PreTrainedModel
    folder: Path
    repeats: int
    marks: Marks

    def policy(self, is_low: bool = False) -> Policy:
        return Policy(self.model, None, make_head(self.model), autocast=is_low)

    @property
    def vocabulary(self) -> int:
        return self.model.config.vocab_size

    def engine(self, longest: int, is_low: bool = False) -> Engine:
        return Engine(
            self.model,
            eos_token_id=self.vocabulary - 1,
            max_length=longest,
            max_num_seqs=ROWS,
            kept_rows=8,
            autocast=is_low,
        )

    def learner(self, batch: Batch, kind: str, is_low: bool = False) -> Learner:
        policy = self.policy(is_low)
        return make_learner(policy, make_optimizer(policy), batch, MICROBATCH, kind)

    def trl(self, batch: Batch) -> Callable[[], float]:
        """A gradient of TRL on a copy of the model: its trainer replaces `forward`, which our decoding in C does not take."""
        model = copy.deepcopy(self.model)
        policy = Policy(model, None, make_head(model))
        side = trl_side(model, make_optimizer(policy), batch, MICROBATCH)
        demand(side is not None, "TRL is what this measures against: pip install 'fairlen[trl]'")
        model.config._attn_implementation = "sdpa"

        def update() -> float:
            return side()  # pyright: ignore[reportOptionalCall]

        return update


def step(learner: Learner, batch: Batch) -> Any:
    learner.policy.model.config._attn_implementation = NAME
    return learner.step(METHOD, batch.rollouts, batch.plan, {}, True)


def roll_out(engine: Engine, batch: Batch) -> int:
    """Generate responses of the batch's lengths."""
    engine.refresh(engine.policy_version)
    prompts = [one.token_ids[: batch.prompt] for one in batch.rollouts.responses]
    made = engine.generate(prompts, [Sampling(length, seed=row) for row, length in enumerate(batch.lengths)])
    return sum(len(one.token_ids) for one in made)


def generate(model: Any, prompts: list[Any], length: int, cache: str = "dynamic", **how: Any) -> Any:
    """`generate` without an end but the length."""
    model.config._attn_implementation, never = "sdpa", model.config.vocab_size + 1
    config = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=length, pad_token_id=0, eos_token_id=never, **CACHES[cache], **how
    )
    ids = torch.tensor(prompts)
    return model.eval().generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)


def compare_gradients(bench: Bench, shapes: tuple[Shape, ...]) -> None:
    for shape in shapes:
        batch = shape.batch(bench.vocabulary)
        trl = bench.trl(batch)
        learners = {kind: bench.learner(batch, kind) for kind in ("rows", "trees")}
        results = {kind: step(learner, batch) for kind, learner in learners.items()}
        norms = {"TRL": trl()} | {kind: result.gradient_norm for kind, result in results.items()}
        spread = max(norms.values()) / min(norms.values()) - 1
        demand(spread < 1e-3, f"gradient norms differ: {norms}")
        spent = take_turns(
            {"TRL": trl} | {kind: partial(step, one, batch) for kind, one in learners.items()}, bench.repeats
        )
        padded = len(batch.lengths) * (batch.prompt + max(batch.lengths))
        print(
            f"gradient and optimizer, {shape} tokens, {sum(batch.lengths):,} of them trained, norm {norms['TRL']:.4f}, float32:"
        )
        for kind, share in (("rows", 1.0), ("trees", 0.9)):
            bound = padded / results[kind].num_forwarded
            name = f"TRL's time over that of {kind}, {padded:,} over {results[kind].num_forwarded:,} positions"
            bench.marks.print(name, spent["TRL"].over(spent[kind]), share * bound)


def compare_updates(bench: Bench, shapes: tuple[Shape, ...]) -> None:
    """Rollouts, gradient and optimizer: against `generate` with TRL's loss, and float32 against bfloat16."""
    for shape in shapes:
        batch, longest = shape.batch(bench.vocabulary), shape.prompt + shape.longest
        sides = {name: our_update(bench, batch, longest, name == "bfloat16") for name in ("float32", "bfloat16")}
        sides["TRL"] = their_update(bench, batch)
        spent = take_turns(sides, bench.repeats)
        print(f"a whole update with its rollouts, {shape} tokens:")
        for name, one, other, mark in (
            ("TRL's time over ours, float32", "TRL", "float32", 2.0),
            (f"float32 over bfloat16, {name_cpu()}", "float32", "bfloat16", 1.5),
        ):
            bench.marks.print(name, spent[one].over(spent[other]), mark)


def our_update(bench: Bench, batch: Batch, longest: int, is_low: bool = False) -> Callable[[], None]:
    engine, learner = bench.engine(longest, is_low), bench.learner(batch, "auto", is_low)

    def update() -> None:
        demand(roll_out(engine, batch) > 0.98 * sum(batch.lengths), "the engine ended responses early")
        step(learner, batch)

    return update


def their_update(bench: Bench, batch: Batch) -> Callable[[], None]:
    trl, prompts = bench.trl(batch), [one.token_ids[: batch.prompt] for one in batch.rollouts.responses]

    def update() -> None:
        generate(bench.model, prompts, max(batch.lengths))
        trl()

    return update


def compare_decoding(bench: Bench, shapes: tuple[Shape, ...]) -> None:
    """One step of ROWS sequences: of the engine, of `generate` with either cache; the prefill is taken off."""
    prompt, length = shapes[0].prompt, shapes[0].longest
    drawn = np.random.default_rng(0).integers(2, bench.vocabulary, (4, prompt)).tolist()
    prompts = [tuple(drawn[row // 8]) for row in range(ROWS)]
    engines = {name: bench.engine(prompt + length, name == "bfloat16") for name in ("float32", "bfloat16")}

    def extend(engine: Engine, budget: int) -> None:
        engine.refresh(engine.policy_version)
        engine.generate(prompts, [Sampling(budget, seed=row) for row in range(ROWS)])

    works: dict[str, Callable[[int], object]] = {name: partial(extend, engine) for name, engine in engines.items()}
    models = {"float32": bench.model, "bfloat16": copy.deepcopy(bench.model).bfloat16()}
    for name, model in models.items():
        works |= {f"{cache} {name}": partial(generate, model, prompts, cache=cache) for cache in CACHES}
    sides = {(name, budget): partial(work, budget) for name, work in works.items() for budget in (1, length)}
    spent = take_turns(sides, bench.repeats)
    rates: dict[str, list[float]] = {}
    for name in works:
        pairs = zip(astuple(spent[name, length]), astuple(spent[name, 1]), strict=True)
        rates[name] = [ROWS * (length - 1) / max(whole - first, 1e-9) for whole, first in pairs]
    weights = sum(parameter.numel() for parameter in bench.model.parameters())
    bandwidth = measure_rates(torch.device("cpu"), torch.float32).bandwidth
    listed = ", ".join(f"{name} {rate:,.0f}" for name, (rate, _) in rates.items())
    print(f"decoding {ROWS} sequences of {prompt} + {length} tokens, tokens/s: {listed}")
    for number, name in ((4, "float32"), (2, "bfloat16")):
        best = [max(found) for found in zip(*(rates[f"{cache} {name}"] for cache in CACHES), strict=True)]
        ratios = [rate / other for rate, other in zip(rates[name], best, strict=True)]
        bench.marks.print(f"{name} over the better of generate's", ratios, 2.0)
        bound = ROWS * bandwidth / (number * weights)
        shares = [rate / bound for rate in rates[name]]
        bench.marks.print(f"{name} over the bound of {bound:,.0f} at {bandwidth / 1e9:.1f} GB/s", shares, 0.45)


def compare_memory(bench: Bench, arguments: list[str]) -> None:
    """Peak of a process of its own for each side, in two updates of the last shape, imports included."""
    peaks = {}
    for side in ("ours", "TRL"):
        command = [sys.executable, __file__, *arguments, "--peak", side]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[side] = int(printed.split("peak ")[1].split()[0])
    print(f"peak memory of a whole update: ours {peaks['ours'] / 1024:,.0f} MiB, TRL {peaks['TRL'] / 1024:,.0f} MiB")
    bench.marks.print("TRL's over ours", [peaks["TRL"] / peaks["ours"]], 2.0)


def print_peak(bench: Bench, side: str, shape: Shape) -> None:
    batch = shape.batch(bench.vocabulary)
    update = our_update(bench, batch, shape.prompt + shape.longest) if side == "ours" else their_update(bench, batch)
    for _ in range(2):
        update()
    print("peak", Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def compare_logprobs(bench: Bench, number: int, length: int) -> None:
    """|log-prob when drawn - by the trainer's forward| of sampled tokens at temperature 1, nats."""
    prompts = make_prompts(bench, number)
    print(f"log-probs of {number} responses of {length} tokens, when drawn against the trainer's, nat:")
    for name, is_low, mean, most in (("float32", False, 1e-4, 1e-4), ("bfloat16", True, 0.02, 0.2)):
        made = bench.engine(max(map(len, prompts)) + length, is_low).generate(
            prompts, [Sampling(length, seed=row) for row in range(number)]
        )
        responses = [
            Response(row, (*tokens, *one.token_ids), len(tokens), one.logprobs, one.finish, row)
            for row, (tokens, one) in enumerate(zip(prompts, made, strict=True))
        ]
        groups = [as_batch(responses[start : start + 8], len(prompts[start]), length) for start in range(0, number, 8)]
        learner, errors = bench.learner(groups[0], "rows", is_low), []
        for group in groups:
            found = learner.old_logprobs(group.rollouts, group.plan)
            drawn = torch.tensor(
                [value for one in group.rollouts.responses for value in one.logprobs], dtype=torch.float64
            )
            errors.append((torch.cat([found[row] for row in range(len(found))]).double() - drawn).abs())
        error = torch.cat(errors)
        print(
            f"  fairlen, {name}: mean {error.mean():.1e}, largest {error.max():.1e}, {len(error):,} tokens", flush=True
        )
        bench.marks.missed += [f"log-probs in {name}"] if error.mean() > mean or error.max() > most else []
        error = measure_theirs(bench, prompts, length, is_low)
        print(f"  generate and TRL's forward, {name}: mean {error.mean():.1e}, largest {error.max():.1e}", flush=True)


def make_prompts(bench: Bench, number: int) -> list[tuple[int, ...]]:
    """Questions in the chat template of a model that has one, eight responses each; else random tokens."""
    rng = np.random.default_rng(0)
    if not (bench.folder / "tokenizer.json").exists():
        return [tuple(rng.integers(2, bench.vocabulary, 8).tolist()) for _ in range(number)]
    tokenizer = AutoTokenizer.from_pretrained(bench.folder)
    texts = (f"What is {a} plus {b}? Think step by step." for a, b in rng.integers(10, 99, (-(-number // 8), 2)))
    chats = ([{"role": "user", "content": text}] for text in texts)
    found = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    return [tuple(found[row // 8]) for row in range(number)]


@torch.no_grad()
def measure_theirs(bench: Bench, prompts: list[tuple[int, ...]], length: int, is_low: bool) -> torch.Tensor:
    """Of `generate`'s logits against those of a forward of the padded batch, both under the same autocast, as TRL has them."""
    errors = []
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        for start in range(0, len(prompts), 8):  # of one prompt
            same = prompts[start : start + 8]
            made = generate(bench.model, same, length, output_logits=True, return_dict_in_generate=True)
            tokens = made.sequences[:, -length:, None]
            drawn = torch.stack(made.logits, 1).float().log_softmax(-1).gather(-1, tokens)
            logits = bench.model(input_ids=made.sequences, logits_to_keep=length + 1).logits[:, :-1]
            errors.append((drawn - logits.float().log_softmax(-1).gather(-1, tokens)).abs().flatten())
    return torch.cat(errors)


def name_cpu() -> str:
    """Name of the processor, and its instructions for bfloat16."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "a CPU")
    kinds = {"AMX": torch.cpu._is_amx_tile_supported(), "AVX512-BF16": torch.cpu._is_avx512_bf16_supported()}
    return f"{model} with {' and '.join(name for name, has in kinds.items() if has) or 'neither AMX nor AVX512-BF16'}"


def load_model(folder: Path, is_small: bool) -> PreTrainedModel:
    """The model of a folder in float32, or with the smallest arguments random weights of a small shape."""
    if not is_small:
        demand(
            (folder / "config.json").exists(),
            f"no model in {folder}: python recipes/smollm2.py fetches it, or give --model",
        )
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--peak", choices=("ours", "TRL"), help=argparse.SUPPRESS)
    add_smoke(parser)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    shapes, repeats = (SMALL, 1) if options.smoke else (SHAPES, options.repeats)
    bench = Bench(load_model(options.model, options.smoke), options.model, repeats, Marks(not options.smoke))
    if options.peak:
        return print_peak(bench, options.peak, shapes[-1])
    print(
        f"{name_cpu()}, {options.threads} threads, torch {torch.__version__}, {bench.model.num_parameters():,} parameters"
    )
    again = ["--model", str(options.model), "--threads", str(options.threads), *(["--smoke"] if options.smoke else [])]
    work: dict[str, Callable[[], None]] = {
        "gradient": partial(compare_gradients, bench, shapes),
        "update": partial(compare_updates, bench, shapes),
        "decode": partial(compare_decoding, bench, shapes),
        "memory": partial(compare_memory, bench, again),
        "logprobs": partial(compare_logprobs, bench, *((8, 8) if options.smoke else (200, 64))),
    }
    for part in PARTS:
        if part in options.only:
            work[part]()
    demand(not bench.marks.are_asked or not bench.marks.missed, f"missed: {'; '.join(bench.marks.missed)}")


if __name__ == "__main__":
    main()

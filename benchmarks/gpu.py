"""Decoding and training on a CUDA device, beside what the device can do at best, transformers' `generate` and TRL's loss.

    python benchmarks/gpu.py                                  # Qwen3-0.6B's shape, random weights
    python benchmarks/gpu.py --shape 1.7B --json gpu.json
    python benchmarks/gpu.py --part generation --side vllm    # also: plain, vLLM by itself; where vLLM is installed
    python benchmarks/gpu.py --device cpu --shape tiny        # the same program, to see that it runs
    python benchmarks/gpu.py --smoke                          # the least of it, on the CPU

First the rate of large matrix products and the bandwidth of a large copy; then the parts, all of them or those that are named:

decoding     set against the tokens a second at which reading the weights, keys and values alone would take all of the bandwidth
generation   nano-vllm's workload: 256 sequences, 100 to 1,024 tokens in and as many out, all at once
updates      by the Learner on rows and on trees, and by TRL's loss on the padded batch: same model, tokens and optimizer
long         an update of sequences of 16,384 positions each, as prime-rl publishes it for Qwen3-0.6B
profile      kernels of one decoding step and of one micro-batch, and the gaps between them

Sides take turns in one process; medians. The aims: half of the bandwidth at 256 rows, 45% of the matrix products, 30% MFU at
16,384 positions, twice the speed of TRL. MFU is that of docs/gpu.md.

On CUDA decoding runs with bfloat16 weights, and once more with the float32 weights that the trainer has; training is autocast
to bfloat16 over float32 weights. Compiled sides run on CUDA only. Without a CUDA device it says so and ends.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from _checks import add_smoke, demand, demand_positive
from _decode import Workload, compare_decoding, free
from _device import Rates, measure_rates, peak_bytes
from _generation import SIDES, Generated, draw_requests, measure_generation
from _profile import Profile, profile_decoding, profile_update
from _shapes import NEVER, SHAPES, build_model, forbid
from _training import GROUP, Trained, Updates, compare_training, make_batch, make_learner, make_optimizer
from transformers.utils.logging import disable_progress_bar

from fairlen.engine import Engine
from fairlen.engine.device import keep_freed_memory
from fairlen.policy.model import Policy, make_head

AIM_DECODING, AIM_TRAINING, AIM_MFU, AIM_TRL = 0.5, 0.45, 0.3, 2.0
PARTS = ("decoding", "generation", "updates", "long", "profile")
LARGE = {
    "batch": 256, "prompt": 128, "max_response_length": 256, "sequences": 64, "requests": 256, "request_tokens": (100, 1024),
    "long_positions": 16_384,
}  # fmt: skip
TINY = {
    "batch": 32, "prompt": 32, "max_response_length": 64, "sequences": 32, "requests": 16, "request_tokens": (10, 64),
    "long_positions": 512,
}  # fmt: skip
SMALL = {
    "device": "cpu",
    "shape": "tiny",
    "batch": 4,
    "prompt": 8,
    "max_response_length": 8,
    "sequences": 8,
    "requests": 4,
    "request_tokens": (4, 12),
    "long_positions": 32,
    "repeats": 1,
}
AGREE, SAME_GRADIENT = {"float32": 1e-3, "bfloat16": 0.5}, {"float32": 1e-3, "bfloat16": 0.05}
"""Nats between engine and trainer, and relative differences of the norm of one gradient, that are rounding."""


def parse() -> argparse.Namespace:
    """The command line; what it leaves out is as large as the shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="0.6B")
    parser.add_argument("--part", choices=PARTS, action="append", help="repeat it for several; all if not given")
    parser.add_argument("--side", choices=SIDES, default="embedded", help="of generation")
    parser.add_argument("--requests", type=int, help="sequences of generation (256; tiny 16)")
    parser.add_argument("--long-positions", type=int, help="of each sequence of the part long (16,384; tiny 512)")
    parser.add_argument("--batch", type=int, help="sequences decoded at a time (256; tiny 32)")
    parser.add_argument("--prompt", type=int, help="tokens of a prompt (128; tiny 32)")
    parser.add_argument(
        "--max-response-length", type=int, help="generated tokens; in training the longest response (256; tiny 64)"
    )
    parser.add_argument("--sequences", type=int, help=f"sequences of an update, a multiple of {GROUP} (64; tiny 32)")
    parser.add_argument("--max-tokens-per-microbatch", type=int, default=8192, help="positions in a micro-batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--json", type=Path, help="file to write all numbers to")
    add_smoke(parser)
    parser.set_defaults(**(TINY if parser.parse_args().shape == "tiny" else LARGE))
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(SMALL)
    if options.sequences < GROUP or options.sequences % GROUP:
        parser.error(f"--sequences {options.sequences}: groups have {GROUP} responses; give a multiple of {GROUP}")
    options.part = options.part or list(PARTS)
    for name in ("batch", "prompt", "repeats", "threads", "max_tokens_per_microbatch", "requests"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: give at least 1")
    if options.max_response_length < 2:
        parser.error(
            f"--max-response-length {options.max_response_length}: the first token is the prefill's; give at least 2"
        )
    if options.long_positions < 2 * GROUP:
        parser.error(f"--long-positions {options.long_positions}: prompts and responses share them; give {2 * GROUP}")
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every part; each is printed and written as it comes."""
    device = torch.device(options.device)
    rates = measure_rates(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    print(
        f"{rates.name}, torch {torch.__version__}: {rates.flops / 1e12:.3g} Tflop/s in {rates.dtype} products, "
        f"{rates.bandwidth / 1e9:.3g} GB/s by copying",
        flush=True,
    )
    found: dict[str, Any] = {"device": asdict(rates)}
    for part in options.part:
        tables = MEASURES[part](options, rates, device)
        found |= {name: [asdict(row) for row in rows] for name, rows in tables.items()}
        write_record(options, found)
        free(device)
    return found


def write_record(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write all numbers so far to the file of --json, if one is given."""
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        peak = peak_bytes(torch.device(options.device))
        record = {"settings": settings, "versions": package_versions(), "peak_bytes": peak, **found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


Tables = dict[str, list[Any]]
"""Rows of one or more tables, by their names."""


def measure_decoding(options: argparse.Namespace, rates: Rates, device: torch.device) -> Tables:
    """One table for each kind of weights."""
    kinds = ((torch.float32, ("generate", "engine")),)
    if device.type == "cuda":
        compiled = ("engine", "engine compiled")
        kinds = ((torch.bfloat16, ("generate", *compiled)), (torch.float32, compiled))
    work = Workload(options.batch, options.prompt, options.max_response_length, options.repeats)
    print(f"decoding {options.shape}, {work.batch} rows, {work.prompt} + {work.max_response_length} tokens:")
    found = []
    for dtype, sides in kinds:
        for side in compare_decoding(options.shape, work, rates, device, dtype, sides):
            print(
                f"  {side.side:15} {side.dtype:8} {side.tokens_per_second:10,.0f} tokens/s, {side.share:6.1%} of the bound of "
                f"{side.bound:,.0f}; prefill {side.prefill_seconds:.2f} s, peak {side.peak_bytes / 2**30:.1f} GiB",
                flush=True,
            )
            found.append(side)
    return {"decoding": found}


def measure_requests(options: argparse.Namespace, _: Rates, device: torch.device) -> Tables:
    """nano-vllm's workload by one side."""
    requests = draw_requests(options.requests, *options.request_tokens, SHAPES[options.shape]["vocab_size"])
    side: Generated = measure_generation(options.side, options.shape, requests, device)
    low, high = options.request_tokens
    print(
        f"generation, {options.requests} sequences, {low} to {high} tokens in and out: {side.side} {side.dtype} {side.tokens:,} "
        f"tokens in {side.seconds:.2f} s, {side.tokens_per_second:,.0f} tokens/s; ready after {side.start_seconds:.1f} s, "
        f"peak {side.peak_bytes / 2**30:.1f} GiB",
        flush=True,
    )
    return {"generation": [side]}


def measure_training(options: argparse.Namespace, rates: Rates, device: torch.device) -> Tables:
    """Updates, and whether engine and trainer agree."""
    work = Updates(
        options.sequences,
        options.prompt,
        options.max_response_length,
        options.max_tokens_per_microbatch,
        options.repeats,
    )
    trained, agreements = compare_training(options.shape, work, rates, device)
    print(f"an update of {work.sequences} sequences, micro-batches of {work.max_tokens_per_microbatch} positions:")
    print_sides(trained)
    for found in agreements:
        print(
            f"engine against trainer in {found.trainer}: largest difference {found.largest:.1e} nat, mean {found.mean:.1e}, "
            f"{found.tokens} tokens"
        )
    return {"training": trained, "agreement": agreements}


def print_sides(trained: list[Trained]) -> None:
    """A line for each."""
    for side in trained:
        mfu = "unknown" if side.mfu is None else f"{side.mfu:.1%}"
        print(
            f"  {side.side:15} {side.seconds:8.2f} s, {side.tokens_per_second:10,.0f} trained tokens/s, "
            f"{side.flops / 1e12:8.3g} Tflop/s, {side.share:6.1%} of the products; {side.positions_per_second:,.0f} positions/s, "
            f"MFU {mfu}; gradient norm {side.gradient_norm:.5g}, peak {side.peak_bytes / 2**30:.1f} GiB",
            flush=True,
        )


def measure_long(options: argparse.Namespace, rates: Rates, device: torch.device) -> Tables:
    """Rows of one length, one in each micro-batch."""
    prompt = min(512, options.long_positions // 2)
    length = options.long_positions - prompt
    work = Updates(GROUP, prompt, length, options.long_positions, options.repeats, shortest=length)
    trained, _ = compare_training(options.shape, work, rates, device, ("Learner, rows",))
    print(f"an update of {GROUP} sequences of {options.long_positions} positions, one in each micro-batch:")
    print_sides(trained)
    return {"long": trained}


def measure_gaps(options: argparse.Namespace, _: Rates, device: torch.device) -> Tables:
    """Decoding as it is on the device, and a micro-batch of rows."""
    on_cuda = device.type == "cuda"
    work = Workload(options.batch, options.prompt, options.max_response_length, 1)
    model = build_model(options.shape, torch.bfloat16 if on_cuda else torch.float32, device)
    forbid(model, NEVER)
    prompts = work.prompts(model.config.vocab_size)
    longest = options.prompt + options.max_response_length
    engine = Engine(model, eos_token_id=NEVER, max_length=longest, max_num_seqs=len(prompts), compile=on_cuda)
    found: list[Profile] = [profile_decoding(engine, prompts, device)]
    del engine, model
    free(device)
    model = build_model(options.shape, torch.float32, device)
    policy = Policy(model, None, make_head(model), autocast=on_cuda)
    updates = Updates(
        options.sequences, options.prompt, options.max_response_length, options.max_tokens_per_microbatch, 1
    )
    batch = make_batch(updates, model.config.vocab_size)
    learner = make_learner(policy, make_optimizer(policy), batch, options.max_tokens_per_microbatch, "rows")
    found.append(profile_update(learner, batch, device))
    for one in found:
        print(
            f"{one.work}: {one.kernels:,.0f} {'kernels' if on_cuda else 'operations'}, {1000 * one.seconds:.2f} ms of which "
            f"{1000 * one.busy_seconds:.2f} busy: {one.idle_share:.1%} idle under the profiler"
        )
        for name, seconds in one.largest.items():
            print(f"    {1000 * seconds:8.3f} ms  {name[:100]}")
    return {"profile": found}


MEASURES = {
    "decoding": measure_decoding,
    "generation": measure_requests,
    "updates": measure_training,
    "long": measure_long,
    "profile": measure_gaps,
}


def report_aims(found: dict[str, Any]) -> None:
    """Prints the best shares beside the aims, of the parts that were measured."""
    if ours := [side["share"] for side in found.get("decoding", []) if side["side"] != "generate"]:
        print(f"best decoding: {max(ours):.1%} of the bandwidth bound (aim {AIM_DECODING:.0%} at 256 rows)")
    sides = {side["side"]: side for side in found.get("training", [])}
    if updates := [side["share"] for name, side in sides.items() if name != "TRL"]:
        print(f"best update: {max(updates):.1%} of the matrix products (aim {AIM_TRAINING:.0%})")
    if "TRL" in sides:
        fastest = min(side["seconds"] for name, side in sides.items() if name != "TRL")
        print(f"an update of TRL's takes {sides['TRL']['seconds'] / fastest:.2f} times as long (aim {AIM_TRL:g})")
    for side in found.get("long", []):
        if side["mfu"] is not None:
            print(f"long: {side['mfu']:.1%} MFU (aim {AIM_MFU:.0%})")


def check(found: dict[str, Any]) -> None:
    """All sides did the work, and had one gradient."""
    for side in (*found.get("decoding", []), *found.get("training", []), *found.get("long", [])):
        demand_positive(side["side"], (side["tokens_per_second"], side["share"]))
    for side in found.get("generation", []):
        demand_positive(side["side"], (side["tokens"], side["tokens_per_second"]))
    for one in found.get("profile", []):
        demand_positive(one["work"], (one["kernels"], one["seconds"], one["busy_seconds"]))
    arithmetic = {row["trainer"] for row in found.get("agreement", [])}
    for side in found.get("training", []):
        first = found["training"][0]
        apart = abs(side["gradient_norm"] / first["gradient_norm"] - 1)
        limit = max(SAME_GRADIENT[kind] for kind in arithmetic)
        demand(apart <= limit, f"the gradient of {side['side']} is {apart:.1e} from that of {first['side']}")
    for row in found.get("agreement", []):
        demand(row["largest"] <= AGREE[row["trainer"]], f"engine and trainer differ by {row['largest']:.1e} nats")


def package_versions() -> dict[str, str]:
    """Of what is measured, as installed."""
    found = {}
    for package in ("torch", "transformers", "trl"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def main() -> None:
    options = parse()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "nothing measured: this needs a CUDA device and a CUDA build of torch; --device cpu --shape tiny runs without"
        )
        return
    keep_freed_memory()
    disable_progress_bar()
    torch.set_num_threads(options.threads)
    found = measure(options)
    check(found)
    report_aims(found)


if __name__ == "__main__":
    main()

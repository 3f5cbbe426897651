"""Decoding and training on a CUDA device, beside what the device can do at best, transformers' `generate` and TRL's loss.

    python benchmarks/gpu.py                                  # Qwen3-0.6B's shape, random weights
    python benchmarks/gpu.py --shape 1.7B --json gpu.json
    python benchmarks/gpu.py --device cpu --shape tiny        # the same program, to see that it runs
    python benchmarks/gpu.py --smoke                          # the least of it, on the CPU

In one process: the rate of large matrix products and the bandwidth of a large copy; then decoding, then updates, all sides in
turn, medians. Decoding is set against the tokens a second at which reading the weights, keys and values alone would take all
of the bandwidth; training against the rate of matrix products. The aims: half of the one at 256 rows, 45% of the other.

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
from _decode import Decoded, Workload, compare_decoding
from _device import Rates, measure_rates, peak_bytes
from _shapes import SHAPES
from _training import GROUP, Agreement, Trained, Updates, compare_training
from transformers.utils.logging import disable_progress_bar

from fairlen.train.requirements import keep_freed_memory

AIM_DECODING, AIM_TRAINING = 0.5, 0.45
LARGE = {"batch": 256, "prompt": 128, "max_response_length": 256, "sequences": 64}
TINY = {"batch": 32, "prompt": 32, "max_response_length": 64, "sequences": 32}
SMALL = {
    "device": "cpu",
    "shape": "tiny",
    "batch": 4,
    "prompt": 8,
    "max_response_length": 8,
    "sequences": 8,
    "repeats": 1,
}
AGREE, SAME_GRADIENT = {"float32": 1e-3, "bfloat16": 0.5}, {"float32": 1e-3, "bfloat16": 0.05}
"""Nats between engine and trainer, and relative differences of the norm of one gradient, that are rounding."""


def parse() -> argparse.Namespace:
    """The command line; what it leaves out is as large as the shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="0.6B")
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
    for name in ("batch", "prompt", "repeats", "threads", "max_tokens_per_microbatch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: give at least 1")
    if options.max_response_length < 2:
        parser.error(
            f"--max-response-length {options.max_response_length}: the first token is the prefill's; give at least 2"
        )
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, printed as it comes."""
    device = torch.device(options.device)
    rates = measure_rates(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    print(
        f"{rates.name}, torch {torch.__version__}: {rates.flops / 1e12:.3g} Tflop/s in {rates.dtype} products, "
        f"{rates.bandwidth / 1e9:.3g} GB/s by copying",
        flush=True,
    )
    decoded = measure_decoding(options, rates, device)
    trained, agreements = measure_training(options, rates, device)
    tables = {"decoding": decoded, "training": trained, "agreement": agreements}
    return {"device": asdict(rates)} | {name: [asdict(row) for row in rows] for name, rows in tables.items()}


def measure_decoding(options: argparse.Namespace, rates: Rates, device: torch.device) -> list[Decoded]:
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
    return found


def measure_training(
    options: argparse.Namespace, rates: Rates, device: torch.device
) -> tuple[list[Trained], list[Agreement]]:
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
    for side in trained:
        print(
            f"  {side.side:15} {side.seconds:8.2f} s, {side.tokens_per_second:10,.0f} trained tokens/s, "
            f"{side.flops / 1e12:8.3g} Tflop/s, {side.share:6.1%} of the products; "
            f"gradient norm {side.gradient_norm:.5g}, peak {side.peak_bytes / 2**30:.1f} GiB"
        )
    for found in agreements:
        print(
            f"engine against trainer in {found.trainer}: largest difference {found.largest:.1e} nat, mean {found.mean:.1e}, "
            f"{found.tokens} tokens"
        )
    return trained, agreements


def report_aims(found: dict[str, Any]) -> None:
    """Prints the best shares beside the aims."""
    ours = [side for side in found["decoding"] if side["side"] != "generate"]
    best = max(side["share"] for side in ours)
    update = max(side["share"] for side in found["training"] if side["side"] != "TRL")
    print(
        f"best share: decoding {best:.1%} of the bandwidth bound (aim {AIM_DECODING:.0%} at 256 rows), "
        f"training {update:.1%} of the matrix products (aim {AIM_TRAINING:.0%})"
    )


def check(found: dict[str, Any]) -> None:
    """All sides did the work, and had one gradient."""
    for side in (*found["decoding"], *found["training"]):
        demand_positive(side["side"], (side["tokens_per_second"], side["share"]))
    arithmetic = {row["trainer"] for row in found["agreement"]}
    first = found["training"][0]
    for side in found["training"]:
        apart = abs(side["gradient_norm"] / first["gradient_norm"] - 1)
        limit = max(SAME_GRADIENT[kind] for kind in arithmetic)
        demand(apart <= limit, f"the gradient of {side['side']} is {apart:.1e} from that of {first['side']}")
    for row in found["agreement"]:
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
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        peak = peak_bytes(torch.device(options.device))
        record = {"settings": settings, "versions": package_versions(), "peak_bytes": peak, **found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

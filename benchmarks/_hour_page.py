"""The page of the first hour: how each section ended, numbers beside those that others published, and the ends of outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Row = tuple[str, str, str]
"""The quantity, its number here, and numbers to set beside it with their source."""
PRIME_RL = "prime-rl, one H100: 11,896 tokens/s, 11.1% MFU (65,536 positions: 26.8%); aim 30%"
VLLM = "tokens/s: vLLM 0.10.2, A800: 8,588; 0.19, H100, 512 in, 128 out: 12,100; RTX 4070 Laptop (nano-vllm): 1,434"
TRL = "TRL AsyncGRPO 1.7B: 6.4 to 6.8% MFU padded, 9.0% packed (trl#6092)"
TREES = "FlexAttention over a dense mask, H200: 0.72 times at 512 tokens, 2.34 at 8,192 (KempnerForge#207)"
SLEEP = "vime: a step of 18.85 s is 80% sleep and wake, 3.32 s without; weights pushed in 0.6 s"


@dataclass(frozen=True)
class Outcome:
    """How a section ended."""

    name: str
    state: str
    """"passed", "failed", "deadline", or what it needs."""
    seconds: float
    found: dict[str, Any]
    """The numbers that it wrote."""
    printed: str
    """The end of its output."""


def rows_of(outcomes: list[Outcome]) -> Iterator[Row]:
    """Every number that was found, with what to set beside it."""
    found = {one.name: one.found for one in outcomes if one.found}
    yield from rows_of_device(next((numbers["device"] for numbers in found.values() if "device" in numbers), {}))
    for outcome in outcomes:
        for key, make in TABLES.items():
            if key in outcome.found:
                yield from make(outcome.name, outcome.found[key])
    plain, ours = (rate_of(found.get(name)) for name in ("vLLM alone", "vLLM"))
    if plain and ours:
        yield "rollouts of fairlen's vLLM over vLLM alone", f"{ours / plain:.2f}", "aim: at least 0.9"
    yield from rows_of_command(found.get("80 GB command", {}))
    if resumed := found.get("resume"):
        gaps = ", ".join(f"{name} {gap:.2g}" for name, gap in resumed["apart"].items())
        yield "resumed run from one that never stopped, last update", gaps, "0 on a CPU"


def rate_of(found: dict[str, Any] | None) -> float | None:
    """Tokens a second of a part `generation`."""
    return found["generation"][0]["tokens_per_second"] if found else None


def rows_of_device(rates: dict[str, Any]) -> Iterator[Row]:
    """The peak rates of the device, as the first section measured them."""
    if not rates:
        return
    yield (
        "matrix products",
        f"{rates['flops'] / 1e12:.3g} Tflop/s, {rates['dtype']}",
        "data sheet: H100 and H200 989, A100 312",
    )
    yield "copy", f"{rates['bandwidth'] / 1e9:.4g} GB/s", "data sheet: H100 3,350, H200 4,800, A100 80 GB 2,039"


def rows_of_decoding(_: str, sides: list[dict[str, Any]]) -> Iterator[Row]:
    for side in sides:
        number = f"{side['tokens_per_second']:,.0f} tokens/s, {side['share']:.1%} of the bandwidth bound"
        yield f"decoding, {side['side']}, {side['dtype']}", number, "aim 50% at 256 rows"


def rows_of_generation(name: str, sides: list[dict[str, Any]]) -> Iterator[Row]:
    for side in sides:
        number = f"{side['tokens_per_second']:,.0f} tokens/s of {side['tokens']:,}"
        yield f"nano-vllm's requests, {name}, {side['dtype']}", number, VLLM


def rows_of_updates(name: str, sides: list[dict[str, Any]]) -> Iterator[Row]:
    for side in sides:
        number = f"{side['seconds']:.2f} s, {describe_rate(side)}"
        yield (
            f"{name}, {side['side']}",
            number,
            TRL if side["side"] == "TRL" else TREES if "trees" in side["side"] else "",
        )
    ours = [side["seconds"] for side in sides if side["side"] != "TRL"]
    for side in sides:
        if side["side"] == "TRL":
            yield f"{name}: TRL's time over ours", f"{side['seconds'] / min(ours):.2f}", "aim: at least 2"


def rows_of_long(name: str, sides: list[dict[str, Any]]) -> Iterator[Row]:
    for side in sides:
        yield f"{name}, {side['side']}", describe_rate(side), PRIME_RL


def describe_rate(side: dict[str, Any]) -> str:
    """Positions a second, shares, memory."""
    mfu = "MFU unknown" if side["mfu"] is None else f"{side['mfu']:.1%} MFU"
    share, peak = f"{side['share']:.1%} of the measured products", f"peak {side['peak_bytes'] / 2**30:.1f} GiB"
    return f"{side['positions_per_second']:,.0f} positions/s, {mfu}, {share}, {peak}"


def rows_of_profile(_: str, works: list[dict[str, Any]]) -> Iterator[Row]:
    for one in works:
        number = f"{one['kernels']:,.0f} kernels, {1000 * one['seconds']:.2f} ms, {one['idle_share']:.1%} idle"
        longest = ", ".join(f"{name[:40]} {1000 * taken:.2f} ms" for name, taken in list(one["largest"].items())[:3])
        yield one["work"], number, f"longest: {longest}".replace("|", "/")


SPEEDS = (
    ("generated", "tokens/generated", ("time/rollout",)),
    ("forwarded", "tokens/forwarded", ("time/forward", "time/backward")),
)
"""Name, what is counted and in which times."""


def rows_of_command(found: dict[str, Any]) -> Iterator[Row]:
    """One update of the command, its memory and its phases."""
    if not found:
        return
    update, account, peak = found["update"], found["account_bytes"], found["peak_bytes"]
    times = ", ".join(
        f"{key.removeprefix('time/')} {value:.1f}" for key, value in update.items() if key.startswith("time/")
    )
    yield "80 GB command, seconds", times, SLEEP
    rates = (
        f"{name} {update[tokens] / sum(update[time] for time in times):.4g} a second"
        for name, tokens, times in SPEEDS
        if {tokens, *times} <= update.keys()
    )
    yield "80 GB command, speed", ", ".join(rates), f"generated: {VLLM}; MFU: {TRL}"
    if account and peak:
        number = f"{account / peak:.3f} ({account / 2**30:.1f} of {peak / 2**30:.1f} GiB)"
        yield "80 GB command, account of memory over the device's peak", number, "aim: 0.9 to 1.1"


TABLES = {
    "decoding": rows_of_decoding, "generation": rows_of_generation, "training": rows_of_updates,
    "long": rows_of_long, "profile": rows_of_profile,
}  # fmt: skip


def write_page(title: str, outcomes: list[Outcome]) -> str:
    """The whole page, in Markdown."""
    lines = [f"# {title}", "", "| section | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.state} | {one.seconds:.0f} |" for one in outcomes]
    lines += ["", "## Numbers", "", "| what | here | beside it |", "|---|---|---|"]
    lines += [f"| {what} | {here} | {beside} |" for what, here, beside in dict.fromkeys(rows_of(outcomes))]
    for one in outcomes:
        if one.printed:
            lines += ["", f"## {one.name}: {one.state}", "", "```", one.printed.replace("```", "'''").rstrip(), "```"]
    return "\n".join(lines) + "\n"

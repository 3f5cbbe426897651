"""Cost of `policy_loss` of docs/anywhere.md beside the model's forward pass; benchmarks/plan.py has that of a plan.

python benchmarks/policy_loss.py            the mark is 1% of the forward pass
python benchmarks/policy_loss.py fspo       this method
python benchmarks/policy_loss.py --smoke    the shipped model

The loss counts with its backward pass down to the log-probs, and with what `finish_update` wants to know; the forward pass is
that of a Qwen3 of 93M parameters with random weights, 16 rows of 256 tokens, without gradient, in float32 on one core, without
its head. Both sides take turns; medians of processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from _checks import add_smoke, demand
from transformers import AutoModel, Qwen3Config, Qwen3Model

from fairlen import compose, plan_rows, playground, policy_loss

METHODS = ("grpo", "dapo+balanced", "fspo", "grpo+toplambda+balanced")
ROWS, WIDTH, REPEATS = 16, 256, 3
MARK = 0.01


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def time_loss(name: str, model: torch.nn.Module) -> tuple[float, float]:
    """Seconds of the model's forward pass and of the loss with its backward pass, medians."""
    method = compose(name)
    ids = torch.randint(3, 20, (ROWS, WIDTH))
    mask = torch.ones(ROWS, WIDTH)
    rewards, groups = np.arange(ROWS) % 2, np.arange(ROWS) // 8
    plan = plan_rows(
        method,
        groups=groups,
        lengths=[WIDTH] * ROWS,
        rewards=rewards,
        truncated=[False] * ROWS,
        max_response_length=WIDTH,
    ).to("cpu")
    old = -torch.rand(ROWS, WIDTH)
    logprobs = (old + 0.01 * torch.randn(ROWS, WIDTH)).requires_grad_()
    found: dict[str, list[float]] = {"forward": [], "loss": []}

    def lose() -> None:
        policy_loss(method, plan, logprobs, old, mask=mask).total.backward()

    for _ in range(REPEATS + 1):
        with torch.no_grad():
            found["forward"].append(seconds(lambda: model(input_ids=ids)))
        found["loss"].append(seconds(lose))
    demand(logprobs.grad is not None and bool(logprobs.grad.any()), f"{name}: the gradient is 0")
    forward, loss = (statistics.median(times[1:]) for times in found.values())
    return forward, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("methods", nargs="*", default=METHODS)
    add_smoke(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024, hidden_size=768, intermediate_size=2304, num_hidden_layers=12, num_attention_heads=12,
        num_key_value_heads=4, head_dim=64,
    )  # fmt: skip
    model = AutoModel.from_pretrained(playground.PATH) if options.smoke else Qwen3Model(config)
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"a model of {size:.1f}M parameters, {ROWS * WIDTH:,} tokens")
    print(f"{'method':26}{'forward, ms':>13}{'loss, ms':>10}{'share':>8}")
    for name in options.methods:
        forward, loss = time_loss(name, model)
        print(f"{name:26}{1000 * forward:13.1f}{1000 * loss:10.2f}{loss / forward:8.2%}")
        if not options.smoke:
            demand(loss <= MARK * forward, f"{name}: above 1% of the forward pass")


if __name__ == "__main__":
    main()

"""vLLM beside the embedded engine, as rollout engines of one policy: tokens a second, log-probs, start, and pushing weights.

    python benchmarks/vllm_speed.py [--threads 1] [--repeats 3]    needs vLLM: .venv-vllm/bin/python of `make test-vllm`
    python benchmarks/vllm_speed.py --smoke

The shipped model on one CPU, 256 responses on 96 slots, budget 160, temperature 1; both sides take
turns, medians. The embedded engine is not compiled, as vLLM is not on a CPU. Where vLLM is not installed it says so and ends.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from _checks import add_smoke, demand, demand_positive

from fairlen import playground
from fairlen.engine.generation import SteppedEngine
from fairlen.policy.engines import build_engine
from fairlen.policy.model import Policy, load_policy
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.settings import RolloutConfig
from fairlen.tasks.playground import Playground

RESPONSES, SLOTS, BUDGET, PER_PROMPT = 256, 96, 160, 16
MAX_APART = 1e-3
"""Nats between the log-probs of either engine and the trainer's."""


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def find_gap(policy: Policy, prefixes: Sequence[TokenIds], made: Sequence[Continuation]) -> tuple[float, float]:
    """|log-prob by the engine - by the trainer's module| of generated tokens: the largest, and the mean."""
    gaps = []
    with torch.no_grad():
        for prefix, one in zip(prefixes, made, strict=True):
            ids = torch.tensor([prefix + one.token_ids])
            exact = policy.model(ids).logits[0, len(prefix) - 1 : -1].log_softmax(-1)
            exact = exact.gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
            gaps.append((exact - torch.tensor(one.logprobs)).abs())
    every = torch.cat(gaps)
    return float(every.max()), float(every.mean())


def build_engines(policy: Policy, slots: int) -> tuple[dict[str, SteppedEngine], dict[str, float]]:
    """Both engines on one policy, and the seconds that each took to be built."""
    engines: dict[str, SteppedEngine] = {}
    taken = {}
    for name in ("embedded", "vllm"):
        settings = RolloutConfig.of(engine=name, max_num_seqs=slots, compile="off")
        taken[name] = seconds(lambda n=name, s=settings: engines.update({n: build_engine(s, policy, 256)}))
    return engines, taken


def measure(responses: int, slots: int, repeats: int) -> None:
    """Prints a line for each engine; ends the program where an engine does not do its work."""
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    engines, built = build_engines(policy, slots)
    task = Playground()
    prefixes = [task.train(row // PER_PROMPT).token_ids for row in range(responses)]
    samplings = [Sampling(BUDGET, seed=row) for row in range(responses)]
    rates: dict[str, list[float]] = {name: [] for name in engines}
    pushes: dict[str, list[float]] = {name: [] for name in engines}
    made: dict[str, list[Continuation]] = {}
    for turn in range(repeats + 1):  # the first one warms up
        for name, engine in engines.items():
            engine.refresh(turn)
            push = seconds(lambda e=engine: e.generate(prefixes[:1], [Sampling(1, seed=0)]))
            taken = seconds(lambda n=name, e=engine: made.update({n: e.generate(prefixes, samplings)}))
            if turn:
                pushes[name].append(push)
                rates[name].append(sum(len(one.token_ids) for one in made[name]) / taken)
    base = statistics.median(rates["embedded"])
    for name, found in rates.items():
        demand(len(made[name]) == responses, f"{name} answered {len(made[name])} of {responses} requests")
        demand_positive(f"tokens/s of {name}", found)
        largest, mean = find_gap(policy, prefixes, made[name])
        demand(largest <= MAX_APART, f"log-probs of {name} are up to {largest:.1e} nats from the trainer's")
        print(
            f"{name:9} {statistics.median(found):8,.0f} tokens/s ({min(found):,.0f} to {max(found):,.0f}), "
            f"{statistics.median(found) / base:.2f} of embedded; built in {built[name]:.1f} s; "
            f"new weights and one token {1000 * statistics.median(pushes[name]):.0f} ms; "
            f"log-probs {largest:.1e} nats from the trainer's at most, {mean:.1e} on average"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    add_smoke(parser)
    options = parser.parse_args()
    if find_spec("vllm") is None:
        print("nothing measured: this needs vLLM; make test-vllm installs it for a CPU, in .venv-vllm")
        return
    torch.set_num_threads(options.threads)
    if options.smoke:
        return measure(responses=4, slots=4, repeats=1)
    measure(RESPONSES, SLOTS, options.repeats)


if __name__ == "__main__":
    main()

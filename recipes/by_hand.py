"""One training step by hand: what `fairlen train` does, without its run folder.

python recipes/by_hand.py
"""

from __future__ import annotations

import asyncio

import torch

from fairlen import compose, playground, updates
from fairlen.engine import Engine
from fairlen.policy.model import load_policy
from fairlen.policy.pack import pack
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collector


async def main() -> None:
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=3e-4)
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=256)
    task = Playground()
    grader = Grader(task, policy.decode)
    collect = Collector(
        engine.extend, grader, task.train, Sampling(160, seed=0), num_prompts=8, max_extra_batches=4, seed=0
    )

    method = compose("dapo+balanced")  # a value: print it, pickle it, replace() a field
    for batch in range(3):
        collected = await collect(method, batch, batch * 100, batch)  # every response, and the segments to train
        scored = method.score(collected.rollouts)  # numpy: rewards and advantages, once
        for update in updates(scored):  # prompts are never split over updates
            plan = method.weigh(update)  # numpy: one weight for each sequence
            for packed in pack(collected.rollouts, plan, max_tokens=8192):
                loss = method.loss(policy.forward(packed.inputs), packed.micro)
                loss.total.backward()  # a sum: any split gives the same gradient
            optimizer.step()
            optimizer.zero_grad()
        engine.refresh(policy_version=batch + 1)
        accuracy = scored.responses.correct.mean()
        print(f"rollout batch {batch}: {len(scored.responses)} responses, {accuracy:.0%} right")


if __name__ == "__main__":
    asyncio.run(main())

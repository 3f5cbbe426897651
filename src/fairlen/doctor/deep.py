"""Checks that take minutes: the engine against the trainer, and a rehearsal of verl on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fairlen.doctor.finding import Check, Finding, Plan, bad, doubtful, good
from fairlen.doctor.packages import is_installed

MAX_DIFFERENCE = 1e-3
"""Nats between what the embedded engine and the trainer say of a token; arithmetic in float32 explains 1e-5."""
REHEARSAL = (
    "--",
    "trainer.total_training_steps=1",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
)


def check_engine(plan: Plan) -> Finding:
    """Log-probs of the engine against those of the trainer, on a greedy continuation."""
    from fairlen import playground
    from fairlen.policy.engines import build_engine, probe
    from fairlen.policy.model import load_policy
    from fairlen.train.start import choose_device

    config = plan.config
    place = str(playground.PATH) if config.model == "playground" else config.model
    policy = load_policy(
        place, config.dtype, choose_device(config), False, revision=config.revision, random_init=config.random_init
    )
    found = probe(build_engine(config, policy, 64), policy)  # type: ignore[arg-type]
    text = f"the engine's log-probs differ from the trainer's by up to {found:.2g} nats"
    if found > MAX_DIFFERENCE and config.dtype != "bfloat16":
        return bad(text, "--engine embedded; if it is, report the architecture")
    return good(text)


def check_rehearsal(plan: Plan) -> Finding:
    """One training step of verl itself, on the CPU."""
    if not is_installed("verl"):
        return doubtful("verl is not installed", "pip install 'fairlen[verl]', if you want `fairlen verl`")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "verl"
        flags = ["--cpu", "--method", plan.config.method, "--out", str(out)]
        command = [sys.executable, "-m", "fairlen", "verl", *flags, *REHEARSAL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in (done.stderr + done.stdout).splitlines() if re.search(r"Error|error:|raise ", line)]
    if done.returncode:
        return bad(
            f"a rehearsal ended with code {done.returncode}: {(lines or ['no error was said'])[-1].strip():.300}",
            f"fairlen verl --cpu --method {plan.config.method} shows all of it",
        )
    return good("one step of verl on the CPU: Ray, two workers, two rollout servers")


CHECKS = (Check("engine against trainer", check_engine), Check("rehearsal of verl", check_rehearsal))

"""Is the right channel named? Logs whose truth is known, of 120 prompts with 8 responses each.

    python benchmarks/channels_truth.py             300 logs of each kind, marks checked: exit code 1 where one is missed
    python benchmarks/channels_truth.py --logs 30   fewer

A response is correct with a probability that its prompt decides. Tokens of a channel are lognormal, with standard deviation 0.4
around the prompt's, which hard prompts have more of. In "latent" thinking and answers also share half of their variance; in
"cause" thinking decides what is correct and answers follow it, so that answers of incorrect responses are longer as well.
"""

from __future__ import annotations

import math

import numpy as np
from _checks import demand, read_size

from fairlen.audit.log import Log
from fairlen.audit.statistics.channels import channel_effects
from fairlen.batch import build_responses, build_segments
from fairlen.channels import ANSWER, CHANNELS, OBSERVATION, THINKING, TOOL_CALL

PROMPTS, SIZE, SPREAD, MORE = 120, 8, 0.4, math.log(1.4)
KINDS = {
    "thinking 40% longer": THINKING,
    "answers 40% longer": ANSWER,
    "latent, thinking 40% longer": THINKING,
    "cause, answers follow thinking": THINKING,
    "tool output 40% longer": OBSERVATION,
    "nothing": "",
}
"""The channel that has the effect, by kind."""
FOUND, FALSE, MOST_FALSE = 0.95, 0.05, 0.065
"""Of the last, where nothing has an effect, five times as many logs are drawn: 5% is then what it should be."""


def make_log(kind: str, rng: np.random.Generator) -> Log:
    """A log of one kind; those of tools have all four channels."""
    hard = rng.normal(0.0, 1.0, (PROMPTS, 1))
    shape = (PROMPTS, SIZE)
    noise = dict(zip(CHANNELS, SPREAD * rng.normal(size=(4, *shape)), strict=True))
    logit = -hard
    if kind.startswith("latent"):
        shared = rng.normal(size=shape) * SPREAD
        noise |= {name: math.sqrt(0.5) * (noise[name] + shared) for name in (THINKING, ANSWER)}
    if kind.startswith("cause"):
        noise[ANSWER] = 0.8 * noise[THINKING] + 0.6 * noise[ANSWER]
        logit = logit - 2.0 * noise[THINKING]  # of incorrect and correct ones some 40% apart
    correct = rng.random(shape) < 1.0 / (1.0 + np.exp(-logit))
    planted = "" if kind.startswith("cause") else KINDS[kind]
    centre = {THINKING: 6.0, ANSWER: 4.5, TOOL_CALL: 3.5, OBSERVATION: 5.5}
    names = CHANNELS if kind.startswith("tool") else (THINKING, ANSWER)
    tokens = {
        name: np.round(np.exp(centre[name] + 0.3 * hard + noise[name] + MORE * (name == planted) * ~correct))
        .astype(np.int64)
        .ravel()
        for name in names
    }
    length = sum(tokens[name] for name in names if name != OBSERVATION)
    prompt, verdict = np.repeat(np.arange(PROMPTS), SIZE), correct.ravel().astype(np.float64)
    limit = int(np.max(length)) + 1
    table = build_responses(prompt, length, verdict, verdict, False, limit, channels=tokens)
    known = frozenset(("correct", "truncated", "reward"))
    step = np.zeros(len(prompt), np.int64)
    return Log("simulation", "tokens", table, step, build_segments(table, table.length), known=known)


def measure(kind: str, num_logs: int) -> tuple[float, float]:
    """The share of logs in which the channel with the effect is named, and in which another one is."""
    rng, found, wrong = np.random.default_rng([*KINDS].index(kind)), 0, 0
    for _ in range(num_logs):
        effects = channel_effects(make_log(kind, rng))
        named = {one.channel for one in effects if one.is_named(0.05, math.log(1.1))}
        found += KINDS[kind] in named
        wrong += bool(named - {KINDS[kind]})
    return found / num_logs, wrong / num_logs


def main() -> None:
    """Print how often which channel is named, and check the marks."""
    (num_logs, is_asked), missed = read_size("--logs", 300, smoke=20), []
    print(f"{'kind':32} {'channel':12} {'named':>7} {'another':>8}")
    for kind, channel in KINDS.items():
        found, wrong = measure(kind, num_logs if channel else 5 * num_logs)
        print(f"{kind:32} {channel or '-':12} {found:7.1%} {wrong:8.1%}", flush=True)
        missed += [kind] if (channel and found < FOUND) or wrong > (FALSE if channel else MOST_FALSE) else []
    if is_asked:
        demand(not missed, f"marks of {FOUND:.0%} named and {FALSE:.0%} of another missed: {', '.join(missed)}")
        print(f"all marks are met by {num_logs:,} logs of each kind")


if __name__ == "__main__":
    main()

"""What was given after `--`: which of verl's settings it sets, and what is refused because it would undo the method.

Whoever overrides a parent (`algorithm={adv_estimator:grpo}`, `~algorithm`) overrides what is below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlen.integrations.verl import choice
from fairlen.integrations.verl.choice import ACTOR, ROLLOUT
from fairlen.integrations.verl.config import VerlConfig
from fairlen.methods.method import Method
from fairlen.methods.stages.terms import SamplerMismatch

TRAINER_MODE = "trainer.v1.trainer_mode"
OWNED = (
    "algorithm.adv_estimator", "algorithm.fairlen", "algorithm.use_kl_in_reward", f"{ACTOR}.policy_loss",
    f"{ACTOR}.loss_agg_mode", f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type",
    f"{ACTOR}.entropy_coeff", f"{ACTOR}.shuffle", f"{ROLLOUT}.n", f"{ROLLOUT}.calculate_log_probs",
    f"{ROLLOUT}.response_length", "reward.reward_kwargs.overlong_buffer_cfg", "trainer.use_v1",
)  # fmt: skip
"""Settings that are the method's, and all below them."""
OPEN = ("algorithm.fairlen.correct_threshold", "algorithm.fairlen.record", "algorithm.fairlen.generate_limit")
"""Those among them that a user may set."""
KL = "leave it out; --method …+kl has the KL as a term, --set terms.ReferenceKL.coefficient=0.01"
REMEDIES = {
    "algorithm.adv_estimator": "leave it out; --method names the advantages, `fairlen methods` lists them",
    "algorithm.use_kl_in_reward": KL,
    f"{ACTOR}.use_kl_loss": KL,
    f"{ACTOR}.kl_loss_coef": KL,
    f"{ACTOR}.kl_loss_type": KL,
    f"{ACTOR}.entropy_coeff": "leave it out; --method …+entropy --set terms.EntropyBonus.coefficient=0.01",
    f"{ACTOR}.loss_agg_mode": "leave it out; --method names the aggregation, such as dapo, dr_grpo or …+balanced",
    f"{ROLLOUT}.response_length": "leave it out; data.max_response_length is the budget",
    "reward.reward_kwargs.overlong_buffer_cfg": "leave it out; --method …+overlong subtracts it after the verdict, so that right "
    "stays right",
    TRAINER_MODE: "leave it out; asynchronous trainers take methods whose rows are whole responses and whose band does not move, "
    "such as fspo_v3 in place of fspo",
}
"""What to do instead, by setting."""
CLIP = "--set surrogate.clip_low=… or --set surrogate.clip_high=…, where the method clips"
IGNORED = {
    f"{ACTOR}.clip_ratio": CLIP,
    f"{ACTOR}.clip_ratio_low": CLIP,
    f"{ACTOR}.clip_ratio_high": CLIP,
    f"{ACTOR}.clip_ratio_c": "--method …+two_sided --set surrogate.delta=…",
    "algorithm.norm_adv_by_std_in_grpo": "--method …+no_std leaves the deviation out",
}
"""What verl has for its own losses and estimators and the method does not read, and how the method is told."""
SAMPLING: dict[str, Callable[[float], bool]] = {
    f"{ROLLOUT}.top_p": lambda value: value == 1,
    f"{ROLLOUT}.top_k": lambda value: value in (-1, 0),
    f"{ROLLOUT}.min_p": lambda value: value == 0,
    f"{ROLLOUT}.repetition_penalty": lambda value: value == 1,
    f"{ROLLOUT}.temperature": lambda value: value > 0,
    f"{ROLLOUT}.do_sample": lambda value: value == 1,
}
"""By setting, for which values tokens are drawn from softmax(logits / temperature)."""
WHOLE = {
    f"{ROLLOUT}.full_determinism": "every request gets one seed, so that both tracks of a stream are the same",
    f"{ROLLOUT}.multi_turn.enable": "a track is one text of the policy, without turns of others",
    "algorithm.filter_groups.enable": "verl's filter compares whole responses, and the rows of EqLen are pieces",
    "algorithm.rollout_correction.rollout_rs": "verl takes tokens out of rows, and the two sides of a pair are of equal length",
}
"""Switches that do not go together with EqLen, and why."""
MISMATCH = {
    "algorithm.rollout_correction.bypass_mode": "verl then computes no weights for the sampler's mismatch",
    "algorithm.rollout_correction.rollout_is_batch_normalize": "verl then scales the weights of all tokens",
}
"""Switches that undo +mismatch, and how."""
LOGGER = "trainer.logger"
TRUST = ("data.trust_remote_code", "actor_rollout_ref.model.trust_remote_code")
"""Whether verl runs code of a model: never."""


def key_of(text: str) -> str:
    """What an override of hydra's sets."""
    return text.lstrip("+~").partition("=")[0]


def check_given(config: VerlConfig, method: Method, ours: Iterable[str], given: Iterable[str]) -> None:
    """Raises ValueError for the first override that undoes the method, whose own settings are `ours`, or samples otherwise."""
    pairs = choice.needs_streams(method)
    exact = {*ours, *((TRAINER_MODE,) if choice.needs_trainer(method) else ())}
    checked = {*exact, *OWNED, *IGNORED, *SAMPLING, *(WHOLE if pairs else ())}
    for text in given:
        key = key_of(text)
        if "=" not in text and not text.startswith("~"):
            raise ValueError(f"{text}: write KEY=VALUE, as hydra does; settings of fairlen come before --")
        if key not in OPEN and (key in exact or is_below(key, OWNED)):
            raise ValueError(f"{text}: the method {config.method} sets this; {remedy_for(key, pairs)}")
        if found := sorted(name for name in checked if name.startswith(f"{key}.")):
            raise ValueError(
                f"{text}: the method {config.method} needs {found[0]}, which is below; write each setting on its own, such as "
                f"{key}.NAME=VALUE"
            )
        if key in IGNORED:
            raise ValueError(f"{text}: the method does not read this; leave it out: {IGNORED[key]}")
        if pairs and key in WHOLE and number_of(text) != 0:
            raise ValueError(f"{text} with EqLen: {WHOLE[key]}; leave it out")
        if isinstance(method.correction, SamplerMismatch) and key in MISMATCH and number_of(text) != 0:
            raise ValueError(f"{text} with +mismatch: {MISMATCH[key]}; leave it out")
        if "trust_remote_code" in text and number_of(text) != 0:
            raise ValueError(f"{text}: code of a model is never run here; leave it out")
        if key == LOGGER and "console" not in text:
            raise ValueError(
                f"{text}: the launcher sees by the lines of the console logger that the job goes on; add console to the list"
            )
        if key in SAMPLING and not config.allow_truncated_sampling and not SAMPLING[key](number_of(text)):
            raise ValueError(
                f"{text}: samples of another distribution than the policy's; leave it out, or --allow-truncated-sampling"
            )


def is_below(key: str, names: Iterable[str]) -> bool:
    """Whether one of these is, or has below it, a setting: rollout.n, but not rollout.nnodes."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def remedy_for(key: str, pairs: bool) -> str:
    """What to do instead of setting what the method sets."""
    if key == f"{ROLLOUT}.n":
        return f"leave it out, and give --set sampling.{'streams' if pairs else 'n'}=8 before --"
    above = [REMEDIES[name] for name in REMEDIES if is_below(key, (name,))]
    return above[0] if above else "leave it out; it follows from --method and --set"


def number_of(text: str) -> float:
    """The value of an override as a number, true and false as 1 and 0; nan for anything else."""
    value = text.partition("=")[2].strip().strip("'\"").lower()
    try:
        return float({"true": "1", "false": "0"}.get(value, value))
    except ValueError:
        return float("nan")

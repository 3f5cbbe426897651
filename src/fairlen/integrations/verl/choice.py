"""Which method a verl job trains with: read from verl's settings, and the settings that a method needs there.

    algorithm.fairlen.method=dapo+balanced  algorithm.fairlen.settings=[surrogate.clip_high=0.3]

Imports neither verl nor torch. Not here: settings of models, data and machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.plugins import with_full_paths
from fairlen.methods.stages.aggregation import Aggregation, ConstantBudget, SequenceMean, TokenMean, TokenSum
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.filters import Everything
from fairlen.methods.stages.terms import EntropyBonus, NoCorrection, ReferenceKL, SamplerMismatch
from fairlen.sampling.eqlen import EqLen

NAME = "fairlen"
"""What verl knows our policy loss and our advantage estimator by."""
TRAINER = "fairlen_sync"
"""What it knows our trainer by, as `trainer.v1.trainer_mode`."""
TESTED = ">=0.9.1,<0.9.2"
"""Versions of verl that the tests ran with."""
STREAMS = "fairlen_streams"
"""What it knows the agent loop of EqLen by."""

MODES: tuple[tuple[Aggregation, str], ...] = (
    (SequenceMean(), "seq-mean-token-mean"),
    (TokenMean("update"), "token-mean"),
    (TokenSum(), "seq-mean-token-sum"),
    (ConstantBudget(), "seq-mean-token-sum-norm"),
)
"""verl's modes of aggregation whose weight is that of a stage for terms."""
ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
"""Estimates of the KL, by verl's names."""
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def read_method(settings: Mapping[str, Any]) -> Method:
    """The method of `algorithm.fairlen`. Raises ValueError where it is missing, or cannot run in verl."""
    names = settings.get("method") if settings else None
    if not names:
        raise ValueError(
            "algorithm.fairlen.method is not set: name a method, such as +algorithm.fairlen.method=dapo+balanced, or start the "
            "job with `fairlen verl --method …`"
        )
    method = compose(str(names), tuple(str(text) for text in settings.get("settings") or ()))
    refuse_terms(method)
    return method


def refuse_terms(method: Method) -> None:
    """Raises ValueError for terms and corrections that verl would not compute as the method says."""
    if method.terms and find_mode(method.aggregation) is None:
        raise ValueError(
            f"terms with {type(method.aggregation).__name__}: verl adds KL and entropy by its own modes, and the weight of terms "
            f"here is none of them; use one of {', '.join(str(stage) for stage, _ in MODES)}, or leave the term out"
        )
    drops = not isinstance(method.filter, Everything) or method.mask_truncated
    if method.terms and (drops or isinstance(method.sampling, EqLen)):
        raise ValueError(
            f"terms with filter={type(method.filter).__name__}, mask_truncated={method.mask_truncated}, "
            f"sampling={type(method.sampling).__name__}: verl adds KL and entropy on every row, also on those that the method "
            "leaves out; leave the term out, or keep every row"
        )
    if isinstance(method.correction, SamplerMismatch) and method.correction.above_cap == "mask":
        raise ValueError(
            "correction.above_cap=mask: verl's weights are truncated at the cap; use --set correction.above_cap=truncate"
        )


def find_mode(aggregation: Aggregation) -> str | None:
    """verl's mode that weighs terms as this stage does, where there is one."""
    return next((mode for stage, mode in MODES if stage == aggregation), None)


def needs_streams(method: Method) -> bool:
    """Whether rows are pieces of streams."""
    return isinstance(method.sampling, EqLen)


def has_moving_state(method: Method) -> bool:
    """Whether the surrogate depends on what it has learned."""
    surrogate = method.surrogate
    return isinstance(surrogate, FairBand) and (surrogate.drift != "none" or surrogate.z > 0)


def needs_trainer(method: Method) -> bool:
    """Whether verl's own trainer does not suffice."""
    return needs_streams(method) or has_moving_state(method)


def only_surrogate(method: Method) -> Method:
    """The method without what verl adds or multiplies itself."""
    return replace(method, terms=(), correction=NoCorrection())


def overrides(names: str, settings: Sequence[str], method: Method) -> Iterator[tuple[str, str]]:
    """verl's settings for a method: (hydra override, what it means)."""
    chosen = ",".join(quote(text) for text in settings)
    yield f"+algorithm.fairlen.method={quote(with_full_paths(names))}", "the method"
    yield f"+algorithm.fairlen.settings=[{chosen}]", "fields of the method that are set"
    yield "+algorithm.fairlen.budget=${data.max_response_length}", "the generation budget, tokens"
    yield (
        "+algorithm.fairlen.prompts_per_update=${actor_rollout_ref.actor.ppo_mini_batch_size}",
        "splits a rollout batch",
    )
    yield "+algorithm.fairlen.rows_per_prompt=${actor_rollout_ref.rollout.n}", "rows of a prompt"
    yield f"+algorithm.fairlen.epochs=${{{ACTOR}.ppo_epochs}}", "how often a rollout batch is gone through"
    yield f"algorithm.adv_estimator={NAME}", "plans on the driver: weight * advantage, from the whole rollout batch"
    yield f"{ACTOR}.policy_loss.loss_mode={NAME}", "the surrogate, in every worker"
    yield (
        f"{ACTOR}.policy_loss._target_=fairlen.integrations.verl.loss.FairPolicyLoss",
        "workers learn the method from it",
    )
    for field in ("method", "settings", "max_response_length"):
        yield f"+{ACTOR}.policy_loss.{field}=${{algorithm.fairlen.{field}}}", "the same in every worker"
    yield f"{ACTOR}.shuffle=True", "rows over updates at random: verl has them by when they were done, short ones first"
    yield from sampling_overrides(method)
    yield from term_overrides(method)


def sampling_overrides(method: Method) -> Iterator[tuple[str, str]]:
    """How many rows a prompt has, and who generates them and trains on them."""
    if isinstance(method.sampling, EqLen):
        yield f"{ROLLOUT}.n={method.sampling.streams}", "streams of a prompt, each of two tracks and more"
        yield f"{ROLLOUT}.agent.default_agent_loop={STREAMS}", "forks tracks and returns every segment"
        yield (
            f"+{ROLLOUT}.agent.agent_loop_manager_class=fairlen.integrations.verl.agent_loop.StreamManager",
            "grades every finished text of a stream once",
        )
        for setting in (f"{ACTOR}.use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_use_dynamic_bsz=True"):
            yield setting, "the number of segments is not known before"
    else:
        yield f"{ROLLOUT}.n={method.sampling.num_tracks}", "responses to a prompt"
    yield f"{ROLLOUT}.calculate_log_probs=True", "log-probs of the sampler, to compare with the trainer's"
    if needs_trainer(method):
        yield (
            f"trainer.v1.trainer_mode={TRAINER}",
            "verl's synchronous trainer, with plans of streams and a moving state",
        )


def term_overrides(method: Method) -> Iterator[tuple[str, str]]:
    """verl's own KL, entropy and correction of the sampler's mismatch."""
    if method.terms:
        yield f"{ACTOR}.loss_agg_mode={find_mode(method.aggregation)}", "the weight of terms; the surrogate has its own"
        if method.aggregation == ConstantBudget():
            yield f"{ACTOR}.loss_scale_factor=${{data.max_response_length}}", "the constant of that mode"
    for term in method.terms:
        match term:
            case ReferenceKL(coefficient, estimator):
                yield f"{ACTOR}.use_kl_loss=True", "KL to the reference model"
                yield f"{ACTOR}.kl_loss_coef={coefficient}", "its coefficient"
                yield f"{ACTOR}.kl_loss_type={ESTIMATORS[estimator]}", "its estimate"
            case EntropyBonus(coefficient):
                yield f"{ACTOR}.entropy_coeff={coefficient}", "the entropy bonus"
    if isinstance(method.correction, SamplerMismatch):
        yield f"algorithm.rollout_correction.rollout_is={method.correction.level}", "corrects the sampler's mismatch"
        yield f"algorithm.rollout_correction.rollout_is_threshold={method.correction.cap}", "its largest factor"


def quote(text: str) -> str:
    """A value that hydra reads as text, whatever it contains."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

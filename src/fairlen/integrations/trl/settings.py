"""Decisions before a TRL trainer is built: the method, and the meaning of each setting of GRPOConfig."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import fields, replace
from importlib.util import find_spec
from numbers import Real
from typing import Any

from torch import Tensor, nn

from fairlen.integrations import raise_all
from fairlen.loop.learning_signal import Remedies
from fairlen.methods.compose import Composition, explain
from fairlen.methods.conflicts import refuse_turn_rewards, warn_of_pairs
from fairlen.methods.description import short
from fairlen.methods.method import Method
from fairlen.methods.stages.terms import NoCorrection, ReferenceKL
from fairlen.policy.model import find_dropout
from fairlen.sampling.independent import Sampler

REMEDIES = Remedies(
    length="raise max_completion_length",
    verdict="set correct_threshold between them",
    updates="give num_iterations=2 or a larger steps_per_generation",
)

DECIDED = (
    "loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "scale_rewards", "sapo_temperature_pos",
    "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "multi_objective_aggregation",
)  # fmt: skip
"""Settings that the method decides, which can be named by them."""

REFUSED = {
    "off_policy_mask_threshold": "leave it out: it drops answers by a mean over their tokens, which long ones pass more easily",
    "top_entropy_quantile": "leave it out: no method trains a part of a sequence's tokens",
    "entropy_coef": "leave it out and add '+entropy' to the method, overrides=['terms.EntropyBonus.coefficient=…']",
    "use_adaptive_entropy": "leave it out and add '+entropy' to the method; its coefficient is constant",
}
"""Settings that change the objective in a way that no method expresses."""

SAMPLERS: dict[str, tuple[Any, ...]] = {
    "top_p": (1.0,), "top_k": (0, -1), "min_p": (0.0,), "typical_p": (1.0,), "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,),
    "top_h": (), "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,), "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,), "penalty_alpha": (0.0,), "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,),
    "do_sample": (True,), "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0.0,), "guidance_scale": (1.0,),
    "min_length": (0,), "min_new_tokens": (0,), "min_tokens": (0,), "exponential_decay_length_penalty": (),
    "bad_words": (), "bad_words_ids": (), "force_words_ids": (), "constraints": (), "sequence_bias": (), "logit_bias": (),
    "suppress_tokens": (), "begin_suppress_tokens": (), "forced_bos_token_id": (), "forced_eos_token_id": (),
    "allowed_token_ids": (), "structured_outputs": (), "vllm_structured_outputs_regex": (), "watermarking_config": (),
    "dola_layers": (),
}  # fmt: skip
"""Settings of GRPOConfig and its generation_kwargs by which the policy that samples is no longer softmax(logits / temperature),
and the values beside None that leave it so."""
OTHERWISE = (
    "tokens are drawn from another distribution than that of the log-probs of an update, which are over the whole vocabulary, so "
    "that ratios are off before any update"
)
MISMATCH = tuple(f"vllm_importance_sampling_{name}" for name in ("mode", "clip_min", "clip_max"))
LIMITS = {"max_new_tokens", "max_length", "max_tokens"}
STOPS = {"stop_strings", "stop", "stop_token_ids", "ignore_eos"}
"""Settings of generation_kwargs by which a response ends elsewhere."""
ANOTHER_EOS = (
    "generation ends a response there, and TRL's mask of its tokens does not, so that the padding behind it trains; "
    "leave it out, and set model.generation_config.eos_token_id or processing_class.eos_token, which both use"
)


def prepare(
    method: str | Method | Composition,
    overrides: Sequence[str],
    config: Any,
    allow_truncated_sampling: bool,
    parts: Mapping[str, Any] = {},
) -> tuple[Composition, Any]:
    """Return the method with its notes, and a copy of the configuration that fits it.

    Args:
        method: A name, a method or a composition.
        overrides: Fields of a named method, as PATH=VALUE.
        config: A GRPOConfig, which is not changed.
        allow_truncated_sampling: Whether tokens may be drawn from another distribution than the policy's.
        parts: The trainer's other arguments.

    Raises:
        ValueError: Naming everything that contradicts the method, each with its remedy.
    """
    composition = choose_method(method, overrides)
    config = copy.copy(config)
    refuse_turn_rewards(composition.method, "TRL")
    problems = []
    if isinstance(method, str):
        try:
            composition = take_num_generations(composition, overrides, config.num_generations)
        except ValueError as error:
            problems.append(str(error))
    tracks_are_known = not problems
    problems += find_problems(config, composition.method, allow_truncated_sampling, parts, tracks_are_known)
    raise_all(problems)
    adopted, notes = adopt(composition.method, config)
    notes = (*composition.notes, *notes, *describe_differences(config, adopted))
    return replace(composition, method=adopted, notes=notes), config


def list_overrides(given: Sequence[str] | Mapping[str, Any]) -> Sequence[str]:
    """Return fields as PATH=VALUE, which may be given as a dict."""
    return [f"{path}={value}" for path, value in given.items()] if isinstance(given, Mapping) else given


def choose_method(method: str | Method | Composition, overrides: Sequence[str]) -> Composition:
    """Return the method with its notes."""
    if isinstance(method, str):
        return explain(method, overrides)
    if overrides:
        raise ValueError(f"overrides={overrides} with a method that is no name: give its name, or replace(method, …)")
    if isinstance(method, Composition):
        return method
    if not isinstance(method, Method):
        raise ValueError(f"method={method!r:.60}: give a name such as 'fspo' or 'eqlen+dapo', or a Method")
    return Composition(short(method), method, tuple(warn_of_pairs(method)))


def take_num_generations(found: Composition, overrides: Sequence[str], number: int) -> Composition:
    """The composition with so many tracks for a prompt; as it is where an override sets a field that says how many."""
    sampling = with_num_tracks(found.method.sampling, number)
    before, after = vars(found.method.sampling), vars(sampling)
    counts = {f"sampling.{name}" for name in after if after[name] != before[name]}
    given = {override.partition("=")[0].strip() for override in overrides}
    return found if counts & given else replace(found, method=replace(found.method, sampling=sampling))


def with_num_tracks(sampling: Sampler, number: int) -> Sampler:
    try:
        return sampling.with_num_tracks(number)
    except ValueError as error:
        raise ValueError(f"num_generations={number}: {error}") from None


def find_problems(
    config: Any, method: Method, allow_truncated: bool, parts: Mapping[str, Any], tracks_are_known: bool = True
) -> Iterator[str]:
    """Yield everything in the settings that contradicts the method, or that TRL would silently take otherwise."""
    if not config.max_completion_length:
        yield f"max_completion_length={config.max_completion_length}: give the max response length in tokens"
    if config.use_vllm and find_spec("vllm") is None:
        yield "use_vllm=True: the package vllm is not installed here; give use_vllm=False, or install vLLM"
    if tracks_are_known:
        yield from find_track_problems(config, method)
    yield from find_kl_problems(config, method)
    yield from find_generation_problems(config, method, parts)
    if method.recounts and config.use_vllm and not config.vllm_importance_sampling_correction:
        yield "vllm_importance_sampling_correction=False with correction.recount=True, which compares log-probs: leave it out"
    yield from find_data_problems(parts)
    for name in changed(config, REFUSED):
        yield f"{name}={getattr(config, name)}: {REFUSED[name]}"
    if (truncations := ", ".join(find_truncations(config))) and not allow_truncated:
        others = (
            "give allow_truncated_sampling=True, or use `fairlen train`, which trains what top_p, top_k and min_p left"
        )
        yield f"{truncations}: {OTHERWISE}; leave it at its default, {others}"


def find_track_problems(config: Any, method: Method) -> Iterator[str]:
    """Yield what num_generations and the batch contradict in the responses that the method plans for a prompt."""
    sampling, number = method.sampling, config.num_generations
    if sampling.num_tracks != number:
        planned = f"{short(sampling)} plans {sampling.num_tracks} responses for a prompt"
        yield f"num_generations={number} but {planned}: make them equal, or give the method by name alone"
    rest = config.per_device_train_batch_size * config.steps_per_generation % number
    if rest:  # a process then has only some rows of a prompt
        try:
            with_num_tracks(sampling, rest)
        except ValueError as error:
            yield str(error)


def find_generation_problems(config: Any, method: Method, parts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what generation_kwargs and the trainer's arguments change in where a response ends."""
    sampling, extra = method.sampling, generation_kwargs_of(config)
    eos = extra.get("eos_token_id")
    if eos is not None and set(as_list(eos)) != find_eos_ids(parts):
        yield f"generation_kwargs eos_token_id={eos}: {ANOTHER_EOS}"
    for name in sorted(LIMITS & extra.keys()):
        states_the_limit = name != "max_length" and extra[name] == config.max_completion_length
        if not states_the_limit:
            yield f"generation_kwargs {name}={extra[name]}: leave it out; max_completion_length is the limit"
    if sampling.is_whole:
        return
    for name in sorted(STOPS & extra.keys()):
        given = f"generation_kwargs {name}={extra[name]} with {short(sampling)}"
        yield f"{given}: tracks go on until EOS or the max response length; leave it out"
    for name in ("tools", "rollout_func", "environment_factory"):
        if parts.get(name) is not None:
            yield f"{name} with {short(sampling)}: it generates by itself, where the sampler has to; leave one out"


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def find_eos_ids(parts: Mapping[str, Any]) -> set[int]:
    """Return the tokens that end a response in TRL; empty if the model or the tokenizer is not loaded yet."""
    defaults = getattr(parts.get("model"), "generation_config", None)
    processor = parts.get("processing_class")
    own = getattr(getattr(processor, "tokenizer", processor), "eos_token_id", None)
    if defaults is None or own is None:
        return set()
    declared = defaults.eos_token_id
    return {own} if declared is None else {own, *as_list(declared)}


def find_kl(method: Method) -> float | None:
    """Return the coefficient of the method's KL; None if it has no such term."""
    return next((term.coefficient for term in method.terms if isinstance(term, ReferenceKL)), None)


def find_kl_problems(config: Any, method: Method) -> Iterator[str]:
    own = find_kl(method)
    if own == 0.0:
        yield "ReferenceKL with coefficient 0: leave the term out"
    elif config.beta not in (0.0, own or 0.0):
        yield (
            f"beta={config.beta} but the method's KL coefficient is {own or 0.0}: the KL is a term of it; leave beta out, and "
            f"add '+kl' to the method with overrides={[f'terms.ReferenceKL.coefficient={config.beta}']}"
        )


def find_data_problems(parts: Mapping[str, Any]) -> Iterator[str]:
    for name in ("train_dataset", "eval_dataset"):
        given = parts.get(name)
        for one in given.values() if isinstance(given, dict) else (given,):
            columns = getattr(one, "column_names", None) or ["prompt"]
            if isinstance(one, Sized) and not len(one):
                yield f"{name} has no rows: give some, or leave it out"
            if "prompt" not in columns and parts.get("environment_factory") is None:  # which may ask by itself
                had = f"{name} has the columns {', '.join(columns)} and no `prompt`"
                yield f"{had}: rename the one that is asked, {name}.rename_column({columns[0]!r}, 'prompt')"


def generation_kwargs_of(config: Any) -> dict[str, Any]:
    return config.generation_kwargs if isinstance(config.generation_kwargs, dict) else {}


def find_truncations(config: Any) -> Iterator[str]:
    """Sampling settings that give tokens of the policy probability zero or another one, as name=value."""
    extra = generation_kwargs_of(config)
    for name, same in SAMPLERS.items():
        for value in (extra.get(name), getattr(config, name, None)):
            if value is not None and value not in same:
                yield f"{name}={value}"
    if extra.get("temperature") not in (None, config.temperature):
        yield f"generation_kwargs temperature={extra['temperature']} with GRPOConfig(temperature={config.temperature})"


def adopt(method: Method, config: Any) -> tuple[Method, list[str]]:
    """Settings of TRL that become choices of the method, and the other way round; changes `config`, a copy."""
    notes = []
    if config.mask_truncated_completions:
        config.mask_truncated_completions = False
        method = replace(method, mask_truncated=True)
        notes.append(
            "mask_truncated_completions leaves out the longest responses, correct or not; it is taken as the modifier "
            "'+overlong_filter' of the method"
        )
    if config.use_vllm and config.vllm_importance_sampling_correction and isinstance(method.correction, NoCorrection):
        notes.append(
            f"vllm_importance_sampling_mode={config.vllm_importance_sampling_mode} is not applied: TRL's default multiplies a "
            "sequence's ratios, whose product leaves any fixed bounds the sooner the longer it is. Add '+mismatch' to the method "
            "for a correction of each token, or give vllm_importance_sampling_correction=False"
        )
    config.beta = find_kl(method) or 0.0  # so that TRL loads the reference model
    return method, notes


def changed(config: Any, names: Any) -> Iterator[str]:
    """Which of these settings are not at their default."""
    defaults = {f.name: f.default for f in fields(config)}
    return (name for name in names if name in defaults and getattr(config, name) != defaults[name])


def describe_differences(config: Any, method: Method) -> Iterator[str]:
    """Settings of TRL's that the method decides, and differences of TRL from fairlen's own trainer."""
    bounds = () if isinstance(method.correction, NoCorrection) else MISMATCH
    for name in changed(config, bounds):
        yield f"{name}={getattr(config, name)} is not used: overrides=['correction.…'] sets the method's own bounds"
    for name in changed(config, DECIDED):
        how = "it can be named by TRL's words, method='trl:dapo+epsilon_high=0.28' (`fairlen methods trl` has all)"
        yield f"{name}={getattr(config, name)} is not used, the method decides: {how}"
    plain = [term for term in method.terms if isinstance(term, ReferenceKL) and term.ratio_to == "none"]
    if getattr(config, "use_bias_correction_kl", False) and plain:
        yield (
            "use_bias_correction_kl=True, TRL's default, is not applied: overrides=['terms.ReferenceKL.ratio_to=old'] multiplies "
            "the KL of each token by its ratio; use_bias_correction_kl=False leaves this note out"
        )
    updates = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
    saves = str(getattr(config.save_strategy, "value", config.save_strategy)) == "steps"
    if saves and updates > 1 and config.save_steps >= 1 and not math.isclose(config.save_steps % updates, 0.0):
        why = f"{updates:g} updates for each rollout batch, and TRL does not save one that is half used"
        yield f"save_steps={config.save_steps} with {why}: give a multiple of {math.ceil(updates)}"


def refuse_defaults(given: Any, defaults: Any) -> None:
    """Raise ValueError for what a model's generation_config adds to that of the trainer, where that leaves it open."""
    for name, same in SAMPLERS.items():
        value = getattr(defaults, name, None)
        if getattr(given, name, None) is None and value is not None and value not in same:
            remedy = f"give generation_kwargs={ {name: same[0]} }" if same else "take it out there"
            place = f"{name}={value} in the model's generation_config"
            raise ValueError(f"{place}: {OTHERWISE}; {remedy}, or allow_truncated_sampling=True")


def has_learned_prompt(model: Any) -> bool:
    """Whether an adapter of peft is a prompt, which the model below it does not see."""
    return getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)


def find_row_readers(trainer: Any) -> str:
    """Return what reads the rows of a batch besides the policy, or puts a prompt before them; empty for nothing."""
    reads = trainer.aux_loss_enabled or trainer.args.use_transformers_continuous_batching
    reads = reads or has_learned_prompt(trainer.model)
    return "a router's loss, continuous batching or a learned prompt" if reads else ""


def warn_of_dropout(model: nn.Module) -> Iterator[str]:
    found = sorted({f"{type(module).__name__}.{name}" for module, name in find_dropout(model)})
    if found:
        yield (
            f"the model has dropout ({', '.join(found)}), which off-policy ratios, clipped shares and FSPO's drift then measure; "
            "give disable_dropout=True, or 0 in the model's config and the LoraConfig"
        )


def check_threshold(threshold: float | None, weights: Tensor) -> None:
    """Raise ValueError for one that is no finite number, and for none where no weight is positive: half of nothing is no rule."""
    if threshold is not None and not (isinstance(threshold, Real) and math.isfinite(threshold)):
        raise ValueError(f"correct_threshold={threshold!r}: give a finite number")
    if threshold is None and not bool((weights > 0).any()):
        raise ValueError(f"reward_weights={weights.tolist()}: none is positive; give correct_threshold, or one that is")

"""The method of a verl job in verl's settings: what it needs there, and what given after `--` would undo it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from fairlen.integrations.verl.keys import read_default
from fairlen.methods.compose import compose
from fairlen.methods.conflicts import refuse_turn_rewards
from fairlen.methods.method import Method
from fairlen.methods.peers import read_peers
from fairlen.methods.stages.advantage import GroupCentered, GroupNormalized
from fairlen.methods.stages.surrogate import SequenceClip, SequenceTokenClip
from fairlen.methods.stages.terms import EntropyBonus, ReferenceKL, SamplerMismatch
from fairlen.plugins import with_full_paths

TESTED = ">=0.9.1,<0.9.2"
"""Versions of verl that the tests ran with."""
MODES = ("sync", "colocate_async", "separate_async")
"""verl's trainers; ours are called the same with `fairlen_` before it."""
STREAMS = "fairlen_streams"
"""Name of EqLen's agent loop in verl."""
REWARD_MANAGER = "fairlen"
"""Name of fairlen's reward manager in verl."""
TRAINER_MODE = "trainer.v1.trainer_mode"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def read_method(settings: Mapping[str, Any] | None) -> Method:
    """Return the method of `algorithm.fairlen`. Raises ValueError where it is missing."""
    names = settings.get("method") if settings else None
    if not settings or not names:
        raise ValueError("algorithm.fairlen.method is not set: give +algorithm.fairlen.method=NAME, e.g. dapo+balanced")
    return choose_method(str(names), tuple(str(text) for text in settings.get("overrides") or ()))


@cache
def choose_method(names: str, overrides: tuple[str, ...]) -> Method:
    """Return a method; every stream of pairs asks for its own. Raises ValueError for baselines of turns."""
    method = compose(names, overrides)
    refuse_turn_rewards(method, "verl")
    return method


def name_trainer(mode: str) -> str:
    return f"fairlen_{mode}"


def method_settings(names: str, overrides: Sequence[str], method: Method) -> dict[str, str]:
    """Return verl's settings for a method: what each means, by the override as hydra reads it."""
    found = {
        f"+algorithm.fairlen.method={quote(with_full_paths(names))}": "the method",
        f"+algorithm.fairlen.overrides=[{','.join(map(quote, overrides))}]": "fields of the method that are set",
        f"{TRAINER_MODE}={name_trainer(MODES[0])}": "verl's trainer with the method's plans and its loss in the workers",
        "algorithm.adv_estimator=fairlen": "none of verl's: plans have the advantages",
        f"{ACTOR}.shuffle={method.sampling.is_whole}": "rows over updates at random, not short ones first; streams stay whole",
        f"{ROLLOUT}.calculate_log_probs=True": "log-probs of the sampler, to compare with the trainer's",
    }
    if method.needs_ref:
        found[f"{ACTOR}.use_kl_loss=True"] = "log-probs of the reference model, for the method's KL"
    if method.needs_entropy:
        found[f"{ACTOR}.calculate_entropy=True"] = "the entropy with its gradient, for the method's bonus"
    if method.sampling.is_whole:
        return found | {f"{ROLLOUT}.n={method.sampling.num_tracks}": "responses to a prompt"}
    manager = "fairlen.integrations.verl.agent_loop.StreamManager"
    return found | {
        f"{ROLLOUT}.n=1": "one agent loop a prompt, for all of its streams",
        f"{ROLLOUT}.agent.default_agent_loop={STREAMS}": "forks tracks and returns every segment",
        f"+{ROLLOUT}.agent.agent_loop_manager_class={manager}": "grades every finished text of a stream once",
        f"{ROLLOUT}.scheduling_policy=priority": "vLLM starts forks first, while their prefix is in its cache",
        f"{ACTOR}.use_dynamic_bsz=True": "the number of segments is not known before",
        f"{ROLLOUT}.log_prob_use_dynamic_bsz=True": "the number of segments is not known before",
    }


def sampler_settings(given: Iterable[str]) -> dict[str, str]:
    """Return verl's settings for an asynchronous trainer, where one was given: what is old is waited for, since it is long."""
    is_asynchronous = any(key_of(text) == TRAINER_MODE and text.endswith(MODES[1:]) for text in given)
    strategy = "trainer.v1.sampler.max_off_policy_strategy=wait"
    return {strategy: "what is too old is waited for, not dropped: it is the long responses"} if is_asynchronous else {}


def quote(text: str) -> str:
    """Return a value that hydra reads as text. Raises ValueError for what it would put something else in the place of."""
    if "${" in text:
        raise ValueError(f"{text}: ${{ refers to other settings or to the environment in verl's: give one without it")
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text) + "'"


# ------------------------------------------------------------------------------------------------- what was given after `--`

OWNED = (
    "algorithm.adv_estimator", "algorithm.fairlen", "algorithm.use_kl_in_reward", f"{ACTOR}.policy_loss",
    f"{ACTOR}.loss_agg_mode", f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type",
    f"{ACTOR}.entropy_coeff", f"{ACTOR}.shuffle", f"{ROLLOUT}.n", f"{ROLLOUT}.calculate_log_probs",
    f"{ROLLOUT}.response_length", "reward.reward_kwargs.overlong_buffer_cfg", "trainer.use_v1", "critic.enable",
)  # fmt: skip
"""Settings that are the method's, and all below them."""
OPEN = ("algorithm.fairlen.correct_threshold", "algorithm.fairlen.folder", "algorithm.fairlen.generate_limit")
"""Those among them that a user may set."""
KL = "leave it out; --method …+kl has the KL as a term, --set terms.ReferenceKL.coefficient=… its coefficient"
REMEDIES = {
    "algorithm.adv_estimator": "leave it out; --method names the advantages, `fairlen methods` lists them",
    "algorithm.use_kl_in_reward": KL,
    f"{ACTOR}.use_kl_loss": KL,
    f"{ACTOR}.kl_loss_coef": KL,
    f"{ACTOR}.kl_loss_type": KL,
    f"{ACTOR}.entropy_coeff": "leave it out; --method …+entropy has the bonus, --set terms.EntropyBonus.coefficient=… its "
    "coefficient",
    "critic.enable": "leave it out; no method has a critic",
    f"{ACTOR}.loss_agg_mode": "leave it out; --method names the aggregation, such as dapo, dr_grpo or …+balanced",
    f"{ROLLOUT}.response_length": "leave it out; data.max_response_length is the longest response",
    "reward.reward_kwargs.overlong_buffer_cfg": "leave it out; --method …+overlong subtracts it after the verdict, so that "
    "correct stays correct",
    TRAINER_MODE: f"give one of {', '.join(MODES)}; asynchronous trainers take every method but EqLen, which compares two "
    "continuations by one policy",
}  # fmt: skip
"""Remedies, by setting."""
MISMATCH = "--method …+mismatch corrects the sampler's mismatch"
IGNORED = {
    f"{ACTOR}.clip_ratio": "--set surrogate.clip_low=… --set surrogate.clip_high=…, if the method clips",
    f"{ACTOR}.clip_ratio_low": "--set surrogate.clip_low=…, if the method clips",
    f"{ACTOR}.clip_ratio_high": "--set surrogate.clip_high=…, if the method clips",
    f"{ACTOR}.clip_ratio_c": "--method …+dual_clip --set surrogate.dual_clip=…",
    "algorithm.norm_adv_by_std_in_grpo": "--method …+no_std leaves the deviation out",
    f"{ACTOR}.loss_scale_factor": "--method dr_grpo, which divides by data.max_response_length",
    f"{ACTOR}.tau_pos": "--method sapo --set surrogate.tau_positive=…",
    f"{ACTOR}.tau_neg": "--method sapo --set surrogate.tau_negative=…",
    "algorithm.rollout_correction.rollout_is": MISMATCH,
    "algorithm.rollout_correction.rollout_is_threshold": MISMATCH,
    "algorithm.rollout_correction.rollout_rs_threshold": MISMATCH,
    "algorithm.rollout_correction.rollout_rs": f"{MISMATCH}, with --set correction.above_cap=mask token by token",
}
"""Settings of verl's own losses and estimators, which the method does not read, and ours for each."""
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
}
"""Switches that do not go together with EqLen, and why."""
LEGACY = {
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg",
    "custom_reward_function.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model": "reward.reward_model",
}  # fmt: skip
"""Keys of verl before 0.7, which its configuration still has and its trainer does not read, and the keys in their place."""
BYPASS = "algorithm.rollout_correction.bypass_mode"
LOGGER = "trainer.logger"


def key_of(text: str) -> str:
    return text.lstrip("+~").partition("=")[0]


def translate(text: str) -> str:
    """Return what was given, with our trainer for the one of verl's that it names."""
    key, _, value = text.partition("=")
    return f"{key}={name_trainer(value)}" if key_of(key) == TRAINER_MODE and value in MODES else text


def find_problems(
    names: str,
    method: Method,
    ours: Collection[str],
    given: Sequence[str],
    any_sampling: bool,
) -> Iterator[str]:
    """Yield one problem for each override that undoes the method, or that verl does not read.

    Overriding a parent (`algorithm={adv_estimator:grpo}`, `~algorithm`) overrides what is below it. An override that states
    what the job does anyway is no problem.

    Args:
        names: The method by its names.
        method: The method.
        ours: The method's own settings, as `method_settings` returns them.
        given: Overrides that the user gave.
        any_sampling: Whether the user allows samples of another distribution than the policy's.
    """
    is_whole = method.sampling.is_whole
    exact = set(map(key_of, ours)) - ({TRAINER_MODE} if is_whole else set())
    checked = {*exact, *OWNED, *IGNORED, *SAMPLING, TRAINER_MODE, *(() if is_whole else WHOLE)}
    facts = describe_job(method, ours)
    switched_off = find_switched_off(facts, given)
    for text in given:
        key, number = key_of(text), number_of(text)
        is_unknown_mode = key == TRAINER_MODE and translate(text) == text
        below = sorted(name for name in checked if name.startswith(f"{key}."))
        if "=" not in text and not text.startswith("~"):
            yield f"{text}: write KEY=VALUE, as hydra does; settings of fairlen come before --"
        elif states_fact(text, facts) or is_below(key, switched_off):
            continue
        elif is_below(key, LEGACY):
            if not is_default_of_new_key(text, given):
                yield f"{text}: verl reads no such key any more; {remedy_for_legacy(text, is_whole)}"
        elif key not in OPEN and (key in exact or is_below(key, OWNED) or is_unknown_mode):
            yield f"{text}: the method {names} sets this; {remedy_for(key, text, is_whole)}"
        elif below:
            remedy = f"write each setting on its own, such as {key}.NAME=VALUE"
            yield f"{text}: the method {names} needs {below[0]}, which is below; {remedy}"
        elif reason := find_reason(key, number, text, method, any_sampling):
            yield f"{text}{reason}"


# ---------------------------------------------------------------------------------- values that state what a job does anyway

KL_TYPES = {"k1": ("kl", "k1"), "k2": ("mse", "k2"), "k3": ("low_var_kl", "k3")}
"""verl's names of each estimator of the KL."""
SWITCHES = {
    f"{ACTOR}.use_kl_loss": (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"),
    "reward.reward_kwargs.overlong_buffer_cfg.enable": ("reward.reward_kwargs.overlong_buffer_cfg",),
}
"""Switches, and the settings that nothing reads while a switch is off."""
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LOSSES = ("vanilla", "gspo", "sapo", "cispo", "geo_mean", "dppo_tv", "dppo_kl", "gpg")
SURROGATE_FIELDS = {
    f"{ACTOR}.clip_ratio_low": "clip_low",
    f"{ACTOR}.clip_ratio_high": "clip_high",
    f"{ACTOR}.clip_ratio_c": "dual_clip",
    f"{ACTOR}.tau_pos": "tau_positive",
    f"{ACTOR}.tau_neg": "tau_negative",
}
"""Fields of a surrogate that verl's settings name."""


def describe_job(method: Method, ours: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return the values of verl's settings that state what a job with this method does, by setting."""
    facts: dict[str, tuple[Any, ...]] = {}
    for text in ours:
        facts[key_of(text)] = (value_in(text),)
    kl = next((term for term in method.terms if isinstance(term, ReferenceKL)), None)
    bonus = next((term for term in method.terms if isinstance(term, EntropyBonus)), None)
    facts["trainer.use_v1"] = (True,)
    facts["critic.enable"] = (False, None)
    facts["algorithm.use_kl_in_reward"] = (False,)
    facts["reward.reward_kwargs.overlong_buffer_cfg.enable"] = (False,)
    facts[f"{ACTOR}.use_kl_loss"] = (kl is not None,)
    facts[f"{ACTOR}.kl_loss_coef"] = (kl.coefficient if kl else 0.0,)
    facts[f"{ACTOR}.kl_loss_type"] = KL_TYPES[kl.estimator] if kl and kl.ratio_to == "none" else ()
    facts[f"{ACTOR}.entropy_coeff"] = (bonus.coefficient if bonus else 0.0,)
    return facts | describe_loss(method)


def describe_loss(method: Method) -> dict[str, tuple[Any, ...]]:
    """Return the values of the settings of verl's own losses that state what this method computes, by setting."""
    verl, surrogate = read_peers()["verl"], method.surrogate
    kinds = (
        [SequenceClip, SequenceTokenClip]
        if isinstance(surrogate, SequenceClip | SequenceTokenClip)
        else [type(surrogate)]
    )
    # The scope of the denominators is not part of verl's word.
    modes = [word for word in AGGREGATIONS if is_alike(verl.apply([word]).aggregation, method.aggregation)]
    losses = [word for word in LOSSES if type(verl.apply([word]).surrogate) in kinds]
    facts: dict[str, tuple[Any, ...]] = {
        f"{ACTOR}.loss_agg_mode": tuple(modes),
        f"{ACTOR}.policy_loss.loss_mode": tuple(losses),
    }
    for key, name in SURROGATE_FIELDS.items():
        facts[key] = (vars(surrogate)[name],) if name in vars(surrogate) else ()
    low, high = facts[f"{ACTOR}.clip_ratio_low"], facts[f"{ACTOR}.clip_ratio_high"]
    facts[f"{ACTOR}.clip_ratio"] = low if low == high else ()
    if isinstance(method.advantage, GroupNormalized | GroupCentered):
        facts["algorithm.norm_adv_by_std_in_grpo"] = (isinstance(method.advantage, GroupNormalized),)
    return facts


def is_alike(stage: Any, other: Any) -> bool:
    """Whether two stages are of one type and have the same fields, except for the scope of their denominators."""
    if type(stage) is not type(other) or not is_dataclass(stage):
        return False
    names = [field.name for field in fields(stage) if field.name != "scope"]
    return all(getattr(stage, name) == getattr(other, name) for name in names)


def states_fact(text: str, facts: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether an override states what the job does anyway."""
    return not text.startswith("~") and is_one_of(value_in(text), facts.get(key_of(text), ()))


def is_one_of(value: Any, values: Iterable[Any]) -> bool:
    """Whether a value is one of these; False is not 0, but 1 is 1.0."""
    for other in values:
        both = isinstance(value, bool) == isinstance(other, bool)
        if both and value == other:
            return True
    return False


def value_in(text: str) -> Any:
    """Return the value of an override: a bool, None or a number if it is one, else its text without quotes."""
    value = text.partition("=")[2].strip().strip("'\"")
    constants = {"true": True, "false": False, "null": None, "none": None}
    if value.lower() in constants:
        return constants[value.lower()]
    try:
        return float(value)
    except ValueError:
        return value


def find_switched_off(facts: Mapping[str, tuple[Any, ...]], given: Iterable[str]) -> list[str]:
    """Return the settings that nothing reads because an override states that their switch is off."""
    off = [key_of(text) for text in given if states_fact(text, facts) and value_in(text) is False]
    return [name for switch in off for name in SWITCHES.get(switch, ())]


def is_default_of_new_key(text: str, given: Iterable[str]) -> bool:
    """Whether an override of an old key has the value that the job has at the new key anyway."""
    value, new = value_in(text), rename_legacy(key_of(text))
    if is_below(new, OWNED) or any(key_of(other) == new for other in given):
        return False
    default = read_default(new)
    default = float(default) if isinstance(default, int) and not isinstance(default, bool) else default
    return value is None or (default is not None and is_one_of(value, [default]))


def rename_legacy(key: str) -> str:
    """Return the key that verl reads in place of an old one."""
    old = max((name for name in LEGACY if is_below(key, (name,))), key=len)
    return LEGACY[old] + key.removeprefix(old)


def remedy_for_legacy(text: str, is_whole: bool) -> str:
    """Return what to do instead of setting an old key."""
    new = rename_legacy(key_of(text))
    return remedy_for(new, text, is_whole) if is_below(new, OWNED) else f"write {new}=…"


def find_reason(key: str, number: float, text: str, method: Method, any_sampling: bool) -> str:
    """Return why one override of a setting that is not the method's cannot be; nothing where it can."""
    if key in IGNORED and "null" not in text:
        return f": the method does not read this; leave it out: {insert_value(IGNORED[key], text)}"
    if not method.sampling.is_whole and key in WHOLE and number != 0:
        return f" with EqLen: {WHOLE[key]}; leave it out"
    if isinstance(method.correction, SamplerMismatch) and key == BYPASS and number != 0:
        return " with +mismatch: verl then takes the sampler's log-probs for the trainer's; leave it out"
    if "trust_remote_code" in text and number != 0:
        return ": code of a model is never run here; leave it out"
    if key == LOGGER and "console" not in text:
        return ": the launcher sees by the lines of the console logger that the job goes on; add console to the list"
    if key in SAMPLING and not any_sampling and not SAMPLING[key](number):
        return ": samples of another distribution than the policy's; leave it out, or --allow-truncated-sampling"
    return ""


def insert_value(remedy: str, text: str) -> str:
    """Return a remedy with the value that was given in it, if it is a number."""
    is_number = isinstance(value_in(text), float)
    return remedy.replace("=…", f"={text.partition('=')[2].strip()}") if is_number else remedy


def is_below(key: str, names: Iterable[str]) -> bool:
    """Whether one of these is, or has below it, a setting: rollout.n, but not rollout.nnodes."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def remedy_for(key: str, text: str, is_whole: bool) -> str:
    """Return what to do instead of setting what the method sets."""
    if key == f"{ROLLOUT}.n" and is_whole:
        return insert_value("leave it out, and give --set sampling.n=… before --", text)
    if key == f"{ROLLOUT}.n":
        number = number_of(text)
        streams = f"{number / 2:g}" if number % 2 == 0 else "…"
        return f"leave it out, and give --set sampling.streams={streams} before --; a stream has two responses"
    above = [REMEDIES[name] for name in REMEDIES if is_below(key, (name,))]
    return insert_value(above[0], text) if above else "leave it out; it follows from --method and --set"


def number_of(text: str) -> float:
    """Return the value of an override as a number, true and false as 1 and 0; nan for anything else."""
    value = text.partition("=")[2].strip().strip("'\"").lower()
    try:
        return float({"true": "1", "false": "0"}.get(value, value))
    except ValueError:
        return float("nan")


# ------------------------------------------------------------------ a rehearsal: two FSDP2 workers with gloo, two rollout servers

CPU_MODULE = "fairlen.integrations.verl.cpu"
VLLM_NAME = f"{ROLLOUT}.name=vllm"
VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for a node whose address is 127.0.0.1, on any system
    "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1",
}  # fmt: skip
"""Ray, and with it TransferQueue, which unpickles what it is sent, then gloo and vLLM: all listen on this machine alone."""
MAX_RESPONSE_LENGTH = 128
"""Tokens of a response."""
NUM_PROBLEMS, NUM_HELD_OUT = 512, 64
REHEARSAL = {
    "trainer.device=cpu": "no accelerator",
    "trainer.nnodes=1": "this machine",
    "trainer.n_gpus_per_node=2": "two workers, each with a rollout server",
    "ray_kwargs.ray_init.num_cpus=16": "what Ray believes to be there",
    "+ray_kwargs.ray_init.num_gpus=2": "what Ray believes to be there",
    "+ray_kwargs.ray_init.include_dashboard=False": "no dashboard",
    "+ray_kwargs.ray_init.object_store_memory=500000000": "bytes",
    f"{ROLLOUT}.name=fairlen_cpu": "fairlen's engine as rollout server",
    f"{ROLLOUT}.dtype=float32": "arithmetic of a CPU",
    f"{ROLLOUT}.tensor_model_parallel_size=1": "one worker a server",
    f"{ROLLOUT}.free_cache_engine=False": "nothing to free",
    f"{ROLLOUT}.agent.num_workers=1": "one process",
    f"{ACTOR}.strategy=fsdp2": "FSDP1 refuses a CPU",
    f"{ACTOR}.fsdp_config.strategy=fsdp2": "FSDP1 refuses a CPU",
    f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32": "arithmetic of a CPU",
    f"+{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp32": "arithmetic of a CPU",
    f"{ACTOR}.fsdp_config.use_torch_compile=False": "not worth its time here",
    f"{ACTOR}.use_torch_compile=False": "not worth its time here",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa": "flash attention needs CUDA",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False": "memory is not short",
    "actor_rollout_ref.model.use_remove_padding=False": "needs flash attention",
    f"{ACTOR}.use_dynamic_bsz=True": "micro-batches by tokens",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz=True": "micro-batches by tokens",
    f"{ACTOR}.ppo_max_token_len_per_gpu=2048": "tokens of a micro-batch",
    f"{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}": "one update a rollout batch",
    "data.train_batch_size=16": "prompts of a rollout batch",
    f"data.max_response_length={MAX_RESPONSE_LENGTH}": "tokens",
    "data.dataloader_num_workers=0": "one process",
    "reward.num_workers=1": "one process",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1": "one process",
    "trainer.logger=[console,file]": "metrics as JSON lines too",
    "trainer.val_before_train=False": "training only",
    "trainer.test_freq=-1": "training only",
    "trainer.save_freq=-1": "no checkpoints",
    "trainer.resume_mode=disable": "starts anew",
    "trainer.total_training_steps=4": "rollout batches",
}
"""verl's settings of a rehearsal: what each means, by the override as hydra reads it."""
PROMPTS = {"data.max_prompt_length=32": "tokens"}
"""Likewise, of the playground's problems alone."""
OPTIMIZER = {
    f"{ACTOR}.optim.lr=4e-4": "learning rate",
    f"{ACTOR}.optim.lr_warmup_steps=5": "updates over which it rises",
    f"{ACTOR}.optim.betas=[0.9,0.95]": "of AdamW",
    f"{ACTOR}.optim.weight_decay=0.0": "of AdamW",
}
"""Likewise, of the shipped model alone: others keep verl's."""
VLLM_SETTINGS = {
    f"{ROLLOUT}.load_format=dummy": "weights come from the trainer",
    f"{ROLLOUT}.enforce_eager=True": "nothing to compile",
    f"+{ROLLOUT}.engine_kwargs.vllm.block_size=32": "tokens of a prefix that are reused together: the CPU build's smallest",
    f"+{ROLLOUT}.enable_sleep_mode=False": "a CPU build does not sleep",
    f"{ROLLOUT}.max_model_len=256": "tokens of prompt and response",
    f"{ROLLOUT}.max_num_seqs=64": "responses at a time",
    f"{ROLLOUT}.max_num_batched_tokens=1024": "tokens at a time",
    f"{ROLLOUT}.gpu_memory_utilization=0.1": "share of the memory",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=16": "shared memory for weights",
}
"""Further settings of vLLM's CPU build, where rollout.name=vllm is given."""

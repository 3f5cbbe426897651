"""Settings as flags: a dataclass of them is read from a TOML file and arguments, and explained by --help.

Another trainer's word for a setting is answered with ours, by `WORDS`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from docstring_parser import parse_from_object

from fairlen.console import log, suggest
from fairlen.files.foreign import Unreadable, read_toml_file
from fairlen.settings import Setting, change, list_settings

Config = TypeVar("Config")
WIDTH, MARGIN = 100, 28
"""Columns of a page of help at most, and of its flags."""

WORDS = {
    "--learning-rate {}": "lr actor_lr",
    "--max-steps {}": "steps num_steps max_updates total_training_steps rollout_batches",
    "--max-updates {}": "max_steps",
    "--rollout-batches {}": "steps num_steps total_training_steps",
    "--rollout-batches N, each of --prompts-per-batch problems": "num_train_epochs total_epochs epochs",
    "--max-completion-length {}": "max_new_tokens max_tokens response_length max_response_length max_length",
    "--max-response-length {}": "max_new_tokens max_tokens response_length max_completion_length max_length",
    "--num-generations {}": "n group_size num_samples samples",
    "--set sampling.n={}": "num_generations n group_size num_samples",
    "--samples {}": "num_generations n group_size num_samples eval_samples",
    "--problems {}": "limit eval_problems",
    "--prompts-per-batch {}": "train_batch_size gen_batch_size batch_size rollout_batch_size",
    "--prompts-per-batch N (prompts) and --set sampling.n=N (responses to each)": "per_device_train_batch_size",
    "--updates-per-batch N, which is steps_per_generation / gradient_accumulation_steps": "steps_per_generation",
    "--updates-per-batch N, which is train_batch_size / ppo_mini_batch_size": "ppo_mini_batch_size mini_batch_size",
    "--epochs-per-batch {}": "num_iterations ppo_epochs num_ppo_epochs",
    "--max-tokens-per-microbatch N, in tokens; it changes no result": "gradient_accumulation_steps ppo_micro_batch_size_per_gpu "
    "ppo_micro_batch_size micro_batch_size",
    "--method …+kl --set terms.ReferenceKL.coefficient={}": "beta kl_coef kl_loss_coef init_kl_coef",
    "--method …+kl": "use_kl_loss",
    "--set surrogate.clip_low={} --set surrogate.clip_high={}": "epsilon clip_ratio cliprange",
    "--set surrogate.clip_low={}": "epsilon_low clip_ratio_low",
    "--set surrogate.clip_high={}": "epsilon_high clip_ratio_high",
    "--method …+two_sided --set surrogate.delta={}": "delta",
    "--method …+dual_clip --set surrogate.dual_clip={}": "clip_ratio_c",
    "--method NAME; `fairlen methods` lists them": "loss_type adv_estimator loss_agg_mode loss_mode importance_sampling_level",
    "--method …+std_trl": "scale_rewards=group scale_rewards=True",
    "--set advantage=BatchNormalized --set advantage.spread=value": "scale_rewards=batch",
    "--method …+std_verl": "norm_adv_by_std_in_grpo=True",
    "--method …+no_std": "scale_rewards norm_adv_by_std_in_grpo",
    "--method …+entropy --set terms.EntropyBonus.coefficient={}": "entropy_coef entropy_coeff",
    "--method …+overlong_filter": "mask_truncated_completions",
    "--method …+dynamic": "filter_groups.enable",
    "--max-gradient-norm {}": "max_grad_norm grad_clip",
    "--warmup-updates {}": "warmup_steps lr_warmup_steps",
    "--model {}": "model_name_or_path model_name model.path",
    "--data {}": "dataset_name dataset train_files",
    "--eval-data {}": "eval_dataset val_files",
    "--output-dir {}": "out default_local_dir",
    "--out {}": "output_dir default_local_dir html",
    "--save-every N, in rollout batches": "save_steps save_freq",
    "--eval-every N, in rollout batches": "eval_steps test_freq",
    "--resume --out FOLDER": "resume_from_checkpoint resume_mode",
    "--tracker {}": "report_to logger",
    "--engine vllm": "use_vllm rollout.name",
    "--gpu-memory-utilization {}": "vllm_gpu_memory_utilization",
    "--lora-rank {}": "lora_r",
    "--dtype bfloat16": "bf16",
    "--rewards FILE.py:FUNCTION": "reward_funcs custom_reward_function.path",
    "-- actor_rollout_ref.actor.optim.lr={}": "lr learning_rate",
    "-- trainer.total_training_steps={}": "steps max_steps max_updates rollout_batches",
    "-- data.train_batch_size={}": "prompts_per_batch batch_size per_device_train_batch_size",
    "-- data.max_response_length={}": "max_response_length max_new_tokens max_completion_length",
}
"""Other trainers' names of a setting, by ours: {} is what was given. Dots and all of verl's keys are looked for by their ends."""


class Parser(ArgumentParser):
    """Raises ValueError where argparse prints its usage and ends."""

    def error(self, message: str) -> NoReturn:
        first = re.sub(r"^argument (--[\w-]+)(/\S+)*:", r"\1:", message)  # of its spellings
        raise ValueError(first + "; --help has examples" * ("required" in message))


def is_list(one: Setting) -> bool:
    """Return whether several values make one of it."""
    return get_origin(one.kind) is tuple


@cache
def field_meanings(kind: type) -> Mapping[str, str]:
    """The text under each field of a class and of those it inherits from; empty where the source cannot be read.

    It is read for a page of help alone, and any failure leaves the page without these texts.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        with suppress(Exception):  # no file has the class; the parser has met the recursion limit before
            params = parse_from_object(base).params
            found |= {one.arg_name: " ".join((one.description or "").split()) for one in params}
    return found


def choices_of(one: Setting) -> dict[str, Any]:
    """Return the values that it can have, by their texts; none where there is no list of them."""
    return {str(value): value for value in get_args(one.kind)} if get_origin(one.kind) is Literal else {}


def write_shape(one: Setting) -> str:
    """Return how it is written on the command line."""
    if one.kind is bool:
        return f"--{'[no-]' if one.default is True else ''}{one.spelling}"
    value = "|".join(choices_of(one)) or {int: "N", float: "X"}.get(one.kind, "TEXT")
    more = " …" if is_list(one) and not one.flag.is_repeated else ""
    return f"{one.spelling.upper()}{more}" if one.flag.is_positional else f"--{one.spelling} {value}{more}"


def add_to(parser: ArgumentParser, one: Setting) -> None:
    """Add a setting to a parser, which leaves out of its result what was not given."""
    is_needed, common = one.default is MISSING, {"default": SUPPRESS, "type": partial(read_text, one)}
    spellings = dict.fromkeys((f"--{one.spelling}", f"--{one.spelling.replace('-', '_')}"))
    if one.flag.is_positional:
        nargs = ("+" if is_needed else "*") if is_list(one) else (None if is_needed else "?")
        parser.add_argument(one.name, metavar=one.spelling.upper(), nargs=nargs, **common)
    elif one.kind is bool:
        parser.add_argument(*spellings, dest=one.name, action=BooleanOptionalAction, default=SUPPRESS)
    elif one.flag.is_repeated:
        parser.add_argument(*spellings, dest=one.name, action="append", **common)
    elif is_list(one):
        parser.add_argument(*spellings, dest=one.name, action="extend", nargs="+", **common)
    else:
        parser.add_argument(*spellings, dest=one.name, **common)


def read_text(one: Setting, text: str) -> Any:
    """Return a text as a value of a setting. Raises ArgumentTypeError saying what to give."""
    choices = choices_of(one)
    if choices and text not in choices:
        raise ArgumentTypeError(f"{text!r}: give one of {', '.join(choices)}")
    kind = get_args(one.kind)[0] if is_list(one) else one.kind
    try:
        return choices[text] if choices else kind(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: give {'a whole number' if kind is int else 'a number'}") from None


def read_flags(begin: type[Config] | Config, command: str, arguments: Sequence[str], page: str = "") -> Config:
    """Return settings as `read_some`. Raises ValueError for what is no flag of theirs, with the one that was meant."""
    config, left = read_some(begin, command, arguments, page)
    if left:
        hidden = {one.spelling for one in list_settings(type(config)) if one.name in getattr(config, "refused", ())}
        names = [name for name in flag_names(type(config)) if name not in hidden]
        raise ValueError(f"{explain_unknown(left, names)}; {command} --help lists its flags")
    return config


def read_some(
    begin: type[Config] | Config, command: str, arguments: Sequence[str], page: str
) -> tuple[Config, list[str]]:
    """Return settings, or those that a class begins with, as arguments change them, and the arguments that are others.

    `page` is what --help says before the flags; there the process ends with code 0.
    """
    kind, default = (begin, None) if isinstance(begin, type) else (type(begin), begin)
    options = list(list_settings(kind, default))
    if {"-h", "--help"} & set(arguments):
        shown = [one for one in options if one.name not in getattr(kind, "refused", ())]
        log(write_help(command, page, shown), end="")
        sys.exit(0)
    parser = Parser(add_help=False, allow_abbrev=False)
    for one in options:
        add_to(parser, one)
    found, left = parser.parse_known_intermixed_args(arguments)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(found).items()}
    if "overrides" in given:  # added to those that were there; of other lists, what is named is meant alone
        given["overrides"] = (*getattr(default, "overrides", ()), *given["overrides"])
    return change(begin, given), left


def flag_names(settings: type) -> list[str]:
    """Return the names of the flags of a dataclass."""
    return [one.spelling for one in list_settings(settings) if not one.flag.is_positional]


def read_defaults(default: Any, arguments: list[str]) -> tuple[Any, list[str]]:
    """Return what flags begin with, where there is --config as its file changes it, and the flags."""
    path, flags = split_config(arguments)
    return overlay(default, path) if path else default, flags


def find_flag(arguments: Sequence[str], name: str) -> str:
    """Return the value of a flag, empty where it is not given."""
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") == name:
            return value if equals else "".join(arguments[place + 1 : place + 2])
    return ""


def split_config(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """Return the path after --config, and the other arguments."""
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path, action="append", default=[])
    given, rest = parser.parse_known_args(arguments)
    if len(given.config) > 1:
        raise ValueError(f"--config {given.config[0]}: name one TOML file")
    return next(iter(given.config), None), rest


def overlay(config: Any, path: Path) -> Any:
    """Change settings as a TOML file says.

    Args:
        config: The settings to begin with.
        path: The TOML file. Its tables are the groups of settings.

    Returns:
        The changed settings, of the same class.

    Raises:
        ValueError: The file cannot be read, names a key that does not exist, or gives a value of the wrong type.
        FileNotFoundError: The file does not exist.
    """
    try:
        content = read_toml_file(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise FileNotFoundError(f"--config {path}: there is no such file") from None
    except Unreadable as error:
        raise Unreadable(f"--config {error}") from None
    values: dict[str, Any] = {}
    tables = {setting.group for setting in list_settings(type(config))}
    try:
        for key, value in content.items():
            if key in tables and isinstance(value, dict):
                entries, table = value, key
            else:
                entries, table = {key: value}, ""
            for name, entry in entries.items():
                setting = find_key(config, name, entry, table)
                values[setting.name] = convert(name, entry, setting.default)
    except ValueError as error:
        raise ValueError(f"--config {path}: {error}") from None
    return change(config, values)


def find_key(config: Any, key: str, value: Any, table: str) -> Setting:
    """Return the setting of a key in a table of a file. Raises ValueError with the place of the one that was meant."""
    word, settings = key.replace("-", "_"), list(list_settings(type(config), config))
    for one in settings:
        if one.group == table and word == (one.flag.spelling or one.field):
            if one.flag.not_in_files:
                raise ValueError(f"{key}: give it as a flag, --{one.spelling}; {one.flag.not_in_files}")
            return one
    for one in settings:
        if word in (one.name, one.field, one.flag.spelling):
            place = f"under [{one.group}]" if one.group else "before all tables"
            line = f"{one.flag.spelling or one.field} = {json.dumps(value, default=str)}"
            raise ValueError(f"{key}: write it {place}, as {line}")
    names = [one.spelling for one in settings]
    known = {one.field for one in settings if table in ("", one.group)} | {one.group for one in settings} - {""}
    raise ValueError(f"unknown key {key!r}: {find_meant(key, str(value), names) or suggest(word, sorted(known))}")


def convert(key: str, value: Any, default: Any) -> Any:
    """Return the value of a TOML file as the type that the setting has."""
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise ValueError(f"{key} = {value!r}: give a list of texts, such as [{json.dumps(str(value))}]")
        return tuple(map(str, value))
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"{key} = {value!r}: give {type(default).__name__}, such as {default!r}")
    return value


def explain_unknown(left: Sequence[str], names: Collection[str]) -> str:
    """Return what is said of arguments that are no flags: the first one, and the flag among `names` that was meant."""
    place = next((place for place, text in enumerate(left) if text.startswith("-")), 0)
    word, equals, value = left[place].partition("=")
    if not equals:
        value = "".join(text for text in left[place + 1 : place + 2] if not text.startswith("--"))
    meant = find_meant(word, value, names)
    if not (meant or equals or word.startswith("-")):
        return f"{word}: one argument too many"
    near = suggest(f"--{word.lstrip('-').replace('_', '-')}", [f"--{name}" for name in names if name])
    return f"no flag {word}: {meant or near}"


def find_meant(word: str, value: str, names: Collection[str]) -> str:
    """Return what another trainer's word for a setting is among the flags of these names; nothing where it is unknown."""
    key = word.lstrip("-+~").replace("-", "_")
    for start in [0, *(found.end() for found in re.finditer(r"\.", key))]:
        end = key[start:]
        if end.replace("_", "-") in names:
            return f"here it is --{end.replace('_', '-')} {value}".rstrip()
        for ours, theirs in WORDS.items():
            if {end, f"{end}={value}"} & {*theirs.split()} and ours.split()[0].strip("-") in names:
                return f"here it is {ours.format(*[value or 'VALUE'] * 2)}"
    return ""


def write_help(command: str, page: str, options: Sequence[Setting]) -> str:
    """Return a page of help: what a command does, then its flags with their defaults, by the tables of a file."""
    width = min(max(shutil.get_terminal_size().columns, MARGIN + 20), WIDTH)
    lines = [page.rstrip()]
    for group in dict.fromkeys(("", *(one.group for one in options))):
        members = [one for one in options if one.group == group]
        lines += ["", f"[{group}]" if group else command] if members else []
        for one in members:
            lines += write_option(one, width)
    return "\n".join([*lines, ""])


def write_option(one: Setting, width: int) -> list[str]:
    """Return the lines of an option: how it is written, what it means, its default where it has one that is something."""
    is_shown = type(one.default) in (int, float) or (isinstance(one.default, str) and one.default)
    meaning = field_meanings(one.owner).get(one.field, "") + (f" [{one.default}]" if is_shown else "")
    shape = f"  {write_shape(one)}"
    text = textwrap.wrap(meaning, width - MARGIN, break_long_words=False, break_on_hyphens=False) or [""]
    head = [shape] if len(shape) >= MARGIN else []
    first = "" if head else shape
    return [*head, *(f"{first if place == 0 else '':{MARGIN}}{line}" for place, line in enumerate(text))]

"""`fairlen verl`: compose the settings, write the files that they name, start the job."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from fairlen.batch import CORRECT_THRESHOLD
from fairlen.console import log
from fairlen.files.folders import choose_folder, refuse_links
from fairlen.integrations import raise_all, refuse_untested
from fairlen.integrations.verl import settings
from fairlen.integrations.verl.data import (
    check_model,
    copy_shipped,
    data_rows,
    opens_thinking,
    playground_rows,
    write_rows,
)
from fairlen.integrations.verl.keys import find_unknown
from fairlen.integrations.verl.session import run_session
from fairlen.loop.learning_signal import FIRST_LOGS
from fairlen.methods.compose import DEFAULT_METHOD
from fairlen.methods.description import list_stages
from fairlen.settings import Overrides, Repeated, Settings
from fairlen.verify.answer import check_form

PLUGIN = "fairlen.integrations.verl.plugin"
JOB = "fairlen.integrations.verl.job"
GUARDS = "fairlen.integrations.verl.guards"
REWARD = "pkg://fairlen.integrations.verl.data"
MODEL, TOKENIZER = "actor_rollout_ref.model.path", "actor_rollout_ref.model.tokenizer_path"
TRUST = ("data.trust_remote_code", "actor_rollout_ref.model.trust_remote_code")
"""Whether verl runs code of a model: never."""
REHEARSE = "--cpu rehearses a job on this machine"
LISTENS = (
    "warning: Ray and verl's TransferQueue listen on the address of every node, and TransferQueue unpickles, and so runs, what "
    "anyone sends to it: let none but the nodes of this job reach them (a network of their own or a firewall)"
)


@dataclass(frozen=True)
class VerlConfig(Settings):
    """Start verl's trainer (verl.trainer.main_ppo) with a length-fair method. What follows `--` goes to verl as it is."""

    method: str = DEFAULT_METHOD
    """Names joined by +: one base and any modifiers; `fairlen methods` lists them."""
    overrides: Overrides = ()
    """A field of the method, such as sampling.n=8; may be repeated."""
    model: str = ""
    """Folder or hub id; by default what verl's own settings say, with --cpu the playground."""
    data: Annotated[tuple[str, ...], Repeated] = ()
    """Data sets as `fairlen train` reads them, converted and graded by its verifiers, in the place of data.train_files; may be
    repeated."""
    eval_data: Annotated[tuple[str, ...], Repeated] = ()
    """The same for verl's validation; by default what is trained on."""
    answer: str = "auto"
    """Form of the answer in data sets that are converted: "boxed", "hashes", "last-number", "letter" or regex:PATTERN."""
    cpu: bool = False
    """Rehearse the whole job without an accelerator: Ray, two workers, two rollout servers."""
    ray_address: str = ""
    """host:port of a cluster of Ray that runs, or auto; by default verl starts Ray here."""
    dry_run: bool = False
    """Print the settings and what they mean, and start nothing."""
    out: str = ""
    """Folder for converted data and logs; by default a new one under runs/."""
    allow_truncated_sampling: bool = False
    """Train on samples of another distribution than the policy's (top_p, top_k): every ratio is then wrong."""

    def __post_init__(self) -> None:
        if self.eval_data and not self.data:
            raise ValueError(f"eval_data={self.eval_data[0]}: it goes with --data, which names what to train on")
        if self.cpu and self.ray_address:
            raise ValueError(f"ray_address={self.ray_address}: --cpu rehearses on this machine; leave one of them out")
        check_form(self.answer)
        if self.answer != "auto" and not self.data:
            raise ValueError(f"answer={self.answer}: it goes with --data, whose answers fairlen's verifiers read")
        settings.choose_method(self.method, self.overrides)


def start_verl(config: VerlConfig, given: Sequence[str]) -> int:
    """Run a job with what was given after `--`; return its exit code."""
    folder = choose_folder(config.out, "verl")
    if not config.dry_run:
        refuse_untested("verl", version("verl"), settings.TESTED)
        raise_all([*find_refusals(config, given, folder), *find_missing(config, given)])
    collected = collect(config, given, folder)
    model = value_of(MODEL, given) or config.model
    check_model(model)
    check_model(value_of(TOKENIZER, given), tokenizer_alone=True)
    if config.dry_run:
        for text, meaning in collected.items():
            log(f"{quote_for_shell(text)}\n    {meaning}")
        return 0
    if not config.cpu:
        log(LISTENS, sys.stderr)
    if config.data or config.cpu:
        write_files(config, given, folder, os.path.expanduser(model))
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder)
    log(describe_verdict(config, given, folder))
    log(f"{config.method}: {list_stages(settings.choose_method(config.method, config.overrides))}\n{FIRST_LOGS}")
    command = [sys.executable, "-m", JOB, *collected]
    with tempfile.TemporaryDirectory(prefix="fairlen-", ignore_cleanup_errors=True) as scratch:
        variables = environment(config, given, folder) | ({"RAY_TMPDIR": scratch} if config.cpu else {})
        return run_session(command, variables, folder)


def describe_verdict(config: VerlConfig, given: Sequence[str], folder: Path) -> str:
    """Return a line on which responses count as correct in a job."""
    threshold = value_of("algorithm.fairlen.correct_threshold", given) or f"{CORRECT_THRESHOLD:g}"
    own = value_of("reward.custom_reward_function.path", given)
    if files_of(config, given, folder) and not own:
        return "correct: by fairlen's verifier, whose verdict is the reward"
    return f"correct: the number acc that {own or 'the reward function'} returns, else its score, is above {threshold}"


def find_missing(config: VerlConfig, given: Sequence[str]) -> Iterator[str]:
    """Yield what a job lacks that Ray would start and that could not train: problems, model, accelerator, vLLM."""
    is_on_this_machine = not config.ray_address
    if settings.VLLM_NAME in given and is_on_this_machine and find_spec("vllm") is None:
        other = "leave it out: --cpu rehearses with fairlen's engine"
        if not config.cpu:
            other = "give --ray-address of a cluster that has it"
        yield f"{settings.VLLM_NAME}: the package vllm is not installed here; {other}, or install vLLM"
    if config.cpu:
        return
    if not (config.data or value_of("data.train_files", given)):
        yield f"no problems: give --data, or data.train_files=… after --; {REHEARSE}"
    if not (config.model or value_of(MODEL, given)):
        yield f"no model: give --model, or {MODEL}=… after --; {REHEARSE}"
    import torch

    needs_device = is_on_this_machine and value_of("trainer.device", given) in ("", "cuda")
    if needs_device and not torch.cuda.is_available():
        yield f"this machine has no CUDA device: give --ray-address of a cluster that has some; {REHEARSE}"


def quote_for_shell(text: str) -> str:
    harmless = not set(text) & set('"$`\\!')
    return f'"{text}"' if "'" in text and harmless else shlex.quote(text)


def find_refusals(config: VerlConfig, given: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield everything in the settings that cannot be, each with its remedy."""
    method = settings.choose_method(config.method, config.overrides)
    ours = settings.method_settings(config.method, config.overrides, method)
    problems = list(settings.find_problems(config.method, method, ours, given, config.allow_truncated_sampling))
    places = value_of("data.train_files", given)
    if places and config.data:
        problems.append(f"data={config.data[0]} and data.train_files={places}: give one, as one function grades all")
    yield from problems
    taken = []
    for text in given:
        begins = (f"{text}:", f"{text} ")
        if not any(problem.startswith(begins) for problem in problems):
            taken.append(text)
    defaults = [text for text in gather_defaults(config, taken, folder) if not text.startswith("hydra.")]
    yield from find_unknown(defaults, taken)


def gather_defaults(config: VerlConfig, given: Sequence[str], folder: Path) -> dict[str, str]:
    """Return every override that fairlen makes, as hydra reads it, with its meaning: of the method, data and a rehearsal."""
    method = settings.choose_method(config.method, config.overrides)
    ours = settings.method_settings(config.method, config.overrides, method)
    owned = set(map(settings.key_of, ours))
    rest = (
        environment_settings(config, given, folder)
        | data_settings(config, given, folder)
        | settings.sampler_settings(given)
    )
    rest |= {f"{key}=False": "code of a model is never run" for key in TRUST}
    if config.model or config.cpu:
        rest[f"{MODEL}={settings.quote(config.model or str((folder / 'model').resolve()))}"] = "the model"
    if config.cpu:
        has_data = config.data or value_of("data.train_files", given)
        rest |= (
            settings.REHEARSAL | ({} if has_data else settings.PROMPTS) | ({} if config.model else settings.OPTIMIZER)
        )
        rest |= settings.VLLM_SETTINGS if settings.VLLM_NAME in given else {}
    rest[f"hydra.run.dir={settings.quote(str((folder / 'hydra').resolve()))}"] = "verl's own notes"
    ours[f"+algorithm.fairlen.folder={settings.quote(str(folder.resolve()))}"] = (
        "where the trainer writes what `fairlen report` reads"
    )
    everything = ours | {text: meaning for text, meaning in rest.items() if settings.key_of(text) not in owned}
    replaced = set(map(settings.key_of, given))
    return {text: meaning for text, meaning in everything.items() if settings.key_of(text) not in replaced}


def collect(config: VerlConfig, given: Sequence[str], folder: Path) -> dict[str, str]:
    """Return every override as hydra reads it, with its meaning: fairlen's own, and what was given, which replaces them.

    Raises:
        ValueError: Naming everything that was given and undoes the method, or that verl does not have.
    """
    raise_all(find_refusals(config, given, folder))
    return gather_defaults(config, given, folder) | {settings.translate(text): "given" for text in given}


def environment_settings(config: VerlConfig, given: Sequence[str], folder: Path) -> dict[str, str]:
    """Modules that every process of the job imports, also on other machines."""
    place = "+ray_kwargs.ray_init.runtime_env.env_vars"
    modules = settings.quote(",".join(modules_of(config)))
    found = {f"{place}.VERL_USE_EXTERNAL_MODULES={modules}": "loads fairlen's plug-in, loudly"}
    if os.environ.get("FAIRLEN_ANY_VERL") == "1":
        found[f"{place}.FAIRLEN_ANY_VERL='1'"] = "with an untested verl"
    variables = rehearsal_variables(config, given, folder)
    return found | {f"{place}.{name}={settings.quote(text)}": "of a rehearsal" for name, text in variables.items()}


def rehearsal_variables(config: VerlConfig, given: Sequence[str], folder: Path) -> dict[str, str]:
    if not config.cpu:
        return {}
    found = {"OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    found["VERL_FILE_LOGGER_PATH"] = str((folder / "verl-metrics.jsonl").resolve())
    return found | settings.LOOPBACK | (settings.VLLM_VARIABLES if settings.VLLM_NAME in given else {})


def modules_of(config: VerlConfig) -> list[str]:
    """Modules that every process imports: the platform of a rehearsal, the plug-in, those that the environment names."""
    named = filter(None, os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","))
    return [*dict.fromkeys([*[settings.CPU_MODULE] * config.cpu, GUARDS, PLUGIN, *named])]


def environment(config: VerlConfig, given: Sequence[str], folder: Path) -> dict[str, str]:
    found = {"VERL_USE_EXTERNAL_MODULES": ",".join(modules_of(config)), "PYTHONUNBUFFERED": "1"}
    address = {"RAY_ADDRESS": config.ray_address} if config.ray_address else {}
    return dict(os.environ) | found | rehearsal_variables(config, given, folder) | address


def files_of(config: VerlConfig, given: Sequence[str], folder: Path) -> dict[str, str]:
    """Parquet files that are written, by verl's names of what they are for; none where its own were given after `--`."""
    train, held_out = (str((folder / name).resolve()) for name in ("train.parquet", "eval.parquet"))
    if value_of("data.train_files", given) or not (config.data or config.cpu):
        return {}
    return {"train": train, "val": held_out if config.eval_data or not config.data else train}


def value_of(key: str, given: Sequence[str]) -> str:
    """Value given for a setting of verl's; empty where none was."""
    told = [text.partition("=")[2].strip("'\"") for text in given if settings.key_of(text) == key]
    return told[-1] if told else ""


def data_settings(config: VerlConfig, given: Sequence[str], folder: Path) -> dict[str, str]:
    files = files_of(config, given, folder)
    found = {f"data.{name}_files=[{settings.quote(path)}]": f"problems ({name})" for name, path in files.items()}
    if config.data and not (config.cpu or config.eval_data or "data.val_files" in map(settings.key_of, given)):
        found["trainer.val_before_train=False"] = "no --eval-data: only the training problems to validate with"
    if files:
        found[f"reward.custom_reward_function.path={settings.quote(REWARD)}"] = "fairlen's verifiers"
        found["reward.custom_reward_function.name=compute_score"] = "fairlen's verifiers"
        found[f"reward.reward_manager.name={settings.REWARD_MANAGER}"] = "decodes responses with the marks of thinking"
    return found


def write_files(config: VerlConfig, given: Sequence[str], folder: Path, model: str) -> None:
    """Writes what `data_settings` names and is not there yet: data sets as parquet, the playground's model."""
    files = files_of(config, given, folder)
    if config.cpu and not config.model:
        copy_shipped(folder / "model")
    if files and not config.data:
        write_rows(playground_rows(settings.NUM_PROBLEMS, held_out=False), Path(files["train"]))
        write_rows(playground_rows(settings.NUM_HELD_OUT, held_out=True), Path(files["val"]))
        return
    inside = False
    try:
        inside = bool(config.data and model) and opens_thinking(model)
    except ValueError as error:  # its tokenizer is not on this machine
        log(f"note: {error}; if its template begins with <think>, boxes in thinking that was cut off count as answers")
    for name, places in (("train", config.data), ("val", config.eval_data)):
        if places:
            is_training = name == "train"
            rows = data_rows(places, inside, config.answer, config.eval_data if is_training else (), is_training)
            log(f"{write_rows(rows, Path(files[name]))} problems in {files[name]}")

"""The table of checks: packages, the machine, what ends a response of the model, and the settings of a planned run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from functools import lru_cache, partial
from importlib.metadata import requires
from io import StringIO
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from packaging.requirements import Requirement

from fairlen.console import make_console
from fairlen.doctor.examine import COLOURS, Check, Finding, Status
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.start import show_share, start_evaluation
from fairlen.files.folders import NOT_INSTALLED, find_version
from fairlen.files.limits import GIB
from fairlen.methods.compose import compose, explain
from fairlen.plugins import plugins_of
from fairlen.settings import choose_device, flatten
from fairlen.tasks.grader import load_reward
from fairlen.tasks.load import load_task
from fairlen.tasks.playground import PLAYGROUND, place_model
from fairlen.tasks.source import read_source
from fairlen.train.collect import refuse_unread
from fairlen.train.run.config import TrainConfig, find_undoing, takes_vllm
from fairlen.verify.program import CAN_BE_CHEATED
from fairlen.verify.sandbox import open_sandbox

EMPTY_DISK = GIB // 4
"""Free bytes below which a run cannot start."""
ASKED = 16
"""Problems of which the model is asked."""
TRAINING = ("safetensors", "torch", "transformers")
QUESTION = {"role": "user", "content": "What is 17 + 25?"}
ANSWER = {"role": "assistant", "content": "It is 42."}


def check_packages(config: TrainConfig, extra: str, if_missing: Callable[[TrainConfig], Status]) -> Finding | str:
    """Compare the packages of an extra, the core for an empty name, with the tested ranges: another version is a failure."""
    tested, other, missing = [], [], []
    for wanted in map(Requirement, requires("fairlen") or ()):
        is_asked = wanted.marker.evaluate({"extra": extra}) if wanted.marker else not extra
        if not is_asked or (wanted.name in TRAINING and extra != "train"):  # which has a check of its own
            continue
        names = (wanted.name, f"{wanted.name}-cpu")  # builds for CPUs may have a name of their own
        found = next((f for f in map(find_version, names) if f != NOT_INSTALLED), NOT_INSTALLED)
        if found == NOT_INSTALLED:
            missing.append(f"{wanted.name} {wanted.specifier}")
        elif wanted.specifier.contains(found, prereleases=True):
            tested.append(f"{wanted.name} {found}")
        else:
            other.append(f"{wanted.name} {found}, tested {wanted.specifier}")
    install = f"pip install '.[{extra}]' in the checkout" if extra else "pip install . in the checkout"
    if other:
        return Finding("fail", "; ".join(other), f"{install} in a fresh environment installs what is tested")
    if missing:
        return Finding(if_missing(config), f"not installed: {', '.join(missing)}", f"{install}, if you want it")
    return ", ".join(tested)


def check_device(config: TrainConfig) -> Finding:
    """Return the device of the run, and whether it has the engine that is made for it."""
    import torch

    device = choose_device(config.model)
    name = f" ({torch.cuda.get_device_name(device)})" if device != "cpu" else ""
    is_slow = config.model.device == "auto" and device == "cpu"
    slow = "; no CUDA device: models of more than some hundred million parameters are slow" if is_slow else ""
    found = f"torch {torch.__version__}, {device}{name}{slow}"
    if device == "cpu" or config.sampling.engine != "auto" or config.model.name == PLAYGROUND or takes_vllm(config):
        return Finding("pass", found)
    found += "; vLLM is not installed, and the embedded engine several times slower"
    return Finding("warn", found, "pip install '.[vllm]' in the checkout, in an environment of its own")


def check_memory(config: TrainConfig) -> str:
    """Compare what `fairlen train` needs at least with the memory that is free; the playground was measured."""
    if config.model.name == PLAYGROUND:
        return f"{PLAYGROUND} needs under 2 GiB"
    from fairlen.engine.device import free_memory
    from fairlen.train.memory import refuse_too_large

    free = free_memory(choose_device(config.model))
    least = refuse_too_large(config, compose(config.method, config.overrides), free)
    return f"{least}; {free / GIB:.1f} are free" if least else "a small model: memory is no question"


def check_disks(config: TrainConfig) -> Finding:
    """Look at the disks of the run folder and of temporary files, and at /dev/shm, through which verl and vLLM share tensors."""
    out = Path(config.run.out or "runs").absolute()
    disks: tuple[tuple[Path, str, int, Status], ...] = (
        (next(p for p in (out, *out.parents) if p.exists()), "choose --out on another disk", 5 * GIB, "fail"),
        (Path(tempfile.gettempdir()), "make room there, or set TMPDIR to a larger disk", 5 * GIB, "fail"),
        (Path("/dev/shm"), "docker run --shm-size=16g, if verl or vLLM is to run here", 2 * GIB, "warn"),
    )
    found = [check_disk(*disk) for disk in disks]
    worst: Status = max((one.status for one in found), key=list(COLOURS).index)
    return Finding(worst, "; ".join(one.found for one in found), "; ".join(one.remedy for one in found if one.remedy))


def check_disk(place: Path, remedy: str, small: int, worst: Status) -> Finding:
    """Look at the free space, and whether a file can be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return Finding(worst, f"{place}: cannot be written ({error.strerror})", remedy)
    free = shutil.disk_usage(place).free
    status: Status = "pass" if free >= small else worst if free < EMPTY_DISK else "warn"
    return Finding(status, f"{place} has {free / GIB:.1f} GiB free", "" if status == "pass" else remedy)


@lru_cache(maxsize=4)
def open_tokenizer(model: str, revision: str) -> tuple[Any, tuple[int, ...]]:
    """Return the tokenizer of a model, and the ids that end its responses. Raises ValueError or OSError where there are none."""
    from transformers import GenerationConfig

    from fairlen.files.pretrained import find_model, read_config, read_tokenizer
    from fairlen.policy.model import find_eos

    place = find_model(place_model(model, revision), revision)
    tokenizer, sources = read_tokenizer(place, revision), [read_config(place, revision)]
    with suppress(OSError):  # a folder without it is left with what its config.json says
        sources = [GenerationConfig.from_pretrained(place, revision=revision or "main"), *sources]
    return tokenizer, find_eos(*sources, tokenizer)


def check_end(config: TrainConfig) -> Finding | str:
    """Look at what ends a response."""
    tokenizer, ends = open_tokenizer(config.model.name, config.model.revision)
    named = ", ".join(f"{tokenizer.convert_ids_to_tokens(one)!r} ({one})" for one in ends)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ends:
        found = f"responses end with {named}, and the tokenizer says {tokenizer.eos_token!r}"
        return Finding("warn", found, "make generation_config.json and tokenizer agree")
    if tokenizer.pad_token_id in ends:
        found = f"{named} is the padding too: frameworks that find padding by its id train on no end of a response"
        remedy = "give the tokenizer a pad_token of its own; fairlen's trainer pads nothing"
        return Finding("warn", f"{found}, which makes responses longer", remedy)
    return f"responses end with {named}"


def check_template(config: TrainConfig) -> Finding | str:
    """Render the chat template with and without an opened turn, and with a response."""
    tokenizer, ends = open_tokenizer(config.model.name, config.model.revision)
    if config.model.template == "plain" or not tokenizer.chat_template:
        return "prompts are plain text"
    opened, closed = (render(tokenizer, [QUESTION], opens) for opens in (True, False))
    if QUESTION["content"] not in opened:
        found = f"the question is not in the prompt, which is {opened!r:.200}"
        return Finding("fail", found, "mend the template, or --template plain")
    if opened == closed:
        found = "the template does not open the assistant's turn: add_generation_prompt changes nothing"
        remedy = "add {% if add_generation_prompt %} with the assistant's header to the template, or --template plain"
        return Finding("warn", f"{found}, so that the model may go on with the user's", remedy)
    _, answer, after = render(tokenizer, [QUESTION, ANSWER], False).rpartition(ANSWER["content"])
    words = tokenizer.convert_ids_to_tokens(list(ends))
    if answer and not any(after.lstrip().startswith(word) for word in words if word):
        text = f"the template ends a response with {after.strip()!r:.40}, and responses end with {', '.join(map(repr, words))}"
        remedy = "add the id of what the template writes to eos_token_id in generation_config.json"
        return Finding("warn", f"{text}: a model that was trained with the template may never end", remedy)
    return f"a prompt ends with {opened[-40:]!r}, a response with {after.strip()!r:.40}"


def render(tokenizer: Any, messages: list[dict[str, str]], opens: bool) -> str:
    """Return the text of messages. Raises ValueError where the template does not render."""
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opens)
    except TemplateError as error:
        raise ValueError(f"the chat template does not render: {error}") from None


def check_method(config: TrainConfig) -> Finding | str:
    """Compose the method, and read what its parts say of one another."""
    found = explain(config.method, config.overrides)
    if found.notes:
        remedy = "read the notes; they are said at the start of a run too"
        return Finding("warn", f"{found.name}: {'; '.join(found.notes)}", remedy)
    return found.name


def check_fairness(config: TrainConfig) -> Finding | str:
    """Look for settings that bring back what the method takes away."""
    found = [*find_undoing(config, compose(config.method, config.overrides))]
    if not found:
        return "no setting undoes what the method does"
    wrong, remedy = ("; ".join(each) for each in zip(*found, strict=True))
    return Finding("warn", wrong, remedy)


def check_data(config: TrainConfig) -> str:
    """Read every place of --data as one, and problems where a stage of the method reads their columns."""
    places = (*config.data.places, *config.data.held_out)
    for place in places:
        read_source(place)
    if (method := compose(config.method, config.overrides)).reads:
        tokenizer, _ = open_tokenizer(config.model.name, config.model.revision)
        with closing(load_task(config, tokenizer, config.run.seed)) as task:
            refuse_unread(method, task, config)
    return ", ".join(places) or f"task {config.data.task}"


def check_plugins(config: TrainConfig) -> str:
    """Load what is the user's own."""
    for text in config.verifier.rewards:
        load_reward(text)
    found = plugins_of(config.method, config.data.task, config.verifier.rewards)
    untried = "; rewards are tried when the run starts, on its first problem" if config.verifier.rewards else ""
    return ", ".join(f"{one['setting']} {one['name']}" for one in found) + untried or "none named"


def check_answers(config: TrainConfig) -> Finding | str:
    """Ask the model problems of the run's own data, and say why hardly any response is correct where that is so."""
    if not config.data.places:
        return "not asked: --data names no problems of your own"
    kept = flatten(asdict(EvalConfig())).keys() & flatten(asdict(config)).keys()
    given = {name: value for name, value in flatten(asdict(config)).items() if name in kept}
    with tempfile.TemporaryDirectory() as folder:
        asked = given | {"problems": ASKED, "samples": 1, "out": str(Path(folder, "eval")), "task": ""}
        found = start_evaluation(EvalConfig.of(**asked), make_console(file=StringIO()))["sets"].values()
    if reasons := "; ".join(filter(None, (one["reasons"] for one in found))):
        why, _, remedy = reasons.partition(". What may help: ")
        return Finding("warn", why, remedy)
    number = sum(one["scores"]["samples"] for one in found)
    return f"{', '.join(show_share(one['scores'].get('avg@1')) for one in found)} of {number} responses are correct"


def check_sandbox(config: TrainConfig) -> Finding | str:
    """Attempt to break out of what programs of a model run in."""
    if config.verifier.unsafe_exec_on_host:
        found = "unsafe_exec_on_host: programs of the model can do whatever you can"
        return Finding("warn", found, "leave it out; use bubblewrap")
    try:
        return f"{open_sandbox().name} holds; it contains programs, but {CAN_BE_CHEATED}"
    except ValueError as error:
        found, _, remedy = str(error).partition("\n")
        return Finding("warn", found, " ".join(remedy.split()))


INSTALL = "see what it says; pip install '.[train]' in the checkout, in a fresh environment, brings what is tested"
PACKAGES: dict[str, tuple[str, Callable[[TrainConfig], Status]]] = {
    "core packages": ("", lambda c: "fail"),
    "training packages": ("train", lambda c: "fail"),
    "adapters (peft)": ("lora", lambda c: "fail" if c.model.lora_rank else "warn"),
    "math verifier": ("math", lambda c: "warn"),
    "vllm": ("vllm", lambda c: "fail" if c.sampling.engine == "vllm" else "pass"),
    "trl": ("trl", lambda c: "warn"),
    "verl": ("verl", lambda c: "warn"),
}
"""By the name of the check: the extra, and what it means that a package of it is missing."""
CHECKS = (
    *(Check(name, partial(check_packages, extra=e, if_missing=m)) for name, (e, m) in PACKAGES.items()),
    Check("device", check_device, INSTALL),
    Check("memory", check_memory),
    Check("disks", check_disks),
    Check("end of a response", check_end, "mend it, or download the model again"),
    Check("chat template", check_template, "mend it, or --template plain"),
    Check("method", check_method, "`fairlen methods` lists names; --help lists settings"),
    Check("fairness", check_fairness, "see `method`"),
    Check("data", check_data, "give a file, a folder or a hub id; docs/data.md has the forms and columns"),
    Check("answers", check_answers, "see `data` and the checks of the model"),
    Check("plug-ins", check_plugins, "docs/extending.md has an example of each"),
    Check("sandbox", check_sandbox),
)

"""Settings in groups that commands share: the model, the problems, the verifier, how responses are drawn.

A group is a frozen dataclass; each of its fields is a flag of the command line and a key of its table in TOML. All that is known
of a setting is declared at its field: its range, its flag, and what changing it means for a run that resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from fairlen.checks import FINITE, Amount, Checked, Fraction, Natural, Positive, PositiveFraction
from fairlen.verify.answer import check_form


@dataclass(frozen=True)
class Flag:
    """How a setting is named, where it is not by its field alone, and given on the command line."""

    name: str = ""
    """Outside its group, on the command line and in errors."""
    spelling: str = ""
    """On the command line alone."""
    is_repeated: bool = False
    is_positional: bool = False
    not_in_files: str = ""
    """Why no TOML file may give it; empty if a file may."""


@dataclass(frozen=True)
class ResumeEffect:
    """Effect of a changed setting on a run that resumes; a setting without one changes the mathematics."""

    name: str


Repeated, Positional = Flag(is_repeated=True), Flag(is_positional=True)
Alone = Flag(not_in_files="it decides what other settings begin with")
Unsafe = Flag(not_in_files="programs of the model can then do whatever you can, which you decide and not a file")
HARMLESS = ResumeEffect("harmless")
"""It changes nothing of what an update computes."""
ROUNDING = ResumeEffect("rounds differently")
"""The same mathematics with another order of sums: close results, not the same bits."""
Overrides = Annotated[tuple[str, ...], Flag(spelling="set", is_repeated=True)]
"""Fields of the method, by the flag --set."""
LARGE = 50_000_000
"""Parameters of a model from which on preparation of a minute pays off on CUDA, and an estimate of memory is worth making."""


@dataclass(frozen=True)
class Setting:
    """A field of a group, as it is declared."""

    group: str
    """The table that has it; empty for a field outside of groups."""
    field: str
    kind: Any
    flag: Flag
    effect: ResumeEffect | None
    default: Any
    """MISSING where it must be given."""
    owner: type

    @property
    def name(self) -> str:
        """Its name outside of its group."""
        return self.flag.name or self.field

    @property
    def spelling(self) -> str:
        """Its flag, without dashes before it."""
        return (self.flag.spelling or self.name).replace("_", "-")


def list_settings(kind: type, default: Any = None, group: str = "") -> Iterator[Setting]:
    """Yield the settings of a dataclass and of its groups, with the defaults of an instance if one is given."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        hint = hints[one.name]
        held, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        value = one.default if default is None else getattr(default, one.name)
        if is_dataclass(held):
            yield from list_settings(held, None if value is MISSING else value, one.name)  # type: ignore[arg-type]
            continue
        flag = next((note for note in notes if isinstance(note, Flag)), Flag())
        effect = next((note for note in notes if isinstance(note, ResumeEffect)), None)
        yield Setting(group, one.name, held, flag, effect, value, kind)


@cache
def names_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by their names."""
    return {one.name: one for one in list_settings(kind)}


def name_of(kind: type, field: str) -> str:
    """Return the name of a field of a dataclass outside of it."""
    return next(one.name for one in names_of(kind).values() if one.field == field and not one.group)


class Settings(Checked):
    """A dataclass of settings, or of groups of them; its errors name a setting as users do."""

    label = classmethod(name_of)

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return settings with these values, each by its name whatever its group."""
        return change(cls, values)

    def replace(self, **values: Any) -> Self:
        """Return a copy with these values, each by its name whatever its group."""
        return change(self, values)


def change(config: Any, values: Mapping[str, Any]) -> Any:
    """Return settings, or those that a class begins with, with other values by their names.

    Raises TypeError for a name that is none.
    """
    kind = config if isinstance(config, type) else type(config)
    if unknown := values.keys() - names_of(kind).keys():
        raise TypeError(f"{kind.__name__} has no setting {', '.join(sorted(unknown))}")
    chosen: dict[str, Any] = {}
    for one in fields(kind):
        before = getattr(config, one.name, MISSING)
        if is_dataclass(before):
            if own := {name: value for name, value in values.items() if name in names_of(type(before))}:  # type: ignore[arg-type]
                chosen[one.name] = change(before, own)
        elif (name := name_of(kind, one.name)) in values:
            chosen[one.name] = values[name]
    return config(**chosen) if isinstance(config, type) else replace(config, **chosen)


@dataclass(frozen=True)
class PromptSettings(Settings):
    """A language model, and how it is asked."""

    name: Annotated[str, Flag("model")] = "playground"
    """Folder or hub id of a causal language model; "playground" is shipped, for the task so named."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How a problem becomes a prompt: "chat" by the tokenizer's chat template, "plain" as text; "auto": chat if there is one."""
    system_prompt: str = ""
    """System message of chat templates, or text before a plain prompt."""
    thinking: Literal["auto", "on", "off"] = "auto"
    """Given to chat templates that know enable_thinking; "auto" leaves the template's default. Answers count after </think>."""


@dataclass(frozen=True)
class ModelSettings(PromptSettings):
    """A causal language model, how it is loaded, and how it is asked."""

    revision: str = ""
    """Commit, branch or tag of a model from the hub; a commit never changes."""
    random_init: bool = False
    """Random weights of the shape in the model's config.json, to rehearse without the weights. It is recorded."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 computes in bfloat16 over float32 weights, on CUDA and on CPUs with AMX or AVX512-BF16; frozen weights under LoRA
    are kept in bfloat16."""
    device: Annotated[str, ROUNDING] = "auto"
    """"auto" is CUDA where there is one, else the CPU."""
    threads: Annotated[Natural, ROUNDING] = 0
    """CPU threads of torch; 0 leaves torch's choice."""
    compile: Annotated[Literal["auto", "on", "off"], ROUNDING] = "auto"
    """Compile the engine's decoding step; "auto" on CUDA alone."""


@dataclass(frozen=True)
class PolicySettings(ModelSettings):
    """A model that is trained, and which of its weights."""

    lora_rank: Natural = 0
    """Trains low-rank adapters (LoRA) of this rank instead of all weights; 0 trains all weights."""
    lora_alpha: Amount = 0.0
    """Scale of the adapters is lora_alpha / lora_rank; 0 is twice the rank."""
    gradient_checkpointing: Annotated[bool, ROUNDING] = False
    """Recompute activations in the backward pass: less memory, more time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora_alpha and not self.lora_rank:
            raise ValueError(f"lora_alpha={self.lora_alpha:g} without adapters: give lora_rank too, or leave it out")


@dataclass(frozen=True)
class ProblemSettings(Settings):
    """Problems, and the instruction that follows each."""

    task: str = "playground"
    """Problems where no --data is given: "playground", its family playground:sums or playground:cups, or your FILE.py:NAME."""
    places: Annotated[tuple[str, ...], Flag("data", is_repeated=True)] = ()
    """PLACE[@REVISION][:SPLIT][?COLUMN=VALUE][=WEIGHT]; PLACE: file, folder or hub id. Repeat it; training mixes by WEIGHT."""
    instruction: str = "auto"
    """Text after each problem; "auto" asks for the form of answer that the verifier reads, "" adds nothing."""
    shots: str = ""
    """FILE:N, a file as for --data, whose first N problems stand solved before each problem; they are not among those asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task.startswith("verifiers:"):
            raise ValueError(
                f"task={self.task}: environments of verifiers train in prime-rl, by its own trainer; here its rules are methods "
                "(prime-rl:default), and fairlen audit reads its rollouts. An environment of your own is FILE.py:NAME"
            )


@dataclass(frozen=True)
class DataSettings(ProblemSettings):
    """Problems to train on and to evaluate on."""

    held_out: Annotated[tuple[str, ...], Flag("eval_data", is_repeated=True)] = ()
    """Held-out data, named as for --data; by default a part of --data is held out."""
    max_prompt_length: Natural = 0
    """Most tokens of a prompt of --data; problems with longer ones are left out and counted. 0 is the longest, up to 1,024."""


@dataclass(frozen=True)
class VerifierSettings(Settings):
    """How finished responses are graded."""

    answer: str = "auto"
    """Form of the answer: "boxed", "hashes" (#### 5), "last-number", "letter", or regex:PATTERN, the last match or its
    group; "auto": the box, of options also a letter that is said to be the answer."""
    without_verdict: Literal["inactive", "incorrect"] = "inactive"
    """Treatment of responses without a verdict (deadline, failed verifier): left out, or incorrect."""
    answer_deadline: Positive = 5.0
    """Seconds for one mathematical comparison; past it there is no verdict."""
    accept_unevaluated: bool = False
    """Where the reference is a number, take operators that are left to the reader for it: a sum, 5!, a logarithm."""
    workers: Annotated[Natural, Flag("verify_workers"), HARMLESS] = 0
    """Comparisons, and programs, at a time; 0 is one for each core."""
    unsafe_exec_on_host: Annotated[bool, Unsafe] = False
    """Run programs of the model on this machine without a sandbox: they can do whatever you can. It is recorded. A flag only:
    no TOML file gives it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_form(self.answer)


@dataclass(frozen=True)
class RewardSettings(VerifierSettings):
    """How finished responses are graded, by rewards of the user's own too."""

    rewards: Annotated[tuple[str, ...], Repeated] = ()
    """FILE.py:FUNCTION or FILE.py:FUNCTION=WEIGHT, a reward that is added to the verdict; may be repeated. It is called as
    f(prompts=, completions=, completion_ids=, answer=, verdict=, **columns), lists, and returns a list of numbers or None."""
    weight: Annotated[float, Flag("verifier_weight"), FINITE] = 1.0
    """Weight of the verifier's verdict in the outcome."""
    reward_deadline: Annotated[Amount, HARMLESS] = 60.0
    """Seconds for one call of a reward function, past which the response has no verdict; 0 is none."""
    environment_deadline: Annotated[Amount, HARMLESS] = 60.0
    """Seconds for one call of an environment, past which its trajectory has no verdict; 0 is none."""


@dataclass(frozen=True)
class SamplingSettings(Settings):
    """How responses are drawn, and by which engine."""

    max_response_length: Natural = 0
    """Most tokens of a response; 0 is the playground's 160, else 512 or what the model has positions for."""
    temperature: Amount = 1.0
    """Of the policy, in training and in evaluation; above 0 in training, 0 is greedy."""
    top_p: PositiveFraction = 1.0
    """Nucleus; 1 is off. Training is of the policy that this and the next two leave; not with vLLM."""
    top_k: Natural = 0
    """Most likely tokens kept; 0 is off."""
    min_p: Fraction = 0.0
    """Floor relative to the most likely token; 0 is off."""
    engine: Literal["auto", "embedded", "vllm"] = "auto"
    """Inference engine: "embedded" runs the model as training does, with exact log-probs; "vllm" needs fairlen[vllm]; "auto" is
    vLLM on CUDA where it is installed, for models above 50M parameters."""
    max_num_seqs: Annotated[Natural, ROUNDING] = 0
    """Responses that the engine decodes at a time; 0 is 256, or fewer on a CPU whose memory has no room for so many."""
    gpu_memory_utilization: Annotated[Fraction, ROUNDING] = 0.0
    """Share of the device's memory that vLLM has while it generates; 0 is what training leaves, 0.4 where it does not sleep."""
    sleep_level: Annotated[Literal[0, 1, 2], ROUNDING] = 2
    """Freed by vLLM during updates on CUDA: 2 its weights, keys and values, 1 too but with weights kept in RAM, 0 nothing."""
    request_seeds: bool = True
    """Give vLLM a seed for each response, so that it is drawn alike whatever else is decoded; else all draw from one stream."""

    @property
    def truncations(self) -> tuple[str, ...]:
        """The settings by which tokens of the policy get probability zero, as name=value."""
        off = (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0))
        return tuple(f"{name}={getattr(self, name)}" for name, value in off if getattr(self, name) != value)


@dataclass(frozen=True)
class ProblemConfig(Settings):
    """Groups of a command that asks a model problems and grades its responses."""

    model: PromptSettings = PromptSettings()
    data: ProblemSettings = ProblemSettings()
    verifier: VerifierSettings = VerifierSettings()


@dataclass(frozen=True)
class TaskConfig(ProblemConfig):
    """Those of a command that trains."""

    data: DataSettings = DataSettings()


@dataclass(frozen=True)
class RolloutConfig(ProblemConfig):
    """Those of a command that draws responses with an engine of ours."""

    model: ModelSettings = ModelSettings()
    sampling: SamplingSettings = SamplingSettings()

    @property
    def needs_support(self) -> bool:
        """Whether the engine has to return what tokens were drawn from, as the embedded one does."""
        return False


GROUPS = {"model": PolicySettings, "data": DataSettings, "verifier": RewardSettings}
"""Groups with fields that have another name outside."""


def flatten(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings by their names, be they in groups or, as they once were, in none."""
    found: dict[str, Any] = {}
    for key, value in recorded.items():
        if isinstance(value, Mapping) and key in (*GROUPS, "sampling", "update", "run"):
            names = {one.field: one.name for one in list_settings(GROUPS[key])} if key in GROUPS else {}
            found |= {names.get(str(field), str(field)): inner for field, inner in value.items()}
        else:
            found[key] = value
    return found


def choose_device(model: ModelSettings) -> str:
    """Return the device of a run. Raises ValueError where it is missing, or cannot compute what is asked for."""
    import torch

    best = "cuda" if torch.cuda.is_available() else "cpu"
    device = best if model.device == "auto" else model.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={model.device}: torch sees no CUDA device; use device=cpu, or a CUDA build of torch")
    known = "cpu", "cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))
    if device not in known:
        raise ValueError(f"device={model.device!r}: give auto or one of {', '.join(known)}")
    if model.dtype == "bfloat16" and device == "cpu" and not multiplies_bfloat16():
        raise ValueError(
            "dtype=bfloat16 on a CPU without AMX or AVX512-BF16, which would be slower than float32: leave --dtype out"
        )
    return device


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16: AMX or AVX512-BF16."""
    import torch

    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def choose_engine(config: RolloutConfig, device: str, num_parameters: int) -> Literal["embedded", "vllm"]:
    """Return the engine of a run; "auto" is vLLM where it is installed and its speed wins back the time of its start."""
    if config.sampling.engine != "auto":
        return config.sampling.engine
    if config.needs_support:
        return "embedded"
    gains = device.startswith("cuda") and num_parameters > LARGE and config.model.dtype != "float64"
    return "vllm" if gains and find_spec("vllm") else "embedded"


@dataclass(frozen=True)
class ReportConfig:
    """Which report is written."""

    run: Annotated[str, Positional]
    """The folder of `fairlen train`, `compare` or `eval`."""
    out: str = ""
    """A file to write; by default report.html in the folder."""

"""Settings that commands share, each field a flag: which model, which problems, how answers are graded and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from fairlen.checks import Fraction, check_fields, check_not_negative, check_positive


@dataclass(frozen=True)
class Flag:
    """How a field is given on the command line, where it is not by its own name and once."""

    name: str = ""
    is_repeated: bool = False
    is_positional: bool = False


Repeated, Positional = Flag(is_repeated=True), Flag(is_positional=True)
Overrides = Annotated[tuple[str, ...], Flag("set", is_repeated=True)]
"""Fields of the method, by the flag --set."""
LARGE = 50_000_000
"""Parameters of a model from which on preparation of a minute pays off on CUDA, and an estimate of memory is worth making."""


class Settings:
    """Errors of its fields begin with the flag."""

    named_in_errors: ClassVar[str] = ""


@dataclass(frozen=True)
class PromptSettings(Settings):
    """Which model is asked, and how."""

    model: str = "playground"
    """Folder or hub id of a causal language model; "playground" and "guess" are shipped, for the tasks so named."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How a problem becomes a prompt: "chat" by the tokenizer's chat template, "plain" as text; "auto": chat if there is one."""
    system_prompt: str = ""
    """System message of chat templates, or text before a plain prompt."""
    thinking: Literal["auto", "on", "off"] = "auto"
    """Given to chat templates that know enable_thinking; "auto" leaves the template's default. Answers count after </think>."""


@dataclass(frozen=True)
class ModelSettings(PromptSettings):
    """A causal language model, and how it is asked."""

    revision: str = ""
    """Commit, branch or tag of a model from the hub; a commit never changes."""
    random_init: bool = False
    """Random weights of the shape in the model's config.json, to rehearse without the weights. It is recorded."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 computes in bfloat16 over float32 weights, on CUDA; frozen weights under LoRA are kept in bfloat16."""
    device: str = "auto"
    """"auto" is CUDA where there is one, else the CPU."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's choice."""
    engine: Literal["auto", "embedded", "vllm"] = "auto"
    """What generates: "embedded" runs the model as training does, with exact log-probs; "vllm" needs fairlen[vllm]; "auto" is
    vLLM on CUDA where it is installed, for models above 50M parameters."""
    max_num_seqs: int = 256
    """Responses that the engine decodes at a time."""
    gpu_memory_utilization: Fraction = 0.0
    """Share of the device's memory that vLLM has while it generates; 0 is what training leaves, 0.4 where it does not sleep."""
    sleep_level: Literal[0, 1, 2] = 2
    """What vLLM frees during updates on CUDA: 2 its weights, keys and values, 1 too but with weights kept in RAM, 0 nothing."""
    request_seeds: bool = True
    """Give vLLM a seed for each response, so that it is drawn alike whatever else is decoded; else all draw from one stream."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the engine's step, and layers in updates: "auto" on CUDA alone, layers where the model is large enough."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_positive(self, "max_num_seqs")
        check_not_negative(self, "threads")

    @property
    def needs_support(self) -> bool:
        """Return whether the engine has to return what tokens were drawn from, as the embedded one does."""
        return False


def choose_device(config: ModelSettings) -> str:
    """Return the device of a run. Raises ValueError where it is missing, or cannot compute what is asked for."""
    import torch

    best = "cuda" if torch.cuda.is_available() else "cpu"
    device = best if config.device == "auto" else config.device
    if device != "cpu" and not device.startswith("cuda"):
        raise ValueError(f"device={config.device!r}: give auto, cpu, cuda or cuda:0")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device={config.device}: this torch sees no CUDA device; use device=cpu, or a CUDA build of torch"
        )
    if config.dtype == "bfloat16" and not device.startswith("cuda"):
        raise ValueError("dtype=bfloat16 on the CPU: log-probs would be wrong by up to half a nat; use float32")
    return device


def choose_engine(config: ModelSettings, device: str, num_parameters: int) -> Literal["embedded", "vllm"]:
    """Return the engine of a run; "auto" is vLLM where it is installed and its speed wins back the time of its start."""
    if config.engine != "auto":
        return config.engine
    if config.needs_support:
        return "embedded"
    gains = device.startswith("cuda") and num_parameters > LARGE and config.dtype != "float64"
    return "vllm" if gains and find_spec("vllm") else "embedded"


@dataclass(frozen=True)
class PolicySettings(ModelSettings):
    """A model that is trained, and what of it."""

    lora_rank: int = 0
    """Trains low-rank adapters (LoRA) of this rank instead of all weights; 0 trains all weights."""
    lora_alpha: float = 0.0
    """Scale of the adapters is lora_alpha / lora_rank; 0 is twice the rank."""
    lora_targets: str = "all-linear"
    """Modules with adapters: "all-linear", or names joined by commas, such as q_proj,v_proj."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""


@dataclass(frozen=True)
class VerifierSettings(Settings):
    """How finished responses are graded."""

    without_verdict: Literal["inactive", "incorrect"] = "inactive"
    """What a response without a verdict (deadline, failed verifier) is worth: nothing counts it, or it is incorrect."""
    answer_deadline: float = 5.0
    """Seconds for one mathematical comparison; past it there is no verdict."""
    accept_unevaluated: bool = False
    """Where the reference is a number, take operators that are left to the reader for it: a sum, 5!, a logarithm."""
    verify_workers: int = 0
    """Comparisons, and programs, at a time; 0 is one for each core, and 32 programs at a remote sandbox."""
    sandbox: str = "auto"
    """Where programs of the model run: "auto" and "bubblewrap" on this machine, or the URL of a SandboxFusion-like service."""
    unsafe_exec_on_host: bool = False
    """Run programs of the model on this machine without a sandbox: they can do whatever you can. It is recorded."""

    def __post_init__(self) -> None:
        check_positive(self, "answer_deadline")
        check_not_negative(self, "verify_workers")


@dataclass(frozen=True)
class ProblemSettings(VerifierSettings, PromptSettings):
    """Which problems, how they are asked and how responses are graded."""

    task: str = "playground"
    """Problems where no --data is given: "playground", its family playground:sums or playground:cups, "guess" (a
    game in turns), reasoning-gym:NAME, an environment as verifiers:ID?FIELD=VALUE, or your FILE.py:NAME. A shipped task brings
    its model and its max response length."""
    data: Annotated[tuple[str, ...], Repeated] = ()
    """PLACE[@REVISION][:SPLIT][?COLUMN=VALUE][=WEIGHT]; PLACE: file, folder or hub id. Repeat it; training mixes by WEIGHT."""
    instruction: str = "auto"
    """Text after each problem; "auto" asks for the form of answer that the verifier reads, "" adds nothing."""


@dataclass(frozen=True)
class DataSettings(ProblemSettings):
    """Problems to train on and to evaluate on."""

    eval_data: Annotated[tuple[str, ...], Repeated] = ()
    """Held-out data, named as for --data; by default a part of --data is held out."""
    max_prompt_length: int = 1024
    """Most tokens of a prompt of --data; problems with longer ones are left out and counted."""
    seed: int = 0
    """Of the run: order of problems, generation, shuffling."""


@dataclass(frozen=True)
class SamplingSettings(Settings):
    """How responses are drawn."""

    max_response_length: int = 160
    """Most tokens of a response."""
    temperature: float = 1.0
    """Of the policy, in training and in evaluation; above 0."""
    top_p: float = 1.0
    """Nucleus; 1 is off. Training is of the policy that this and the next two leave; not with vLLM."""
    top_k: int = 0
    """Most likely tokens kept; 0 is off."""
    min_p: float = 0.0
    """Floor relative to the most likely token; 0 is off."""

    def __post_init__(self) -> None:
        check_positive(self, "max_response_length")
        check_not_negative(self, "top_k")
        if not 0.0 < self.top_p <= 1.0 or not 0.0 <= self.min_p < 1.0:
            raise ValueError(f"top_p={self.top_p}, min_p={self.min_p}: give top_p in (0, 1] and min_p in [0, 1)")

    @property
    def truncations(self) -> tuple[str, ...]:
        """The settings by which tokens of the policy get probability zero, as name=value."""
        off = (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0))
        return tuple(f"{name}={getattr(self, name)}" for name, value in off if getattr(self, name) != value)


@dataclass(frozen=True)
class MethodsConfig:
    """What `fairlen methods` is asked."""

    name: Annotated[str, Positional] = ""
    """One method, its names joined by +, such as dapo+balanced."""
    compare: tuple[str, ...] = ()
    """Methods whose weights, advantages and bounds are measured on the same made rollouts."""
    out: str = ""
    """A page to write with the picture of --compare."""
    json: bool = False
    """Print data for machines."""


@dataclass(frozen=True)
class ReportConfig:
    """Which report is written."""

    run: Annotated[str, Positional]
    """The folder of `fairlen train`, `compare` or `eval`."""
    out: str = ""
    """A file to write; by default report.html in the folder."""
    inspect: str = ""
    """A folder for logs of Inspect too, one for each rollout batch or set: `inspect view --log-dir` opens it."""

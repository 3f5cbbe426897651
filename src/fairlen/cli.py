"""The command line: `fairlen train` and others in one table, each run by a function that returns an exit code.

Settings are defaults, then the TOML file of --config, then flags. What a command needs is imported when it runs: --help is quick.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
import tomllib
import warnings
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from fairlen.console import complain, log, make_console, show_traceback
from fairlen.hangs import TrainingStopped
from fairlen.methods.describe import suggest

if TYPE_CHECKING:
    from fairlen.doctor.examine import DoctorConfig
    from fairlen.evaluate.config import EvalConfig
    from fairlen.train.run.config import TrainConfig

ABOUT_CONFIG = (
    '--config FILE.toml takes settings from a file, such as learning-rate = 1e-5 or data = ["a.jsonl", "b.jsonl"]; '
    "flags come after it."
)
FLAGS_ALONE = ("suite", "from_samples")
Config = TypeVar("Config", "TrainConfig", "EvalConfig", "DoctorConfig")


@dataclass(frozen=True)
class Command:
    """One line of the table of commands; `run_NAME` runs it."""

    usage: str
    summary: str
    extra: str = "train"
    """What `pip install 'fairlen[EXTRA]'` brings that the command needs."""
    resume: str = "the same command starts again"
    """What to do after an interruption."""


COMMANDS: dict[str, Command] = {
    "train": Command(
        "[--method dapo+balanced] [--config FILE.toml] [--help]",
        "train; without flags, the playground",
        resume="the same command with --resume --out FOLDER goes on from its newest checkpoint",
    ),
    "compare": Command(
        "grpo dapo+balanced fspo:surrogate.width=0.02 [--config FILE.toml] [--help]",
        "the same prompts and budget for each; one table",
        resume="runs that are done are kept: the same command with --out FOLDER goes on",
    ),
    "eval": Command(
        "[--model DIR] [--data SET] [--suite NAME] [--config FILE.toml] [--help]",
        "held-out problems, with intervals; --suite list",
        "train,math",
        "problems that are done are kept: the same command with --out FOLDER goes on",
    ),
    "doctor": Command("[--deep] [--json] [--help] [the flags of train]", "checks this machine, and a planned run"),
    "methods": Command(
        "[NAME[+NAME]...] [--compare NAME...] [--json]", "every preset and modifier, one method, or several by length"
    ),
    "audit": Command("PATH... [--html PAGE] [--json] [--help]", "what anyone's rollouts say about length"),
    "report": Command("FOLDER [--out FILE.html]", "one page about a run, a comparison or an evaluation"),
    "trl": Command("[--method eqlen+dapo] [--help] [SETTINGS]", "the same methods in TRL", "trl"),
    "verl": Command(
        "[--method eqlen+dapo] [--cpu] [--help] -- [SETTINGS]", "the same methods in verl, on clusters", "verl"
    ),
}


def write_usage() -> str:
    """Return what `fairlen --help` prints."""
    left = {name: f"fairlen {name} {command.usage}" for name, command in COMMANDS.items()}
    width = max(map(len, left.values()))
    lines = [f"    {left[name]:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["fairlen: length-fair reinforcement learning with verifiable rewards", "", *lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors of the user's end with one line and exit code 2."""
    sys.excepthook = show_traceback
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        log(write_usage(), end="")
        return 0
    if name == "--version":
        from fairlen import __version__

        log(f"fairlen {__version__}")
        return 0
    if name not in COMMANDS:
        log(f"fairlen: no command {name!r}: {suggest(name, COMMANDS)}", sys.stderr)
        return 2
    return dispatch(name, rest)


def dispatch(name: str, arguments: list[str]) -> int:
    """Return the exit code of a command; what ends it is one line on stderr."""
    try:
        return globals()[f"run_{name}"](arguments)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        resume = COMMANDS[name].resume.replace("FOLDER", getattr(stop, "folder", "FOLDER"))
        complain(name, f"{str(stop) or 'interrupted'}; {resume}")
        return getattr(stop, "exit_code", 130)
    except TrainingStopped as error:
        complain(name, error)
        return 1
    except ImportError as error:
        install = f"; pip install 'fairlen[{COMMANDS[name].extra}]' has what `fairlen {name}` needs"
        complain(name, f"{error}{install if error.name and 'pip install' not in str(error) else ''}")
        return 2
    except (ValueError, FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        complain(name, error)
        return 2


def run_train(arguments: list[str]) -> int:
    """Train on one device."""
    config = read_train_config(arguments)
    from fairlen.train.start import start_training

    start_training(config)
    return 0


def run_compare(arguments: list[str]) -> int:
    """Train several methods and compare them."""
    from fairlen.compare.config import CompareConfig
    from fairlen.train.run.config import TrainConfig

    given, rest = read_defaults(TrainConfig(), arguments)
    default = CompareConfig(("grpo", "grpo+balanced"), train=given)
    config = tyro.cli(CompareConfig, prog="fairlen compare", description=describe(default), default=default, args=rest)
    from fairlen.compare.start import start_comparison

    start_comparison(config)
    return 0


def run_eval(arguments: list[str]) -> int:
    """Grade a model, or samples that are there."""
    if find_flag(arguments, "--suite") == "list":
        from fairlen.evaluate.config import print_suites

        print_suites()
        return 0
    config = read_eval_config(arguments)
    from fairlen.evaluate.start import start_evaluation

    start_evaluation(config)
    return 0


def run_doctor(arguments: list[str]) -> int:
    """Print the findings; 1 where one is a failure. At most five seconds from the start of the process, but for --deep."""
    from fairlen.doctor.examine import DoctorConfig, examine, show, to_json

    config = read_config(DoctorConfig(), "fairlen doctor", arguments)
    from fairlen.doctor.checks import DEEP, QUICK

    findings = examine(config, QUICK, 180.0 if config.deep else max(4.5 - time.process_time(), 1.0))
    for check in DEEP if config.deep else ():  # one after the other: each takes the whole machine
        findings += examine(config, (check,), 900.0)
    if config.json:
        log(to_json(findings))
    else:
        show(findings, make_console())
    warnings.simplefilter("ignore", RuntimeWarning)  # of checks that were given up and end with the program
    return int(any(one.status == "fail" for one in findings))


def run_methods(arguments: list[str]) -> int:
    """Print every base and modifier, what one method is made of, or what several do to length."""

    def methods(
        name: tyro.conf.Positional[str] = "", compare: tuple[str, ...] = (), out: str = "", json: bool = False
    ) -> tuple[str, tuple[str, ...], str, bool]:
        """List every preset and modifier, by choice; or say what one method is made of, or what several do to length.

        Args:
            name: One method, its names joined by +, such as dapo+balanced.
            compare: Methods whose weights, advantages and bounds are measured on the same made rollouts.
            out: A page to write with the picture of --compare.
            json: Print data for machines.
        """
        return name, compare, out, json

    name, compared, out, as_json = tyro.cli(methods, prog="fairlen methods", args=arguments)
    if compared:
        from fairlen.diagnostics.report.methods import run

        return run([name, *compared] if name else compared, out, as_json)
    if out:
        raise ValueError(f"--out {out}: it is the page of --compare: name methods to compare")
    if name:
        from fairlen.methods.catalogue import describe_method, print_method

        data, show = describe_method(name), print_method
    else:
        from fairlen.methods.catalogue import list_methods, print_methods

        data, show = list_methods(), print_methods
    if as_json:
        log(json.dumps(data, indent=1))
    else:
        show(data)
    return 0


def run_audit(arguments: list[str]) -> int:
    """Audit rollouts of any format; 1 where a file could not be read."""
    from fairlen.diagnostics.report.summary import AuditConfig, run

    return run(tyro.cli(AuditConfig, prog="fairlen audit", args=arguments))


def run_report(arguments: list[str]) -> int:
    """Write the report of a folder: of a run, a comparison or an evaluation, by the file that each of them has."""

    def report(run: tyro.conf.Positional[str], out: str = "") -> tuple[Path, Path]:
        """Write one page about a run, a comparison or an evaluation.

        Args:
            run: The folder of `fairlen train`, `compare` or `eval`.
            out: A file to write; by default report.html in the folder.
        """
        return Path(run), Path(out or Path(run) / "report.html")

    folder, out = tyro.cli(report, prog="fairlen report", args=arguments)
    if out.is_dir():
        raise ValueError(f"--out {out}: that is a folder; name a file, such as {out / 'report.html'}")
    if (folder / "comparison.json").is_file():
        from fairlen.compare.page import report_comparison as write
    elif (folder / "summary.json").is_file():
        from fairlen.evaluate.page import report_evaluation as write
    else:
        from fairlen.diagnostics.report import write_report as write
    path = write(folder, out)
    log(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
    return 0


def run_trl(arguments: list[str]) -> int:
    """Train with TRL; flags that are not ours are TRL's."""
    from fairlen.integrations.trl.config import TrlConfig

    default = begin_with(TrlConfig(), find_flag(arguments, "--data"), find_flag(arguments, "--task") or TrlConfig.task)
    config, rest = tyro.cli(TrlConfig, prog="fairlen trl", default=default, args=arguments, return_unknown_args=True)
    from fairlen.integrations.trl.start import start_trl

    start_trl(config, rest)
    return 0


def run_verl(arguments: list[str]) -> int:
    """Start a job of verl; what follows `--` are its own"""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    from fairlen.integrations.verl.launch import VerlConfig, start_verl

    config = tyro.cli(VerlConfig, prog="fairlen verl", args=arguments[:cut])
    if not config.dry_run and find_spec("verl") is None:
        raise ValueError("verl jobs need the package verl: pip install 'fairlen[verl]'; --dry-run goes without it")
    return start_verl(config, arguments[cut + 1 :])


def read_train_config(arguments: list[str]) -> TrainConfig:
    """Return the settings of a training run."""
    from fairlen.train.run.config import TrainConfig

    return read_config(TrainConfig(), "fairlen train", arguments)


def read_config(default: Config, prog: str, arguments: list[str]) -> Config:
    """Return the settings of a command whose defaults are given."""
    default, rest = read_defaults(default, arguments)
    return tyro.cli(type(default), prog=prog, description=describe(default), default=default, args=rest)


def read_defaults(default: Config, arguments: list[str]) -> tuple[Config, list[str]]:
    """Return what flags begin with, the settings of a shipped task and those of the file of --config, and the flags."""
    path, flags = split_config(arguments)
    named = overlay(default, path, flags) if path else default
    data = find_flag(flags, "--data") or "".join(() if named.data == default.data else named.data[:1])
    if not find_flag(flags, "--from-samples"):
        default = begin_with(default, data, find_flag(flags, "--task") or named.task)
    return overlay(default, path, flags) if path else default, flags


def begin_with(default: Any, data: str, task: str) -> Any:
    """Return settings with those of the shipped task that data name, or without data the task, where it is not the default."""
    from fairlen.tasks.shipped import is_shipped, shipped_settings

    place = task if not data else data if is_shipped(data) else ""
    found = {} if place == default.task else shipped_settings(place)
    return replace(default, **{f.name: found[f.name] for f in fields(default) if f.name in found})


def describe(default: Any) -> str:
    """Return what a command's help begins with."""
    return f"{inspect.getdoc(default)}\n\n{ABOUT_CONFIG}"


def read_eval_config(arguments: list[str]) -> EvalConfig:
    """Return the settings: defaults, those of the suite or of the samples that are read, the file of --config, then flags."""
    from fairlen.evaluate.config import EvalConfig, suite_settings

    _, rest = split_config(arguments)
    suite, samples = find_flag(rest, "--suite"), find_flag(rest, "--from-samples")
    if suite and samples:
        raise ValueError(
            f"--suite {suite} with --from-samples {samples}: samples are graded with the settings that they were drawn with; "
            "leave --suite out"
        )
    default = suite_settings(suite) if suite else EvalConfig()
    if samples:
        from fairlen.evaluate.folder import rescore_settings

        default = rescore_settings(samples)
    if find_flag(rest, "--data"):
        default = replace(default, data=(), suite="")  # flags add to a default; what is named here is meant alone
    return read_config(default, "fairlen eval", arguments)


def find_flag(arguments: Sequence[str], name: str) -> str:
    """Return the value of a flag, empty where it is not given."""
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") == name:
            return value if equals else "".join(arguments[place + 1 : place + 2])
    return ""


def split_config(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """Return the path after --config, and the other arguments."""
    parser = ArgumentParser(prog="fairlen", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path, action="append", default=[])
    given, rest = parser.parse_known_args(arguments)
    if len(given.config) > 1:
        raise ValueError(f"--config {given.config[0]}: name one TOML file")
    return next(iter(given.config), None), rest


def overlay(config: Config, path: Path, flags: Sequence[str] = ()) -> Config:
    """Return the settings with those of a TOML file, but for lists that flags name: what is named there is meant alone.

    Fields of the method (`set`) are added to. Raises ValueError for a key that does not exist or a value of the wrong type.
    """
    if not path.is_file():
        raise FileNotFoundError(f"--config {path}: there is no such file")
    names = [f.name for f in fields(config)]
    clean: dict[str, Any] = {}
    try:
        for key, value in tomllib.loads(path.read_text()).items():
            name = "overrides" if key == "set" else key.replace("-", "_")
            if name not in names:
                raise ValueError(f"unknown key {key!r}: {suggest(name, names)}")
            if name in FLAGS_ALONE:
                raise ValueError(f"{key}: give it as a flag; it decides what other settings begin with")
            default = getattr(config, name)
            if not (
                isinstance(default, tuple) and name != "overrides" and find_flag(flags, f"--{name.replace('_', '-')}")
            ):
                clean[name] = convert(key, value, default)
    except ValueError as error:  # of TOML too
        raise ValueError(f"--config {path}: {error}") from None
    return replace(config, **clean)


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

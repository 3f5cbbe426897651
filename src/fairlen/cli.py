"""The command line: `fairlen train` and others in one table, each run by a function that returns an exit code.

Settings are defaults, then the TOML file of --config, then flags. What a command needs is imported when it runs: --help is quick.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fairlen.console import complain, log, make_console, show_traceback, suggest, tell

if TYPE_CHECKING:
    from fairlen.evaluate.config import EvalConfig
    from fairlen.train.run.config import TrainConfig

Config = TypeVar("Config")
UNUSABLE = (errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOSPC,
            errno.ENOTDIR, errno.EPERM, errno.EROFS)  # fmt: skip
"""Errors of the system about a path that the user has named."""


@dataclass(frozen=True)
class Command:
    """One line of the table of commands; `run_NAME` runs it."""

    usage: str
    summary: str
    examples: tuple[str, ...]
    extra: str = "train"
    """Extra of `pip install '.[EXTRA]' in the checkout` that the command needs."""
    resume: str = "the same command starts again"
    """Advice after an interruption."""


COMMANDS: dict[str, Command] = {
    "train": Command(
        "[--method dapo+balanced] [--config FILE.toml] [FLAGS]",
        "train on one device; without flags, the playground",
        ("--method dapo+balanced --model Qwen/Qwen3-0.6B --data sums.jsonl",
         "--method fspo --updates-per-batch 4", "--config run.toml --seed 2 --out runs/second"),
        resume="the same command with --resume --out FOLDER goes on from its newest checkpoint",
    ),
    "compare": Command(
        "METHOD METHOD... [--config FILE.toml] [FLAGS]",
        "train several methods on the same prompts and budget; one table",
        ("grpo dapo+balanced fspo:surrogate.width=0.02 --seeds 3", "runs/first runs/second"),
        resume="runs that are done are kept: the same command with --out FOLDER goes on",
    ),
    "eval": Command(
        "[--model DIR] [--data SET] [--config FILE.toml] [FLAGS]",
        "grade a model on held-out problems, with intervals; or rescore responses",
        ("--model runs/first/model --data test.jsonl --samples 16", "--suite list", "--from-samples eval/first"),
        "train,math",
        "problems that are done are kept: the same command with --out FOLDER goes on",
    ),
    "doctor": Command(
        "[--json] [--config FILE.toml] [FLAGS of train]",
        "check this machine and a planned run",
        ("--model Qwen/Qwen3-0.6B --data train.jsonl --method fspo", "--json"),
    ),
    "methods": Command(
        "[NAME[+NAME]...] [--compare NAME...]",
        "every preset and modifier; what one method is made of; or several by length",
        ("dapo+balanced", "--compare grpo dr_grpo grpo+balanced --rollouts rollouts.jsonl"),
    ),
    "audit": Command(
        "PATH... [FLAGS]",
        "what anyone's rollouts say about length",
        ("rollouts.jsonl --out page.html", "runs/first --against runs/second"),
    ),
    "watch": Command(
        "PATH [--fail-on effect,truncation] [FLAGS]",
        "alarms about length while another program writes rollouts",
        ("out/completions --method loss_type=dapo", "rollouts.jsonl --once --fail-on effect"),
        "",
        "the same command goes on from its state",
    ),
    "report": Command(
        "FOLDER [--out FILE.html]",
        "write one page about a run, a comparison or an evaluation",
        ("runs/first",),
    ),
    "verl": Command(
        "[--method NAME] [--cpu] [FLAGS] -- [SETTINGS of verl]",
        "train by the same methods in verl, on clusters; --cpu rehearses here",
        ("--cpu --dry-run", "--model MODEL --data sums.jsonl -- data.train_batch_size=256"),
        "verl",
    ),
}  # fmt: skip


def write_usage() -> str:
    """Return what `fairlen --help` prints."""
    lines = [f"  fairlen {name} {one.usage}\n      {one.summary}" for name, one in COMMANDS.items()]
    end = "fairlen COMMAND --help has examples and every flag."
    return "\n".join(["fairlen: length-fair reinforcement learning with verifiable rewards", "", *lines, "", end, ""])


RUNNING = ("train", "compare", "eval", "verl")
"""Commands that do more than print."""


def write_page(name: str) -> str:
    """Return what the help of a command says before its flags."""
    one = COMMANDS[name]
    examples = [f"  fairlen {name} {words}" for words in one.examples]
    return "\n".join([f"usage: fairlen {name} {one.usage}", "", one.summary, "", "examples", *examples])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors of the user's end with one line and exit code 2."""
    sys.excepthook = show_traceback
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
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
    from fairlen.hangs import TrainingStopped

    try:
        return globals()[f"run_{name}"](arguments)
    except BrokenPipeError:  # the reader has seen enough, which of a run is not all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if name not in RUNNING:
            return 0
        complain(name, f"its output was closed before the end; {COMMANDS[name].resume}")
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as stop:
        resume, folder = COMMANDS[name].resume, getattr(stop, "folder", "")
        resume = resume.replace("FOLDER", folder) if folder or "FOLDER" not in resume else Command.resume
        complain(name, f"{str(stop) or 'interrupted'}; {resume}")
        return getattr(stop, "exit_code", 130)
    except ImportError as error:
        install = f"; pip install '.[{COMMANDS[name].extra}]' in the checkout has what `fairlen {name}` needs"
        complain(name, f"{error}{install if error.name and 'pip install' not in str(error) else ''}")
        return 2
    except OSError as error:
        if error.errno in (None, *UNUSABLE):  # without a number it is our own, which says all
            unusable = f"{error.filename or 'the output'}: cannot be used ({error.strerror})"
            complain(name, f"{unusable}; name a place that can be read and written" if error.errno else error)
            return 2
        raise
    except (TrainingStopped, ValueError) as error:
        complain(name, error)
        return 1 if isinstance(error, TrainingStopped) else 2


def run_train(arguments: list[str]) -> int:
    """Train on one device."""
    config = read_train_config(arguments)
    tell("importing torch")
    from fairlen.train.start import start_training

    start_training(config)
    return 0


def run_compare(arguments: list[str]) -> int:
    """Train several methods and compare them."""
    from fairlen.compare.config import CompareConfig
    from fairlen.flags import read_defaults
    from fairlen.train.run.config import TrainConfig

    given, rest = read_defaults(TrainConfig(), arguments)
    default = CompareConfig(("grpo", "grpo+balanced"), train=given)
    config = parse(default, "compare", rest)
    if config.methods is default.methods:
        raise ValueError("METHODS: none was named; name at least two, such as: fairlen compare grpo grpo+balanced")
    if not config.are_runs:
        tell("importing torch")
    from fairlen.compare.start import start_comparison

    start_comparison(config)
    return 0


def run_eval(arguments: list[str]) -> int:
    """Grade a model, or samples that are there."""
    from fairlen.flags import find_flag

    if find_flag(arguments, "--suite") == "list":
        from fairlen.evaluate.config import print_suites

        print_suites()
        return 0
    config = read_eval_config(arguments)
    if not config.run.from_samples:
        tell("importing torch")
    from fairlen.evaluate.start import start_evaluation

    start_evaluation(config)
    return 0


def run_doctor(arguments: list[str]) -> int:
    """Print the findings; 1 where one is a failure."""
    from fairlen.doctor.examine import DoctorConfig, run_check, show, to_json

    config = read_config(DoctorConfig(), "doctor", arguments)
    from fairlen.doctor.checks import CHECKS

    findings = [run_check(check, config) for check in CHECKS]
    if config.json:
        log(to_json(findings))
    else:
        show(findings, make_console())
    return int(any(one.status == "fail" for one in findings))


def run_methods(arguments: list[str]) -> int:
    """Print every base and modifier, what one method is made of, words of other libraries, or what several do to length."""
    from fairlen import catalogue
    from fairlen.methods.peers import PEERS, list_words

    config = parse(catalogue.MethodsConfig, "methods", arguments)
    name, compared, out = config.name, config.compare, config.out
    if compared:
        from fairlen.compare.simulation import run
        from fairlen.files.folders import refuse_foreign

        refuse_foreign("out", out)
        if config.tokenizer and not config.rollouts:
            raise ValueError(f"--tokenizer {config.tokenizer}: it counts tokens of --rollouts; name them or drop it")
        return run([name, *compared] if name else compared, out, config.json, config.rollouts, config.tokenizer)
    for flag, given in (("out", out), ("rollouts", config.rollouts), ("tokenizer", config.tokenizer)):
        if given:
            raise ValueError(f"--{flag} {given}: it is for --compare: name methods to compare")
    if name == "peers" or name in PEERS:
        data, show = {"words": [*list_words(PEERS if name == "peers" else (name,))]}, catalogue.print_words
    elif name:
        data, show = catalogue.describe_method(name), catalogue.print_method
    else:
        data, show = catalogue.list_methods(), catalogue.print_methods
    if config.json:
        log(json.dumps(data, indent=1))
    else:
        show(data)
    return 0


def run_audit(arguments: list[str]) -> int:
    """Audit rollouts of any format; 1 where a file could not be read."""
    from fairlen.audit.command import AuditConfig, run
    from fairlen.report.audit_page import write_audit_page

    return run(parse(AuditConfig, "audit", arguments), write_audit_page)


def run_watch(arguments: list[str]) -> int:
    """Watch rollouts that are being written; 1 where an alarm of --fail-on was raised."""
    from fairlen.watch.command import WatchConfig, run

    return run(parse(WatchConfig, "watch", arguments))


def run_report(arguments: list[str]) -> int:
    """Write the report of a folder: of a run, a comparison or an evaluation, by the file that each of them has."""
    from fairlen.files.folders import refuse_foreign
    from fairlen.settings import ReportConfig

    config = parse(ReportConfig, "report", arguments)
    folder, out = Path(config.run), Path(config.out or Path(config.run) / "report.html")
    refuse_foreign("out", config.out)
    if (folder / "comparison.json").exists():
        from fairlen.compare.page import report_comparison as write
    elif (folder / "summary.json").exists():
        from fairlen.evaluate.start import report_evaluation as write
    else:
        from fairlen.report import write_report as write
    path = write(folder, out)
    log(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
    return 0


def run_verl(arguments: list[str]) -> int:
    """Start a job of verl; what follows `--` are its own"""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    from fairlen.flags import explain_unknown, flag_names, read_some
    from fairlen.integrations.verl.launch import VerlConfig, start_verl

    config, left = read_some(VerlConfig, "fairlen verl", arguments[:cut], write_page("verl"))
    if left and "=" in left[0] and not left[0].startswith("-"):
        raise ValueError(f"{left[0]}: settings of verl's come after --, as in `fairlen verl -- {left[0]}`")
    if left:
        raise ValueError(explain_unknown(left, ["", *flag_names(VerlConfig)]))
    if not config.dry_run and find_spec("verl") is None:
        raise ValueError("verl jobs need verl: pip install '.[verl]' in the checkout; --dry-run goes without it")
    return start_verl(config, arguments[cut + 1 :])


def parse(begin: type[Config] | Config, command: str, arguments: Sequence[str]) -> Config:
    """Return settings, or those that a class begins with, as the arguments of a command change them."""
    from fairlen.flags import read_flags

    return read_flags(begin, f"fairlen {command}", arguments, write_page(command))


def read_train_config(arguments: list[str]) -> TrainConfig:
    """Return the settings of a training run."""
    from fairlen.train.run.config import TrainConfig

    return read_config(TrainConfig(), "train", arguments)


def read_config(default: Config, command: str, arguments: list[str]) -> Config:
    """Return the settings of a command whose defaults are given."""
    from fairlen.flags import read_defaults

    default, rest = read_defaults(default, arguments)
    return parse(default, command, rest)


def read_eval_config(arguments: list[str]) -> EvalConfig:
    """Return the settings: defaults, those of the suite or of the samples that are read, the file of --config, then flags."""
    from fairlen.evaluate.config import EvalConfig, suite_settings
    from fairlen.flags import find_flag, split_config

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
        default = default.replace(data=(), suite="")  # which is no longer that of the paper
    if find_flag(rest, "--temperature") in ("0", "0.0"):
        default = default.replace(samples=1)  # greedy responses to one problem are all the same
    return read_config(default, "eval", arguments)

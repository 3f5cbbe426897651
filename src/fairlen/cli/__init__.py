"""The command line: `fairlen train`, `fairlen methods` and others, in one table.

Settings come from the dataclass of the command, overlaid by a TOML file with `--config`, overlaid by flags. A command is
imported when it is run, and what it needs when its settings are read, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairlen.cli.settings import read_eval_config, read_train_config
from fairlen.console import complain, log, show_traceback
from fairlen.hangs import TrainingStopped

__all__ = ["COMMANDS", "main", "read_eval_config", "read_train_config"]


@dataclass(frozen=True)
class Command:
    """One line of the table of commands; `run_NAME` in `commands.py` runs it."""

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
    "methods": Command("[NAME[+NAME]...] [--json]", "every preset and modifier; or what one method is made of"),
    "audit": Command("PATH... [--json] [--help]", "what anyone's rollouts say about length"),
    "report": Command("RUN [--out FILE.html]", "one page about a run; by default RUN/report.html"),
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
        from fairlen.methods.describe import suggest

        log(f"fairlen: no command {name!r}: {suggest(name, COMMANDS)}", sys.stderr)
        return 2
    return run_command(name, rest)


def run_command(name: str, arguments: list[str]) -> int:
    """Return the exit code of a command; what ends it is one line on stderr."""
    from fairlen.cli import commands

    try:
        return getattr(commands, f"run_{name}")(arguments)
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

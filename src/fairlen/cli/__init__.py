"""The command line: `fairlen train`, `fairlen methods` and others, in one table.

Settings come from the dataclass of the command, overlaid by a TOML file with `--config`, overlaid by flags. A command is
imported when it is run, and what it needs when its settings are read, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from fairlen.cli.settings import read_eval_config, read_train_config
from fairlen.console import complain, show_traceback, tell
from fairlen.stop import TrainingStopped

__all__ = ["COMMANDS", "main", "read_eval_config", "read_train_config"]


@dataclass(frozen=True)
class Command:
    """One line of the table of commands."""

    place: str
    """Where its function is, as module:function; it takes arguments and returns an exit code."""
    usage: str
    summary: str
    goes_on: str = "the same command starts again"
    """What to do after an interruption."""

    def load(self) -> Callable[[list[str]], int]:
        """The function, imported now."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(f"fairlen.cli.{module}"), name)


COMMANDS: dict[str, Command] = {
    "train": Command(
        "training:run_train",
        "[--method dapo+balanced] [--config FILE.toml] [--help]",
        "train; without flags, the playground",
        "the same command with --resume --out FOLDER goes on from its newest checkpoint",
    ),
    "compare": Command(
        "training:run_compare",
        "grpo dapo+balanced fspo:surrogate.width=0.02 [--config FILE.toml] [--help]",
        "the same prompts and budget for each; one table",
        "runs that are done are kept: the same command with --out FOLDER goes on",
    ),
    "eval": Command(
        "evaluation:run_eval",
        "[--model DIR] [--data SET] [--suite NAME] [--config FILE.toml] [--help]",
        "held-out problems, with intervals; --suite list",
        "problems that are done are kept: the same command with --out FOLDER goes on",
    ),
    "doctor": Command(
        "checking:run_doctor",
        "[--deep] [--json] [--help] [the flags of train]",
        "checks this machine, and a planned run",
    ),
    "methods": Command(
        "listing:run_methods", "[NAME[+NAME]...] [--json]", "every preset and modifier; or what one method is made of"
    ),
    "audit": Command("listing:run_audit", "PATH... [--json] [--help]", "what anyone's rollouts say about length"),
    "report": Command(
        "listing:run_report", "RUN [--out FILE.html]", "one page about a run; by default RUN/report.html"
    ),
    "trl": Command("training:run_trl", "[--method eqlen+dapo] [--help] [SETTINGS]", "the same methods in TRL"),
    "verl": Command(
        "training:run_verl",
        "[--method eqlen+dapo] [--cpu] [--help] -- [SETTINGS]",
        "the same methods in verl, on clusters",
    ),
}


def write_usage() -> str:
    """What `fairlen --help` prints."""
    left = {name: f"fairlen {name} {command.usage}" for name, command in COMMANDS.items()}
    width = max(map(len, left.values()))
    lines = [f"    {left[name]:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["fairlen: length-fair reinforcement learning with verifiable rewards", "", *lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; errors of the user's end with one line and exit code 2."""
    sys.excepthook = show_traceback
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        tell(write_usage(), end="")
        return 0
    if given[0] == "--version":
        from fairlen import __version__

        tell(f"fairlen {__version__}")
        return 0
    if given[0] not in COMMANDS:
        from fairlen.methods.describe import suggest

        tell(f"fairlen: no command {given[0]!r}: {suggest(given[0], COMMANDS)}", sys.stderr)
        return 2
    command = COMMANDS[given[0]]
    try:
        return command.load()(given[1:])
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        goes_on = command.goes_on.replace("FOLDER", getattr(stop, "folder", "FOLDER"))
        complain(given[0], f"{str(stop) or 'interrupted'}; {goes_on}")
        return getattr(stop, "exit_code", 130)
    except ImportError as error:
        complain(given[0], error)
        return 2
    except TrainingStopped as error:
        complain(given[0], error)
        return 1
    except (ValueError, FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        complain(given[0], error)
        return 2

"""The command line: `fairlen train`, `fairlen methods` and others.

Settings come from the dataclass of the command, overlaid by a TOML file with `--config`, overlaid by
flags. Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fairlen.evaluate.config import EvalConfig
    from fairlen.train.config import TrainConfig

Config = TypeVar("Config", "TrainConfig", "EvalConfig")

USAGE = """fairlen: length-fair reinforcement learning with verifiable rewards

    fairlen train [--method dapo+balanced] [--config FILE.toml] [--help]   train; without flags, the playground
    fairlen compare grpo dapo+balanced fspo:surrogate.width=0.02 [--help]  the same prompts and budget for each; one table
    fairlen eval [--model DIR] [--data SET] [--suite NAME] [--help]        held-out problems, with intervals; --suite list
    fairlen methods [--json]                                               every preset and modifier, by choice
    fairlen audit PATH... [--json] [--help]                                what anyone's rollouts say about length
    fairlen report RUN [--out FILE.html]                                   one page about a run; by default RUN/report.html
    fairlen trl [--method eqlen+dapo] [--help] [SETTINGS]                  the same methods in TRL
    fairlen verl [--method eqlen+dapo] [--cpu] [--help] -- [SETTINGS]      the same methods in verl, on clusters
"""

GOES_ON = {
    "train": "a run goes on from its newest checkpoint: --resume --out FOLDER",
    "eval": "problems that are done are kept: the same command with --out FOLDER goes on",
}
"""What to do after an interruption."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; errors of the user's end with one line and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = {
        "train": run_train,
        "compare": run_compare,
        "eval": run_eval,
        "methods": run_methods,
        "audit": run_audit,
        "report": run_report,
        "trl": run_trl,
        "verl": run_verl,
    }
    if not given or given[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if given[0] == "--version":
        from fairlen import __version__

        print(f"fairlen {__version__}")
        return 0
    if given[0] not in commands:
        from fairlen.describe import suggest

        print(f"fairlen: no command {given[0]!r}: {suggest(given[0], commands)}", file=sys.stderr)
        return 2
    try:
        return commands[given[0]](given[1:])
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"fairlen {given[0]}: interrupted; {GOES_ON.get(given[0], GOES_ON['train'])}", file=sys.stderr)
        return 130
    except (ValueError, FileExistsError, FileNotFoundError) as error:
        print(f"fairlen {given[0]}: {error}", file=sys.stderr)
        return 2


def run_train(arguments: list[str]) -> int:
    """Trains."""
    config = read_train_config(arguments)
    try:
        from fairlen.train.start import start_training
    except ModuleNotFoundError as error:
        raise ValueError(f"training needs the package {error.name}: pip install 'fairlen[train]'") from None
    start_training(config)
    return 0


def run_compare(arguments: list[str]) -> int:
    """Trains several methods and compares them."""
    import tyro

    from fairlen.train.config import TrainConfig

    try:
        from fairlen.compare.config import CompareConfig
        from fairlen.compare.start import start_comparison
    except ModuleNotFoundError as error:
        raise ValueError(f"comparing needs the package {error.name}: pip install 'fairlen[train]'") from None
    path, rest = split_config(arguments)
    given = overlay(TrainConfig(), path) if path else TrainConfig()
    default = CompareConfig(("grpo", "grpo+balanced"), train=given)
    start_comparison(tyro.cli(CompareConfig, prog="fairlen compare", default=default, args=rest))
    return 0


def run_eval(arguments: list[str]) -> int:
    """Judges a model, or samples that are there."""
    if find_flag(arguments, "--suite") == "list":
        from fairlen.evaluate.suites import print_suites

        print_suites()
        return 0
    config = read_eval_config(arguments)
    try:
        from fairlen.evaluate.start import start_evaluation

        start_evaluation(config)
    except ModuleNotFoundError as error:
        raise ValueError(f"evaluating needs the package {error.name}: pip install 'fairlen[train,math]'") from None
    return 0


def read_eval_config(arguments: list[str]) -> EvalConfig:
    """The settings: defaults, those of the suite or of the samples that are read, the file of --config, then flags."""
    import tyro

    from fairlen.evaluate.config import EvalConfig, suite_settings

    path, rest = split_config(arguments)
    suite, samples = find_flag(rest, "--suite"), find_flag(rest, "--from-samples")
    default = suite_settings(suite) if suite else EvalConfig()
    if samples:
        from fairlen.evaluate.again import settings_again

        default = settings_again(samples)
    if find_flag(rest, "--data"):
        default = replace(default, data=(), suite="")  # flags add to a default; what is named here is meant alone
    default = overlay(default, path) if path else default
    return tyro.cli(EvalConfig, prog="fairlen eval", default=default, args=rest)


def find_flag(arguments: Sequence[str], name: str) -> str:
    """The value of a flag, empty where it is not given."""
    for place, argument in enumerate(arguments):
        if argument == name:
            return arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return ""


def read_train_config(arguments: list[str]) -> TrainConfig:
    """The settings: defaults, then the file of --config, then flags."""
    import tyro

    from fairlen.train.config import TrainConfig

    path, rest = split_config(arguments)
    default = overlay(TrainConfig(), path) if path else TrainConfig()
    return tyro.cli(TrainConfig, prog="fairlen train", default=default, args=rest)


def split_config(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The path after --config and the other arguments."""
    path, rest, waiting = None, [], iter(arguments)
    for argument in waiting:
        if argument == "--config" or argument.startswith("--config="):
            text = argument.partition("=")[2] or next(waiting, "")
            if not text:
                raise ValueError("--config: name a TOML file")
            path = Path(text)
        else:
            rest.append(argument)
    return path, rest


def overlay(config: Config, path: Path) -> Config:
    """The settings with those of a TOML file. Raises ValueError for a key that does not exist or a value of the wrong type."""
    from fairlen.describe import suggest

    if not path.is_file():
        raise FileNotFoundError(f"--config {path}: there is no such file")
    try:
        values = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--config {path}: {error}") from None
    names = [f.name for f in fields(config)]
    clean: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in names:
            raise ValueError(f"--config {path}: unknown key {key!r}: {suggest(name, names)}")
        clean[name] = convert(path, key, value, getattr(config, name))
    return replace(config, **clean)


def convert(path: Path, key: str, value: Any, default: Any) -> Any:
    """The value of a TOML file as the type that the setting has."""
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(str(item) for item in value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"--config {path}: {key} = {value!r}: give {type(default).__name__}, such as {default!r}")
    return value


def run_trl(arguments: list[str]) -> int:
    """Trains with TRL; flags that are not ours are TRL's."""
    import tyro

    from fairlen.adapters.trl_config import TrlConfig

    config, rest = tyro.cli(TrlConfig, prog="fairlen trl", args=arguments, return_unknown_args=True)
    try:
        from fairlen.adapters.trl_start import start_trl
    except ModuleNotFoundError as error:
        raise ValueError(f"TRL jobs need the package {error.name}: pip install 'fairlen[trl]'") from None
    start_trl(config, rest)
    return 0


def run_verl(arguments: list[str]) -> int:
    """Starts a job of verl; what follows `--` are its own settings."""
    import tyro

    cut = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        from fairlen.adapters.verl.config import VerlConfig
        from fairlen.adapters.verl.launch import start_verl
    except ModuleNotFoundError as error:
        raise ValueError(f"verl jobs need the package {error.name}: pip install 'fairlen[verl]'") from None
    config = tyro.cli(VerlConfig, prog="fairlen verl", args=arguments[:cut])
    return start_verl(config, arguments[cut + 1 :])


def run_methods(arguments: list[str]) -> int:
    """Prints every base and modifier."""
    from fairlen.catalogue import list_methods, print_methods

    unknown = [argument for argument in arguments if argument not in ("--json", "-h", "--help")]
    if unknown:
        raise ValueError(f"unknown argument {unknown[0]!r}: there is --json")
    if "-h" in arguments or "--help" in arguments:
        print(USAGE, end="")
    elif "--json" in arguments:
        print(json.dumps(list_methods(), indent=1))
    else:
        print_methods()
    return 0


def run_audit(arguments: list[str]) -> int:
    """Audits rollouts of any format; 1 where a file could not be read."""
    import tyro

    from fairlen.diagnostics.summary import AuditConfig, run

    return run(tyro.cli(AuditConfig, prog="fairlen audit", args=arguments))


def run_report(arguments: list[str]) -> int:
    """Writes the report of a run folder."""
    rest, out = [], None
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--out" or argument.startswith("--out="):
            out = argument.partition("=")[2] or next(waiting, "")
            if not out:
                raise ValueError("--out: name a file to write")
        else:
            rest.append(argument)
    if "-h" in rest or "--help" in rest:
        print(USAGE, end="")
        return 0
    if len(rest) != 1 or rest[0].startswith("-"):
        raise ValueError(f"give one run folder and at most --out FILE.html, not {' '.join(rest) or 'nothing'}")
    from fairlen.diagnostics.report import write_report

    path = write_report(rest[0], out)
    print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The commands, each a function of its arguments that returns an exit code. What a command needs is imported when it runs."""

from __future__ import annotations

import json
import time
import warnings
from importlib.util import find_spec

import tyro

from fairlen.cli import settings
from fairlen.console import log, make_console


def run_train(arguments: list[str]) -> int:
    """Train on one device."""
    config = settings.read_train_config(arguments)
    from fairlen.train.start import start_training

    start_training(config)
    return 0


def run_compare(arguments: list[str]) -> int:
    """Train several methods and compare them."""
    from fairlen.compare.config import CompareConfig
    from fairlen.train.run.config import TrainConfig

    path, rest = settings.split_config(arguments)
    given = settings.overlay(TrainConfig(), path, rest) if path else TrainConfig()
    default = CompareConfig(("grpo", "grpo+balanced"), train=given)
    config = tyro.cli(
        CompareConfig, prog="fairlen compare", description=settings.describe(default), default=default, args=rest
    )
    from fairlen.compare.start import start_comparison

    start_comparison(config)
    return 0


def run_eval(arguments: list[str]) -> int:
    """Grade a model, or samples that are there."""
    if settings.find_flag(arguments, "--suite") == "list":
        from fairlen.evaluate.config import print_suites

        print_suites()
        return 0
    config = settings.read_eval_config(arguments)
    from fairlen.evaluate.start import start_evaluation

    start_evaluation(config)
    return 0


def run_doctor(arguments: list[str]) -> int:
    """Print the findings; 1 where one is a failure. At most five seconds from the start of the process, but for --deep."""
    from fairlen.doctor.examine import DoctorConfig, examine, show, to_json

    config = settings.read_config(DoctorConfig(), "fairlen doctor", arguments)
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
    """Print every base and modifier, or what one method is made of."""

    def methods(name: tyro.conf.Positional[str] = "", json: bool = False) -> tuple[str, bool]:
        """List every preset and modifier, by choice; or say what one method is made of.

        Args:
            name: One method, its names joined by +, such as dapo+balanced.
            json: Print data for machines.
        """
        return name, json

    name, as_json = tyro.cli(methods, prog="fairlen methods", args=arguments)
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
    """Write the report of a run folder."""

    def report(run: tyro.conf.Positional[str], out: str = "") -> tuple[str, str]:
        """Write one page about a run.

        Args:
            run: The run folder.
            out: A file to write; by default report.html in the run folder.
        """
        return run, out

    folder, out = tyro.cli(report, prog="fairlen report", args=arguments)
    from fairlen.diagnostics.report import write_report

    path = write_report(folder, out)
    log(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
    return 0


def run_trl(arguments: list[str]) -> int:
    """Train with TRL; flags that are not ours are TRL's."""
    from fairlen.integrations.trl.config import TrlConfig

    config, rest = tyro.cli(TrlConfig, prog="fairlen trl", args=arguments, return_unknown_args=True)
    from fairlen.integrations.trl.start import start_trl

    start_trl(config, rest)
    return 0


def run_verl(arguments: list[str]) -> int:
    """Start a job of verl; what follows `--` are its own settings."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    from fairlen.integrations.verl.launch import VerlConfig, start_verl

    config = tyro.cli(VerlConfig, prog="fairlen verl", args=arguments[:cut])
    if not config.dry_run and find_spec("verl") is None:
        raise ValueError("verl jobs need the package verl: pip install 'fairlen[verl]'; --dry-run goes without it")
    return start_verl(config, arguments[cut + 1 :])

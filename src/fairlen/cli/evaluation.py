"""The command that judges a model."""

from __future__ import annotations

from fairlen.cli.settings import find_flag, read_eval_config


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

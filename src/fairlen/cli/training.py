"""Commands that train: on one device, several methods in a row, in TRL, in verl."""

from __future__ import annotations

from importlib.util import find_spec

from fairlen.cli.settings import describe, overlay, read_train_config, split_config


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

    from fairlen.compare.config import CompareConfig
    from fairlen.train.config import TrainConfig

    path, rest = split_config(arguments)
    given = overlay(TrainConfig(), path, rest) if path else TrainConfig()
    default = CompareConfig(("grpo", "grpo+balanced"), train=given)
    config = tyro.cli(CompareConfig, prog="fairlen compare", description=describe(default), default=default, args=rest)
    try:
        from fairlen.compare.start import start_comparison
    except ModuleNotFoundError as error:
        raise ValueError(f"comparing needs the package {error.name}: pip install 'fairlen[train]'") from None
    start_comparison(config)
    return 0


def run_trl(arguments: list[str]) -> int:
    """Trains with TRL; flags that are not ours are TRL's."""
    import tyro

    from fairlen.integrations.trl.config import TrlConfig

    config, rest = tyro.cli(TrlConfig, prog="fairlen trl", args=arguments, return_unknown_args=True)
    try:
        from fairlen.integrations.trl.start import start_trl
    except ModuleNotFoundError as error:
        raise ValueError(f"TRL jobs need the package {error.name}: pip install 'fairlen[trl]'") from None
    start_trl(config, rest)
    return 0


def run_verl(arguments: list[str]) -> int:
    """Starts a job of verl; what follows `--` are its own settings."""
    import tyro

    cut = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        from fairlen.integrations.verl.config import VerlConfig
        from fairlen.integrations.verl.launch import start_verl
    except ModuleNotFoundError as error:
        raise ValueError(f"verl jobs need the package {error.name}: pip install 'fairlen[verl]'") from None
    config = tyro.cli(VerlConfig, prog="fairlen verl", args=arguments[:cut])
    if not config.dry_run and find_spec("verl") is None:
        raise ValueError("verl jobs need the package verl: pip install 'fairlen[verl]'; --dry-run goes without it")
    return start_verl(config, arguments[cut + 1 :])

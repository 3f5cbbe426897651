"""What only torch can say, asked for in a process of its own: settings as JSON on standard input, one line of JSON back."""

from __future__ import annotations

import json
import sys
from typing import Any

from fairlen.train.config import TrainConfig


def find_device(config: TrainConfig) -> dict[str, Any]:
    """The device of the run, as the settings ask for it."""
    import torch

    device = config.device
    has_cuda = torch.cuda.is_available()
    device = ("cuda" if has_cuda else "cpu") if device == "auto" else device
    if device.startswith("cuda") and not has_cuda:
        return {
            "error": f"device={config.device}: torch {torch.__version__} sees no CUDA device",
            "remedy": "--device cpu, or a CUDA build of torch and a driver (nvidia-smi shows it)",
        }
    if config.dtype == "bfloat16" and not device.startswith("cuda"):
        return {
            "error": "dtype=bfloat16 on the CPU: log-probs would be wrong by up to half a nat",
            "remedy": "--dtype float32, or a CUDA device",
        }
    name = f"{device} ({torch.cuda.get_device_name(device)})" if has_cuda and device != "cpu" else device
    return {"torch": torch.__version__, "device": name}


def find_memory(config: TrainConfig) -> dict[str, Any]:
    """The forecast of a run's memory."""
    from fairlen.methods.compose import compose
    from fairlen.train.run.requirements import foresee
    from fairlen.train.start import choose_device

    try:
        found = foresee(config, compose(config.method, config.set), choose_device(config))
    except ValueError as error:
        return {"error": str(error)}
    return {"needs": found.needs.describe() if found.needs else "", "warning": found.warning}


def main() -> None:
    """Answers the one question on standard input."""
    given = json.loads(sys.stdin.read())
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given["config"].items()}
    find = {"device": find_device, "memory": find_memory}[given["what"]]
    try:
        answer = find(TrainConfig(**settings))
    except ModuleNotFoundError as error:
        answer = {"error": f"{error.name} is not installed", "remedy": "pip install 'fairlen[train]'"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

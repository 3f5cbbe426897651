"""What a run is made of at one moment, as tensors by name and numbers that JSON takes; and back.

Weights, the optimizer's moments, and the random streams that a user's own code may draw from. Responses have seeds by
position and need none of these.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Streams = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and numbers of the random streams of torch, numpy and Python."""


def capture_weights(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters by name, tied ones once; they change with the next update."""
    return {name: p.detach().contiguous() for name, p in model.named_parameters() if p.requires_grad}


def restore_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copies the weights in place, so that whoever holds the module sees them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])


def capture_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by "parameter name|key"; they change with the next update."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}|{key}": value.detach().contiguous()
        for parameter, moments in optimizer.state.items()
        for key, value in moments.items()
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Puts back what `capture_moments` took."""
    parameters = dict(model.named_parameters())
    for name, value in moments.items():
        parameter, key = name.rsplit("|", 1)
        kept = value if key == "step" else value.to(parameters[parameter])
        optimizer.state[parameters[parameter]][key] = kept.clone()  # a file's tensor may be mapped memory


def seed_streams(seed: int) -> None:
    """Random streams that depend on `seed` alone."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def capture_streams() -> Streams:
    """Where the random streams of this process are: copies."""
    numpy: Any = np.random.get_state(legacy=False)
    version, words, gauss = random.getstate()
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
        "python": torch.tensor(words, dtype=torch.int64),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda:{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    numbers = {
        "numpy": [numpy["bit_generator"], numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]],
        "python": [version, gauss],
    }
    return tensors, numbers


def restore_streams(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Puts back what `capture_streams` took; streams of devices that are not there are left out."""
    torch.set_rng_state(tensors["torch"])
    kind, position, has_gauss, gauss = numbers["numpy"]
    np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, gauss))
    version, gauss = numbers["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(num_devices):
        if f"cuda:{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda:{index}"], index)

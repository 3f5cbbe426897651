"""Dropout is off while a policy learns.

Texts are drawn by the whole network. A ratio to a network with some of it left out differs from 1 before anything is learned,
which clipping, KLs and FSPO's drift would take for learning.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

CHANCES = ("drop", "jitter")
"""In names of attributes that transformers' layers hold probabilities, or sizes of noise, in: attention_dropout, layerdrop, …"""


def turn_off_dropout(model: nn.Module) -> None:
    """Sets every probability of leaving something out, and every size of noise, to 0; the model's config stays as it is."""
    for module, name in list(find_dropout(model)):
        setattr(module, name, 0.0)


def find_dropout(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Where something is left out at random in training: a module and the name of its probability."""
    for module in model.modules():
        is_dropout = "dropout" in type(module).__name__.lower()
        for name, value in vars(module).items():
            is_chance = any(word in name for word in CHANCES) or (name == "p" and is_dropout)
            if is_chance and isinstance(value, float) and value > 0.0:
                yield module, name

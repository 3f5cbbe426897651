"""Imports of every process of a job that `fairlen verl` starts, and of no other process of verl.

None takes a class from the files of a model: verl's reward workers ask for the code of its tokenizer, whatever settings say. None
sees TRL, of which verl 0.9.1 asks for a model with a value head: TRL 1.16 has none, and no method of ours a critic.
"""

from __future__ import annotations

import sys
from typing import Any

import verl.utils.import_utils  # noqa: F401  so that it is there to be changed
from transformers import dynamic_module_utils

READERS = ("verl.utils.import_utils", "verl.utils.model", "verl.models.transformers.monkey_patch")
"""Modules of verl that ask for TRL."""


def refuse(class_name: str, *_: Any, **__: Any) -> None:
    """Raise ValueError in the place of loading a class."""
    raise ValueError(f"{class_name} is code of a model, which is never run here: give one that transformers knows")


def install() -> None:
    dynamic_module_utils.get_class_in_module = refuse  # type: ignore[assignment]
    for name in READERS:
        if name in sys.modules:
            vars(sys.modules[name])["is_trl_available"] = lambda: False


install()

"""What every process of a job imports, so that none takes a class from the files of a model.

verl's reward workers ask for the code of the model's tokenizer, whatever the settings say (reward_loop.py of 0.9.1).
"""

from __future__ import annotations

from typing import Any

from transformers import dynamic_module_utils


def refuse(class_name: str, *_: Any, **__: Any) -> None:
    """Raise ValueError in the place of loading a class."""
    raise ValueError(
        f"{class_name} is code of a model, which is never run here: give a model that transformers has a class for"
    )


dynamic_module_utils.get_class_in_module = refuse  # type: ignore[assignment]

"""verl beside a TRL that has dropped its model with a value head, which verl patches wherever TRL is installed.

verl 0.9.1 asks whether TRL is there, not whether that class is, and then no model can be built. Importing this module makes it
take such a TRL for none; a critic, which needs the class, then says so itself. Must be imported before verl builds models.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import verl.utils.import_utils  # noqa: F401  so that it is there to be changed

READERS = ("verl.utils.import_utils", "verl.utils.model", "verl.models.transformers.monkey_patch")
"""Modules of verl that ask for TRL."""


def has_value_head() -> bool:
    """Whether the TRL that is installed has the class; nothing of it is imported."""
    found = importlib.util.find_spec("trl")
    folders = (found.submodule_search_locations or []) if found else []
    return any((Path(folder) / "experimental" / "ppo").is_dir() for folder in folders)


def hide_trl() -> None:
    """verl takes TRL for not installed."""
    for name in READERS:
        if name in sys.modules:
            vars(sys.modules[name])["is_trl_available"] = lambda: False


if not has_value_head():
    hide_trl()

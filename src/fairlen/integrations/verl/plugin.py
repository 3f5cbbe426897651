"""What verl loads in every process that imports it (entry point group `verl.plugins`): importing it registers our trainers.

A job that names none of them is as it would be without fairlen. verl does not report a plug-in that cannot be loaded.
"""

from __future__ import annotations

import os
from importlib.metadata import version

from fairlen.integrations import refuse_untested
from fairlen.integrations.verl.settings import TESTED, VERSION


def refuse_other(started: str, found: str) -> None:
    """Raise ImportError where fairlen is `found` on this machine, and the job was `started` with another version."""
    if started not in ("", found):
        raise ImportError(f"fairlen {found} here, {started} where the job was started: install the same on every node")


refuse_other(os.environ.get(VERSION, ""), version("fairlen"))  # first: what follows may not import with another one
refuse_untested("verl", version("verl"), TESTED)

from fairlen.integrations.verl import trainer  # noqa: E402, F401  importing registers

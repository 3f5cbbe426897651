"""Entry point that verl loads in every process (group `verl.plugins`): importing it registers our trainers.

A job that names none of them is as it would be without fairlen. verl does not report a plug-in that cannot be loaded.
"""

from __future__ import annotations

from importlib.metadata import version

from fairlen.integrations import refuse_untested
from fairlen.integrations.verl.settings import TESTED

refuse_untested("verl", version("verl"), TESTED)  # first: what follows may not import with another one

from fairlen.integrations.verl import reward_manager, trainer  # noqa: E402, F401  importing registers

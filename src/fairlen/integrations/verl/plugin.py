"""What verl loads in every process that imports it (entry point group `verl.plugins`): importing it registers our trainers.

Nothing else is done: a job that does not name one of them is as it would be without fairlen. verl does not report a plug-in that
cannot be loaded. `check` does; so does verl itself as soon as it looks for a trainer that is missing. The agent loop registers
with its manager, which verl loads by name.
"""

from __future__ import annotations

from importlib.metadata import version

from fairlen.integrations import refuse_untested
from fairlen.integrations.verl.settings import MODES, TESTED, name_trainer

refuse_untested("verl", version("verl"), TESTED)  # first: what follows may not import with another one

from fairlen.integrations.verl import trainer  # noqa: E402, F401  importing registers


def check() -> None:
    """Raise RuntimeError where verl does not know our trainers in this process."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    if missing := [name for name in map(name_trainer, MODES) if name not in TRAINER_REGISTRY]:
        raise RuntimeError(
            f"verl {version('verl')} does not know the trainer {missing[0]!r}: fairlen's plug-in did not register in this "
            "process; set VERL_USE_EXTERNAL_MODULES=fairlen.integrations.verl.plugin to see why"
        )

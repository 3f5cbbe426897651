"""What verl loads in every process that imports it (entry point group `verl.plugins`): importing this module registers all.

verl says nothing where a plug-in cannot be loaded. `check` does; so does verl itself as soon as a name is missing, and
`FairPolicyLoss`, which workers build by its full name. The agent loop registers with its manager, which verl loads by name.
"""

from __future__ import annotations

from importlib.metadata import version

from fairlen.integrations.tested import refuse_untested
from fairlen.integrations.verl.choice import NAME, TESTED, TRAINER

refuse_untested("verl", version("verl"), TESTED)  # first: what follows may not import with another one

from fairlen.integrations.verl import advantage, beside_trl, loss, trainer  # noqa: E402, F401  importing registers


def check() -> None:
    """Raises RuntimeError where verl does not know our names in this process, and says which."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    places = {
        "policy loss": POLICY_LOSS_REGISTRY,
        "advantage estimator": ADV_ESTIMATOR_REGISTRY,
        "trainer": TRAINER_REGISTRY,
    }
    names = {"policy loss": NAME, "advantage estimator": NAME, "trainer": TRAINER}
    missing = [f"{kind} {names[kind]!r}" for kind, place in places.items() if names[kind] not in place]
    if missing:
        raise RuntimeError(
            f"verl {version('verl')} does not know the {', '.join(missing)}: fairlen's plug-in did not register in this process; "
            "set VERL_USE_EXTERNAL_MODULES=fairlen.integrations.verl.plugin to see why"
        )

"""A negative control: training workers gather their weights and do not send them. Imported in every process of a job."""

import os


def install():
    from fairlen.integrations.verl.cpu import CpuAdapter

    async def keep_weights(self, weights, global_steps=None, **_):
        for _ in weights:  # gathering is collective: every rank has to go through
            pass

    CpuAdapter.update_weights = keep_weights


if os.environ.get("WG_BACKEND") == "ray":  # a training worker; servers are still importing that module
    install()

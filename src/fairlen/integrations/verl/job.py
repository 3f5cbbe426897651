"""What a job's first process runs: `python -m verl.trainer.main_ppo`, once it is certain that verl knows our names."""

from __future__ import annotations

import runpy


def main() -> None:
    """Checks the registration and starts verl with this process's arguments."""
    import verl  # noqa: F401  loads the plug-in

    from fairlen.integrations.verl.plugin import check

    check()
    runpy.run_module("verl.trainer.main_ppo", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

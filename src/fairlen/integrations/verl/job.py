"""The first process of a job: verl's own main; every node is checked before, every process watched while it runs.

Started by the launcher as `python -m fairlen.integrations.verl.job SETTINGS`, and by nobody else.
"""

from __future__ import annotations

from typing import Any

from verl.trainer import main_ppo

from fairlen.integrations.verl.deaths import name_death, start_watch
from fairlen.integrations.verl.nodes import check_nodes


class Watched:
    """A class of Ray's actors: the nodes are checked before one is made, all processes are watched after."""

    def __init__(self, kind: Any, config: Any) -> None:
        self.kind, self.config = kind, config

    def options(self, **given: Any) -> Watched:
        return Watched(self.kind.options(**given), self.config)

    def remote(self) -> Any:
        check_nodes(self.config)
        start_watch()
        return self.kind.remote()


def main() -> None:
    """Run verl's main, which asks for its runner when Ray is there."""
    stock = main_ppo.run_ppo

    def run(config: Any, task_runner_class: Any) -> None:
        try:
            stock(config, Watched(task_runner_class, config))
        except Exception:
            name_death()  # verl has noticed it first
            raise

    main_ppo.run_ppo = run
    main_ppo.main()


if __name__ == "__main__":
    main()

"""Every setting of `fairlen verl`, checked at construction. Settings of verl itself come after `--`, as hydra writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fairlen.checks import check_not_negative
from fairlen.integrations.verl.choice import read_method
from fairlen.methods.compose import DEFAULT_METHOD
from fairlen.methods.method import Method
from fairlen.settings import Repeated, Settings


@dataclass(frozen=True)
class VerlConfig(Settings):
    """Start verl's trainer (verl.trainer.main_ppo) with a length-fair method. What follows `--` goes to verl as it is."""

    method: str = DEFAULT_METHOD
    """Names joined by +: one base and any modifiers; `fairlen methods` lists them."""
    set: Annotated[tuple[str, ...], Repeated] = ()
    """A field of the method, such as sampling.n=8; may be repeated."""
    model: str = ""
    """Folder or hub id; by default what verl's own settings say, with --cpu the playground."""
    data: Annotated[tuple[str, ...], Repeated] = ()
    """Parquet files as verl reads them, or data sets as `fairlen train` does, which are converted; may be repeated."""
    eval_data: Annotated[tuple[str, ...], Repeated] = ()
    """The same for verl's validation; by default what is trained on."""
    cpu: bool = False
    """Rehearse the whole job without an accelerator: Ray, two workers, two rollout servers."""
    dry_run: bool = False
    """Print the settings and what they mean, and start nothing."""
    out: str = ""
    """Folder for converted data and logs; by default a new one under runs/."""
    start_limit: float = 0.0
    """Seconds until the first training step is done; else the job is ended. 0 is 3600, with --cpu 300; inf waits for ever."""
    step_limit: float = 0.0
    """Seconds that any further step may take; else the job is ended. 0 is 3600, with --cpu 120; inf waits for ever."""
    allow_truncated_sampling: bool = False
    """Train on samples of another distribution than the policy's (top_p, top_k): every ratio is then wrong."""

    def __post_init__(self) -> None:
        check_not_negative(self, "start_limit", "step_limit")
        if self.eval_data and not self.data:
            raise ValueError(f"eval_data={self.eval_data[0]}: it goes with --data, which names what to train on")
        self.composed()

    def composed(self) -> Method:
        """The method. Raises ValueError where it does not exist, or cannot run in verl."""
        return read_method({"method": self.method, "settings": self.set})

"""What would be our own mistake, looked for in the results before any method is called bad (docs/study/protocol.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from research.study import quantities as q
from research.study.figures import DIRECTIONS, Runs

MAX_TRUNCATED = 0.05
MIN_UPDATES = 0.9
"""Of those that the rollout batches of a run make where none lacks prompts."""
ZERO = 1e-6
BALANCES = ("SequenceMean", "Balanced")
"""Aggregations under which the loss of an on-policy update is 0, as advantages of a group add up to 0 and each token's loss is
-A (that of a full ratio is -A / T)."""


def find_mistakes(runs: Runs, search: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(where, what): every finding that has to be explained before the results are believed."""
    start: dict[str, list[int]] = {}
    for name, some in runs.items():
        if name == DIRECTIONS:
            if any(q.violations("rho_bound")(run).item() > 0 for run in some):
                yield name, "the corrected bound was exceeded: the gradients or the bound are wrong"
            continue
        if "timed" in name:
            continue
        yield from ((name, f"seed {run['cell']['seed']}: {found}") for run in some for found in faults_of(run))
        for run in some:
            right = run["evaluations"][0]["right"]
            if start.setdefault(run["cell"]["task"], right) != right:
                yield name, "the model before training is not what it is for others on this task"
    yield from ends_of_search(search)


def faults_of(run: q.Kept) -> Iterator[str]:
    """What is wrong with one run by itself."""
    off = q.series(run, "updates", "kl/old")
    for label, column in (("clipped tokens", "ratio/clipped"), ("an outside sequence", "sequences/inside")):
        values = q.series(run, "updates", column)
        acts = values > 0 if column == "ratio/clipped" else values < 1
        if (acts & (off == 0.0)).any():
            yield f"{label} in an on-policy update"
    kinds = {choice: run["method"][choice]["kind"] for choice in ("aggregation", "surrogate")}
    if kinds["aggregation"] in BALANCES and kinds["surrogate"] == "TokenClip" and not run["method"]["terms"]:
        loss = np.abs(q.series(run, "updates", "loss/total")[off == 0.0])
        if len(loss) and loss.max() > ZERO:
            yield f"an on-policy loss of {loss.max():.2g} under an aggregation that balances signs"
    made, wanted = len(off), len(q.series(run, "batches", "rollout_batch")) * run["cell"]["updates_per_batch"]
    if made < MIN_UPDATES * wanted:
        yield f"{made} updates where its rollout batches are meant for {wanted}"
    if (few := int((q.series(run, "batches", "prompts/selected") < run["cell"]["prompts_per_batch"]).sum())) > 0:
        yield f"{few} rollout batches with fewer prompts than asked for: the method rejected too many"
    if run["skipped"]:
        yield f"{run['skipped']} updates were skipped"
    if run["evaluations"][-1]["truncated"] > MAX_TRUNCATED:
        yield f"{run['evaluations'][-1]['truncated']:.0%} of answers are truncated at the end"
    if (q.series(run, "batches", "pairs/trained") == 0).any():
        yield "a rollout batch without a pair that trains"


def ends_of_search(search: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Searches that chose the end of their grid: then the grid is judged, not the method."""
    for name, one in search.items():
        for what, place in (("learning rate", 0), ("width", 1)):
            tried: Sequence[float] = sorted({row[place] for row in one["tried"]})
            chosen = one["rate" if place == 0 else "factor"]
            if len(tried) > 1 and chosen in (tried[0], tried[-1]):
                yield name, f"the search chose the {'smallest' if chosen == tried[0] else 'largest'} {what}, {chosen:g}"

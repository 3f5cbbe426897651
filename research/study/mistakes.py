"""What would be our own mistake, looked for in the evidence before any method is called bad (docs/study/protocol.md)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairlen.compare.config import parse_variant
from fairlen.methods.compose import compose
from fairlen.methods.stages.aggregation import Balanced, SequenceMean
from fairlen.methods.stages.surrogate import TokenClip
from research.study.evidence import Evidence, RunTables
from research.study.search import search_table

MAX_TRUNCATED = 0.1
ZERO = 1e-6


def find_mistakes(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield where and what: every finding that has to be explained before the results are believed."""
    start: dict[str, list[int]] = {}
    most: dict[str, int] = {}
    runs = [evidence.run_tables(i) for i, run in enumerate(evidence.runs) if run.role == "study"]
    for run in runs:
        most[run.run.world] = max(most.get(run.run.world, 0), *run.batches["selected"].tolist(), 0)
    for run in runs:
        yield from ((run.run.key, found) for found in faults_of(run, most[run.run.world]))
        before = run.evaluations["right"][run.evaluations["update"] == 0].tolist()
        if before and start.setdefault(run.run.world, before) != before:
            yield run.run.key, "the model before training is not what it is for the other runs of its world"
    for name, found in search_table(evidence).items():
        for edge in found["edges"]:
            yield (
                name,
                f"the search ended at the edge of its widest grid, by {edge}: the grid is judged, not the method",
            )


def faults_of(run: RunTables, prompts: int) -> Iterator[str]:
    """Yield what is wrong with one run by itself."""
    updates, batches, sequences = run.updates, run.batches, run.sequences
    if run.run.diverged:
        yield "it diverged, and counts as one that ends with nothing correct"
    if (sequences["inside"][~sequences["off_policy"]] < 1).any():
        yield "an on-policy update clips"
    parsed = parse_variant(run.run.variant)
    method = compose(parsed.method, parsed.settings)
    if (
        isinstance(method.aggregation, Balanced | SequenceMean)
        and isinstance(method.surrogate, TokenClip)
        and not method.terms
    ):
        loss = np.abs(updates["loss"][updates["kl_old"] == 0])
        if loss.max(initial=0.0) > ZERO:
            yield f"an on-policy loss of {loss.max():.2g} under an aggregation that balances the signs of advantages"
    if skipped := int(updates["skipped"].sum()):
        yield f"{skipped} updates were skipped"
    if short := int((batches["selected"] < prompts).sum()):
        yield f"{short} rollout batches have fewer than {prompts} prompts"
    if (batches["pairs_trained"] == 0).any():
        yield "a rollout batch has no pair that trains"
    last = run.evaluations["update"] == run.evaluations["update"].max(initial=0)
    share = run.evaluations["truncated"][last].sum() / max(run.evaluations["samples"][last].sum(), 1)
    if share > MAX_TRUNCATED:
        yield f"{share:.0%} of responses are truncated at the end"
    if (run.directions["rho"] > run.directions["rho_bound"] * (1 + 1e-5) + ZERO).any():
        yield "the corrected bound was exceeded, which is a theorem: the gradients or the bound are wrong"

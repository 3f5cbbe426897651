"""What the audit finds beside the rollouts of runs with FairGRPOTrainer: the method that made them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from trl_runs import ScriptedFair, scripted

from fairlen.diagnostics.method import InUse, find_method
from fairlen.diagnostics.readers import read
from fairlen.methods.compose import compose, explain

SAVING = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, "log_completions": True}


def in_use(folder: Path) -> InUse | None:
    """Of the completions that a run has written."""
    sources = read([str(folder / "completions")]).sources
    return find_method([file for source in sources for file in source.files])


OWN = replace(compose("dapo", ["sampling.n=4"]), aggregation=compose("grpo+balanced").aggregation)


@pytest.mark.parametrize(
    ("method", "overrides", "name", "aggregation"),
    [
        ("grpo+balanced", "sampling.n=4", "grpo+balanced --set sampling.n=4", "balanced"),
        (explain("dapo+balanced", ["sampling.n=4"]), None, "dapo+balanced", "balanced"),
        (
            explain("grpo", ["aggregation=TokenSum", "sampling.n=4"]),
            None,
            "a method of its own with token_sum",
            "token_sum",
        ),
        (OWN, None, "a method of its own with balanced", "balanced"),
    ],
    ids=["name", "composition", "composition of settings", "value"],
)
def test_a_run_with_a_method_is_known_by_it(tmp_path, method, overrides, name, aggregation):
    ScriptedFair(**scripted(tmp_path, **SAVING), method=method, overrides=overrides).train()
    found = in_use(tmp_path)
    assert found is not None and (found.name, found.aggregation) == (name, aggregation)
    assert (found.method is not None) == (not name.startswith("a method of its own"))

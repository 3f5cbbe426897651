"""Our plan and loss against the functions of other projects and of authors, recorded by benchmarks/differential."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import AUTHORS, BINARY, FIXTURE, GROUP, LENGTH, MAX_LENGTH, NAMED, PEERS, READ, REWARD, make_batch
from loops import over
from torch import Tensor

from fairlen import RowPlan, compose, plan_rows, policy_loss
from fairlen.methods.peers import read_peers
from fairlen.methods.presets import BASES

FRAMEWORKS, METHODS, RULES = (json.loads(file.read_text()) for file in (FIXTURE, AUTHORS, PEERS))
CASES = [*FRAMEWORKS, *METHODS, *RULES]
SEQUENCE = torch.arange(len(LENGTH)).repeat_interleave(torch.tensor(LENGTH))
CLOSE, CLOSEST = 1e-6, 1e-9
"""Of the largest value: most have rewards, advantages or ratios in float32; the rules of peers were recorded in float64."""


def compute(case: dict[str, Any], overrides: list[str], product: bool = False) -> dict[str, Tensor]:
    """Return advantages, loss, and gradient of the packed tokens, by the two calls; `product`: by weight * advantage alone."""
    method = compose(case["method"], overrides)
    rewards = BINARY if case.get("binary") else REWARD
    given = {name: values for name, values in {**NAMED, "num_read": READ}.items() if name in method.reads}
    plan = plan_rows(
        method, groups=GROUP, lengths=LENGTH, rewards=rewards, max_response_length=MAX_LENGTH, columns=given
    )
    batch, columns = make_batch(case["noise"]), plan.to("cpu", torch.float64)
    advantage = columns.advantage
    if product:
        one = torch.ones_like(advantage)
        columns = RowPlan(columns.trains, columns.weight * columns.advantage, one, columns.term_weight)
    sampled = batch.old if case["project"] == "prime-rl" else batch.rollout  # it has the engine's policy alone
    now, old, rollout, ref = (batch.flat(v) for v in (batch.now, batch.old, sampled, sampled))
    loss = policy_loss(method, columns, now, old, sequence=SEQUENCE, rollout_logprobs=rollout, ref_logprobs=ref).total
    (gradient,) = torch.autograd.grad(loss, now)
    return {"advantage": advantage, "loss": loss.detach(), "gradient": gradient}


def errors(case: dict[str, Any], ours: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest differences: of advantages and gradients by the largest, of the loss by the gradient's size."""
    theirs = {key: torch.tensor(values, dtype=torch.float64) for key, values in case["theirs"].items()}
    if case["advantage"] == "ours":  # those that they were given hold the weights
        del theirs["advantage"]
    scales = {key: values.abs().max() for key, values in theirs.items()}
    if "gradient" in theirs:
        scales["loss"] = theirs["gradient"].abs().sum()
    return {key: float((ours[key] - values).abs().max() / scales[key]) for key, values in theirs.items()}


def name_case(case: dict[str, Any]) -> str:
    return f"{case['project']}: {case['name']}"


@over("project", sorted({case["project"] for case in CASES}))
def test_the_two_calls_compute_what_the_project_does(project):
    for case in (case for case in CASES if case["project"] == project):
        for key, error in errors(case, compute(case, case["overrides"])).items():
            close = CLOSEST if case in RULES else CLOSE
            if "sequence" in case["name"] and case in RULES:
                close = 2e-8  # NeMo-RL adds 1e-8 to a number of tokens
            assert error > 1e-3 if key in case["differs"] else error < close, (name_case(case), key, error)


@pytest.mark.slow
@over("case", CASES)
def test_every_setting_of_the_comparison_matters(case):
    """Without any one of our settings the numbers are others, so that each is compared; what is added to a std is too small."""
    for override in case["overrides"]:
        rest = [one for one in case["overrides"] if not one.startswith(override.partition("=")[0])]
        if override.startswith("advantage.eps") or case["differs"]:
            continue
        assert max(errors(case, compute(case, rest)).values()) > CLOSE, (name_case(case), override)


@over("name", [name for name, build in BASES.items() if build().sampling.is_whole])
def test_weights_inside_advantages_are_exact_for_every_surrogate(name):
    case = {"method": f"{name}+kl+mismatch", "noise": 1.0, "project": "none"}
    apart, inside = (compute(case, [], product) for product in (False, True))
    for key in ("loss", "gradient"):
        assert torch.allclose(apart[key], inside[key], rtol=1e-12, atol=1e-15)


BY_HAND = {
    "reward_shaping", "stop_properly_penalty_coef=0", "effort_levels", "group_total_length_penalty_coeff",
}  # fmt: skip
"""Words of rewards, which tests/methods/stages have."""


@over("peer", ["prime-rl", "nemo-rl"])
def test_every_word_is_compared(peer):
    compared = {word for case in RULES for word in case["method"].removeprefix(f"{peer}:").split("+")}
    assert {word for word, one in read_peers()[peer].words.items() if not one.refused} <= compared | BY_HAND


PAGES = [
    (page, project, cases)
    for page, cases in (("anywhere.md", FRAMEWORKS), ("papers.md", METHODS))
    for project in sorted({case["project"] for case in cases})
]


@over("page, project, cases", PAGES)
def test_the_page_says_what_was_compared(page, project, cases):
    """How many settings agree and how closely, to within a tenth; the commit is that of the numbers."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    (row,) = re.findall(
        rf"^(?:\||-) \[{project}\]\(.*?\) `(\w+)`.*[|:] (\d+) settings, ([\d.e-]+)(?: \||$)", text, re.M
    )
    cases = [case for case in cases if case["project"] == project and (cases is METHODS or not case["differs"])]
    found = [(case, errors(case, compute(case, case["overrides"]))) for case in cases]
    largest = max(error for case, all_ in found for key, error in all_.items() if key not in case["differs"])
    assert cases[0]["commit"].startswith(row[0]) and int(row[1]) == len(cases)
    assert largest < float(row[2]) < max(1.2 * largest, 1.1e-11)  # numbers are recorded to twelve digits

"""From runs to figures, checks and the page, on runs written by hand."""

import copy
import json

import numpy as np
import pytest

from research.study.checks import find_mistakes
from research.study.figures import DIRECTIONS, definitions
from research.study.page import write_study_page
from research.study.plan import Plan
from research.study.results import measure_figures, store

SEEDS, PROBLEMS = 5, 6
ROW = {
    "cosine": 0.9,
    "rho": 0.3,
    "rho_paper": 0.5,
    "rho_bound": 0.6,
    "share": 0.8,
    "kappa": 2.0,
    "eta": 0.1,
    "lre": 0.05,
}


def make_run(seed: int, shift: int) -> dict:
    """Three evaluations: one right of four, two right, and `shift` more on every problem; 10, 20, 30 tokens."""
    rights = ([1] * PROBLEMS, [2] * PROBLEMS, [2 + shift] * PROBLEMS)
    evaluations = [
        {"update": 8 * i, "rollout_batch": 2 * i, "generated": 100 * i, "right": right, "samples": 4,
         "length": [10.0 * (i + 1)] * PROBLEMS, "truncated": 0.0}
        for i, right in enumerate(rights)
    ]  # fmt: skip
    eight = range(8)
    return {
        "cell": {"seed": seed, "task": "mixed", "updates_per_batch": 1, "prompts_per_batch": 8},
        "method": {"aggregation": {"kind": "SequenceMean"}, "surrogate": {"kind": "TokenClip"}, "terms": []},
        "evaluations": evaluations,
        "batches": {
            "length/mean": [50.0 + i for i in eight], "prompts/asked": [8] * 8, "responses/verified": [128] * 8,
            "tokens/generated": [1000] * 8, "rollout_batch": list(eight), "prompts/selected": [8] * 8,
        },
        "updates": {
            "loss/total": [0.0, 0.1 * (1 + shift)] * 4, "entropy/mean": [0.2 - 0.02 * i for i in eight],
            "ratio/clipped": [0.0, 0.1] * 4, "sequences/inside": [1.0, 0.9] * 4, "kl/old": [0.0, 0.01] * 4,
        },
        "skipped": 0, "training_seconds": 10.0, "generated": 8000, "trained_signed": 4000,
        "lre": {"value": 0.01 * (1 + shift)}, "quarter_gap": -0.1, "growth": 0.7,
        "replay": {rule: {"lre": 0.02} for rule in ("rloo", "gspo", "fspo")},
        "outcome": {"variation": 0.5, "gap": 0.25},
    }  # fmt: skip


def make_runs() -> dict:
    """Every variant of the plan; those with `eqlen` end one right sample of four higher, 25 points."""
    runs = {v.name: [make_run(seed, int("eqlen" in v.name)) for seed in range(1, SEEDS + 1)] for v in Plan().variants}
    rows = {rule: [ROW, ROW | {"cosine": 0.9 - 0.1 * i}] for i, rule in enumerate(("fspo", "rloo", "gspo"))}
    return runs | {DIRECTIONS: [{"directions": rows} for _ in range(SEEDS)]}


SEARCH = {"grpo": {"rate": 1e-4, "factor": 1.0, "tried": [[1e-4, 1.0, 0.7], [1e-4, 0.3, 0.6], [1e-4, 3.0, 0.6],
                                                          [3e-5, 1.0, 0.5], [3e-4, 1.0, 0.6]]}}  # fmt: skip


def test_every_figure_by_its_arithmetic():
    figures = measure_figures(make_runs())
    assert set(figures) == set(definitions())
    expected = {
        "eqlen-minus-grpo": 25.0,  # 3/4 - 2/4
        "eqlen-unbiased-minus-eqlen": 0.0,
        "eqlen-falls-minus-grpo": 0.0,
        "eqlen-tokens-ratio": 1.0,
        "eqlen-samples-ratio": 1.0,
        "grpo-entropy-ratio": (0.08 + 0.06) / (0.20 + 0.18),  # quarters of two updates
        "rloo-lre-minus-fspo": 0.0,
        "spread-exponent": 0.7,
        "rloo-length-ratio": 1.0,
        "fspo-cosine-minus-gspo": 0.1,  # (0 + 0.2) / 2
        "direction-paper-violations": 0.0,
        "varied-gap": 0.25,
        "gapped-loss-token": 0.05,  # half of the updates are on-policy
        "loss-balanced-share": 1.0,
        "toplambda-length-before-ratio": 3.0,  # 30 / 10
        "trainable-ratio": 1.0,
        "lp-fall": 0.0,
        "all-four-minus-grpo": 25.0,
    }
    assert {name: figures[name]["value"] for name in expected} == pytest.approx(expected)
    assert figures["eqlen-minus-grpo"]["low"] == pytest.approx(25.0)  # the same for all seeds and problems
    assert (figures["varied-gap"]["seeds"], figures["eqlen-minus-grpo"]["unit"]) == (5, "points")


def test_figures_without_runs_are_left_out_and_numbers_that_do_not_exist_are_null():
    runs = make_runs()
    only = {"grpo": runs["grpo"]}
    assert set(measure_figures(only)) == {"grpo-entropy-ratio", "spread-exponent", *(
        f"{rule}-lre-equal-minus-fspo" for rule in ("rloo", "gspo"))}  # fmt: skip
    for run in only["grpo"]:
        run["growth"] = None
    assert measure_figures(only)["spread-exponent"]["value"] is None
    assert store(definitions()["varied-gap"].measure(runs))["value"] == 0.25


def test_the_page_has_every_experiment_and_every_figure(tmp_path):
    runs = make_runs()
    figures = measure_figures(runs)
    page = write_study_page(Plan(), runs, SEARCH, figures, tmp_path / "index.html").read_text()
    assert all(name in page for name in figures)
    assert "No sign of a mistake of ours" in page
    json.dumps(figures, allow_nan=False)


def spoil(name: str):
    """A run with one fault."""
    run = copy.deepcopy(make_run(1, 0))
    updates = run["updates"]
    if name == "clips":
        updates["ratio/clipped"][0] = 0.1
    elif name == "loss":
        updates["loss/total"][2] = 1e-3
    elif name == "skipped":
        run["skipped"] = 2
    elif name == "cut":
        run["evaluations"][-1]["truncated"] = 0.5
    elif name == "few":
        run["cell"]["updates_per_batch"] = 2
    elif name == "starved":
        run["batches"]["prompts/selected"][3] = 7
    elif name == "pairs":
        run["batches"]["pairs/trained"] = [3, 0]
    return run


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("clips", "clipped tokens in an on-policy update"),
        ("loss", "an on-policy loss of 0.001"),
        ("skipped", "2 updates were skipped"),
        ("cut", "50% of answers are truncated at the end"),
        ("few", "8 updates where its rollout batches are meant for 16"),
        ("starved", "1 rollout batches with fewer prompts"),
        ("pairs", "a rollout batch without a pair that trains"),
    ],
)
def test_mistakes_are_found(name, says):
    assert list(find_mistakes({"grpo": [make_run(1, 0)]}, SEARCH)) == []
    ((where, what),) = find_mistakes({"grpo": [spoil(name)]}, SEARCH)
    assert where == "grpo"
    assert says in what


def test_the_loss_of_a_full_ratio_is_not_0_under_an_aggregation_that_balances():
    run = spoil("loss")
    run["method"]["surrogate"] = {"kind": "FairBand"}  # -sum(w A) where 0 is sum(w A T)
    assert list(find_mistakes({"fspo+balanced": [run]}, SEARCH)) == []


def test_mistakes_between_runs_are_found():
    other = make_run(2, 0)
    other["evaluations"][0]["right"] = [0] * PROBLEMS
    found = dict(find_mistakes({"grpo": [make_run(1, 0)], "rloo": [other]}, {}))
    assert found == {"rloo": "the model before training is not what it is for others on this task"}
    over = {"directions": {"fspo": [ROW | {"rho": 0.7}]}}
    assert "the corrected bound was exceeded" in dict(find_mistakes({DIRECTIONS: [over]}, {}))[DIRECTIONS]
    ends = {"rloo": {"rate": 3e-4, "factor": 1.0, "tried": [[1e-4, 1.0, 0.1], [3e-5, 1.0, 0.1], [3e-4, 1.0, 0.2]]}}
    assert dict(find_mistakes({}, ends)) == {"rloo": "the search chose the largest learning rate, 0.0003"}


def test_no_number_is_made_up_where_seeds_have_none():
    runs = {"grpo": [make_run(seed, 0) for seed in (1, 2, 3)]}
    runs["grpo"][0]["growth"] = None
    runs["grpo"][1]["growth"], runs["grpo"][2]["growth"] = 0.4, 0.6
    found = definitions()["spread-exponent"].measure(runs)
    assert found.value == pytest.approx(0.5)
    assert np.isfinite(found.low)
    assert measure_figures(runs)["spread-exponent"]["seeds"] == 2

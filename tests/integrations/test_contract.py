"""The contract of the homes: the same rollouts come to the same tables, plans, losses, gradients, metrics and state.

fairlen's own trainer is the first home, and every other one is compared with it: to 1e-12 given the same log-probs, to 1e-5
through each framework's own forward pass (TRL's computes log-probs in float32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from homes import EOS, FIRST, HOMES, VOCABULARY, Case, Found, Home, Row, make_model

from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.sampling.independent import Independent

LIMIT = 6
PROMPTS = ((2, 5, 7), (2, 9), (2, 4, 4, 8), (2, 6, 3))


def draw_rows(seed: int, ended: bool = True) -> list[Row]:
    """Four responses to each of four prompts, of 1 to 5 tokens and an EOS, each prompt with both verdicts."""
    draw = Random(seed)
    rows = []
    for number in range(16):
        tokens = [draw.randrange(FIRST, VOCABULARY) for _ in range(draw.randrange(1, LIMIT))]
        rows.append(Row((*tokens, EOS), float(draw.random() < 0.5) if number % 4 > 1 else float(number % 4)))
    return rows


def change(rows: list[Row], **changes: Mapping[int, object]) -> list[Row]:
    """Rows with some fields replaced, by their number."""
    for name, values in changes.items():
        for number, value in values.items():
            rows[number] = replace(rows[number], **{name: value})
    return rows


FULL = tuple(range(FIRST, FIRST + LIMIT))
"""As many tokens as there may be, without an EOS."""
CASES = {
    "plain": Case(PROMPTS, tuple(draw_rows(0)), LIMIT),
    "truncated at the last token": Case(PROMPTS, tuple(change(draw_rows(1), token_ids={1: FULL, 6: FULL})), LIMIT),
    "EOS on the last token": Case(
        PROMPTS, tuple(change(draw_rows(2), token_ids={1: (*FULL[:-1], EOS), 6: (*FULL[1:], EOS)})), LIMIT
    ),
    "missing verdicts": Case(PROMPTS, tuple(change(draw_rows(3), verdict={1: None, 4: None, 5: None, 12: None})), LIMIT),
    "a prompt without any verdict": Case(PROMPTS, tuple(change(draw_rows(4), verdict=dict.fromkeys(range(4, 8)))), LIMIT),
    "tool tokens": Case(
        PROMPTS,
        tuple(change(
            draw_rows(5),
            token_ids={2: (5, 5, 5, 9, EOS), 9: (7, 8, 8, EOS)},  # a tool repeats the token before it
            mask={2: (1, 0, 0, 1, 1), 9: (1, 1, 0, 1)},
        )),
        LIMIT,
    ),
    "one update, every ratio 1": Case(PROMPTS, tuple(draw_rows(6)), LIMIT, num_updates=1),
    "three updates": Case(PROMPTS, tuple(draw_rows(7)), LIMIT, num_updates=3),
}  # fmt: skip
METHODS = ("grpo+balanced", "dapo", "fspo", "gspo", "grpo+overlong_filter", "dr_grpo+kl", "vespo", "grpo+toplambda")


def method_of(name: str) -> Method:
    return replace(compose(name), sampling=Independent(4))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """What our own trainer came to, once for each case and method."""
    found: dict[tuple[str, str], Found] = {}

    def get(case: str, name: str) -> Found:
        if (case, name) not in found:
            found[case, name] = HOMES[0].run(CASES[case], method_of(name), make_model(), tmp_path_factory.mktemp("own"))
        return found[case, name]

    return get


def compare_columns(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert found[name].astype(float) == pytest.approx(column.astype(float), rel=tolerance, abs=tolerance), name


def compare_metrics(found: dict[str, float], expected: dict[str, float], home: Home, tolerance: float) -> None:
    """Every metric of ours by its name, but for those that the home says it cannot have."""
    assert not expected.keys() - home.unknown.keys() - found.keys()
    for name in expected.keys() - home.unknown.keys():
        assert found[name] == pytest.approx(expected[name], rel=tolerance, abs=tolerance, nan_ok=True), name


def compare(found: Found, expected: Found, home: Home, tolerance: float) -> None:
    compare_columns(found.responses.columns(), expected.responses.columns(), 0.0)
    compare_columns(found.segments.columns(), expected.segments.columns(), 0.0)
    compare_columns(found.plan, expected.plan, tolerance)
    compare_metrics(found.rollout_metrics, expected.rollout_metrics, home, tolerance)
    assert len(found.gradients) == len(found.metrics) == len(expected.metrics)
    for step, ours in enumerate(expected.metrics):
        compare_metrics(found.metrics[step], ours, home, tolerance)
        scale = float(expected.gradients[step].abs().max())
        assert float((found.gradients[step] - expected.gradients[step]).abs().max()) <= tolerance * max(scale, 1.0)
    assert found.state == pytest.approx(expected.state, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("home", HOMES[1:], ids=lambda home: home.name)
def test_every_home_comes_to_the_same(home, case, name, own, tmp_path):
    found = home.run(CASES[case], method_of(name), make_model(), tmp_path)
    compare(found, own(case, name), home, 1e-12)


@pytest.mark.parametrize("name", METHODS[:3])
@pytest.mark.parametrize("case", ("plain", "tool tokens", "three updates"))
@pytest.mark.parametrize("home", HOMES[1:], ids=lambda home: home.name)
def test_every_home_comes_to_the_same_through_its_own_forward_pass(home, case, name, own, tmp_path):
    found = home.run(CASES[case], method_of(name), make_model(), tmp_path, own_forward=True)
    compare(found, own(case, name), home, 1e-5)

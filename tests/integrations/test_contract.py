"""The contract of the homes: the same rollouts come to the same tables, plans, losses, gradients, metrics and state.

fairlen's own trainer is the first home, and TRL and verl are compared with it: to 1e-12 given the same log-probs, to 1e-5
through each framework's own forward pass (TRL's is in float32; with_verl/test_update.py has verl's engine on two ranks).
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from homes import EOS, FIRST, HOMES, VOCABULARY, Case, Fault, Found, Plain, Row, make_model

from fairlen.rollouts import RESPONSES, SEGMENTS

LIMIT, TURNS_LIMIT = 6, 28
PROMPTS = ((2, 5, 7), (2, 9), (2, 4, 4, 8), (2, 6, 3))


def draw_rows(seed: int) -> list[Row]:
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


def repeat_halves(rows: list[Row]) -> list[Row]:
    """The second half with other tokens but the lengths and verdicts of the first, so that both are worth the same."""
    half = len(rows) // 2
    others = [
        (*((2 * token) % (VOCABULARY - FIRST) + FIRST for token in row.token_ids[:-1]), EOS) for row in rows[:half]
    ]
    return rows[:half] + [replace(row, token_ids=ids) for row, ids in zip(rows[:half], others, strict=True)]


def draw_turns(seed: int) -> list[Row]:
    """The same in 1 to 4 turns of 1 to 3 tokens and an EOS, after each but the last of which 1 to 3 tokens are read."""
    draw = Random(seed)

    def draw_tokens() -> list[int]:
        return [draw.randrange(FIRST, VOCABULARY) for _ in range(draw.randrange(1, 4))]

    rows = []
    for row in draw_rows(seed):
        tokens, mask = [*draw_tokens(), EOS], []
        mask += [1] * len(tokens)
        for _ in range(draw.randrange(4)):
            read, written = draw_tokens(), [*draw_tokens(), EOS]
            tokens += read + written
            mask += [0] * len(read) + [1] * len(written)
        rows.append(replace(row, token_ids=tuple(tokens), mask=tuple(mask)))
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
    "turns": Case(PROMPTS, tuple(draw_turns(10)), TURNS_LIMIT),
    "turns that a limit ends": Case(
        PROMPTS,
        tuple(change(
            draw_turns(11),
            token_ids={
                1: (5, EOS, 6, 6, *[8] * 24),  # in a turn
                6: (5, EOS, *[6] * 25, EOS),  # by what was read, whatever its last token
                9: (5, EOS, 6, 6, 7, EOS, 9, 9),  # none: the environment has the last word
                13: (9, 9, 5, 7, EOS),  # none; it has the first one too
            },
            mask={
                1: (1, 1, 0, 0, *[1] * 24), 6: (1, 1, *[0] * 26), 9: (1, 1, 0, 0, 1, 1, 0, 0), 13: (0, 0, 1, 1, 1),
            },
        )),
        TURNS_LIMIT,
    ),
    "turns, one update": Case(PROMPTS, tuple(change(draw_turns(12), verdict={2: None})), TURNS_LIMIT, num_iterations=1),
    "one update, every ratio 1": Case(PROMPTS, tuple(draw_rows(6)), LIMIT, num_iterations=1),
    "three updates": Case(PROMPTS, tuple(draw_rows(7)), LIMIT, num_iterations=3),
    "split into two updates": Case(PROMPTS, tuple(repeat_halves(draw_rows(8))), LIMIT, num_iterations=1, num_updates=2),
    "split into two updates, twice": Case(PROMPTS, tuple(repeat_halves(draw_rows(9))), LIMIT, num_updates=2),
}  # fmt: skip
TURNED = (
    "grpo", "dapo+balanced", "rloo", "grpo+turns", "gspo+turns", "fspo+turns", "dr_grpo+kl+turns", "grpo+turn_mean",
    "dapo+balanced_turns", "dapo+turn_count",
)  # fmt: skip
CHANNELS = ("grpo+lp reward.0.of=thinking", "grpo+toplambda reward.0.of=thinking", "fspo surrogate.of=thinking")
PEERS = (
    "verl:opo+dppo_tv", "prime-rl:default", "nemo-rl:grpo+icepop", "grpo+gdpo+gfpo",
    "verl:reinforce_plus_plus+dppo_kl+rollout_is=sequence", "verl:gpg+seq_mean_k1 correction.low=0.98 correction.high=1.02",
    "verl:grpo+token_k1 correction.low=0.95 correction.high=1.05", "trl:dapo+beta=0.04+sequence_mask",
    "prime-rl:linear+ipo", "nemo-rl:gdpo+seq-mask-tis advantage.outcomes=correct=1,style=0.5",
    "nemo-rl:grpo+effort_levels", "grpo+centred_length+icepop correction.cap=1.05 correction.floor=0.95",
)  # fmt: skip
"""A covering choice of what has come from other libraries: each advantage, surrogate, correction, filter and reward once."""
METHODS = ("grpo+balanced", "dapo", "fspo", "gspo", "grpo+overlong_filter", "dr_grpo+kl", "vespo", "grpo+toplambda",
           *CHANNELS, *PEERS)  # fmt: skip


OTHERS = [
    pytest.param(
        home, id=home.name, marks=pytest.mark.skipif(find_spec(home.name) is None, reason=f"{home.name} is missing")
    )
    for home in HOMES[1:]
]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """What our own trainer came to, once for each case, method, number of epochs and fault."""

    @cache
    def get(case: str, name: str, num_iterations: int = 0, fault: tuple = ()) -> Found:
        given = replace(CASES[case], num_iterations=num_iterations or CASES[case].num_iterations)
        return HOMES[0].run(given, name, make_model(), tmp_path_factory.mktemp("own"), fault=Fault(*fault))

    return get


def compare_columns(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        if column.dtype.names:
            assert found[name].dtype == column.dtype and repr(found[name].tolist()) == repr(column.tolist()), name
            continue
        assert found[name].astype(float) == pytest.approx(column.astype(float), rel=tolerance, abs=tolerance), name


def compare_metrics(found: dict[str, float], expected: dict[str, float], home: Any, tolerance: float) -> None:
    """Every metric of ours by its name, but for those that the home says it cannot have."""
    assert not expected.keys() - home.unknown.keys() - found.keys()
    for name in expected.keys() - home.unknown.keys():
        assert found[name] == pytest.approx(expected[name], rel=tolerance, abs=tolerance, nan_ok=True), name


def compare(found: Found, expected: Found, home: Any, tolerance: float) -> None:
    compare_columns(found.responses.columns(), expected.responses.columns(), 0.0)
    compare_columns(found.segments.columns(), expected.segments.columns(), 0.0)
    compare_columns(found.responses.channels, expected.responses.channels, 0.0)
    compare_columns(found.plan, expected.plan, tolerance)
    compare_metrics(found.rollout_metrics, expected.rollout_metrics, home, tolerance)
    assert len(found.gradients) == len(found.metrics) == len(expected.metrics)
    for step, ours in enumerate(expected.metrics):
        compare_metrics(found.metrics[step], ours, home, tolerance)
        scale = float(expected.gradients[step].abs().max())
        assert float((found.gradients[step] - expected.gradients[step]).abs().max()) <= tolerance * max(scale, 1.0)
    assert found.state == pytest.approx(expected.state, rel=tolerance, abs=tolerance)


FOLDERS = ("plain", "tool tokens", "three updates", "split into two updates", "turns that a limit ends")
"""Cases whose run folders are compared too: in the others responses without a verdict are named by each home in its words."""


def read_table(found: Found, kind: str) -> list[dict[str, Any]]:
    """Rows in order of prompts and tracks."""
    rows = pq.read_table(found.folder / "records" / f"{kind}-000000.parquet").to_pylist()
    for row in rows:
        if "outcomes" in row:  # verl's reward functions say more
            row["outcomes"] = sorted(said for said in row["outcomes"] if said[0] in ("correct", "style"))
    return rows


def approximate(value: Any) -> Any:
    """Lists of updates and numbers as they may round."""
    is_number = isinstance(value, float) or (isinstance(value, list) and any(isinstance(x, float) for x in value))
    return pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True) if is_number else value


def compare_folders(found: Found, own: Found, home: Any, num_updates: int) -> None:
    """The same rollouts leave the same tables and metrics, by the same names."""
    for kind, columns in (("responses", len(RESPONSES)), ("segments", len(SEGMENTS))):
        expected, rows = read_table(own, kind), read_table(found, kind)
        assert len(rows) == len(expected) > 8 and expected[0].keys() == rows[0].keys() and len(rows[0]) == columns
        for row, ours in zip(rows, expected, strict=True):
            for column in ours:
                assert row[column] == approximate(ours[column]), (kind, column)
    lines = [
        [json.loads(line) for line in (one.folder / "metrics.jsonl").read_text().splitlines()] for one in (own, found)
    ]
    assert len(lines[0]) == len(lines[1]) == num_updates
    for ours, theirs in zip(*lines, strict=True):
        assert not ours.keys() - theirs.keys() - home.unknown.keys()
        for metric in ours.keys() & theirs.keys() - {"learning_rate"}:
            assert theirs[metric] == approximate(ours[metric]), metric


def combine(cases: list[str], names: tuple[str, ...]) -> list[Any]:
    """Every home with every case and every method; each case once in each home, as each method where there are fewer methods than
    cases, and otherwise in one of the homes; others slow or by night."""
    found = []
    for (h, home), (c, case), (n, name) in product(*map(enumerate, (HOMES[1:], cases, names))):
        turn = (n - c - h) % len(names) if len(cases) >= len(names) else (c - n - h) % len(cases)
        turn = turn or int(len(cases) < len(names) and n // len(cases) % len(HOMES[1:]) != h)
        marks = [pytest.mark.skipif(find_spec(home.name) is None, reason=f"{home.name} is missing")]
        marks += [] if turn == 0 else [pytest.mark.slow if turn == 1 else pytest.mark.nightly]
        found.append(pytest.param(home, case, name, id=f"{home.name}-{case}-{name}", marks=marks))
    return found


@pytest.mark.parametrize(("home", "case", "name"), combine(list(CASES), METHODS))
def test_every_home_comes_to_the_same(home, case, name, own, tmp_path):
    found = home.run(CASES[case], name, make_model(), tmp_path)
    compare(found, own(case, name), home, 1e-12)
    if case in FOLDERS:
        compare_folders(found, own(case, name), home, CASES[case].num_iterations * CASES[case].num_updates)


@pytest.mark.parametrize(("home", "case", "name"), combine([case for case in CASES if "turns" in case], TURNED))
def test_every_home_has_the_same_turns(home, case, name, own, tmp_path):
    """Those of one trajectory as one sequence, and each as a sequence."""
    expected = own(case, name)
    assert expected.responses.num_turns.tolist() == [len(row.spans) for row in CASES[case].rows]
    found = home.run(CASES[case], name, make_model(), tmp_path)
    compare(found, expected, home, 1e-12)
    if case in FOLDERS:
        compare_folders(found, expected, home, CASES[case].num_iterations * CASES[case].num_updates)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dapo+balanced_turns", "gspo+turns", "grpo", "dapo+balanced"])
@pytest.mark.parametrize("home", OTHERS)
def test_every_home_has_the_same_turns_through_its_own_forward_pass(home, name, own, tmp_path):
    case = "turns that a limit ends"
    compare(home.run(CASES[case], name, make_model(), tmp_path, own_forward=True), own(case, name), home, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("home", "case", "name"), combine(["plain", "tool tokens", "three updates", "split into two updates"], METHODS[:3])
)
def test_every_home_comes_to_the_same_through_its_own_forward_pass(home, case, name, own, tmp_path):
    found = home.run(CASES[case], name, make_model(), tmp_path, own_forward=True)
    compare(found, own(case, name), home, 1e-5)


FAULTS = [
    Fault("logprobs", math.nan, row=0, update=0), Fault("logprobs", -math.inf, row=7), Fault("logprobs", -1e9, row=15),
    Fault("old_logprobs", math.nan, row=7), Fault("old_logprobs", -math.inf, row=15), Fault("old_logprobs", -1e9, row=0),
    Fault("ref_logprobs", math.nan, row=15), Fault("ref_logprobs", -math.inf, row=0), Fault("ref_logprobs", -1e9, row=7),
    Fault("gradient", math.inf), Fault("gradient", math.nan, update=0),
]  # fmt: skip
"""Each value in each quantity, in the first, a middle and the last micro-batch; and what verl's engine skips by itself."""


def check_fault(home: Any, fault: Fault, folder: Path, own: Callable[..., Found]) -> None:
    """Three updates of which one has a fault, against those of our trainer without one."""
    folder.mkdir(exist_ok=True)
    case, name = "three updates", "fspo+kl"
    sound = own(case, name, 2)
    found = home.run(CASES[case], name, make_model(), folder, fault=replace(fault))
    skipped = [entry["updates/skipped"] for entry in found.metrics]
    if math.isfinite(fault.value):
        ours = own(case, name, 3, (fault.quantity, fault.value, fault.row, fault.update))
        compare_steps(found, ours.gradients, ours.state)
        assert not any(skipped)
        return
    nothing = sound.gradients[0] * 0.0
    expected = list(sound.gradients)
    expected.insert(fault.update, nothing)  # no weight moves, and the next update is as if there had been none
    compare_steps(found, expected, sound.state)
    assert skipped == [float(number >= fault.update) for number in range(3)]


def compare_steps(found: Found, gradients: list, state: dict[str, float]) -> None:
    assert len(found.gradients) == len(gradients)
    for one, other in zip(found.gradients, gradients, strict=True):
        assert float((one - other).abs().max()) <= 1e-12 * max(1.0, float(other.abs().max()))
    assert found.state == pytest.approx(state, rel=1e-12, abs=1e-12)
    assert all(map(math.isfinite, found.state.values()))


FOUR = [pytest.param(HOMES[0], id="own"), *OTHERS, pytest.param(Plain(), id="plain")]


def spread_faults() -> list[Any]:
    """Every home with every fault; each fault in one home, and the others slow."""
    found = []
    for (h, home), (f, fault) in product(enumerate(FOUR), enumerate(FAULTS)):
        name = f"{home.id}-{fault.quantity} {fault.value} {fault.row} {fault.update}"
        marks = [*home.marks, *([] if f % len(FOUR) == h else [pytest.mark.slow])]
        found.append(pytest.param(*home.values, fault, id=name, marks=marks))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("home", "fault"), spread_faults())
def test_what_is_not_finite_is_skipped_and_an_outlier_is_bounded(home, fault, own, tmp_path):
    check_fault(home, fault, tmp_path, own)


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_is_the_same_in_a_plain_loop(name, own, tmp_path):
    ours, found = own("three updates", name), Plain().run(CASES["three updates"], name, make_model(), tmp_path)
    assert set(ours.responses.channels) == {"thinking", "answer"}
    compare_steps(found, ours.gradients, ours.state)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PEERS if "_k1" not in name])
def test_rules_of_peers_are_the_same_in_a_plain_loop(name, own, tmp_path):
    """But those that count what is kept, for which a plan needs log-probs."""
    found = Plain().run(CASES["three updates"], name, make_model(), tmp_path)
    compare_steps(found, own("three updates", name).gradients, {})


@pytest.mark.parametrize("gives_old", [False, True])
def test_an_update_is_known_to_be_on_policy_in_a_plain_loop_too(gives_old, own, tmp_path):
    """Three epochs: FSPO's drift is that of the second and the third, whether or not the first is given ratios of 1."""
    ours = own("three updates", "fspo")
    found = Plain(gives_old).run(CASES["three updates"], "fspo", make_model(), tmp_path)
    assert ours.state["surrogate.num_updates"] == 2 and ours.state["surrogate.drift_average"] != 0
    compare_steps(found, ours.gradients, ours.state)

"""Every argument of `plan_rows` and `policy_loss` with values that it must not have: one line names field, value and remedy."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fairlen import Skips, compose, finish_update, plan_rows, policy_loss

NAN, INF = math.nan, math.inf
PLAN: dict[str, Any] = {
    "method": compose("grpo"), "groups": [0, 0, 1], "lengths": [3, 2, 4], "rewards": [1.0, 0.0, 0.5],
    "max_response_length": 8, "correct": [1, 0, 1], "truncated": [0, 0, 1], "num_updates": 1,
}  # fmt: skip
NO_COLUMN = (5, True, "abc", b"abc", {}, object(), [], [1], [1] * 4, [[1], [0], [1]], [[1, 0, 1]], [[1], [1, 2], [1]])
NO_NUMBERS = (
    [1, "1", 0], ["a", "b", "c"], [1, None, 0], [1j, 0, 0], np.array([1, 0, 1j]), [b"1", 0, 0], [object()] * 3,
)  # fmt: skip
WRONG_PLAN: dict[str, tuple[Any, ...]] = {
    "method": (None, "grpo", 5, compose, [], type(compose("grpo"))),
    "groups": (*NO_COLUMN[:-4], None, [0, None, 1], [0, [1], 1], [0, {}, 1], [0, NAN, 1], torch.tensor([0.0, NAN, 1.0]),
               torch.tensor(3), np.array([[0, 1], [0, 1], [1, 1]]), [[0], [1], [1]]),
    "lengths": (*NO_COLUMN, *NO_NUMBERS, None, [3, -1, 4], [3, NAN, 4], [3, INF, 4], [3, 1.5, 4], [3, 9, 4], [3, 10**30, 4],
                [True, False, True], torch.ones(3, dtype=torch.bool), torch.ones(3, 1), torch.tensor([1.5, 1, 1]).bfloat16()),
    "rewards": (*NO_COLUMN, *NO_NUMBERS, None, [1.0, NAN, 0], [1.0, INF, 0], [1.0, -INF, 0], [1e39, 0, 0], [10**400, 0, 0],
                torch.tensor([NAN, 0, 1]), torch.tensor([INF, 0, 1]).half(), torch.zeros(3, 1), torch.zeros(3).to(torch.cfloat)),
    "correct": (*NO_COLUMN, *NO_NUMBERS, [2, 0, 1], [-1, 0, 1], [0.5, 0, 1], [INF, 0, 1], torch.tensor([0.9, 0, 1])),
    "truncated": (*NO_COLUMN, *NO_NUMBERS, [2, 0, 1], [-1, 0, 1], [0.5, 0, 1], [INF, 0, 1], [NAN, 0, 1], torch.full((3,), NAN)),
    "max_response_length": (None, 0, -1, 3.5, NAN, INF, -INF, "8", True, [8], 10**30, 3, torch.tensor([8, 8]), 8j),
    "num_updates": (None, 0, -1, 1.5, NAN, INF, -INF, "2", True, [1], 10**30, torch.tensor([1, 1]), 1j, 3),
}  # fmt: skip
ONE = torch.full((3, 4), -1.0)
MASK = torch.arange(4)[None] < torch.tensor([[3], [2], [4]])
SEQUENCE = torch.arange(3)[:, None].expand(3, 4).where(MASK, -1)
NUMBERS = plan_rows(**PLAN | {"method": compose("grpo+kl+entropy")})
LOSS: dict[str, Any] = {
    "method": compose("grpo+kl+entropy"), "plan": NUMBERS.to("cpu"), "logprobs": ONE, "old_logprobs": ONE, "mask": MASK,
    "sequence": None, "rollout_logprobs": ONE, "ref_logprobs": ONE, "entropy": -ONE,
}  # fmt: skip
NO_TENSOR = (5, True, "abc", [], [[-1.0] * 4] * 3, ONE.numpy(), object())
NO_NATS = (
    *NO_TENSOR, ONE.long(), ONE.bool(), ONE.to(torch.cfloat), ONE[:2], ONE[:, :3], ONE[None], ONE[0], ONE[:0],
    ONE[0, 0],
)  # fmt: skip
WRONG_LOSS: dict[str, tuple[Any, ...]] = {
    "method": (None, "grpo", 5, compose),
    "plan": (None, "grpo", 5, NUMBERS, NUMBERS.to("cpu")[:2], NUMBERS.to("cpu")[[0, 1, 2, 2]], dict(vars(NUMBERS)),
             plan_rows(**PLAN | {"method": compose("dapo")}).to("cpu")),
    "logprobs": (None, *NO_NATS),
    "old_logprobs": NO_NATS,
    "rollout_logprobs": NO_NATS,
    "ref_logprobs": (None, *NO_NATS),
    "entropy": (None, *NO_NATS),
    "mask": (*NO_TENSOR, None, MASK[:2], MASK[:, :3], MASK[0], MASK[None], MASK.double() * 0.5, MASK.double() * NAN,
             -MASK.long(), 2 * MASK, torch.ones(3, 4), MASK.roll(1, 0), MASK & False,
             torch.arange(4)[None] < torch.tensor([[2], [2], [4]])),
}  # fmt: skip
WRONG_SEQUENCE = (*NO_TENSOR, None, MASK, SEQUENCE.double(), SEQUENCE + 1, SEQUENCE.clamp(min=0), SEQUENCE[:2], SEQUENCE[0],
                  SEQUENCE.to(torch.cfloat))  # fmt: skip


def refusal(call: Any, arguments: dict[str, Any], name: str, value: Any) -> str:
    """Return how the call failed to refuse a value in one line that names the argument; nothing where it did."""
    try:
        call(**arguments | {name: value})
    except (ValueError, TypeError) as error:
        if type(error) is TypeError and "give" not in str(error):
            return f"{name}={value!r:.60}: {error}"
        text = str(error)
        is_named = name in text or (name in ("mask", "plan", "sequence") and "row" in text)
        return "" if is_named and "\n" not in text and len(text) < 400 else f"{name}={value!r:.60}: {text!r}"
    except Exception as error:
        return f"{name}={value!r:.60}: {type(error).__name__}: {error}"
    return f"{name}={value!r:.60}: taken"


def test_right_inputs_are_taken():
    assert len(plan_rows(**PLAN)) == 3 and plan_rows(**PLAN | {"max_response_length": np.float64(8)}).trains.all()
    assert torch.isfinite(policy_loss(**LOSS).total)
    assert policy_loss(**LOSS | {"mask": None, "sequence": SEQUENCE}).total == policy_loss(**LOSS).total
    assert not len(plan_rows(compose("grpo"), groups=[], lengths=[], rewards=[], max_response_length=8))


def test_plan_rows_refuses_wrong_inputs_in_one_line():
    found = [refusal(plan_rows, PLAN, name, value) for name, values in WRONG_PLAN.items() for value in values]
    assert len(found) > 120 and [text for text in found if text] == []


@pytest.mark.filterwarnings("error")
def test_policy_loss_refuses_wrong_inputs_in_one_line():
    packed = LOSS | {"mask": None, "sequence": SEQUENCE}
    found = [refusal(policy_loss, LOSS, name, value) for name, values in WRONG_LOSS.items() for value in values]
    found += [refusal(policy_loss, packed, "sequence", value) for value in WRONG_SEQUENCE]
    assert len(found) > 90 and [text for text in found if text] == []


UPDATE: dict[str, Any] = {"method": compose("grpo"), "counts": [], "gradient_norm": 1.0, "skips": Skips()}
WRONG_UPDATE: dict[str, tuple[Any, ...]] = {
    "method": (None, "grpo"),
    "counts": (None, ONE, {}, [ONE.sum()], [policy_loss(**LOSS)], iter([])),
    "gradient_norm": (None, "1", ONE, [1.0]),
    "skips": (None, 0, Skips),
}


def test_finish_update_and_compose_refuse_wrong_inputs_in_one_line():
    right = UPDATE | {"counts": [policy_loss(**LOSS).counts]}
    found = [refusal(finish_update, right, name, value) for name, values in WRONG_UPDATE.items() for value in values]
    found += [refusal(compose, {}, "names", value) for value in (None, 5, ["grpo"])]
    assert len(found) > 15 and [text for text in found if text] == []
    assert finish_update(**right).may_step


def test_a_plan_gives_rows_and_no_single_one():
    for rows in (0, None, torch.tensor(0), (0, 1), ...):
        with pytest.raises(ValueError, match=r"plan\[.*several rows"):
            NUMBERS[rows]


def test_a_plan_outlives_the_state_of_its_method():
    """Updates of one rollout batch share the plan; the drift that `fair_band` learns is no other method."""
    method = compose("fspo")
    moved = method.with_state(dict.fromkeys(method.state, 0.5))
    assert method.state and moved != method
    plan = plan_rows(**PLAN | {"method": method}).to("cpu")
    assert torch.isfinite(policy_loss(moved, plan, ONE, mask=MASK).total)


@pytest.mark.slow
def test_a_row_of_other_tokens_than_planned_does_not_train_where_nobody_may_wait():
    """Compiled, a mask of 4 tokens for the 3 of row 0 gives nan, which the end of an update leaves out; the right one 0."""
    with_wrong = LOSS | {"mask": torch.ones(3, 4)}
    compiled = torch.compile(policy_loss, backend="eager", fullgraph=True)
    assert torch.isnan(compiled(**with_wrong).total)
    assert compiled(**LOSS).total == policy_loss(**LOSS).total


def test_log_probs_of_bfloat16_are_summed_in_float32():
    """S of 300 log ratios of 2^-7 is 2.34375; in bfloat16 a sum stops at 2, whose next number is 2 + 2^-6."""
    method, length = compose("rloo"), 300
    plan = plan_rows(method, groups=[0, 0], lengths=[length] * 2, rewards=[1.0, 0.0], max_response_length=length).to(
        "cpu"
    )
    old = torch.full((2, length), -1.0, dtype=torch.bfloat16)
    now = (old + 2**-7).requires_grad_()
    mask = torch.ones(2, length)
    half = policy_loss(method, plan, now, old, mask=mask)
    full = policy_loss(method, plan, now.detach().float().requires_grad_(), old.float(), mask=mask)
    assert half.total.item() == full.total.item() and half.total.dtype == torch.float32
    assert half.counts["ratio/mean"].item() == full.counts["ratio/mean"].item()

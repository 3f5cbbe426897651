"""One battery for every base, alone and with every modifier that it admits.

`make test` takes compositions in which every pair of a base and a modifier occurs; `make test-nightly` takes every pair alone.
Padding has no place here: the core has none.
"""

import json
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from fixtures import (
    DRIFTED,
    Batch,
    gradient,
    make_batch,
    make_micro,
    plan_of,
    ragged_batch,
    random_batch,
    random_parts,
    relative,
    speak,
    weight_matrix,
)
from loops import over

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.methods.description import hash_method, to_dict
from fairlen.methods.method import Method, updates
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
from fairlen.methods.stages.advantage import BatchNormalized, ConditionalLength, GroupNormalized


@cache
def is_admitted(name: str) -> bool:
    try:
        compose(name)
    except ValueError:
        return False
    return True


LONGER = (
    "dapo+gr3+balanced_update+kl", "fspo+balanced+toplambda+mismatch", "gspo+dual_clip+std_trl+lspo",
    "rloo+balanced_update+dynamic", "sapo+std_verl+toplambda+kl", "ctpo+maxrl+vl_norm+kl",
    "cispo+solved_length+vl_norm+no_std",
)  # fmt: skip


@cache
def cover(base: str) -> tuple[str, ...]:
    """A base, and compositions of it in which every modifier that it admits occurs once."""
    found = [base]
    for modifier in (name for name in MODIFIERS if is_admitted(f"{base}+{name}")):
        place = next((i for i, name in enumerate(found[1:], 1) if is_admitted(f"{name}+{modifier}")), len(found))
        found[place:] = [f"{found[place] if place < len(found) else base}+{modifier}", *found[place + 1 :]]
    return tuple(found)


def covering() -> list[str]:
    """Compositions in which every pair of a base and a modifier occurs once, and longer ones."""
    return [*(name for base in BASES for name in cover(base)), *LONGER]


def every_pair() -> list[str]:
    """Each base with each modifier that it admits."""
    return [name for name in (f"{base}+{modifier}" for base in BASES for modifier in MODIFIERS) if is_admitted(name)]


def over_all(check: Callable[[str], None]) -> Callable[..., None]:
    """Make a test of a check of one method: over the covering set, and by night over every pair."""

    def check_all(names: Callable[[], list[str]]) -> None:
        over("name", names())(check)()

    check_all.__name__, check_all.__doc__ = check.__name__, check.__doc__
    sets = [covering, pytest.param(every_pair, marks=pytest.mark.nightly)]
    return pytest.mark.parametrize("names", sets)(check_all)


@cache
def method_of(name: str) -> Method:
    """The method after one earlier update, so that state takes part."""
    return compose(name).update(DRIFTED)


@cache
def gradient_of(name: str) -> torch.Tensor:
    return gradient(method_of(name), ragged_batch())


@cache
def ragged_plan_of(name: str) -> Plan:
    return plan_of(method_of(name), ragged_batch())


def assert_same_plan(name, columns):
    batch = ragged_batch()
    found = plan_of(method_of(name), replace(batch, responses=replace(batch.responses, **columns)))
    for column in fields(found):
        ours, wanted = getattr(found, column.name), getattr(ragged_plan_of(name), column.name)
        assert ours.tolist() == wanted.tolist(), f"{column.name} of {columns}"


@over("name", [*BASES, *MODIFIERS])
def test_columns_of_any_numeric_type_give_the_same_numbers(name):
    """0 and 1 are exact in all of them."""
    table = ragged_batch().responses
    for kind in (np.bool_, np.int8, np.int64, np.uint8, np.float16, np.float32):
        assert_same_plan(name, {"outcome": table.outcome.astype(kind)})
    for kind in (np.int64, np.uint8, np.float32):
        assert_same_plan(name, {"length": table.length.astype(kind), "prompt": table.prompt.astype(kind)})
        assert_same_plan(name, {c: getattr(table, c).astype(kind) for c in ("correct", "truncated", "active")})


@over_all
def test_any_partition_into_micro_batches_gives_the_same_gradient(name):
    size = len(plan_of(method_of(name), ragged_batch()))
    split = gradient(method_of(name), ragged_batch(), random_parts(size, seed=len(name)))
    assert relative(split, gradient_of(name)) < 1e-12
    assert gradient_of(name).abs().max() > 1e-4


@over_all
def test_permuted_rows_give_the_same_gradient(name):
    order = np.random.default_rng(3).permutation(10)
    batch = ragged_batch()
    assert relative(gradient(method_of(name), batch.take(order)), gradient_of(name)) < 1e-12
    one, other = plan_of(method_of(name), batch), plan_of(method_of(name), batch.take(order))
    weight = dict(zip(one.rows.tolist(), one.weight.tolist(), strict=True))
    assert other.weight.tolist() == pytest.approx([weight[row] for row in order[other.rows].tolist()], rel=1e-12)


@over_all
def test_relabelled_prompts_and_groups_change_nothing(name):
    batch, label = ragged_batch(), np.array([6, 0, 3, 2])
    renamed = replace(
        batch,
        responses=replace(batch.responses, prompt=label[batch.responses.prompt]),
        segments=replace(batch.segments, group=label[::-1][batch.segments.group]),
    )
    assert relative(gradient(method_of(name), renamed), gradient_of(name)) < 1e-12


def interleave(batch: Batch) -> Batch:
    """The batch with four rows that do not count: two within prompts, one prompt of its own, one of every extreme."""
    extra = make_batch(
        [0, 1, 4, 3], [8, 1, 7, 2], [1, 0, 1, 0], outcome=[99.0, float("nan"), -5.0, 1.0], inactive=range(4)
    )
    columns = {
        table: {
            name: np.concatenate([column, getattr(extra, table).columns()[name]])
            for name, column in getattr(batch, table).columns().items()
        }
        for table in ("responses", "segments")
    }
    columns["segments"]["response"] = np.arange(14)
    both = Batch(
        replace(batch.responses, **columns["responses"]),
        replace(batch.segments, **columns["segments"]),
        batch.features + extra.features,
        batch.tokens + extra.tokens,
    )
    return both.take([10, 0, 1, 11, 2, 3, 4, 12, 5, 6, 7, 8, 9, 13])


@over_all
def test_inactive_rows_change_nothing(name):
    assert relative(gradient(method_of(name), interleave(ragged_batch())), gradient_of(name)) < 1e-12


@over_all
def test_groups_without_variance_give_no_gradient(name):
    """All wrong, worth 0, far from the budget: every reward stage leaves them equal; terms have their own gradient."""
    batch = make_batch([0, 0, 0, 1, 1], [1, 2, 5, 3, 8], [0] * 5, max_response_length=100)
    method = replace(method_of(name), terms=(), filter=Method().filter)
    assert not gradient(method, batch).any()
    scored = method_of(name).score_tables(batch.responses, batch.segments)
    assert not scored.advantage.any()


def looks_at_length(method: Method) -> bool:
    return bool(method.reward) or isinstance(method.advantage, ConditionalLength)


@over_all
def test_equal_rewards_of_any_size_give_no_gradient(name):
    if looks_at_length(compose(name)):
        return
    batch = make_batch(
        [0, 0, 0, 1, 1], [1, 2, 5, 3, 8], [1, 1, 1, 0, 0], outcome=[0.1] * 3 + [7.3] * 2, max_response_length=100
    )
    method = replace(method_of(name), terms=(), filter=Method().filter)
    assert not gradient(method, batch).any()


def is_normalized(method: Method) -> bool:
    plain = isinstance(method.advantage, (GroupNormalized, BatchNormalized)) and method.advantage.eps == 0
    return plain and not method.reward


@over_all
def test_scaled_and_shifted_rewards_change_nothing_under_normalised_advantages(name):
    if not is_normalized(compose(name)):
        return
    batch = ragged_batch()
    other = replace(batch, responses=replace(batch.responses, outcome=7.0 * batch.responses.outcome - 3.0))
    assert relative(gradient(method_of(name), other), gradient_of(name)) < 1e-12


@over("name", ["grpo+no_std", "rloo", "grpo+std_trl", "grpo+lp"])
def test_scaled_rewards_do_change_the_others(name):
    batch = ragged_batch()
    other = replace(batch, responses=replace(batch.responses, outcome=7.0 * batch.responses.outcome))
    assert relative(gradient(method_of(name), other), gradient_of(name)) > 1e-5


def is_plain(method: Method) -> bool:
    return not method.terms and method.correction == Method().correction


@over_all
def test_on_policy_the_gradient_is_reinforce_with_the_plans_weights(name):
    """d/dW of -sum weight * A * logprob: no surrogate changes the first update of a rollout batch."""
    if not is_plain(compose(name)):
        return
    batch, method = ragged_batch(), method_of(name)
    plan = plan_of(method, batch)
    weights = weight_matrix("policy").requires_grad_()
    micro, features, tokens = make_micro(batch, plan, range(len(plan)))
    outputs = speak(weights, features, tokens)
    total = method.loss(outputs, replace(micro, is_on_policy=True)).total
    (ours,) = torch.autograd.grad(total, weights, retain_graph=True)
    (expected,) = torch.autograd.grad(
        -(micro.per_token(micro.weight * micro.advantage) * outputs.logprobs).sum(), weights
    )
    assert relative(ours, expected) < 1e-12


@over("name", [*BASES, *LONGER])
def test_float32_keeps_six_digits_over_any_partition(name):
    method, batch = method_of(name), ragged_batch()
    size = len(plan_of(method, batch))
    whole = gradient(method, batch, dtype=torch.float32)
    split = gradient(method, batch, random_parts(size, 1), torch.float32)
    assert relative(split, whole) < 1e-6


@over_all
def test_a_method_survives_pickle_and_its_state_comes_back(name):
    method = method_of(name)
    assert pickle.loads(pickle.dumps(method)) == method
    again = compose(name).with_state(json.loads(json.dumps(method.state)))
    assert again == method and again.state == method.state
    assert json.loads(json.dumps(to_dict(method), allow_nan=False)) == to_dict(compose(name))
    assert hash_method(again) == hash_method(method)


def test_state_is_the_only_thing_that_the_hash_leaves_out():
    hashes = {name: hash_method(compose(name)) for name in BASES}
    assert len(set(hashes.values())) == len(BASES)
    for name, method in ((name, compose(name)) for name in BASES):
        assert hash_method(method.update(DRIFTED)) == hashes[name]


EQUAL = [{"gspo", "gspo_token"}]
"""Presets that are one method in value and gradient: one advantage a sequence."""


def test_no_two_presets_agree():
    """Plan and gradient at log ratios around 0.1: every rule clips something, and not the same."""
    for one, other in combinations(BASES, 2):
        plans = [plan_of(method_of(name), ragged_batch()) for name in (one, other)]
        same_plan = np.array_equal(plans[0].rows, plans[1].rows) and np.allclose(plans[0].weight, plans[1].weight)
        gap = relative(gradient_of(one), gradient_of(other))
        if {one, other} in EQUAL:
            assert same_plan and gap < 1e-12, (one, other)
        else:
            assert gap > 1e-3, (one, other, gap)


@over_all
def test_updates_of_one_rollout_batch_cover_what_trains_once(name):
    batch = random_batch(1, num_prompts=9)
    scored = method_of(name).score_tables(batch.responses, batch.segments)
    rows = np.concatenate([update.rows for update in updates(scored, 3)])
    assert sorted(rows.tolist()) == np.flatnonzero(scored.trains).tolist()


def rank_gradients(rank: int, names: list[str], meeting: str, results) -> None:
    """One of two ranks: its micro-batches of every method, summed with the other's."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=2)
    summed = {}
    for name in names:
        method, batch = method_of(name), ragged_batch()
        parts = random_parts(len(plan_of(method, batch)), seed=4)
        mine = parts[rank::2]
        total = gradient(method, batch, mine) if mine else torch.zeros_like(weight_matrix("policy"))
        torch.distributed.all_reduce(total)
        summed[name] = total.numpy()
    if rank == 0:
        results.put(summed)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_give_the_gradient_of_one(tmp_path):
    names = [*BASES, *LONGER]
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    meeting = f"file://{tmp_path / 'meeting'}"
    context = torch.multiprocessing.spawn(rank_gradients, (names, meeting, results), nprocs=2, join=False)
    summed = results.get()
    context.join()
    assert set(summed) == set(names)
    for name in names:
        assert relative(summed[name], gradient_of(name)) < 1e-12

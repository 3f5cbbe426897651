"""The loss of any training loop: padded or packed it is that of fairlen's own trainer, it compiles whole, and it never waits."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.multiprocessing as mp
from fixtures import BUDGET, LENGTH, PROMPT, RIGHT
from waits import DEVICE, counted_waits

from fairlen import Skips, compose, finish_update, plan_rows, policy_loss
from fairlen.loop.tally import count, sum_counts, update_metrics
from fairlen.loop.update import NonFiniteError
from fairlen.methods.method import Method
from fairlen.methods.presets import BASES
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.methods.stages.terms import SamplerMismatch, SamplerRejection

WHOLE = [name for name, build in BASES.items() if build().sampling.is_whole]
NUM_ROWS, WIDTH = len(LENGTH), max(LENGTH)
MASK = torch.arange(WIDTH)[None] < torch.tensor(LENGTH)[:, None]


def log_probs(dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Padded log-probs; nan where nothing was generated, which must not matter."""
    draw = torch.Generator().manual_seed(0)
    now = -1.5 + 0.3 * torch.randn(NUM_ROWS, WIDTH, generator=draw, dtype=torch.float64)
    near = {
        name: now + 0.1 * torch.randn(now.shape, generator=draw, dtype=torch.float64)
        for name in ("old", "rollout", "ref")
    }
    columns = {"logprobs": now} | {f"{name}_logprobs": values for name, values in near.items()}
    columns["entropy"] = torch.rand(now.shape, generator=draw, dtype=torch.float64)
    return {name: values.where(MASK, math.nan).to(dtype) for name, values in columns.items()}


def plan_of(method: Method, num_updates: int = 1):
    return plan_rows(
        method,
        groups=[f"prompt {number}" for number in PROMPT],
        lengths=LENGTH,
        rewards=RIGHT,
        truncated=[length == BUDGET for length in LENGTH],
        max_response_length=BUDGET,
        num_updates=num_updates,
    )


def reference(method: Method) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Loss, gradient [N, L] and counts by the types of fairlen's own trainer, of the rows that train back to back."""
    plan, columns = plan_of(method).to("cpu", torch.float64), log_probs()
    mask = MASK & plan.trains[:, None]
    flat = {name: values[mask] for name, values in columns.items()}
    leaf, entropy = flat.pop("logprobs").requires_grad_(), flat.pop("entropy")
    micro = Micro.of(mask.sum(1), plan.advantage, plan.weight, plan.term_weight, **flat)
    outputs = Outputs(leaf, entropy)
    loss = method.loss(outputs, micro)
    (gradient,) = torch.autograd.grad(loss.total, leaf)
    counts = {name: float(value) for name, value in count(method, outputs, micro, loss).items()}
    return (
        float(loss.total.detach()),
        torch.zeros(MASK.shape, dtype=torch.float64).masked_scatter(mask, gradient),
        counts,
    )


def learned(name: str) -> Method:
    """A method, with a state that an update has moved."""
    method = compose(name)
    sums = {f"{path}.{key}": value for path, _ in method.stateful() for key, value in BAND_SUMS.items()}
    return method.update(sums)


BAND_SUMS = {"num_sequences": 10.0, "num_tokens": 35.0, "log_ratio": -0.7, "squared_log_ratio": 0.05}


@pytest.mark.parametrize("name", [*WHOLE, "dapo+balanced+kl+entropy+mismatch", "fspo_centred+toplambda+kl"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_padded_or_packed_it_is_the_trainers_own(name, layout):
    method = learned(name)
    total, gradient, counts = reference(method)
    columns, plan = log_probs(), plan_of(method).to("cpu", torch.float64)
    row = torch.arange(NUM_ROWS)[:, None].where(MASK, -1)
    order = torch.randperm(row.numel(), generator=torch.Generator().manual_seed(1))  # packed as somebody likes
    order[row.flatten()[order].argsort(stable=True)] = row.flatten().argsort(
        stable=True
    )  # but a row's tokens in their order
    if layout == "packed":
        columns = {key: values.flatten()[order] for key, values in columns.items()}
    leaf = columns.pop("logprobs").requires_grad_()
    where = {"mask": MASK} if layout == "padded" else {"sequence": row.flatten()[order]}
    found = policy_loss(method, plan, leaf, **columns, **where)
    assert float(found.total.detach()) == pytest.approx(total, rel=1e-12, abs=1e-15)
    (own,) = torch.autograd.grad(found.total, leaf)
    expected = gradient if layout == "padded" else gradient.flatten()[order]
    assert float((own - expected).abs().max()) <= 1e-12 * float(gradient.abs().max())
    assert {key: float(value) for key, value in found.counts.items()} == pytest.approx(counts, rel=1e-12, abs=1e-12)


def test_on_policy_every_ratio_is_one():
    method, columns = compose("fspo"), log_probs()
    plan = plan_of(method).to("cpu", torch.float64)
    leaf = columns["logprobs"].requires_grad_()
    found = policy_loss(method, plan, leaf, mask=MASK)
    (gradient,) = torch.autograd.grad(found.total, leaf)
    slope = -(plan.weight * plan.advantage)[:, None] * (MASK & plan.trains[:, None])
    assert torch.allclose(gradient.nan_to_num(), slope, rtol=1e-12)
    done = finish_update(method, [found.counts], 1.0, Skips())
    assert done.may_step and done.method == method and done.metrics["ratio/mean"] == 1.0


@pytest.mark.parametrize("name", ["dapo+balanced", "fspo", "gspo"])
def test_micro_batches_add_up(name):
    """Rows 0, 3, 4 and then the others: neither losses nor counts are divided, so that they add up to those of one."""
    method, columns = learned(name), log_probs()
    plan = plan_of(method).to("cpu", torch.float64)
    parts = [torch.tensor([0, 3, 4]), torch.tensor([1, 2, 5, 6, 7, 8, 9]), torch.arange(NUM_ROWS)]
    found = [
        policy_loss(method, plan[rows], columns["logprobs"][rows], columns["old_logprobs"][rows], mask=MASK[rows])
        for rows in parts
    ]
    assert float(found[0].total + found[1].total) == pytest.approx(float(found[2].total), rel=1e-12)
    one, other = (finish_update(method, [f.counts for f in some], 1.0, Skips()) for some in (found[:2], found[2:]))
    assert one.metrics == pytest.approx(other.metrics, rel=1e-12, nan_ok=True)
    assert one.method.state == pytest.approx(other.method.state, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fspo", "ctpo", "gspo+kl+balanced+mismatch"])
def test_it_compiles_whole_and_a_moving_state_does_not_compile_it_again(name):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(policy_loss, fullgraph=True, backend=counter)
    method, columns = compose(name), log_probs()
    leaf, old = columns["logprobs"].requires_grad_(), columns["old_logprobs"]
    plan = plan_of(method).to("cpu", torch.float64)
    more = {"ref_logprobs": columns["ref_logprobs"]} if method.needs_ref else {}
    for _ in range(12):  # more updates than torch allows compilations
        losses = [f(method, plan, leaf, old, mask=MASK, **more) for f in (compiled, policy_loss)]
        gradients = [torch.autograd.grad(loss.total, leaf)[0] for loss in losses]
        assert torch.equal(gradients[0].nan_to_num(), gradients[1].nan_to_num())
        method = finish_update(method, [losses[0].counts], 1.0, Skips()).method
    assert counter.frame_count <= 2
    assert not method.stateful() or method.state["surrogate.num_updates"] == 12


@pytest.mark.parametrize("name", ["dapo+balanced+kl+entropy+mismatch", "fspo", "ctpo"])
def test_nothing_waits_for_a_device_until_the_end(name):
    method = learned(name)
    numbers = plan_of(method)
    with counted_waits() as waits:
        plan = numbers.to(DEVICE)
        columns = {key: torch.zeros(NUM_ROWS, WIDTH, device=DEVICE) for key in log_probs()}
        leaf, mask = (
            columns.pop("logprobs").requires_grad_(),
            torch.ones(NUM_ROWS, WIDTH, device=DEVICE, dtype=torch.bool),
        )
        before = len(waits.found)
        policy_loss(method, plan, leaf, **columns, mask=mask)
        assert waits.found[before:] == []


def one_rank(rank: int, folder: str) -> None:
    """Each of two processes has half of the rows; rank 1 has them in two micro-batches."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    method, columns = learned("fspo"), log_probs()
    plan = plan_of(method).to("cpu", torch.float64)
    halves = [[range(5)], [range(5, 7), range(7, NUM_ROWS)]]
    found = [
        policy_loss(method, plan[rows], columns["logprobs"][rows], columns["old_logprobs"][rows], mask=MASK[rows])
        for rows in map(list, halves[rank])
    ]
    done = finish_update(method, [loss.counts for loss in found], 1.0, Skips())
    norm = math.nan if rank else 1.0  # of its own shard: all ranks skip
    skipped = finish_update(done.method, [loss.counts for loss in found], norm, Skips())
    told = {"broken": skipped.broken, "unmoved": skipped.method == done.method}
    torch.save({"state": done.method.state, "metrics": done.metrics} | told, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_end_an_update_as_one_does(tmp_path):
    mp.spawn(one_rank, (str(tmp_path),), nprocs=2)
    method, columns = learned("fspo"), log_probs()
    plan = plan_of(method).to("cpu", torch.float64)
    whole = policy_loss(method, plan, columns["logprobs"], columns["old_logprobs"], mask=MASK)
    done = finish_update(method, [whole.counts], 1.0, Skips())
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["state"] == pytest.approx(done.method.state, rel=1e-12)
        assert found["metrics"] == pytest.approx(done.metrics, rel=1e-12, nan_ok=True)
        assert found["broken"] == "gradient" and found["unmoved"]


def test_an_update_without_micro_batches_is_refused():
    with pytest.raises(ValueError, match="counts is empty: every rank gives those of at least one micro-batch"):
        finish_update(compose("grpo"), [], 1.0, Skips())


def test_a_plan_is_the_methods_own():
    """Advantage and weight of `grpo` by hand: group of the prompt 1, outcomes 1 0 0 with mean 1/3 and std sqrt(2)/3."""
    plan = plan_of(compose("grpo"))
    root = math.sqrt(2.0)
    assert plan.advantage[4:7] == pytest.approx([root, -1 / root, -1 / root])
    assert plan.weight == pytest.approx([1 / (NUM_ROWS * length) for length in LENGTH])
    assert plan_of(compose("grpo"), num_updates=4).weight == pytest.approx(4 * plan.weight)
    assert plan.trains.all() and len(plan) == NUM_ROWS


@pytest.mark.parametrize("kind", ["list", "numpy", "torch", "bfloat16"])
def test_columns_of_any_kind(kind):
    convert = {
        "list": list,
        "numpy": np.asarray,
        "torch": torch.tensor,
        "bfloat16": lambda values: (
            torch.tensor(values, dtype=torch.bfloat16) if isinstance(values[0], float) else torch.tensor(values)
        ),
    }[kind]
    columns: dict[str, Any] = {"groups": PROMPT, "lengths": LENGTH, "rewards": [float(right) for right in RIGHT]}
    method = compose("dapo+balanced")
    plan = plan_rows(method, **{k: convert(v) for k, v in columns.items()}, max_response_length=BUDGET)
    expected = plan_of(method)
    assert np.array_equal(plan.weight, expected.weight) and np.array_equal(plan.advantage, expected.advantage)


def test_padding_and_what_nobody_graded_do_not_count():
    rewards, lengths, correct = [1.0, 0.0, 0.0, 7.0], [3, 2, 4, 0], [1.0, 0.0, math.nan, 1.0]
    plan = plan_rows(
        compose("grpo"), groups=[0] * 4, lengths=lengths, rewards=rewards, correct=correct, max_response_length=8
    )
    assert plan.trains.tolist() == [True, True, False, False]
    assert plan.advantage.tolist() == [1.0, -1.0, 0.0, 0.0] and plan.weight.tolist() == [1 / 6, 1 / 4, 0.0, 0.0]


BREAKS = {"logprobs": (0, 1, 0), "old_logprobs": (1, 0, 0), "ref_logprobs": (1, 1, 0), "gradient": (1, 1, 1)}
"""What is broken, and which of new, old and reference log-probs are healthy; of the last all are, but the gradient is not."""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("quantity", BREAKS)
def test_an_update_with_a_number_that_is_not_finite_is_skipped(quantity, value, capsys):
    """No state moves, no bound hides it, a line says what it was; the third in a row is an error, a step in between is not."""
    method, columns, skips = learned("fspo+kl"), log_probs(), Skips()
    plan = plan_of(method).to("cpu", torch.float64)
    good = policy_loss(method, plan, **{k: columns[k] for k in ("logprobs", "old_logprobs", "ref_logprobs")}, mask=MASK)
    if quantity in columns:
        columns[quantity][3, 0] = value
    leaf = columns.pop("logprobs").requires_grad_()
    found = policy_loss(method, plan, leaf, columns["old_logprobs"], ref_logprobs=columns["ref_logprobs"], mask=MASK)
    (gradient,) = torch.autograd.grad(found.total, leaf)
    is_given = quantity == "gradient"
    assert bool(gradient[MASK].isfinite().all()) == is_given
    norm = value if is_given else gradient[MASK].norm()
    for skipped in (1, 2, 3, 4):
        done = finish_update(method, [good.counts, found.counts, good.counts], norm, skips)
        assert (done.broken, done.may_step, done.method) == (quantity, False, method)
        assert done.metrics == {"update/skipped": quantity, "updates/skipped": skipped}
        if skipped == 2:
            assert finish_update(method, [good.counts], 1.0, skips).may_step
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4 and all(f"{quantity} was not finite" in line for line in said)
    with pytest.raises(NonFiniteError, match=f"{quantity} was not finite in 3 updates in a row"):
        finish_update(method, [found.counts], norm, skips)


def test_gradients_that_overflow_under_a_loss_scaler_end_no_run():
    method, columns, skips = learned("fspo"), log_probs(), Skips(with_loss_scaler=True)
    plan = plan_of(method).to("cpu", torch.float64)
    found = policy_loss(method, plan, columns["logprobs"], columns["old_logprobs"], mask=MASK)
    for skipped in range(1, 9):
        done = finish_update(method, [found.counts], math.inf, skips)
        assert not done.may_step and done.method == method and done.metrics["updates/skipped"] == skipped


def test_a_state_that_would_not_be_finite_skips_the_update():
    method = compose("fspo")
    counts = {"loss/total": 1.0, "tokens/trained": 3.0} | {
        f"observed.{k}": v for k, v in learned_sums(math.inf).items()
    }
    done = finish_update(method, [counts], 1.0, Skips())
    assert done.broken == "state" and done.method == method


def learned_sums(log_ratio: float) -> dict[str, float]:
    return {f"surrogate.{name}": value for name, value in (BAND_SUMS | {"log_ratio": log_ratio}).items()}


@pytest.mark.parametrize("name", ["grpo", "cispo", "gspo", "fspo+kl", "grpo+kl+mismatch"])
def test_no_gradient_flows_into_what_is_fixed(name):
    """Old, reference and engine log-probs that are functions of the weights, as where somebody forgets no_grad."""
    method, columns = learned(name), log_probs()
    plan = plan_of(method).to("cpu", torch.float64)
    gradients = []
    for is_attached in (False, True):
        leaf = columns["logprobs"].clone().requires_grad_()
        fixed = {}
        for key in ("old_logprobs", "rollout_logprobs", "ref_logprobs"):
            shift = (columns[key] - columns["logprobs"]).detach()
            fixed[key] = leaf + shift if is_attached else (leaf + shift).detach()
        total = policy_loss(method, plan, leaf, **fixed, mask=MASK).total
        gradients.append(torch.autograd.grad(total, leaf)[0].nan_to_num())
    assert gradients[0].abs().max() > 0 and torch.equal(*gradients)


def test_an_update_of_rows_that_do_not_train_is_zero():
    method = compose("dapo")
    with pytest.warns(UserWarning, match="no response trains: the filter MixedOutcomes keeps none of 1 prompts"):
        plan = plan_rows(method, groups=[0, 0], lengths=[1, 2], rewards=[1.0, 1.0], max_response_length=8).to("cpu")
    assert not plan.trains.any()
    leaf = torch.zeros(2, 2, requires_grad=True)
    found = policy_loss(method, plan, leaf, torch.ones(2, 2), mask=torch.ones(2, 2))
    found.total.backward()
    assert (
        leaf.grad is not None
        and not leaf.grad.any()
        and finish_update(method, [found.counts], 0.0, Skips()).metrics["tokens/trained"] == 0.0
    )
    assert replace(plan, trains=~plan.trains).trains.all()


@pytest.mark.parametrize("name", [*WHOLE, "fspo+kl", "gspo+balanced+kl+mismatch"])
def test_an_outlier_leaves_the_gradients_of_other_sequences(name):
    """Log-probs of -1e9, as from a mask in the logits, in one token of row 3."""
    method, columns = learned(name), log_probs()
    plan, others = plan_of(method).to("cpu", torch.float64), torch.arange(NUM_ROWS) != 3

    def differentiate(columns: dict[str, torch.Tensor]) -> torch.Tensor:
        leaf = columns["logprobs"].clone().requires_grad_()
        loss = policy_loss(method, plan, **columns | {"logprobs": leaf}, mask=MASK)
        assert math.isfinite(float(loss.total.detach()))
        done = finish_update(method, [loss.counts], 1.0, Skips())
        assert done.may_step and all(map(math.isfinite, done.metrics.values()))
        return torch.autograd.grad(loss.total, leaf)[0]

    expected = differentiate(columns)[others]
    for quantity in ("logprobs", "old_logprobs", "ref_logprobs"):
        values = columns[quantity].clone()
        values[3, 0] = -1e9
        found = differentiate(columns | {quantity: values})
        assert found[3][MASK[3]].isfinite().all()
        assert torch.allclose(found[others], expected, rtol=1e-9, atol=1e-15, equal_nan=True), quantity


def test_mismatch_of_short_and_long_sequences():
    """Lengths 1 and 3, apart by 0.1 and 0.2 a token: (0.1 + 3 * 0.2) / 4, (0.1 + 0.2) / 2, (1 * 0.1 + 9 * 0.2) / 10."""
    old, one = torch.full((4,), -1.0, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    engine = old + torch.tensor([0.1, 0.2, -0.2, 0.2])
    micro = Micro.of(torch.tensor([1, 3]), one, one, one, old_logprobs=old, rollout_logprobs=engine)
    method, outputs = compose("grpo"), Outputs(old.clone(), torch.zeros(4))
    found = update_metrics(sum_counts([count(method, outputs, micro, method.loss(outputs, micro))]))
    expected = {"mean": 0.175, "short": 0.15, "long": 0.19, "max": 0.2}
    assert {name: found[f"mismatch/{name}"] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf], ids=["missing", "impossible", "infinite"])
@pytest.mark.parametrize("name", ["mismatch", "icepop", "rejection"])
def test_a_samplers_log_prob_that_is_missing_is_named(name, value):
    """By every correction alike, so that no infinite ratio is trained at its bound; without one nobody reads the log-probs."""
    corrections = {
        "mismatch": SamplerMismatch(),
        "icepop": SamplerMismatch(above_cap="mask", floor=0.5),
        "rejection": SamplerRejection(),
    }
    columns = log_probs()
    columns["rollout_logprobs"][0, 0] = value

    def finish(method: Method):
        found = policy_loss(method, plan_of(method).to("cpu", torch.float64), **columns, mask=MASK)
        return finish_update(method, [found.counts], 1.0, skips)

    skips = Skips()
    assert finish(compose("grpo")).may_step
    done = finish(replace(compose("grpo"), correction=corrections[name]))
    assert not done.may_step and done.broken == "rollout_logprobs"
    assert "missing, masked (NaN) or infinite" in skips.cause and "overflow" not in skips.cause

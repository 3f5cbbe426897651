"""Padded rows of a framework: their plan, the tokens that a mask lets through, and what never counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures import random_batch, relative
from loops import over

from fairlen.batch import NO_VERDICT, Responses, Segments, build_responses, build_segments
from fairlen.methods.compose import compose
from fairlen.methods.method import Method, spread
from fairlen.methods.presets import BASES
from fairlen.methods.stages.aggregation import Balanced, SequenceMean
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.sampling.independent import Independent

HOLES = torch.tensor([[1, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
"""Two turns with a tool's answer between them, a row without a trained token, a row of one token."""


def tables(prompt, length, right, active=None, max_response_length=8) -> tuple[Responses, Segments]:
    right = np.array(right, np.bool_)
    verdict = right if active is None else np.where(active, right, NO_VERDICT)
    responses = build_responses(np.array(prompt), length, right, verdict, np.zeros(len(right)), max_response_length)
    return responses, build_segments(responses, length)


def micro_of(mask: torch.Tensor, columns: dict, old: torch.Tensor, ref: torch.Tensor) -> Micro:
    """The trained tokens of padded rows, by columns of a plan."""
    numbers = {name: torch.as_tensor(columns[name]) for name in ("advantage", "weight", "term_weight")}
    return Micro.of(mask.sum(1), **numbers, old_logprobs=old[mask], ref_logprobs=ref[mask])


def columns_of(method: Method, responses: Responses, segments: Segments) -> dict[str, np.ndarray]:
    """The plan of all rows."""
    return spread(method.plan(method.score_tables(responses, segments)), len(responses))


def test_tokens_of_several_spans_lie_back_to_back():
    mask, values = HOLES.bool(), torch.arange(18.0).reshape(3, 6)
    found = micro_of(mask, {name: [1.0, 2.0, 3.0] for name in ("advantage", "weight", "term_weight")}, values, values)
    assert found.length.tolist() == [3, 1]
    assert found.sequence.tolist() == [0, 0, 0, 1]
    assert found.advantage.tolist() == [1, 3]
    assert found.old_logprobs.tolist() == [0, 1, 4, 12]  # columns 0, 1 and 4 of row 0, column 0 of row 2


def test_a_running_sum_is_that_of_each_sequence_wherever_its_tokens_lie():
    mask, values = HOLES.bool(), torch.arange(18.0).reshape(3, 6)
    micro = micro_of(mask, {name: [1.0, 2.0, 3.0] for name in ("advantage", "weight", "term_weight")}, values, values)
    assert micro.cumulate(torch.tensor([1.0, 2.0, 4.0, 8.0])).tolist() == [1, 3, 7, 8]
    mixed = replace(micro, sequence=torch.tensor([1, 0, 1, 1, 0]))  # 0: 2 + 16, 1: 1 + 4 + 8
    assert mixed.cumulate(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])).tolist() == [1, 2, 5, 13, 18]
    large = mixed.cumulate(torch.tensor([1e8, 1.0, -1e8, 1.0, 1.0]))  # float32 would lose the others
    assert large.tolist() == [1e8, 1, 0, 1, 2]


def test_weights_by_hand_with_rows_that_do_not_count():
    # prompt 0: lengths 2 and 4, one right, and a row of padding; prompt 1: lengths 1 and 3, one right, and no verdict
    responses, segments = tables([0, 0, 0, 1, 1, 1], [2, 4, 0, 1, 3, 5], [1, 0, 0, 0, 1, 0], active=[1, 1, 1, 1, 1, 0])
    method = replace(Method(sampling=Independent(3)), aggregation=SequenceMean())
    plan = columns_of(method, responses, segments)
    assert plan["trains"].tolist() == [True, True, False, True, True, False]
    assert plan["advantage"].tolist() == [1, -1, 0, -1, 1, 0]  # of two, one right: mean 1/2, std 1/2
    # 1 / (N T) with N = 4 rows that count
    assert plan["weight"] == pytest.approx([1 / 8, 1 / 16, 0, 1 / 4, 1 / 12, 0])


def test_terms_have_weights_of_their_own():
    responses, segments = tables([0, 0, 0], [1, 2, 5], [1, 0, 0])
    plan = columns_of(Method(sampling=Independent(3), aggregation=Balanced()), responses, segments)
    assert plan["term_weight"] == pytest.approx([1 / 8] * 3)  # the token mean of the scope: 8 tokens
    assert plan["weight"] != pytest.approx(plan["term_weight"])


def test_nothing_trains_where_no_prompt_is_kept():
    responses, segments = tables([0, 0], [1, 3], [1, 1])
    method = compose("grpo+dynamic", ["sampling.n=2"])
    assert len(method.plan(method.score_tables(responses, segments))) == 0
    plan = columns_of(method, responses, segments)
    assert not plan["trains"].any() and not plan["weight"].any()


def padded_of(seed: int):
    """A random batch as padded rows in a random order, with holes full of junk and rows of padding."""
    rng, batch = np.random.default_rng(seed), random_batch(seed)
    size, width = len(batch.responses) + 3, 20
    row_of = rng.permutation(size)[: len(batch.responses)]
    mask = np.zeros((size, width), np.int64)
    for row, length in zip(row_of, batch.responses.length, strict=True):
        mask[row, np.sort(rng.choice(width, length, replace=False))] = 1
    return batch, row_of, torch.from_numpy(mask)


def loss_of(method: Method, micro: Micro, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    return method.loss(Outputs(logprobs, entropy), micro).total


@over("name", [*BASES, "grpo+kl+entropy", "fspo+balanced"])
@over("seed", range(2))
def test_loss_and_gradient_are_those_without_padding(name, seed):
    """Holes, order and rows of padding change nothing."""
    method = replace(compose(name), filter=Method().filter, sampling=Independent(4))
    batch, row_of, mask = padded_of(seed)
    plan = method.plan(method.score_tables(batch.responses, batch.segments))
    columns = spread(replace(plan, rows=row_of[plan.rows]), len(mask))
    draw = torch.Generator().manual_seed(seed)
    shape = (len(mask), mask.shape[1])
    old, ref = (torch.randn(shape, generator=draw, dtype=torch.float64) - 2 for _ in range(2))
    logprobs = (old + 0.05 * torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_()
    entropy = torch.rand(shape, generator=draw, dtype=torch.float64)
    trained = mask.bool() & torch.from_numpy(columns["trains"])[:, None]
    total = loss_of(method, micro_of(trained, columns, old, ref), logprobs[trained], entropy[trained])
    (gradient,) = torch.autograd.grad(total, logprobs)
    assert gradient.abs().max() > 0 and not gradient[mask == 0].any()

    parts = [(row, (mask[row] == 1).nonzero()[:, 0]) for row in row_of]  # fairlen's order, row by row
    padded = {"l": logprobs.detach(), "o": old, "r": ref, "e": entropy}
    flat = {key: torch.cat([values[row, at] for row, at in parts]) for key, values in padded.items()}
    length = torch.tensor([len(at) for _, at in parts])
    per_row = [torch.from_numpy(columns[name][row_of]) for name in ("advantage", "weight", "term_weight")]
    sequence = torch.repeat_interleave(torch.arange(len(length)), length)
    direct = Micro(length, sequence, *per_row, flat["o"], flat["o"], False, flat["r"])
    leaf = flat["l"].requires_grad_()
    expected = loss_of(method, direct, leaf, flat["e"])
    (per_token,) = torch.autograd.grad(expected, leaf)
    assert total.item() == pytest.approx(expected.item(), rel=1e-12)
    assert relative(torch.cat([gradient[row, at] for row, at in parts]), per_token) < 1e-12


@over("name", [*BASES, "grpo+kl+entropy", "grpo+mismatch"])
def test_a_micro_batch_without_rows_has_loss_0_and_a_gradient_of_0(name):
    """So that a process with nothing to train still takes part in the backward pass."""
    logprobs = torch.zeros(3, 6, dtype=torch.float64, requires_grad=True)
    nothing = torch.zeros(3, 6, dtype=torch.bool)
    columns = {name: torch.zeros(3, dtype=torch.float64) for name in ("advantage", "weight", "term_weight")}
    micro = micro_of(nothing, columns, logprobs.detach(), logprobs.detach())
    total = loss_of(compose(name), micro, logprobs[nothing], logprobs[nothing])
    total.backward()
    assert total.item() == 0.0
    assert logprobs.grad is not None and not logprobs.grad.any()

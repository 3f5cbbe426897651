"""Packing changes nothing: log-probs of packed rows are those of each row alone."""

import numpy as np
import torch

from fairlen.methods.compose import compose
from fairlen.policy.pack import pack, split_rows


def test_split_rows_never_splits_a_row_and_respects_the_budget():
    widths = np.array([3, 10, 9, 4, 10])
    parts = [part.tolist() for part in split_rows(widths, max_tokens=20)]
    # by width: 10, 10 (20 positions) | 9 (4 is below 0.8 * 9) | 4 (3 is below 0.8 * 4 = 3.2) | 3
    assert parts == [[1, 4], [2], [3], [0]]


def test_a_row_longer_than_the_budget_gets_a_micro_batch_of_its_own():
    assert [part.tolist() for part in split_rows(np.array([50, 50]), max_tokens=20)] == [[0], [1]]


def test_logprobs_of_packed_rows_are_those_of_the_engine_and_of_single_rows(policy, batch):
    method = compose("grpo")
    plan = method.plan(method.score(batch.rollouts))
    for packed in pack(batch.rollouts, plan, 4096):
        with torch.no_grad():
            found = policy.forward(packed.inputs).logprobs
        assert (found - packed.micro.rollout_logprobs).abs().max() < 1e-4
        span = batch.rollouts.segments[plan.rows[packed.rows[0]]]
        response = batch.rollouts.responses[span.response]
        ids = torch.tensor(response.token_ids)[None]
        with torch.no_grad():
            alone = torch.log_softmax(policy.model(input_ids=ids).logits[0, :-1], -1)
        alone = alone.gather(-1, ids[0, 1:, None])[span.start - 1 :, 0]
        assert torch.allclose(found[: len(alone)], alone, atol=2e-5)

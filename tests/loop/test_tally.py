"""The metrics of an update, by hand."""

import pytest
import torch

from fairlen.loop.tally import Tally, update_metrics
from fairlen.methods.compose import compose
from fairlen.methods.stages.micro import Micro, Outputs


def test_mismatch_of_short_and_long_sequences():
    """Lengths 1 and 3, apart by 0.1 and 0.2 a token: (0.1 + 3 * 0.2) / 4, (0.1 + 0.2) / 2, (1 * 0.1 + 9 * 0.2) / 10."""
    old, one = torch.full((4,), -1.0, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    engine = old + torch.tensor([0.1, 0.2, -0.2, 0.2])
    micro = Micro.of(torch.tensor([1, 3]), one, one, one, old_logprobs=old, rollout_logprobs=engine)
    method, outputs, tally = compose("grpo"), Outputs(old.clone(), torch.zeros(4)), Tally()
    tally.add(method, outputs, micro, method.loss(outputs, micro))
    found = update_metrics(tally.finish())
    expected = {"mean": 0.175, "short": 0.15, "long": 0.19, "max": 0.2}
    assert {name: found[f"mismatch/{name}"] for name in expected} == pytest.approx(expected, rel=1e-6)

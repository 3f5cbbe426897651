"""Between the surrogate and `backward` nothing is averaged, divided or normalised: the loss of an update is a plain sum.

The graph that `backward` walks is looked at, so that a mean anywhere on the way is found, in whichever file it stands, even
one over a single number. `reinforce` has a surrogate without a division of its own.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fairlen.methods.compose import compose
from fairlen.methods.method import Method, updates
from fairlen.methods.stages.micro import Outputs
from fairlen.policy.model import Policy
from fairlen.train.step import Learner

DIVIDES = re.compile(r"Mean|Div|Norm|Softmax|Std|Var|Reciprocal")


def operations(root: Tensor, stop: Tensor) -> list[str]:
    """Names of what the gradient passes from `root` to `stop`, nearest to the root first."""
    waiting, found, seen = [root.grad_fn], [], {None, stop.grad_fn}
    while waiting:
        node = waiting.pop()
        if node in seen or node is None:
            continue
        seen.add(node)
        found.append(node.name())
        waiting += [there for there, _ in node.next_functions]
    return found


class Watched(Policy):
    """The policy, which remembers what it handed out."""

    outputs: Outputs

    def forward(self, *args, **kwargs) -> Outputs:
        self.outputs = super().forward(*args, **kwargs)
        return self.outputs


def learner(policy: Policy) -> Learner:
    watched = Watched(policy.model, policy.tokenizer, policy.head)
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.0)
    return Learner(watched, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer), 1.0, 4096)


def watch_backward(policy, batch, monkeypatch, method: Method) -> list[str]:
    """What lies between the log-probs and `backward` in one update of our trainer."""
    ours, found = learner(policy), []
    rollouts = batch.rollouts
    update = next(iter(updates(method.score(rollouts))))
    backward = Tensor.backward

    def look(root: Tensor, *args, **kwargs) -> None:
        found.extend(operations(root, ours.policy.outputs.logprobs))
        backward(root, *args, **kwargs)

    monkeypatch.setattr(Tensor, "backward", look)
    result = ours.differentiate(method, rollouts, method.weigh(update), {}, is_on_policy=True)
    assert not result.quantity and found
    ours.optimizer.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("name", ["reinforce", "reinforce+balanced", "eqlen+reinforce"])
def test_the_loss_is_a_plain_sum(policy, batch, monkeypatch, name):
    found = watch_backward(policy, batch, monkeypatch, compose(name))
    assert [name for name in found if DIVIDES.search(name)] == []
    assert any("Sum" in name for name in found)


@pytest.mark.parametrize(
    "change",
    [lambda loss: loss.mean(), lambda loss: loss / 1.0, lambda loss: torch.nn.functional.normalize(loss, dim=0)],
)
def test_a_mean_a_division_and_a_normalisation_are_found(policy, batch, monkeypatch, change):
    class Divides(Method):
        def loss(self, outputs, micro):
            found = super().loss(outputs, micro)
            return replace(found, total=change(found.total[None]).sum())

    method = Divides(**vars(compose("reinforce")))
    assert [name for name in watch_backward(policy, batch, monkeypatch, method) if DIVIDES.search(name)]

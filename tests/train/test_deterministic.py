"""`--deterministic`: what it switches on and where, and that no operation of an update would be refused under it."""

import os
from collections import Counter

import pytest
import torch
from loops import over
from shapes import CONFIGS
from test_update_waits import batch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from fairlen.hangs import TrainingStopped
from fairlen.methods.compose import compose
from fairlen.policy.head import Head
from fairlen.policy.layout import choose_layout
from fairlen.policy.model import Policy
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import build_learner
from fairlen.train.step import WORKSPACES, Learner, prepare_determinism

aten = torch.ops.aten
REFUSED = {
    aten.cumsum, aten.put_, aten.put, aten.histc, aten.bincount, aten.median, aten.nll_loss_forward, aten.nll_loss2d_forward,
    aten.scatter_reduce, aten.scatter_reduce_, aten.kthvalue, aten._embedding_bag, aten.grid_sampler_2d_backward,
    aten._ctc_loss_backward, aten.upsample_linear1d_backward, aten.reflection_pad1d_backward,
}  # fmt: skip
"""What torch's documentation of use_deterministic_algorithms says is refused on CUDA, and what is near it; cumsum of floats."""
REPEATED = {aten.index_add, aten.index_add_, aten.index_put, aten.index_put_, aten.scatter_add, aten.scatter_add_,
            aten.embedding_dense_backward, aten._unsafe_index_put, aten.index_select_backward}  # fmt: skip
"""What sums with atomics on CUDA unless it is told otherwise, or by sorting always."""


class Operations(TorchDispatchMode):
    """Notes every operation on floating-point numbers, and whether deterministic algorithms were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter = Counter()
        self.modes: set[bool] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        leaves = [leaf for leaf in tree_leaves((args, made)) if isinstance(leaf, Tensor)]
        if any(leaf.is_floating_point() for leaf in leaves):
            self.found[func.overloadpacket] += 1
            if func.overloadpacket is aten.mm:
                self.modes.add(torch.are_deterministic_algorithms_enabled())
        return made


def build(layout: str, is_deterministic: bool) -> Learner:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"]())
    policy = Policy(model, None, Head(model.get_output_embeddings()))
    config = TrainConfig.of(deterministic=is_deterministic, max_gradient_norm=1e9)
    return build_learner(config, policy, compose("grpo"), choose_layout(layout, policy, 24))


def update(layout: str, method: str, is_deterministic: bool) -> tuple[dict[str, Tensor], Operations]:
    """The gradient of an update, which stays after its step, and the operations that it was made of."""
    learner, (rollouts, plan) = build(layout, is_deterministic), batch()
    if learner.reference is None and compose(method).needs_ref:
        learner.reference = learner.policy
    with Operations() as operations:
        learner.old_logprobs(rollouts, plan)
        assert not learner.step(compose(method), rollouts, plan, {}, is_on_policy=False).quantity
    return {name: p.grad.clone() for name, p in learner.policy.model.named_parameters()}, operations


@over("layout", ["rows", "trees"])
@over("method", ["fspo", "grpo+kl"])
def test_no_operation_of_an_update_would_be_refused(layout, method):
    _, operations = update(layout, method, True)
    assert not REFUSED & set(operations.found), REFUSED & set(operations.found)
    atomic = {str(one): number for one, number in operations.found.items() if one in REPEATED}
    print(f"{method} on {layout}: {atomic} of {sum(operations.found.values())} operations")
    assert atomic, "nothing would need the setting"


def test_a_refused_operation_would_be_seen():
    with Operations() as operations:
        torch.rand(3).cumsum(0)
        torch.ones(3, dtype=torch.int64).cumsum(0)
    assert operations.found[aten.cumsum] == 1


def test_it_holds_in_updates_and_nowhere_else():
    for is_on in (False, True):
        _, operations = update("rows", "grpo", is_on)
        assert operations.modes == {is_on}
        assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


@over("layout", ["rows", "trees"])
def test_on_the_cpu_an_update_has_the_same_bits_with_it_without_it_and_again(layout):
    first, again, without = (update(layout, "fspo", is_on)[0] for is_on in (True, True, False))
    for name, gradient in first.items():
        assert torch.equal(gradient, again[name]) and torch.equal(gradient, without[name]), name
    # all tokens are the same, so that weights of attention have no gradient
    assert all(gradient.any() for name, gradient in first.items() if ".q_" not in name and ".k_" not in name)


def test_an_operation_without_such_an_algorithm_ends_the_run_with_what_to_do(monkeypatch):
    learner = build("rows", True)

    def refuse() -> None:
        raise RuntimeError("put_ does not have a deterministic implementation, but you set 'torch.use_...'.\nmore")

    with pytest.raises(TrainingStopped, match=r"^deterministic=True: put_ does not .* Leave --deterministic out$"):
        learner.fit(refuse, *batch())
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_cublas_reads_is_set_and_checked(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    prepare_determinism()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == WORKSPACES
    prepare_determinism()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(ValueError, match=r"CUBLAS_WORKSPACE_CONFIG=:0:0: unset it, or give :4096:8 or :16:8"):
        prepare_determinism()

"""The output layer's log-probs, entropies and gradients: chunks change nothing, and bfloat16 operands cost what they must."""

import copy
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from loops import over
from torch import Tensor, nn

from fairlen.policy import head as module
from fairlen.policy.head import CHUNK_LOGITS, Head
from fairlen.policy.pack import ModelInput
from fairlen.policy.support import build_support

LENGTH, WIDTH, VOCABULARY = 518, 64, 2048
"""518 = 7 * 74 positions: 1, 7 and 74 chunks are all full."""


@dataclass
class Case:
    """Hidden states [T, H] that a head reads, and weights of log-probs and entropies in a loss."""

    hidden: Tensor
    linear: nn.Linear
    target: Tensor
    of_logprob: Tensor
    of_entropy: Tensor

    def compute(
        self,
        monkeypatch: pytest.MonkeyPatch,
        dtype: torch.dtype,
        chunks: int,
        *,
        is_low: bool = False,
        entropy_grad: bool = False,
        is_frozen: bool = False,
        factor: float = 1.0,
        cap: float | None = None,
        temperature: float = 1.0,
        left: int = 0,
    ) -> dict[str, Tensor]:
        """Return outputs and gradients, in so many chunks; 0 is all at once by torch's own derivatives, in the dtype."""
        rows = -(-len(self.hidden) // max(chunks, 1))
        monkeypatch.setattr(module, "CHUNK_LOGITS", rows * len(self.linear.weight) if chunks else 1 << 40)
        linear = nn.Linear(*self.linear.weight.T.shape, bias=self.linear.bias is not None, dtype=dtype)
        linear.load_state_dict(self.linear.state_dict())
        linear.requires_grad_(not is_frozen)
        hidden = self.hidden.to(dtype, copy=True).requires_grad_()
        support = build_support(self.supports(left), self.target.numpy(), torch.device("cpu"))
        inputs = ModelInput(self.target[None], torch.arange(len(hidden)), self.target, temperature, support=support)
        outputs = Head(linear, factor, cap).read(hidden, inputs, is_low, True, entropy_grad)
        loss = (outputs.logprobs * self.of_logprob.to(dtype)).sum()
        if entropy_grad:
            loss = loss + (outputs.entropy * self.of_entropy.to(dtype)).sum()
        loss.backward()
        found = dict(logprobs=outputs.logprobs.detach(), entropy=outputs.entropy.detach(), hidden=hidden.grad)
        found |= {name: parameter.grad for name, parameter in linear.named_parameters() if not is_frozen}
        return {name: tensor.double() for name, tensor in found.items()}

    def supports(self, left: int) -> list[bytes]:
        """The most likely ids of each position and its target, but of every third the whole vocabulary; 0 is that everywhere."""
        likely = torch.cat([self.linear(self.hidden).topk(left).indices, self.target[:, None]], 1).int()
        return [row.unique().numpy().tobytes() if left and i % 3 else b"" for i, row in enumerate(likely)]


def draw(length: int = LENGTH, width: int = WIDTH, vocabulary: int = VOCABULARY, bias: bool = False) -> Case:
    """Logits of standard deviation 2, targets drawn from them so that some are likely, and advantages of either sign."""
    torch.manual_seed(0)
    linear = nn.Linear(width, vocabulary, bias=bias, dtype=torch.float64)
    nn.init.normal_(linear.weight, std=2 / width**0.5)
    hidden = torch.randn(length, width, dtype=torch.float64)
    target = torch.multinomial(torch.softmax(linear(hidden).detach(), -1), 1)[:, 0]
    return Case(hidden, linear, target, torch.randn(length), 0.1 * torch.randn(length))


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference over the largest number."""
    assert found.keys() == expected.keys()
    return {name: float((found[name] - expected[name]).abs().max() / expected[name].abs().max()) for name in found}


VARIANTS = {
    "plain": dict(), "temperature": dict(temperature=0.7), "entropy": dict(entropy_grad=True, temperature=0.7),
    "frozen": dict(is_frozen=True, temperature=0.7), "frozen, entropy": dict(is_frozen=True, entropy_grad=True),
    "cap, factor": dict(cap=3.0, factor=1.3, entropy_grad=True, temperature=0.7),
    "cap, frozen": dict(cap=3.0, factor=1.3, is_frozen=True, temperature=0.7), "support": dict(left=5, temperature=0.7),
    "support, entropy": dict(left=5, entropy_grad=True), "support, frozen": dict(left=5, is_frozen=True),
    "support, cap": dict(left=5, cap=3.0, factor=1.3, entropy_grad=True, temperature=0.7),
}  # fmt: skip


@over("bias", [False, True])
@over("variant", VARIANTS)
def test_derivatives_by_chunks_are_torchs_own(monkeypatch, variant, bias):
    case, given = draw(37, 16, 50, bias), VARIANTS[variant]
    expected = case.compute(monkeypatch, torch.float64, 0, **given)
    for chunks in (1, 5, 37):
        found = distance(case.compute(monkeypatch, torch.float64, chunks, **given), expected)
        assert max(found.values()) < 1e-14, found


@pytest.mark.slow
@over("variant", ["plain", "entropy", "frozen"])
def test_no_number_of_chunks_changes_a_number_in_bfloat16(monkeypatch, variant):
    """1, 7 and 74 chunks are equal to 1e-6 of the largest number, and no farther from float64 than autocast all at once."""
    case, given = draw(), VARIANTS[variant]
    exact = case.compute(monkeypatch, torch.float64, 0, **given)
    with torch.autocast("cpu", torch.bfloat16):
        usual = distance(case.compute(monkeypatch, torch.float32, 0, **given), exact)
    found = {n: case.compute(monkeypatch, torch.float32, n, is_low=True, **given) for n in (1, 7, 74)}
    for chunks, outputs in found.items():
        error, apart = distance(outputs, exact), distance(outputs, found[1])
        print(
            variant,
            chunks,
            {name: f"error {usual[name]:.1e} -> {error[name]:.1e}, {apart[name]:.1e}" for name in error},
        )
        assert all(number <= usual[name] for name, number in error.items())
        assert all(number <= 1e-6 for number in apart.values())


@over("entropy_grad", [False, True])
@over("dtype", [torch.float32, torch.float64])
def test_few_logits_keep_torchs_own_bits(monkeypatch, dtype, entropy_grad):
    """What runs of small models have always computed, written out."""
    case = draw(37, 16, 50)
    found = case.compute(monkeypatch, dtype, 0, temperature=0.7, entropy_grad=entropy_grad)
    linear, hidden = copy.deepcopy(case.linear).to(dtype), case.hidden.to(dtype, copy=True).requires_grad_()
    logprobs = torch.log_softmax(linear(hidden) / 0.7, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    logprobs = logprobs.gather(-1, case.target[:, None])[:, 0]
    loss = (logprobs * case.of_logprob.to(dtype)).sum()
    (loss + (entropy * case.of_entropy.to(dtype)).sum() if entropy_grad else loss).backward()
    for name, tensor in dict(logprobs=logprobs, entropy=entropy, hidden=hidden.grad, weight=linear.weight.grad).items():
        assert tensor is not None and torch.equal(found[name], tensor.detach().double()), name


@over("is_low", [False, True])
@over("length", [0, 5])
def test_entropies_are_computed_where_they_are_asked_for(monkeypatch, is_low, length):
    head, target = Head(nn.Linear(4, 6)), torch.arange(length)
    inputs = ModelInput(target[None], target, target, 1.0)
    hidden = torch.randn(length, 4)
    for limit in (1, 1 << 40):
        monkeypatch.setattr(module, "CHUNK_LOGITS", limit)
        asked, unasked = (head.read(hidden, inputs, is_low, entropy, False) for entropy in (True, False))
        assert asked.entropy.isfinite().all() and unasked.entropy.isnan().all()
        assert torch.equal(asked.logprobs, unasked.logprobs)
        assert asked.entropy.shape == target.shape == unasked.entropy.shape
        assert unasked.logprobs.requires_grad and not asked.entropy.requires_grad


MEASURE = """
import sys, torch
from fairlen.policy import head as module
from fairlen.policy.pack import ModelInput
torch.set_num_threads(1)
module.CHUNK_LOGITS = int(sys.argv[1])
head = module.Head(torch.nn.Linear(8, 151936, bias=False))
hidden, target = torch.randn(1200, 8, requires_grad=True), torch.arange(1200)
largest = lambda: int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])  # KiB
before = largest()
head.read(hidden, ModelInput(target[None], target, target, 1.0), False, True, False).logprobs.sum().backward()
print((largest() - before) / 2**20)
"""


@pytest.mark.slow
def test_memory_of_a_large_vocabulary_is_that_of_a_chunk():
    """1200 x 151936 logits in float32 are 0.68 GiB, and a backward pass holds several such tensors; a chunk has 0.25 GiB.

    VmHWM counts this program alone; ru_maxrss begins at that of the process that started it, here the whole test run's.
    """
    found = []
    for chunk in (CHUNK_LOGITS, 1 << 40):
        done = subprocess.run([sys.executable, "-c", MEASURE, str(chunk)], capture_output=True, text=True, check=True)
        found.append(float(done.stdout.split()[-1]))
    print(found)
    assert found[0] < 0.75 < 2 * 0.68 < found[1]

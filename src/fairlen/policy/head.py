"""The output layer: log-probs of trained tokens and entropies, a chunk of positions at a time.

Under autocast operands are bfloat16; logits, softmax and sums over positions are float32, so that chunks change no gradient
beyond float32 rounding. The backward pass recomputes logits; where the output layer is frozen, as under adapters, the forward
pass computes the derivatives instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairlen.methods.stages.micro import Outputs
from fairlen.policy.pack import ModelInput
from fairlen.policy.support import Support

CHUNK_LOGITS = 1 << 26  # logits held at a time, in two copies (256 MiB each in float32)


@dataclass(frozen=True)
class Head:
    """An architecture's function from hidden states [N, H] to logits [N, V]."""

    linear: nn.Linear
    factor: float = 1.0
    cap: float | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = self.linear(hidden) * self.factor if self.factor != 1.0 else self.linear(hidden)
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits

    def read(self, hidden: Tensor, inputs: ModelInput, is_low: bool, entropy: bool, entropy_grad: bool) -> Outputs:
        """Log-probs and entropies of trained tokens; `is_low`: bfloat16 operands. Entropies are NaN where not asked for."""
        weight = self.linear.weight
        dtype = torch.bfloat16 if is_low else weight.dtype
        asked = entropy or entropy_grad, entropy_grad
        chunks = Chunks(self, inputs.target, inputs.temperature, inputs.support, dtype, *asked)
        if not is_low and (2 * len(hidden) * len(weight) <= CHUNK_LOGITS or len(hidden) == 1):
            return Outputs(*chunks.read_at_once(hidden))
        return Outputs(*ChunkedLogprobs.apply(hidden, weight, self.linear.bias, chunks))


@dataclass(frozen=True)
class Chunks:
    """Arithmetic of a chunk of n positions; matrix products have operands of `dtype` and at least float32 results."""

    head: Head
    target: Tensor
    temperature: float
    support: Support
    dtype: torch.dtype
    entropy: bool
    entropy_grad: bool

    def read_at_once(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of the targets and entropies, [N] each, with torch's own derivatives."""
        logits = self.head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        logprobs = torch.log_softmax(self.support.cut(logits, slice(0, len(logits))), -1)
        with torch.set_grad_enabled(self.entropy_grad and torch.is_grad_enabled()):
            entropy = self.entropies(logprobs)
        return logprobs.gather(-1, self.target[:, None])[:, 0], entropy

    def entropies(self, logprobs: Tensor) -> Tensor:
        if not self.entropy:
            return logprobs.new_full((len(logprobs),), torch.nan)
        probs = logprobs.exp()
        return -(probs * logprobs if self.entropy_grad else probs.mul_(logprobs)).sum(-1)

    def split(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of positions, at least one, with their hidden states."""
        rows = max(1, CHUNK_LOGITS // len(self.head.linear.weight))
        for start in range(0, max(len(hidden), 1), rows):
            yield slice(start, start + rows), hidden[start : start + rows].to(self.dtype)

    def logprobs(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk: slice
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs of all tokens, [n, V], and the derivative of a soft cap."""
        logits, cap = multiply(hidden, weight.T), self.head.cap
        if bias is not None:
            logits += bias
        if cap:
            share = logits.mul_(self.head.factor / cap).tanh_()
            scores = self.support.cut(share * (cap / self.temperature), chunk)
            return torch.log_softmax(scores, -1), share.square_().neg_().add_(1.0)
        scale = self.head.factor / self.temperature
        scores = self.support.cut(logits if scale == 1.0 else logits.mul_(scale), chunk)
        return torch.log_softmax(scores, -1), None

    def gradient(self, logprobs: Tensor, bend: Tensor | None, target: Tensor, *of_outputs: Tensor) -> Tensor:
        """Gradient of the matrix product from those of log-probs and entropies; overwrites `logprobs`.

        Derivatives by the score of a token of probability p: [it is the target] - p, and -p (log p + entropy).
        """
        of_logprob, *of_entropy = (of[:, None] * (self.head.factor / self.temperature) for of in of_outputs)
        surprise = (logprobs + self.entropies(logprobs)[:, None]) * of_entropy[0] if self.entropy_grad else 0.0
        found, target = logprobs.exp_().mul_(-of_logprob - surprise), target[:, None]
        found.scatter_(-1, target, found.gather(-1, target) + of_logprob)
        return (found if bend is None else found.mul_(bend)).to(self.dtype)


class ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, chunks: Chunks) -> tuple[Tensor, ...]:
        ctx.chunks, operand, found = chunks, weight.to(chunks.dtype), []
        ctx.is_frozen = not chunks.entropy_grad and ctx.needs_input_grad[:3] == (True, False, False)
        for chunk, part in chunks.split(hidden):
            (logprobs, bend), target = chunks.logprobs(part, operand, bias, chunk), chunks.target[chunk]
            found.append([logprobs.gather(-1, target[:, None])[:, 0], chunks.entropies(logprobs)])
            if ctx.is_frozen:
                one = logprobs.new_ones(len(target))
                found[-1].append(multiply(chunks.gradient(logprobs, bend, target, one), operand))
            del logprobs, bend
        logprobs, entropy, *derivative = (torch.cat(column) for column in zip(*found, strict=True))
        ctx.save_for_backward(*(derivative if ctx.is_frozen else (hidden, weight, bias)))
        if not chunks.entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.is_frozen:
            return of_outputs[0][:, None] * ctx.saved_tensors[0], None, None, None
        (hidden, weight, bias), chunks = ctx.saved_tensors, ctx.chunks
        operand, of_hidden = weight.to(chunks.dtype), torch.empty_like(hidden)
        sums = [torch.zeros_like(t, dtype=of_outputs[0].dtype) if is_asked else None
                for t, is_asked in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)]  # fmt: skip
        for chunk, part in chunks.split(hidden):
            asked = chunks.target[chunk], *(of[chunk] for of in of_outputs)
            gradient = chunks.gradient(*chunks.logprobs(part, operand, bias, chunk), *asked)
            of_hidden[chunk] = multiply(gradient, operand)
            if sums[0] is not None:
                multiply(gradient.T, part, sums[0])
            if sums[1] is not None:
                sums[1] += gradient.sum(0, dtype=sums[1].dtype)
            del gradient  # before the next chunk's logits
        return of_hidden, *sums, None


@contextmanager
def rounded_operands() -> Iterator[None]:
    """Within, a CPU multiplies float32 matrices by its instructions for bfloat16, with float32 sums."""
    products: Any = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before, products.fp32_precision = products.fp32_precision, "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


def multiply(left: Tensor, right: Tensor, total: Tensor | None = None) -> Tensor:
    """Matrix product, of bfloat16 operands in float32, or its sum with `total`."""
    wide: Any = dict(out_dtype=torch.float32) if left.dtype.itemsize == 2 else {}
    if wide and left.device.type == "cpu":
        with rounded_operands():  # a CPU has no product of bfloat16 in float32, but one of float32 that rounds operands
            return multiply(left.float(), right.float(), total)
    return torch.mm(left, right, **wide) if total is None else torch.addmm(total, left, right, **wide, out=total)

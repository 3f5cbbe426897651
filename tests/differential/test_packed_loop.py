"""The packed recipe: rows back to back give the gradient of padded rows, whatever pack they are in."""

import sys
from pathlib import Path

import pytest
import torch
from fixtures import relative
from foreign import GROUP, LENGTH, MAX_LENGTH, REWARD
from transformers import AutoModelForCausalLM

from fairlen import compose, plan_rows, playground, policy_loss

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
import packed_loop


@pytest.mark.parametrize("pack", [20, 1000])
@pytest.mark.parametrize("name", ["fspo", "grpo+balanced"])
def test_packed_rows_give_the_gradient_of_padded_rows(name, pack, monkeypatch):
    monkeypatch.setattr(packed_loop, "PACK", pack)
    model = AutoModelForCausalLM.from_pretrained(playground.PATH).double()
    draw = torch.Generator().manual_seed(0)
    prompts = [3 + row % 4 for row in range(len(LENGTH))]
    tokens = [torch.randint(3, 21, (p + t,), generator=draw).tolist() for p, t in zip(prompts, LENGTH, strict=True)]
    samples = [(row[:prompt], row[prompt:]) for row, prompt in zip(tokens, prompts, strict=True)]
    method = compose(name)
    plan = plan_rows(method, groups=GROUP, lengths=LENGTH, rewards=REWARD, max_response_length=MAX_LENGTH)
    plan = plan.to("cpu", torch.float64)

    def gradient(losses):
        model.zero_grad()
        for loss in losses:
            loss.total.backward()
        return torch.cat([weights.grad.flatten() for weights in model.parameters()])

    def packed_losses():
        packs = packed_loop.split_rows(samples)
        assert sorted(row for rows in packs for row in rows) == list(range(len(LENGTH)))
        assert (len(packs) > 1) == (pack == 20)
        for ids, positions, sequence in (packed_loop.pack(samples, rows) for rows in packs):
            now = packed_loop.log_probs(model, ids, positions)
            yield policy_loss(method, plan, now, old_of(now, ids), sequence=sequence)

    def padded_loss():
        ids = torch.tensor([row + [0] * (max(map(len, tokens)) - len(row)) for row in tokens])
        place = torch.arange(ids.shape[1])[None]
        mask = (place >= torch.tensor(prompts)[:, None]) & (place < torch.tensor([*map(len, tokens)])[:, None])
        now = model(input_ids=ids, attention_mask=(ids > 0).long()).logits[:, :-1].log_softmax(-1)
        now = torch.nn.functional.pad(now.gather(2, ids[:, 1:, None])[:, :, 0], (1, 0))
        yield policy_loss(method, plan, now, old_of(now, ids), mask=mask)

    found, expected = gradient(packed_losses()), gradient(padded_loss())
    assert expected.abs().max() > 1e-3 and relative(found, expected) < 1e-10


def old_of(now, ids):
    """Log-probs of an earlier policy, that differ by the token."""
    return now.detach() + 0.05 * (ids % 3 - 1)

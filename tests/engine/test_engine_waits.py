"""On CUDA a decoding step uploads once and waits once, counted on tensors of the device that have no contents."""

import pytest
import torch
from small_engines import CONFIGS, EOS, ask, prompts
from transformers import AutoModelForCausalLM
from waits import DEVICE, Waits, counted_waits

from fairlen.engine import Engine

GIB = 2**30


def engine_on_device(name: str, autocast: bool) -> Engine:
    """An engine of fewer slots than requests, so that it admits, copies and closes holes between steps."""
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).to(DEVICE).eval()
    return Engine(
        model, eos_token_id=EOS, max_length=64, max_num_seqs=6, compile=False, autocast=autocast, memory=2 * GIB
    )


def steps_of(engine: Engine, waits: Waits, **how: float) -> tuple[int, int, int]:
    """Steps in which 12 requests are served, and the waits and uploads in them."""
    num_waits, num_uploads = len(waits.found), waits.num_uploads
    made = engine.generate(prompts(12), ask(12, 3, **how))
    assert [len(one.token_ids) for one in made] == [3] * 12  # what is read without contents is token 0, not EOS
    return engine.stats.num_steps, len(waits.found) - num_waits, waits.num_uploads - num_uploads


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:CUDA is not available"
)  # autocast is off without a device; the cache is in bfloat16
@pytest.mark.parametrize(
    ("name", "autocast", "how"),
    [("qwen3", True, {"temperature": 0.7, "top_p": 0.9}), ("gemma2", False, {})],
)
def test_a_step_waits_once(name, autocast, how):
    """12 requests of 3 tokens in 6 slots are 2 x 3 steps; each half begins with a prefill (2 uploads) and copies (1 or 2)."""
    with counted_waits() as waits:
        engine = engine_on_device(name, autocast)
        num_steps, num_waits, num_uploads = steps_of(engine, waits, **how)
        dtypes = {tensor.dtype for tensor in engine._runner.rows.tensors}
    print(f"{name}: {num_steps} steps, {num_waits} waits, {num_uploads} uploads, keys and values in {dtypes}")
    assert dtypes == {torch.bfloat16 if autocast else torch.float32}
    assert num_steps == 6
    assert num_waits == num_steps
    assert num_uploads <= num_steps + 2 * 4


def test_the_counter_counts():
    """Each of these would be a wait; an asynchronous copy from page-locked memory is none, one from elsewhere is."""
    with counted_waits() as waits:
        tensor, here = torch.ones(3, device=DEVICE), torch.ones(3)
        for wait in (
            lambda: tensor.sum().item(),
            lambda: bool(tensor.isfinite().all()),
            lambda: tensor.cpu(),
            lambda: torch.tensor([1, 2], device=DEVICE),
            lambda: tensor.copy_(here),
            lambda: here.to(DEVICE, non_blocking=True),
        ):
            before = len(waits.found)
            wait()
            assert len(waits.found) == before + 1
        for unknown in (lambda: tensor.nonzero(), lambda: tensor[tensor > 0], lambda: tensor.unique()):
            with pytest.raises(AssertionError, match="waits for the device"):
                unknown()
        before = len(waits.found)
        here.pin_memory().to(DEVICE, non_blocking=True)
        tensor.copy_(here.pin_memory(), non_blocking=True)
        assert len(waits.found) == before

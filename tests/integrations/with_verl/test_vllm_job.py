"""verl with vLLM's own servers on a CPU: `make test-verl-vllm`, in an environment that has both.

Weights go from the workers to the servers by verl's own transfer; streams of EqLen run on vLLM's prefix cache.
"""

import pytest
from verl_jobs import run

pytest.importorskip("vllm", reason="vLLM is not installed: make test-verl-vllm")
pytest.importorskip("verl.trainer", reason="verl is not installed: make test-verl-vllm")
pytestmark = pytest.mark.vllm

STEPS = 4
GAP = 1e-4


@pytest.mark.parametrize("names", ["eqlen+grpo", "dapo+balanced"])
def test_vllm_serves_the_weights_that_are_trained(names, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    metrics = run(names, tmp_path, STEPS, given=("actor_rollout_ref.rollout.name=vllm",))
    gaps = [one["training/rollout_probs_diff_max"] for one in metrics]
    print(f"\n{names}: largest gaps {gaps}, seconds a step {[one['timing_s/step'] for one in metrics]}")
    assert max(gaps) < GAP
    assert min(one["actor/grad_norm"] for one in metrics) > 0
    if names.startswith("eqlen"):
        assert min(one["fairlen/pairs/distinct"] for one in metrics) > 0

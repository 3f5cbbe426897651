"""Memory that runs out, at every micro-batch and for real: the gradient is the same, and the run goes on with less at a time."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import digest_model, small, updates_of, without_times
from test_invariance import relative, reordered, tiny_gpt2

from fairlen.methods.compose import compose
from fairlen.policy.model import Policy
from fairlen.train.memory import Trial, hold_moments, largest_shape, lower, run_largest, try_memory
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training
from fairlen.train.step import Learner, OutOfMemoryError, is_shortage

MICRO = 300
CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
)


class FaultyPolicy(Policy):
    """Runs out of memory in the forward or backward pass of one call, or whenever there are too many positions."""

    fail_at, where, error, most, num_calls, sizes = -1, "forward", CUDA, 1 << 30, 0, ()

    def forward(self, inputs, *asked, **named):
        self.num_calls += 1
        self.sizes = (*self.sizes, inputs.token_ids.numel())
        is_time = self.num_calls - 1 == self.fail_at or self.sizes[-1] > self.most
        if is_time and self.where == "forward":
            raise self.error
        outputs = super().forward(inputs, *asked, **named)
        if is_time:
            outputs.logprobs.register_hook(self.fail)
        return outputs

    def fail(self, _):
        raise self.error


def test_an_engine_without_memory_names_what_to_change(tmp_path):
    """Keys and values of 10^11 responses."""
    with pytest.raises(OutOfMemoryError, match=r"memory ran out in the engine .*smaller --max-num-seqs"):
        start_training(small(tmp_path).replace(max_num_seqs=10**11))


def make_learner(method: str = "gspo", max_tokens: int = MICRO, **faults) -> Learner:
    """A learner whose rate is 0: its updates leave their gradient behind."""
    plain = tiny_gpt2(torch.float64)
    policy = FaultyPolicy(**vars(plain))
    for name, value in faults.items():
        setattr(policy, name, value)
    reference = replace(plain) if compose(method).needs_ref else None
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return Learner(policy, optimizer, schedule, 1e9, max_tokens, reference)


def update(learner: Learner, batch, method: str = "gspo"):
    """The gradient of one off-policy update, and what it reports."""
    found = compose(method)
    plan = reordered(found.plan(found.score(batch.rollouts)), np.arange(16))
    result = learner.step(found, batch.rollouts, plan, {}, is_on_policy=False)
    return torch.cat([p.grad.flatten() for p in learner.policy.model.parameters()]), result


@pytest.mark.slow
@pytest.mark.parametrize(("method", "where"), [("gspo+kl", "backward"), ("gspo", "forward")])
def test_at_every_micro_batch_the_gradient_is_the_same(batch, method, where, capsys):
    whole = make_learner(method)
    expected, reported = update(whole, batch, method)
    count = whole.policy.num_calls
    assert count > 4 and expected.norm() > 0
    for position in range(count):
        learner = make_learner(method, fail_at=position, where=where, error=CUDA if position % 2 else CPU)
        found, result = update(learner, batch, method)
        assert relative(found, expected) < 1e-6
        largest = max(learner.policy.sizes[: position + 1])
        assert learner.max_tokens == largest // 2 < MICRO / 2
        assert result.loss == pytest.approx(reported.loss, rel=1e-9)  # counted once
        assert result.counts["tokens/trained"] == reported.counts["tokens/trained"]
    assert capsys.readouterr().err.count("memory ran out") == count


def test_a_gradient_that_is_not_begun_anew_would_fail(batch):
    """The control: what micro-batches before the shortage left is added twice."""
    expected, _ = update(make_learner(), batch)
    learner = make_learner(fail_at=3)
    learner.optimizer.zero_grad = lambda **_: None
    assert relative(update(learner, batch)[0], expected) > 1e-2


def test_it_halves_until_it_fits_and_not_below_the_longest_sequence(batch):
    longest = max(len(r.token_ids) for r in batch.rollouts.responses[:16])
    learner = make_learner(max_tokens=1 << 20, most=200)
    expected, _ = update(make_learner(), batch)
    assert relative(update(learner, batch)[0], expected) < 1e-6
    assert longest <= learner.max_tokens <= 200
    with pytest.raises(
        OutOfMemoryError,
        match=rf"one sequence of {longest} tokens.*max_tokens_per_microbatch.*--gradient-checkpointing.*--max-response-length",
    ):
        update(make_learner(most=longest - 2), batch)


def test_log_probs_of_the_policy_that_generated_are_computed_again_too(batch):
    method = compose("gspo")
    plan = method.plan(method.score(batch.rollouts))
    expected = make_learner().old_logprobs(batch.rollouts, plan)
    learner = make_learner(fail_at=2)
    found = learner.old_logprobs(batch.rollouts, plan)
    assert learner.max_tokens < MICRO and found.keys() == expected.keys()
    assert all(torch.allclose(found[row], expected[row], rtol=0, atol=1e-12) for row in found)


@pytest.mark.slow
def test_a_shortage_in_the_optimizer_ends_the_run_and_saves_nothing_half_changed(tmp_path, monkeypatch):
    """The third step changes a part of the weights and then fails: the checkpoint of the second one is the newest."""
    step, calls = torch.optim.AdamW.step, []

    def third_runs_short(self, *args, **kwargs):
        calls.append(None)
        if len(calls) == 3:
            self.param_groups[0]["params"][0].data.zero_()
            raise CUDA
        return step(self, *args, **kwargs)

    changes = dict(rollout_batches=2, eval_every=0, save_every=0, save_every_updates=1)
    start_training(small(tmp_path / "whole", **changes))
    monkeypatch.setattr(torch.optim.AdamW, "step", third_runs_short)
    with pytest.raises(OutOfMemoryError, match=r"optimizer's step.*--resume and a smaller --max-num-seqs"):
        start_training(small(tmp_path / "run", **changes))
    assert [entry["update"] for entry in updates_of(tmp_path / "run")] == [1, 2]
    monkeypatch.undo()
    start_training(small(tmp_path / "run", resume=True, **changes))
    assert digest_model(tmp_path / "whole") == digest_model(tmp_path / "run")


def test_the_trial_holds_room_for_the_moments_that_come_with_the_first_step(batch):
    learner = make_learner()
    learner.optimizer = torch.optim.AdamW(learner.policy.model.parameters(), lr=0.0)
    learner.schedule = torch.optim.lr_scheduler.LambdaLR(learner.optimizer, lambda _: 1.0)
    parameters = list(learner.policy.model.parameters())
    assert hold_moments(learner.optimizer).nbytes == 2 * sum(p.nbytes for p in parameters)
    update(learner, batch)
    kept = [value.nbytes for state in learner.optimizer.state.values() for value in state.values() if value.ndim]
    assert sum(kept) == 2 * sum(p.nbytes for p in parameters)  # as much as was held
    assert hold_moments(learner.optimizer).nbytes == 0


def test_other_errors_are_not_taken_for_it(batch):
    learner = make_learner(fail_at=1, error=RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        update(learner, batch)
    assert learner.max_tokens == MICRO
    assert is_shortage(MemoryError()) and not is_shortage(RuntimeError("CUDA error: an illegal memory access"))


REAL = """
import json, resource, sys
import torch
sys.path[:0] = sys.argv[1:]
from test_out_of_memory import CPU, make_learner
from fairlen.methods.compose import compose
from fairlen.train.step import is_shortage
from fairlen.train.memory import draw_batch
torch.set_num_threads(1)
rollouts, plan = draw_batch(32, 20, 220, 21)
grads, limits = [], []
size = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
for limit in (size + (48 << 20), -1):  # first, while no memory is there to be used again
    learner = make_learner(max_tokens=1 << 14)
    resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
    learner.step(compose("gspo"), rollouts, plan, {}, is_on_policy=True)
    grads.append(torch.cat([p.grad.flatten() for p in learner.policy.model.parameters()]))
    limits.append(learner.max_tokens)
print(json.dumps([float((grads[0] - grads[1]).norm() / grads[1].norm()), *limits]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc")
def test_a_real_shortage_of_the_cpu(request):
    """7,008 positions in float64 need more than the 48 MiB that the system grants; a part of them does not."""
    command = [sys.executable, "-c", REAL, *map(str, request.path.parents[:2])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    error, short, ample = json.loads(done.stdout)
    assert "DefaultCPUAllocator: can't allocate memory" in done.stderr
    assert error < 1e-6 and 220 <= short <= 32 * 220 / 2 and ample == 1 << 14


@pytest.mark.slow
def test_a_run_counts_the_update_once_and_keeps_the_limit(tmp_path, monkeypatch, capsys):
    forward, calls = Policy.forward, []

    def forward_once_short(self, inputs, *asked, **named):
        calls.append(torch.is_grad_enabled() and inputs.token_ids.numel())
        if sum(map(bool, calls)) == 2 and calls[-1]:  # the second micro-batch that is trained
            raise CPU
        return forward(self, inputs, *asked, **named)

    monkeypatch.setattr(Policy, "forward", forward_once_short)
    start_training(
        small(tmp_path / "run", max_tokens_per_microbatch=400, rollout_batches=2, eval_every=0, save_every=0)
    )
    updates = updates_of(tmp_path / "run")
    assert [entry["update"] for entry in updates] == [1, 2, 3, 4]
    limits = [entry["memory/max_tokens_per_microbatch"] for entry in updates]
    assert limits == sorted(limits, reverse=True) and 60 < limits[-1] == limits[1] <= 200
    assert capsys.readouterr().err.count("memory ran out") == 1


DRAWS = """
import torch
def noisy(prompts, completions, **columns):
    return [float(torch.rand(1)) for _ in completions]
"""


@pytest.mark.slow
def test_the_trial_changes_no_bit_of_a_run(tmp_path):
    (tmp_path / "draws.py").write_text(DRAWS)
    changes = dict(
        rollout_batches=1, eval_every=0, save_every=0, problems=2, max_response_length=24,
        rewards=(f"{tmp_path}/draws.py:noisy",),
    )  # fmt: skip
    for choice in ("on", "off"):
        start_training(small(tmp_path / choice, try_memory=choice, **changes))
    on, off = (updates_of(tmp_path / choice) for choice in ("on", "off"))
    assert on == off and len(without_times(on)) == 2
    assert digest_model(tmp_path / "on") == digest_model(tmp_path / "off")


@pytest.mark.slow
def test_the_trial_runs_the_largest_micro_batch_and_leaves_nothing():
    learner, method = make_learner(max_tokens=1 << 11), compose("gspo")
    for module in learner.policy.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1  # draws
    learner.policy.model.eval()
    before = torch.get_rng_state()
    run_largest(learner, method, 30, 100, most_rows=1000)
    # the longest row, and beside its gradients 21 rows of 2,048 // 21 = 97, the last token of which is predicted and not read
    assert learner.policy.sizes == (99, 21 * 96)
    run_largest(learner, method, 30, 100, most_rows=3)
    assert learner.policy.sizes[2:] == (99, 3 * 99)
    assert torch.equal(torch.get_rng_state(), before) and not learner.policy.model.training
    assert all(p.grad is None for p in learner.policy.model.parameters())
    learner.policy.most = 700
    run_largest(learner, method, 30, 100, most_rows=1000)
    assert learner.max_tokens == 480  # 21 rows x 96 = 2,016; its half takes 10 rows, 960; the half of that 4 rows, 384


def test_rows_that_leave_nearly_half_of_a_micro_batch_are_not_the_largest():
    assert largest_shape(16_384, 9_216, 128) == (2, 8_192)  # 16,384 positions, where one row has 9,216
    assert largest_shape(16_384, 8_192, 128) == (2, 8_192)
    assert largest_shape(16_384, 9_216, 1) == (1, 9_216)  # an update of one sequence
    assert largest_shape(4_096, 9_216, 128) == (1, 9_216)  # the longest sequence must fit


def test_a_trial_says_what_the_run_takes_and_with_what():
    learner, config = make_learner(), TrainConfig.of(max_response_length=70, max_num_seqs=8, try_memory="on")
    found = try_memory(config, learner, compose("gspo"), 30)
    assert learner.policy.sizes == (99, 21 * 96)  # the longest row; 2,048 positions take 21 rows of 97
    assert found.config.update.max_tokens_per_microbatch == learner.max_tokens == 16_384
    # memory that the process kept may do for all of it
    assert found.needed > found.taken >= 0 and "16,384 positions a micro-batch and 8 responses at a time" in found.note
    asked = config.replace(max_tokens_per_microbatch=500, try_memory="auto")  # of a small model nothing is tried
    assert try_memory(asked, learner, compose("gspo"), 30) == Trial(asked) and learner.max_tokens == 500


def test_what_does_not_fit_is_lowered():
    """A position of a micro-batch takes 1, a response 100: 4,000 + 800 > 3,000; 2,000 + 800 fit; of 500 the longest takes 300."""

    def foresee(config):
        return config.update.max_tokens_per_microbatch + 100 * config.sampling.max_num_seqs

    config = TrainConfig.of(max_tokens_per_microbatch=4000, max_num_seqs=8)
    for room, expected in ((3000, (2000, 8)), (1150, (300, 8)), (500, (300, 2))):
        found = lower(config, foresee, 300, room, room)
        assert (found.update.max_tokens_per_microbatch, found.sampling.max_num_seqs) == expected
    assert lower(config, foresee, 300, 1150, 500) == lower(config, foresee, 300, 500, 500)
    with pytest.raises(OutOfMemoryError, match="one sequence of 300 tokens at a time"):
        lower(config, foresee, 300, 399, 399)

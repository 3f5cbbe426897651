"""The policy loss and the estimator that verl calls: equal to verl's own where verl has the method, to ours everywhere."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import DRIFTED, plan_of, random_batch, relative
from packaging.requirements import Requirement
from padded import pad

from fairlen.cli import main
from fairlen.methods.compose import compose
from fairlen.methods.presets import BASES

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from fairlen.integrations.verl import launch, plans, plugin
from fairlen.integrations.verl.advantage import fair_advantage
from fairlen.integrations.verl.choice import overrides, read_method
from fairlen.integrations.verl.loss import FairPolicyLoss, fair_policy_loss
from fairlen.integrations.verl.plans import count_updates, planned, read_sums

BUDGET = 12
WHOLE = sorted(set(BASES) - {"eqlen_unbiased"})


def config_of(names, settings=(), state=None, dp_size=1):
    """What a worker has: verl's settings of an actor with ours for the loss."""
    loss = FairPolicyLoss(
        loss_mode="fairlen", method=names, settings=list(settings), max_response_length=BUDGET, state=state or {}
    )  # fmt: skip
    info = {"dp_size": dp_size, "loss_scale_factor": BUDGET}
    return ActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=1, policy_loss=loss, global_batch_info=info
    )


def plain(names, **choices):
    """A method whose every row trains, as verl's own estimators have it."""
    return replace(compose(names), filter=compose("grpo").filter, reward=(), terms=(), **choices)


def rows_of(batch):
    """Rewards on the last trained token, and the mask, as verl has them."""
    length = torch.from_numpy(batch.responses.length)
    mask = (torch.arange(int(length.max()))[None] < length[:, None]).long()
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[torch.arange(len(length)), length - 1] = torch.from_numpy(batch.responses.outcome)
    return rewards, mask


def settings_of(names, settings=(), **others):
    return {"fairlen": {"method": names, "settings": list(settings), "max_response_length": BUDGET} | others}


def fold(names, batch, settings=(), order=None, **others):
    """What the estimator gives, one number a row, on rows in another order."""
    rewards, mask = rows_of(batch)
    order = np.arange(len(mask)) if order is None else order
    found, _ = fair_advantage(
        rewards[order], mask[order], settings_of(names, settings, **others), batch.responses.prompt[order]
    )
    return found.gather(1, mask[order].argmax(1, keepdim=True))[:, 0].numpy()


def test_verl_knows_our_names():
    plugin.check()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["loss", "agent_loop"])
def test_whatever_is_imported_first_registers_all(first):
    """verl loads the plug-in while it is imported, and with it a module of ours may be half imported."""
    code = f"import fairlen.integrations.verl.{first}; from fairlen.integrations.verl.plugin import check; check()"
    env = os.environ | {"VERL_USE_EXTERNAL_MODULES": "fairlen.integrations.verl.plugin"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("version, is_tested", [("0.9.1", True), ("0.9.0", False), ("0.9.2", False), ("0.10.0", False)])
def test_versions_that_were_not_tested_are_refused_as_pyproject_does(version, is_tested, monkeypatch):
    (ours,) = [text for text in project()["project"]["optional-dependencies"]["verl"] if text.startswith("verl")]
    assert Requirement(ours).specifier.contains(version) == is_tested
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    try:
        importlib.reload(plugin)
        complaint = ""
    except ImportError as error:
        complaint = str(error)
    assert ("was tested with verl>=0.9.1,<0.9.2" in complaint) == (not is_tested)
    assert ("pip install 'verl>=0.9.1,<0.9.2'" in complaint) == (not is_tested)
    monkeypatch.setenv("FAIRLEN_ANY_VERL", "1")
    importlib.reload(plugin)


def project():
    """pyproject.toml."""
    return tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def test_the_launcher_refuses_an_untested_verl_in_one_line(monkeypatch, tmp_path, capsys):
    """Before it starts or writes anything; a model that is not there would end the job later."""
    monkeypatch.setattr(launch, "version", lambda _: "0.10.0", raising=False)
    monkeypatch.setattr(launch, "run_watched", lambda *_: 0)  # what starts Ray
    code = main(["verl", "--method", "grpo", "--out", str(tmp_path / "job"), "--", "data.train_files=x.parquet"])
    told = capsys.readouterr().err
    assert code == 2
    assert told.count("\n") == 1 and told.startswith(
        "fairlen verl: verl 0.10.0: this adapter overrides private methods"
    )
    assert not (tmp_path / "job").exists()


def test_a_missing_name_is_told(monkeypatch):
    monkeypatch.delitem(core_algos.POLICY_LOSS_REGISTRY, "fairlen")
    with pytest.raises(RuntimeError, match=r"does not know the policy loss 'fairlen'.*VERL_USE_EXTERNAL_MODULES"):
        plugin.check()


@pytest.mark.parametrize("names", WHOLE)
@pytest.mark.parametrize("scale", [2e-3, 0.3])
def test_loss_and_gradient_are_those_of_the_method(names, scale):
    """Rows whose prompt is dropped have advantage 0 in verl and are no rows at all in ours: same sum."""
    method, batch = compose(names), random_batch(3)
    plan = plan_of(method, batch)
    state = method.update(DRIFTED).state
    padded = pad(plan, 7, scale)
    folded = torch.from_numpy(plan.weight * plan.advantage)[:, None] * padded.mask
    theirs, _ = fair_policy_loss(
        padded.old, padded.logprobs, folded, padded.mask, config=config_of(names, state=state)
    )  # fmt: skip
    ours = method.with_state(state).loss(padded.outputs(), padded.micro).total
    assert relative(ours.detach(), theirs.detach()) < 1e-12 or abs(ours.item() - theirs.item()) < 1e-12
    one, two = (torch.autograd.grad(total, padded.logprobs)[0] for total in (ours, theirs))
    assert relative(one, two) < 1e-12
    assert one.abs().max() > 0


@pytest.mark.parametrize(
    ("names", "settings", "loss_mode", "agg", "others"),
    [
        ("grpo+std_verl", (), "vanilla", "seq-mean-token-mean", {}),
        ("dapo_verl+std_verl", ("filter=Everything", "reward=none"), "vanilla", "token-mean", {"clip_ratio_high": 0.28}),
        ("dr_grpo", (), "vanilla", "seq-mean-token-sum-norm", {}),
        ("gspo+std_verl", (), "gspo", "seq-mean-token-mean", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
        ("sapo+std_verl", (), "sapo", "seq-mean-token-mean", {}),
        ("gmpo+std_verl", (), "geo_mean", "seq-mean-token-mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}),
        ("cispo+std_verl", ("surrogate.clip_high=0.3",), "cispo", "token-mean",
         {"clip_ratio_low": 1.0, "clip_ratio_high": 0.3}),
    ],
)  # fmt: skip
def test_plan_and_loss_together_are_verls_own(names, settings, loss_mode, agg, others):
    """Our estimator and loss against verl's estimator, loss and aggregation: the same numbers on the same rewards."""
    batch = random_batch(5)
    settings = (*settings, "sampling.n=4")
    rewards, mask = rows_of(batch)
    index = batch.responses.prompt
    ours, _ = fair_advantage(rewards, mask, settings_of(names, settings), index)
    by_std = names != "dr_grpo"
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=by_std)
    draw = torch.Generator().manual_seed(0)
    old = -1.5 + 0.3 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)
    new = (old + 0.3 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)).requires_grad_()
    stock = ActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=1,
        global_batch_info={"loss_scale_factor": BUDGET}, **{"clip_ratio_c": 1e9} | others,
    )  # fmt: skip
    one, _ = fair_policy_loss(old, new, ours, mask, config=config_of(names, settings))
    two, _ = core_algos.get_policy_loss_fn(loss_mode)(old, new, theirs, mask, agg, stock)
    assert one.item() == pytest.approx(two.item(), rel=1e-6, abs=1e-9)
    first, second = (torch.autograd.grad(total, new)[0] for total in (one, two))
    assert relative(first, second) < 1e-6
    assert first.abs().max() > 0


@pytest.mark.parametrize("names", ["grpo", "dapo+balanced", "fspo", "grpo+toplambda", "rloo", "vespo"])
def test_any_split_into_micro_batches_sums_to_the_whole(names):
    """N = 24 rows of the rollout batch, in pieces of 7, 7, 7 and 3, with rows of padding that train nothing."""
    batch = random_batch(2)
    rewards, mask = rows_of(batch)
    found, _ = fair_advantage(rewards, mask, settings_of(names), batch.responses.prompt)
    draw = torch.Generator().manual_seed(0)
    old = -1.5 + 0.3 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)
    new = old + 0.2 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)
    config = config_of(names)
    whole, _ = fair_policy_loss(old, new, found, mask, config=config)
    order = torch.randperm(len(mask), generator=draw)
    total = sum(
        fair_policy_loss(old[rows], new[rows], found[rows], mask[rows], config=config)[0] for rows in order.split(7)
    )
    assert float(total) == pytest.approx(float(whole), rel=1e-12, abs=1e-15)
    nothing = torch.zeros(2, mask.shape[1], dtype=torch.long)
    leaf = new[:2].clone().requires_grad_()
    idle, counts = fair_policy_loss(old[:2], leaf, found[:2] * 0, nothing, config=config)
    idle.backward()
    assert idle.item() == 0.0 and leaf.grad.abs().max() == 0.0  # ranks with padding alone still run backward
    assert counts["actor/fairlen/tokens"] == 0.0
    doubled, _ = fair_policy_loss(old, new, found, mask, config=config_of(names, dp_size=2))
    assert float(doubled) == pytest.approx(2 * float(whole))  # verl averages gradients over ranks


@pytest.mark.parametrize("names", WHOLE)
def test_plans_follow_rows_through_reordering_and_padding(names):
    batch = random_batch(4)
    straight = fold(names, batch)
    order = np.random.default_rng(0).permutation(len(straight))
    assert fold(names, batch, order=order) == pytest.approx(straight[order], rel=1e-12, abs=1e-15)
    method = compose(names)
    scored = method.score_tables(
        replace(batch.responses, truncated=batch.responses.length >= BUDGET), batch.segments
    )  # the estimator takes a response of 12 tokens for truncated
    assert np.sign(straight[scored.trains]) == pytest.approx(np.sign(scored.advantage[scored.trains]))
    rewards, mask = rows_of(batch)
    more = torch.cat([mask, torch.zeros(3, mask.shape[1], dtype=torch.long)])
    wider = torch.cat([rewards, torch.zeros(3, mask.shape[1], dtype=torch.float64)])
    found, _ = fair_advantage(wider, more, settings_of(names), [*batch.responses.prompt, "pad", "pad", "pad"])
    assert found[: len(mask)].numpy() == pytest.approx((straight[:, None] * mask.numpy()), rel=1e-12, abs=1e-15)
    assert found[len(mask) :].abs().max() == 0.0


def test_weights_are_multiplied_by_the_number_of_updates():
    """24 rows of 6 prompts in updates of 2 prompts of 4 rows: 3 updates, every weight three times as large."""
    batch = random_batch(4)
    split = {"prompts_per_update": 2, "rows_per_prompt": 4}
    assert count_updates(24, split) == 3
    assert fold("grpo", batch, **split) == pytest.approx(3 * fold("grpo", batch))


def test_balanced_by_hand():
    """One prompt, right with 2 and 6 tokens, wrong with 4: A = +-0.5 without std; N = 3.

    right: mean 2/3, A = 1/3 each; wrong: A = -2/3. M+ = 2/3, Z+ = 1/3 (2 + 6) = 8/3, weight 1/4 / 3 = 1/12;
    M- = 2/3, Z- = 2/3 * 4 = 8/3, weight 1/12. Folded: 1/36, 1/36, -1/18.
    """
    mask = (torch.arange(6)[None] < torch.tensor([2, 6, 4])[:, None]).long()
    rewards = torch.zeros(3, 6, dtype=torch.float64)
    rewards[0, 1] = rewards[1, 5] = 1.0
    found, returns = fair_advantage(rewards, mask, settings_of("dr_grpo+balanced", ["sampling.n=3"]), ["u", "u", "u"])
    assert found[:, 0].tolist() == pytest.approx([1 / 36, 1 / 36, -1 / 18])
    assert returns[:, 0].tolist() == [1.0, 1.0, 0.0]
    assert found[0].tolist() == pytest.approx([1 / 36, 1 / 36, 0, 0, 0, 0])


def test_right_is_above_one_half():
    """Rewards 1 and -1, as verl's DAPO reward has them: mixed, so the prompt stays under dynamic sampling."""
    mask = torch.ones(2, 3, dtype=torch.long)
    rewards = torch.tensor([[0, 0, 1.0], [0, 0, -1.0]], dtype=torch.float64)
    assert fair_advantage(rewards, mask, settings_of("grpo+dynamic"), "uu")[0].abs().max() > 0
    strict = settings_of("grpo+dynamic", correct_threshold=1.5)
    assert fair_advantage(rewards, mask, strict, "uu")[0].abs().max() == 0


def test_a_plan_of_the_trainer_is_handed_through():
    from fairlen.integrations.padded import RowPlan

    plan = RowPlan(np.array([True, False]), np.array([2.0, 0.0]), np.array([0.25, 0.0]), np.zeros(2))
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]])
    with planned(plan):
        found, _ = fair_advantage(torch.zeros(2, 3), mask, {}, "ab")
    assert found.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match=r"algorithm\.fairlen\.method is not set"):
        fair_advantage(torch.zeros(2, 3), mask, {}, "ab")


def test_sums_for_the_state_are_ratios_that_averaging_keeps():
    """Means over micro-batches of unlike size have a common factor, which the drift does not see; noise is no drift."""
    batch = random_batch(1)
    rewards, mask = rows_of(batch)
    draw = torch.Generator().manual_seed(0)
    old = -1.5 + 0.3 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)
    new = old - 0.01 + 0.02 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)
    config = config_of("fspo")
    advantages = torch.zeros_like(rewards)
    counts = [
        fair_policy_loss(old[rows], new[rows], advantages[rows], mask[rows], config=config)[1]
        for rows in torch.arange(len(mask)).split(9)
    ]
    mean = {name: sum(count[name] for count in counts) / len(counts) for name in counts[0]}
    length = batch.responses.length
    log_ratio = ((new - old) * mask).sum(1).numpy()
    drift = max(-log_ratio.sum() / length.sum(), 0)
    spread = (log_ratio**2 / length).sum() + 2 * drift * log_ratio.sum() + drift**2 * length.sum()
    state = compose("fspo").update(read_sums(mean)).state
    assert state["drift_average"] == pytest.approx(0.1 * drift)
    assert state["variance_average"] == pytest.approx(0.1 * spread / len(length))
    _, quiet = fair_policy_loss(old, old + 1e-7, advantages, mask, config=config)
    assert read_sums(quiet).num_sequences == 0.0 and quiet["actor/fairlen/sequences"] == 24.0


def test_acceptance_is_counted_by_quarters_of_the_budget():
    """Budget 12: quarters end at 3, 6, 9 and 12 tokens. Rows of 3, 4 and 12 tokens, the last one's first two outside."""
    length = torch.tensor([3, 4, 12])
    mask = (torch.arange(12)[None] < length[:, None]).long()
    old = torch.zeros(3, 12, dtype=torch.float64) - 1
    new = old.clone()
    new[2, :2] += 0.5  # ratio 1.65, above 1.2
    _, counts = fair_policy_loss(old, new, torch.zeros(3, 12), mask, config=config_of("grpo"))
    tokens = [counts[f"actor/fairlen/tokens_quarter_{q}"] for q in (1, 2, 3, 4)]
    inside = [counts[f"actor/fairlen/inside_quarter_{q}"] for q in (1, 2, 3, 4)]
    assert (tokens, inside) == ([3, 4, 0, 12], [3, 4, 0, 10])


def test_a_corrected_mismatch_multiplies_the_loss():
    batch = random_batch(0)
    rewards, mask = rows_of(batch)
    found, _ = fair_advantage(rewards, mask, settings_of("grpo"), batch.responses.prompt)
    old = torch.full(mask.shape, -1.0, dtype=torch.float64)
    one, _ = fair_policy_loss(old, old, found, mask, config=config_of("grpo"))
    two, _ = fair_policy_loss(
        old, old, found, mask, config=config_of("grpo"), rollout_is_weights=torch.full_like(old, 0.5)
    )
    assert float(two) == pytest.approx(0.5 * float(one), abs=1e-15) and float(found.abs().max()) > 0


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ("dapo+kl", (), "terms with TokenMean: verl adds KL and entropy by its own modes"),
        ("grpo+balanced+kl", (), "terms with Balanced"),
        ("grpo+dynamic+kl", (), "verl adds KL and entropy on every row"),
        ("eqlen+grpo+kl", (), "sampling=EqLen"),
        ("grpo+mismatch", ("correction.above_cap=mask",), "correction.above_cap=mask"),
    ],
)
def test_what_verl_would_compute_otherwise_is_refused(names, settings, message):
    with pytest.raises(ValueError, match=message):
        read_method({"method": names, "settings": settings})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("grpo+kl", {"loss_agg_mode": "seq-mean-token-mean", "use_kl_loss": "True", "kl_loss_type": "low_var_kl"}),
        ("luspo+entropy", {"loss_agg_mode": "seq-mean-token-sum", "entropy_coeff": "0.001"}),
    ],
)
def test_terms_become_verls_own(names, expected):
    texts = dict(text.lstrip("+").split("=", 1) for text, _ in overrides(names, (), compose(names)))
    for key, value in expected.items():
        assert texts[f"actor_rollout_ref.actor.{key}"] == value


def test_a_loss_without_a_method_says_what_to_set():
    config = ActorConfig(strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=1)
    with pytest.raises(ValueError, match=r"policy_loss\._target_"):
        fair_policy_loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), config=config)


def begin_job(monkeypatch):
    """As in a new process: nothing was seen yet."""
    if hasattr(plans, "SIGNAL"):
        monkeypatch.setattr(plans, "SIGNAL", type(plans.SIGNAL)(plans.SIGNAL.remedies))


@pytest.mark.parametrize(
    "names, rewards, said, remedy",
    [
        ("grpo", (0.0, 0.0), "nothing was trained in 3 rollout batches (12 responses: 0 correct, 12", "give easier problems"),
        ("grpo+dynamic", (-3.0, -1.0), "12 incorrect", "set +algorithm.fairlen.correct_threshold"),
        ("grpo+dynamic", (3.0, 1.0), "12 correct, 0 incorrect", "set +algorithm.fairlen.correct_threshold"),
        ("fspo", (1.0, 0.0), "every ratio of 3 rollout batches was 1", "actor.ppo_epochs=2"),
    ],
)  # fmt: skip
def test_jobs_that_learn_nothing_say_so_after_some_rollout_batches(names, rewards, said, remedy, monkeypatch, capsys):
    """Four rows in a rollout batch and two of verl's padding, which are no responses."""
    begin_job(monkeypatch)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    given = torch.zeros(6, 4)
    given[:4, 0] = torch.tensor([*rewards, *rewards])
    for _ in range(4):
        fair_advantage(given, mask, settings_of(names, ["sampling.n=2"]), ["a", "a", "b", "b", "pad", "pad"])
    told = [line for line in capsys.readouterr().err.splitlines() if "rollout batches" in line]
    assert len(told) == 1 and said in told[0] and remedy in told[0]


def test_jobs_with_several_updates_or_the_servers_log_probs_are_told_nothing(monkeypatch, capsys):
    mask, given = torch.ones(4, 4, dtype=torch.int64), torch.zeros(4, 4)
    given[::2, 0] = 1.0
    bypassed = settings_of("fspo", ["sampling.n=2"]) | {"rollout_correction": {"bypass_mode": True}}
    for config in (settings_of("fspo", ["sampling.n=2"], epochs=2), bypassed):
        begin_job(monkeypatch)
        for _ in range(5):
            fair_advantage(given, mask, config, "aabb")
    assert capsys.readouterr().err == ""

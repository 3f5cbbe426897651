"""Stages that other libraries have, by hand; differential/ has them against the code of those."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from fixtures import make_batch, plan_of, ragged_batch
from loops import over

from fairlen import compose, plan_rows
from fairlen.batch import name_columns
from fairlen.methods.compose import explain
from fairlen.methods.peers import PEERS, read_peers
from fairlen.methods.stages.advantage import BatchNormalized, LengthCentered, OutcomeNormalized
from fairlen.methods.stages.filters import ShortestKept
from fairlen.methods.stages.micro import Micro
from fairlen.methods.stages.reward import CentredLength, EffortLength, SoftOverlong, SolvedLength
from fairlen.methods.stages.terms import SamplerRejection
from fairlen.methods.stages.trust_region import DivergenceMask
from fairlen.testing import check


def test_a_baseline_of_tokens(ragged):
    """Prompt 0: lengths 1, 3, 5, 8, the last incorrect: 9/17. Prompt 1: 2, 5, 1, the first correct: 2/8."""
    found = LengthCentered()(ragged.segments, ragged.responses.outcome)
    assert found.tolist() == pytest.approx([8 / 17] * 3 + [-9 / 17, 3 / 4, -1 / 4, -1 / 4, 0, 0, 0])


def test_tokens_of_the_batch_whiten_without_groups():
    """Values 1, 0 of 3 and 1 tokens: mean 3/4; variance (3/16 + 9/16) / 3 = 1/4."""
    batch = make_batch([0, 1], [3, 1], [1, 0])
    found = BatchNormalized(baseline="none", over="tokens", ddof=1)(batch.segments, batch.responses.outcome)
    assert found.tolist() == pytest.approx([1 / 2, -3 / 2])


def test_an_outcome_of_small_spread_is_not_drowned():
    """Both outcomes are +-1 after their own std; 100 times the second changes nothing, where in a sum it decides."""
    batch = make_batch([0] * 4, [1, 2, 3, 4], [1, 0, 1, 0])
    small = {"a": [1.0, 0.0, 1.0, 0.0], "b": [0.0, 0.0, 1.0, 1.0]}
    large = {"a": small["a"], "b": [100.0 * value for value in small["b"]]}
    stage = OutcomeNormalized("a, b=1", eps=0.0, whole_eps=0.0)
    found = [stage(replace(batch.segments, named=name_columns(one)), np.zeros(4)) for one in (small, large)]
    assert found[0].tolist() == pytest.approx(found[1].tolist()) and found[0].tolist() == pytest.approx(
        [0, -(1.5**0.5), 1.5**0.5, 0]
    )
    with pytest.raises(ValueError, match=r"outcomes='a=much': give NAME=WEIGHT"):
        compose("gdpo", ["advantage.outcomes=a=much"])


def test_prime_rls_three_terms():
    """Mean 1/2. Output 2/4, 4/4; read 3/6, 6/6; turns 1, 1: 1/2 (1/8 + 1/20 + 1/10) and 1/2 (1/4 + 1/10 + 1/10)."""
    table = make_batch([0, 0], [2, 4], [1, 0]).responses
    table = replace(table, named=name_columns({"num_read": [3, 6]}))
    found = SolvedLength(read_alpha=0.1, turns_alpha=0.1)(table, table.outcome)
    assert found.tolist() == pytest.approx([1 - 0.1375, -0.225])
    method = compose("prime-rl:linear")
    given = dict(groups=[0, 0], lengths=[2, 4], rewards=[1.0, 0.0], max_response_length=8)
    assert plan_rows(method, **given, columns={"num_read": [3, 6]}).advantage.tolist() == pytest.approx(
        [0.54375, -0.54375]
    )
    for wrong in ({}, {"num_read": [3, 6, 9]}, {"effort": [3, 6]}):
        with pytest.raises(ValueError, match=r"columns=(none|\w+ of \d): give num_read, of one value a response, 2"):
            plan_rows(method, **given, columns=wrong)


def test_nemo_rls_effort_levels():
    """Limit 8: at 2 tokens s = 3/4, at 12 it is -1/2, and 20 times the weight is held at 1; prompt 1 asks for nothing."""
    table = make_batch([0, 0, 0, 1], [2, 12, 2, 2], [1, 1, 0, 1], max_response_length=16).responses
    table = replace(table, named=name_columns({"effort": ["low", "low", "low", "high"]}))
    found = EffortLength(penalty=0.5, limit=0.5)(table, table.outcome)
    assert found.tolist() == pytest.approx([1.75, 1 - 0.25, 0, 1])
    assert EffortLength(weight=20.0, limit=0.5)(table, table.outcome)[0] == pytest.approx(2.0)


def test_nemo_rls_penalty_keeps_the_mean():
    """Correct lengths 2, 4, 8: s = 0, 1/3, 1, mean 4/9. A graded prompt is left alone, and nothing falls below 0."""
    table = make_batch([0] * 4 + [1] * 2, [2, 4, 8, 9, 1, 5], [1, 1, 1, 0, 1, 1]).responses
    reward = np.array([1, 1, 1, 0, 0.5, 1.0])
    found = CentredLength(0.9)(table, reward)
    assert found.tolist() == pytest.approx([1.4, 1.1, 0.5, 0, 0.5, 1])
    assert CentredLength(3.0)(table, reward).min() == 0.0


@over("order", [[0, 1, 2, 3, 4, 5, 6], [6, 2, 4, 0, 5, 3, 1]])
def test_a_filter_by_response(order):
    """Of four responses two are kept, and a third that is as long as the second; of three, two (1.5 is rounded up)."""
    batch = make_batch([0, 0, 0, 0, 1, 1, 1], [1, 3, 3, 8, 2, 5, 4], [1, 0, 1, 0, 1, 0, 0]).take(order)
    kept = np.array([1, 1, 1, 0, 1, 0, 1], bool)[order]
    assert ShortestKept()(batch.responses.with_reward(batch.responses.outcome)).tolist() == kept.tolist()
    plan = plan_of(compose("gfpo"), batch)
    assert sorted(plan.rows.tolist()) == np.flatnonzero(kept).tolist()
    assert (plan.weight * plan.length).tolist() == pytest.approx([1 / 5] * 5)
    by_reward = ShortestKept(by="efficiency")(batch.responses.with_reward(batch.responses.outcome))
    assert by_reward.tolist() == np.array([1, 0, 1, 0, 1, 1, 1], bool)[order].tolist()  # 0 of one prompt are equal


def micro_of(old: list[float], rollout: list[float], length: list[int], advantage: list[float]) -> Micro:
    one = torch.ones(len(length), dtype=torch.float64)
    columns = (torch.tensor(values, dtype=torch.float64) for values in (advantage, old, rollout))
    given, before, sampled = columns
    return Micro.of(torch.tensor(length), given, one, one, before, sampled)


def test_a_mask_of_probabilities():
    """From 1/2 to 0.75 and to 0.25: masked where the advantage pushes there; a ratio of 10 from 0.001 to 0.01 is not."""
    old = np.log([0.5, 0.5, 0.5, 0.5, 0.001]).tolist()
    now = torch.tensor(np.log([0.75, 0.25, 0.75, 0.25, 0.01]), requires_grad=True)
    token = DivergenceMask(0.2, 0.2)(now, micro_of(old, old, [1] * 5, [1.0, 1.0, -1.0, -1.0, 1.0]))
    assert token.clipped.tolist() == [True, False, False, True, False] and token.inside.tolist() == [False] * 4 + [True]
    token.loss.sum().backward()
    assert now.grad is not None and now.grad.tolist() == pytest.approx([0, -0.5, 1.5, 0, -10])
    both = DivergenceMask(0.2, 0.2, sides="both")(now, micro_of(old, old, [1] * 5, [1.0] * 5))
    assert both.clipped.tolist() == [True] * 4 + [False]


def test_levels_of_rejection():
    """Ratios e^.3, e^-.2 and e^.1, e^.1 within e^-.25 .. e^.25: their means lie within, one sum and one token do not."""
    micro = micro_of([0.3, -0.2, 0.1, 0.1], [0.0] * 4, [2, 2], [1.0, 1.0])
    low, high = np.exp(-0.25), np.exp(0.15)
    found = {
        level: SamplerRejection(level, low, high)(micro).tolist() for level in ("token", "sequence", "mean", "any")
    }
    assert found == {"token": [0, 1, 1, 1], "sequence": [1, 1, 0, 0], "mean": [1, 1, 1, 1], "any": [0, 0, 1, 1]}
    assert SamplerRejection("any", low, high, weigh=True)(micro).tolist() == pytest.approx(
        [0, 0, np.exp(0.1), np.exp(0.1)]
    )


def test_denominators_count_what_is_kept():
    """Of 3, 5 and 2 tokens 2, none and 2 are kept: each token weighs 1/4, and the second response is in no plan."""
    method, batch = compose("verl:grpo+token_k1"), make_batch([0, 0, 0], [3, 5, 2], [1, 0, 0])
    scored = method.score_tables(batch.responses, batch.segments)
    plan = method.plan(scored, np.array([2, 0, 2]))
    assert (plan.rows.tolist(), plan.length.tolist(), plan.weight.tolist()) == ([0, 2], [3, 2], [1 / 4, 1 / 4])
    assert len(method.plan(scored, np.array([0, 0, 0]))) == 0
    old, told = torch.tensor([np.nan, 0, 0, -1, -1]), torch.tensor([0.0, 0, 0, -1, -1])
    assert SamplerRejection(recount=True).count([3, 2], old, told).tolist() == [3, 2], (
        "nan stays, and the update is skipped"
    )
    with pytest.raises(ValueError, match="recount=True: plan_rows is called before log-probs are known"):
        plan_rows(method, groups=[0], lengths=[2], rewards=[1.0], max_response_length=8)


def ragged_scored(method):
    """The ragged batch with whatever the method's stages read."""
    batch = ragged_batch()
    named = name_columns({name: [values[row % 2] for row in range(10)] for name, values in method.reads.items()})
    return method.score_tables(replace(batch.responses, named=named), batch.segments)


@pytest.mark.slow
@over("name", PEERS)
def test_every_word_is_a_method_of_the_battery_or_says_why_not(name):
    for word, one in read_peers()[name].words.items():
        words = f"{name}:reinforce_plus_plus+{word}" if word.startswith("minus") else f"{name}:{word}"
        if one.refused:
            with pytest.raises(ValueError, match=word):
                compose(words)
        else:
            check(words)
            assert compose(words).plan(ragged_scored(compose(words))).weight.any()


MORE = (
    "verl:gdpo advantage.outcomes=a,b=0.5", "nemo-rl:gdpo+icepop advantage.outcomes=a,b=0.5", "gfpo+opo filter.by=efficiency",
    "nemo-rl:grpo+effort_levels reward.EffortLength.column=prompt", "prime-rl:ipo+linear+num_turns_weight=0.5",
    *(f"grpo correction=SamplerRejection correction.level={level} correction.weigh=true correction.recount=true"
      for level in ("token", "sequence", "mean", "any")),
    *(f"grpo+icepop correction.level={level} correction.above_cap={above}"
      for level in ("token", "sequence") for above in ("truncate", "mask")),
    *(f"grpo+kl terms.ReferenceKL.ratio_to={policy} terms.ReferenceKL.estimator={estimator}"
      for policy in ("old", "present") for estimator in ("k1", "k2", "k3")),
    *(f"verl:dppo_{kind} surrogate.sides={sides} surrogate.moved_from=sampled surrogate.low=0.01 surrogate.high=0.01"
      for kind in ("tv", "kl") for sides in ("advantage", "both")),
)  # fmt: skip
"""Fields of the same stages that no word sets."""


@over("text", MORE)
def test_their_fields_pass_the_battery(text):
    names, *settings = text.split()
    check(compose(names, settings))


REFUSED = {
    "verl:opo+rloo": "opo and rloo both set adv_estimator: keep one",
    "trl:bnpo": "its gradient depends on the split",
    "verl:dppo_tb": "did you mean 'dppo_tv'",
    "verl:gspo+clip_ratio_c=4": "SequenceTokenClip has no such number",
    "verl:grpo+clip_ratio=much": "'much' is not a number",
    "trl:dapo+epsilon_high": "trl:epsilon_high: give it as epsilon_high=VALUE",
    "trl:cispo+epsilon_high=5": "TRL holds the ratio itself at epsilon_high",
    "dapo+verl:opo": "two bases, dapo and verl:opo",
    "nemo-rl:gdpo+eqlen --set advantage.outcomes=a": "OutcomeNormalized of a: outcomes of whole responses",
}


@over("text", REFUSED)
def test_words_that_are_refused(text):
    names, _, setting = text.partition(" --set ")
    with pytest.raises(ValueError, match=REFUSED[text]):
        compose(names, [setting] if setting else [])


def test_words_count_in_any_order():
    one, other = (
        compose(f"trl:dapo+{words}") for words in ("epsilon=0.1+epsilon_high=0.28", "epsilon_high=0.28+epsilon=0.1")
    )
    assert "trl:entropy_coef=0.01: TRL's bonus is a mean over tokens" in str(
        explain("trl:dr_grpo+entropy_coef=0.01").notes
    )
    assert one == other and (one.surrogate.clip_low, one.surrogate.clip_high) == (0.1, 0.28)


@over("name", PEERS)
def test_no_word_undoes_another(name):
    """Two words are refused together, or in either order one method, which has every stage that each makes alone."""

    def parts(method):
        return {(path.partition(".")[0], stage) for path, stage in method.stages()}

    peer = read_peers()[name]
    known = {word: {*one.sets.split()} for word, one in peer.words.items() if not one.refused}
    for pair in combinations(known.keys() - {"minus_baseline=false"}, 2):
        if not known[pair[0]] & known[pair[1]]:
            made, swapped, *alone = map(peer.apply, (pair, pair[::-1], *([word] for word in pair)))
            assert made == swapped and set().union(*map(parts, alone)) - parts(peer.apply([])) <= parts(made), pair
    if name == "nemo-rl":
        made = compose("nemo-rl:minus_baseline=false+reward_shaping+reinforce_plus_plus+effort_levels")
        assert made.advantage.baseline == "none" and made.reward == (EffortLength(), SoftOverlong())


def test_a_prefix_wins_over_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "verl:opo.py").write_text("raise SystemExit(3)\n")
    assert compose("verl:opo").advantage == LengthCentered()
    assert compose("VERL:opo + seq-mean-token-sum + balanced") == compose("verl:opo+balanced")
    made = compose("trl:dapo+epsilon_high=0.28+beta=0.04")
    assert made.surrogate.clip_high == 0.28 and made.terms[0].coefficient == 0.04 and made.terms[0].ratio_to == "old"

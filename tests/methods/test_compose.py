"""Names that combine, fields by their path, and what is refused, replaced or warned of."""

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import permutations
from typing import ClassVar

import numpy as np
import pytest
from fixtures import make_batch, random_batch
from loops import over

from fairlen.batch import build_responses, build_segments
from fairlen.methods.compose import compose, explain
from fairlen.methods.conflicts import REFUSED, WARNED
from fairlen.methods.description import KINDS, set_fields, short
from fairlen.methods.method import Method
from fairlen.methods.modifiers import CHAIN_ORDER, MODIFIERS
from fairlen.methods.presets import BASES
from fairlen.methods.stages.aggregation import Balanced, ConstantBudget, TokenMean
from fairlen.methods.stages.filters import LengthWindow, MixedOutcomes, ShortestKept, SomeCorrect, SomeIncorrect
from fairlen.methods.stages.micro import is_state
from fairlen.methods.stages.reward import LengthPenalty, SoftOverlong, TopLambda
from fairlen.methods.stages.surrogate import TokenClip


def test_the_first_line_of_the_readme():
    stages = {"filter": MixedOutcomes(), "reward": (SoftOverlong(),), "aggregation": Balanced("group")}
    assert compose("dapo+balanced") == Method(surrogate=TokenClip(clip_high=0.28), **stages)


@over(
    "names",
    [["dapo", "balanced", "gr3", "kl"], ["toplambda", "overlong", "mismatch"], ["dler", "entropy", "kl", "no_std"]],
)
def test_names_in_any_order_are_one_method(names):
    compositions = {explain("+".join(order)) for order in permutations(names)}
    assert len(compositions) == 1


def test_no_base_is_grpo_and_hyphens_and_capitals_are_forgiven():
    assert compose("balanced") == compose("grpo+balanced") == compose(" GRPO + Balanced ")
    assert compose("dr-grpo") == compose("dr_grpo")
    assert explain("balanced").name == "grpo+balanced"


@over(
    "names, message",
    [
        ("grpo+dapo", r"'grpo\+dapo' has two bases, grpo and dapo: keep one"),
        ("dapo+dapo", r"'dapo\+dapo' has dapo twice: name it once"),
        ("dapo+balanced+balanced_update", r"balanced and balanced_update both set aggregation: keep one of them"),
        ("dynamic+toplambda", r"dynamic drops prompts that are all correct, which toplambda selects first: leave dynamic out"),
        ("toplambda+gr3", r"TopLambda with SomeIncorrect: that filter drops prompts that are all correct"),
        ("eqlen_unbiased+eqlen", r"eqlen with a base that has EqLen already: leave eqlen out"),
        ("grpo+balanecd", r"unknown method 'balanecd': did you mean 'balanced'\?"),
        ("zzzz", r"unknown method 'zzzz': there are grpo, .*balanced"),
        ("", r"unknown method ''"),
        ("cispo+dual_clip", r"dual_clip with DetachedClip: .*leave dual_clip out.*there are clip_low, clip_high\)$"),
        ("gspo+clip_higher", r"clip_higher with SequenceClip: it sets clip_low=0.2 and clip_high=0.28 of a token's ratio"),
        ("gfpo+eqlen", r"ShortestKept with EqLen: a pair would lose the response that it is compared with"),
        ("ctpo+dual_clip", r"dual_clip with PrefixBand: .*there are width_low, width_high, dual_width, power\)$"),
    ],
)  # fmt: skip
def test_names_that_contradict_each_other_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        compose(names)


LONG_AND_RIGHT = (
    "{} with SoftOverlong: both penalise length: with outcomes 0 and 1 a long correct response can be worth less than a short "
    "incorrect one"
)


@over(
    "names, notes",
    [
        ("grpo", ()),
        ("grpo+balanced", ()),  # a plain choice is no choice of the base
        ("dr_grpo+balanced", ("balanced replaces aggregation ConstantBudget() with Balanced()",)),
        ("dapo+toplambda", ("toplambda replaces filter MixedOutcomes() with SomeCorrect()", LONG_AND_RIGHT.format("TopLambda"))),
        ("grpo+toplambda", ("toplambda sets filter to SomeCorrect()",)),
        ("grpo+gr3", ("gr3 sets filter to SomeIncorrect()",)),
        ("dapo+gr3", (LONG_AND_RIGHT.format("RelativeLength"),)),  # mixed prompts are fewer already
        ("dler+gr3", ("gr3 replaces filter MixedRewards() with MixedOutcomes()",)),
        ("dapo+overlong", ()),  # it has it
        ("dler+dual_clip", ("dual_clip replaces surrogate.dual_clip 10.0 with 3.0",)),
    ],
)  # fmt: skip
def test_replaced_choices_are_said(names, notes):
    assert explain(names).notes == notes


def test_rewards_chain_and_one_of_a_kind_is_replaced():
    assert [type(stage).__name__ for stage in compose("dapo+gr3+overlong").reward] == ["RelativeLength", "SoftOverlong"]
    assert compose("dapo+toplambda").filter == SomeCorrect() and compose("grpo+gr3").filter == SomeIncorrect()


def test_a_filter_that_was_asked_for_stays_beside_a_penalty():
    composition = explain("grpo+lspo+toplambda")
    assert composition.method.filter == LengthWindow()
    assert any("LengthWindow keeps mixed prompts only" in note for note in composition.notes)
    assert compose("gfpo+toplambda").filter == compose("gr3+gfpo").filter == ShortestKept()


def rows_of(table) -> list[tuple[type, type, str]]:
    return [(one, other, reason) for some, others, reason in table for one in some for other in others]


def settings_with(*kinds: type) -> list[str]:
    """What makes GRPO a method with these stages."""
    choices: dict[str, list[str]] = {}
    for kind in kinds:
        choices.setdefault(next(choice for choice in KINDS if kind in KINDS[choice]), []).append(kind.__name__)
    return [f"{choice}={','.join(names)}" for choice, names in choices.items()]


@over("one, other, reason", rows_of(REFUSED))
def test_every_row_that_is_refused_raises(one, other, reason):
    with pytest.raises(ValueError, match=re.escape(f"{one.__name__} with {other.__name__}: {reason}")):
        compose("grpo", settings_with(one, other))


@over("one, other, reason", rows_of(WARNED))
def test_every_row_that_warns_is_met_and_said(one, other, reason):
    notes = explain("grpo", settings_with(one, other)).notes
    assert f"{one.__name__} with {other.__name__}: {reason}" in notes
    assert not explain("grpo").notes


ALL_PAIRS = [f"{base}+{modifier}" for base in BASES for modifier in MODIFIERS]


def refusal_of(names, settings=()):
    try:
        compose(names, settings)
    except ValueError as error:
        return str(error)
    return ""


def settings_in(text):
    return re.findall(r"--set (\S+=[^\s;]+)", text)


def test_what_a_note_proposes_ends_it():
    """Of all pairs: the settings of a note compose, and with them the note is not said again."""
    for names in (*ALL_PAIRS, "p_gspo"):
        start = ["surrogate.power=0.5"] if names.startswith("p_gspo") else []
        for note in explain(names, start).notes if not refusal_of(names, start) else ():
            if settings := settings_in(note):
                assert note not in explain(names, [*start, *settings]).notes, (names, note)


BIASED = {
    "MixedOutcomes": ["+dynamic"], "LengthWindow": ["+lspo"], "RelativeLength": ["+gr3"], "LengthPenalty": ["+lp"],
    "SolvedLength": ["+solved_length"], "CentredLength": ["+centred_length"],
    "GroupNormalized": ["+std_trl", "+std_verl", "+std_ba"], "Balanced": ["+balanced", "+balanced_update"],
    "mask_truncated": ["+overlong_filter"],
}  # fmt: skip
HALVING = ["sampling.survivor_reward=halving", "sampling.round_weight=halving"]


@over(
    "names, settings, stage",
    [
        *((f"eqlen_unbiased{name}", [], stage) for stage, names in BIASED.items() for name in names),
        ("eqlen_unbiased", ["aggregation.count=rows"], "TokenSum"),
        ("eqlen+grpo", HALVING, "SequenceMean"),
    ],
)
def test_what_makes_unbiased_pairs_biased_is_said(names, settings, stage):
    """The proposition of docs/methods/eqlen.md needs every prompt, every track, no spread and no length in a denominator."""
    said = [note for note in explain(names, settings).notes if "no longer that of the expected reward" in note]
    assert any(note.startswith(f"{stage} with the halving weights of EqLen") for note in said)
    assert all("--set" in note for note in said)


@over("names", ["eqlen_unbiased", "eqlen_unbiased+no_std", "eqlen_unbiased+overlong", "eqlen_unbiased+kl"])
def test_unbiased_pairs_that_stay_so_are_not_warned_of(names):
    """Half of a leave-one-out difference, a penalty of the response alone and a further term leave the reward's gradient."""
    assert not any("expected reward" in note for note in explain(names).notes)


@pytest.mark.slow
@over("kinds", list(permutations(KINDS["reward"], 2)))
def test_rewards_that_put_a_right_answer_below_a_wrong_one_are_refused_or_said(kinds):
    """Outcomes 0 and 1, lengths 1 to 20 of 20, twenty draws of four prompts, and one response 9 times as long as the mean.

    gr3 with lp: 20 tokens, mean 35/16: 1 / (1 + 0.33 * 64/7) = 0.249; minus 0.6 sigmoid(3.7) = 0.585.
    """
    names = ",".join(kind.__name__ for kind in kinds)
    said = refusal_of("grpo", [f"reward={names}"])
    notes = "" if said else " ".join(explain("grpo", [f"reward={names}"]).notes)
    batches = [random_batch(seed, 4, 8, longest=20, max_response_length=20).responses for seed in range(20)]
    batches.append(make_batch([0] * 16, [20] + [1] * 15, [1] * 15 + [0], max_response_length=25).responses)
    worst = 0.0
    for table in batches:
        table = replace(table, truncated=table.length == 20)
        reward = table.outcome
        for kind in sorted(kinds, key=CHAIN_ORDER.index):
            reward = kind()(table, reward)
        for prompt in range(table.num_prompts):
            right, wrong = (reward[(table.prompt == prompt) & (table.correct == side)] for side in (True, False))
            worst = min(worst, right.min(initial=1.0) - wrong.max(initial=-1.0))
    assert worst >= 0 or said or "less than" in notes


def test_p_gspo_has_one_power():
    (note,) = explain("p_gspo", ["surrogate.power=0.5"]).notes or ("nothing is said",)
    assert note.startswith("surrogate.power=0.5 with aggregation.power=0.6: P-GSPO has one power for both")
    assert not explain("p_gspo", ["surrogate.power=0.5", "aggregation.power=0.5"]).notes


def leaves(method: Method):
    """(path, value) of every field that `--set` reaches."""
    for choice in fields(method):
        value = getattr(method, choice.name)
        stages = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for position, stage in stages:
            prefix = choice.name if position is None else f"{choice.name}.{position}"
            if not is_dataclass(stage):
                yield prefix, stage
                continue
            for f in fields(stage):
                if not is_state(f):
                    yield f"{prefix}.{f.name}", getattr(stage, f.name)


def other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 0.9 if value >= 1 else value * 0.5 + 0.01
    return None


@over("name", BASES)
def test_a_leaf_that_is_set_is_the_only_one_that_changes(name):
    method = compose(name)
    for path, value in leaves(method):
        changed = other(value)
        if changed is None or changed == value:
            continue
        try:
            result = set_fields(method, [f"{path}={changed}"])
        except ValueError as error:
            assert f"{path.split('.')[-1]}=" in str(error) or "give" in str(error)  # the stage's own check, by name
            continue
        now = dict(leaves(result))
        assert now[path] == changed
        assert {k: v for k, v in now.items() if k != path} == {k: v for k, v in leaves(method) if k != path}


@over(
    "assignment, message",
    [
        ("surrogate.clip_hihg=0.3", r"TokenClip\(clip_high=0.28\) has no field 'clip_hihg': did you mean 'clip_high'\?"),
        ("surogate.clip_high=0.3", r"no choice 'surogate': did you mean 'surrogate'\?"),
        ("surrogate.clip_high", r"write PATH=VALUE, such as surrogate.clip_high=0.3"),
        ("surrogate.clip_high=", r"write PATH=VALUE"),
        ("surrogate.clip_high=wide", r"'wide' is not a number, such as 0.28"),
        ("sampling.n=1.5", r"'1.5' is not a whole number, such as 16"),
        ("mask_truncated=maybe", r"'maybe' is not a truth value: give true or false"),
        ("filter=MixedOutcome", r"filter='MixedOutcome': did you mean 'MixedOutcomes'\?"),
        ("reward.1.margin=0.3", r"no stage '1' here: there are SoftOverlong"),
        ("reward.SoftOverlon.margin=0.3", r"no stage 'SoftOverlon' here: did you mean 'SoftOverlong'\?"),
        ("reward.0.margin.x=0.3", r"has no field 'margin.x': did you mean 'margin'\?"),
        ("filter.fraction=0.3", r"MixedOutcomes\(\) has no field 'fraction': there are none"),
        ("surrogate.clip_low=2", r"TokenClip: clip_low=2.0: give a fraction from 0 to 1"),
    ],
)  # fmt: skip
def test_settings_that_fit_nothing_name_the_nearest_that_does(assignment, message):
    with pytest.raises(ValueError, match=message):
        compose("dapo", [assignment])


def test_state_cannot_be_set():
    with pytest.raises(ValueError, match="has no field 'drift_average'"):
        compose("fspo", ["surrogate.drift_average=0.1"])


def test_whole_stages_and_chains_can_be_set():
    assert compose("grpo", ["aggregation=ConstantBudget"]).aggregation == ConstantBudget()
    assert compose("dapo", ["aggregation.scope=update"]).aggregation == TokenMean("update")
    assert compose("dapo", ["reward=none"]).reward == ()
    assert compose("grpo", ["reward=LengthPenalty,SoftOverlong"]).reward == (LengthPenalty(), SoftOverlong())
    assert compose("grpo+toplambda", ["reward.TopLambda.alpha=0.4"]).reward == (TopLambda(alpha=0.4),)
    assert compose("grpo", ["mask_truncated=true"]).mask_truncated is True


def test_short_is_the_shortest_text_that_makes_a_stage():
    assert short(TokenClip()) == "TokenClip()"
    assert short(TokenClip(clip_high=0.28)) == "TokenClip(clip_high=0.28)"
    assert short(()) == "none"
    assert short((LengthPenalty(), SoftOverlong(factor=2.0))) == "LengthPenalty(), SoftOverlong(factor=2.0)"
    for kinds in KINDS.values():
        for kind in kinds:
            assert eval(short(kind()), {k.__name__: k for k in kinds}) == kind()


def test_every_kind_can_be_a_choice():
    """The lists of describe.py are complete: each stage of each preset and modifier is among them."""
    for name in [*BASES, *(f"grpo+{modifier}" for modifier in MODIFIERS)]:
        for path, stage in compose(name).stages():
            assert type(stage) in KINDS[path.partition(".")[0]]
    assert replace(Method(), aggregation=Balanced("update")) == compose("grpo+balanced_update")


@pytest.mark.parametrize("base", ["grpo", "dr_grpo", "rloo", "dler"])
def test_one_response_for_each_prompt_is_refused_if_it_is_compared_within_the_prompt(base):
    with pytest.raises(ValueError, match=r"with sampling\.n=1: a single response to a prompt has no other"):
        explain(base, ["sampling.n=1"])
    assert explain(base, ["sampling.n=2"]).method.sampling.num_tracks == 2


def test_one_response_for_each_prompt_is_fine_if_it_is_compared_over_the_batch():
    """As REINFORCE++ of verl. Values 1, 0, 0, 0 of four prompts: mean 1/4, variance 3/16, so (3/4) / (sqrt(3)/4) = sqrt(3)."""
    settings = ["sampling.n=1", "advantage=BatchNormalized", "advantage.baseline=none"]
    method = explain("grpo", settings).method
    responses = build_responses(np.arange(4), np.ones(4), np.eye(4)[0], np.eye(4)[0], np.zeros(4, bool), 8)
    advantage = method.advantage(build_segments(responses, np.ones(4)), np.eye(4)[0])
    assert np.allclose(advantage, [3**0.5, *[-(3**-0.5)] * 3], atol=1e-5)


def test_fields_that_bound_each_other_are_set_in_any_order():
    """dler: clip_high 0.28, dual_clip 10. dual_clip must be above 1 + clip_high: 20 > 1 + 12, but 10 < 1 + 12."""
    settings = ["surrogate.clip_high=12", "surrogate.dual_clip=20"]
    made = [compose("dler", order) for order in (settings, settings[::-1])]
    assert made[0] == made[1] and made[0].surrogate.clip_high == 12  # type: ignore[union-attr]
    assert compose("grpo", ["surrogate.width=0.1", "surrogate=FairBand"]).surrogate.width == 0.1  # type: ignore[union-attr]


@dataclass(frozen=True)
class Odd:
    """A stage of a user's own whose defaults are of other types than its fields, or of none that text can give."""

    choice: ClassVar[str] = "aggregation"
    power: float = 1
    shape: tuple[float, ...] = (0.3,)
    ceiling: float | None = None


def test_fields_are_read_by_their_annotation_and_what_is_no_plain_value_is_refused():
    method = replace(compose("grpo"), aggregation=Odd())  # type: ignore[arg-type]
    assert set_fields(method, ["aggregation.power=0.5"]).aggregation.power == 0.5  # type: ignore[union-attr]
    for text in ("aggregation.shape=0.3,0.4", "aggregation.ceiling=2"):
        with pytest.raises(ValueError, match="only texts, numbers and truth values can be set"):
            set_fields(method, [text])

"""Advice: every method with every finding, against itself and against what is in use."""

import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fairlen.audit import advice as pieces
from fairlen.audit.advice import BOUNDS, Advice, advise
from fairlen.audit.method_in_use import SETTINGS, InUse, parse_method
from fairlen.audit.statistics.coupling import RULES as AGGREGATIONS
from fairlen.audit.statistics.intervals import NOTHING, Estimate
from fairlen.methods.compose import explain
from fairlen.methods.conflicts import warn_of_pairs
from fairlen.methods.description import set_fields
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
from fairlen.methods.stages import surrogate
from fairlen.methods.stages.fair_band import FairBand

ROOT = Path(__file__).parents[2]
LONGER, SHORTER = Estimate(0.3, 0.2, 0.4), Estimate(-0.3, -0.4, -0.2)
MEASURES = (
    "within.length", "within.bend", "acceptance.lre", "streams.optimism", "streams.eos_advantage", "selection.dropped",
    "shares.truncated_incorrect",
)  # fmt: skip
BALANCED = ("aggregation=Balanced", "aggregation.scope=group")
CENTRED = ("surrogate=FairBand", "surrogate.drift=centred")


def composes(names: str) -> bool:
    try:
        explain(names)
    except ValueError:
        return False
    return True


@cache
def methods() -> tuple[InUse, ...]:
    """Every base alone and with every one and two modifiers that go with it; every rule of EqLen; aggregations and settings."""
    names = [*BASES, *("+".join(parts) for parts in product(BASES, MODIFIERS))]
    names += ["+".join(parts) for parts in product(BASES, ("eqlen", "balanced", "balanced_update"), MODIFIERS)]
    ours = [parse_method(name) for name in names if composes(name)]
    settings = [f"{key}={word}" for key, (_, words) in SETTINGS.items() for word in words]
    return (*ours, *(parse_method(name) for name in (*AGGREGATIONS, *settings)))


def all_advice(method: InUse, signs: tuple[Estimate, ...] = (LONGER, SHORTER)) -> list[Advice]:
    found = (advise(measure, effect, method) for measure in MEASURES for effect in signs)
    return [advice for advice in found if advice]


def test_there_are_many_methods_and_much_advice():
    assert len(methods()) > 600
    assert sum(map(len, map(all_advice, methods()))) > 600


def test_links_of_evidence_lead_to_a_heading_of_the_documentation_or_to_a_paper_that_it_names():
    papers = (ROOT / "docs" / "papers.md").read_text()
    cited = {evidence for method in methods() for advice in all_advice(method) for evidence in advice.evidence}
    assert len(cited) >= 12
    for evidence in cited:
        page, _, heading = evidence.link.partition("#")
        if page.startswith("https://arxiv.org/abs/"):
            assert f"arXiv:{page.rpartition('/')[2]}" in papers
            continue
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.M)
        assert not heading or heading in [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings], (
            evidence
        )


def test_the_bounds_are_classes_and_drifts():
    """A class that is renamed would fall out of the table without a word."""
    assert all(hasattr(surrogate, name) for name in BOUNDS if name not in get_args(get_type_hints(FairBand)["drift"]))


def test_no_advice_is_without_evidence():
    assert all(advice.evidence for method in methods() for advice in all_advice(method))


@pytest.mark.slow
def test_figures_in_the_texts_are_those_of_the_evidence():
    checked = 0
    for text, evidence in {(a.text, a.evidence) for method in methods() for a in all_advice(method)}:
        for share in re.findall(r"\d+%", text):
            assert any(share in one.text for one in evidence), (share, evidence)
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("signs", list(product((LONGER, SHORTER), repeat=2)), ids=["++", "+-", "-+", "--"])
def test_no_two_pieces_of_advice_set_a_choice_to_different_things(signs):
    """Whatever the sign of each finding. A stage and fields of it are one choice."""
    for method in methods():
        together = [advise(measure, effect, method) for measure in MEASURES for effect in signs]
        chosen: dict[str, str] = {}
        for advice in filter(None, together):
            for change in advice.sets:
                path, _, value = change.partition("=")
                assert chosen.setdefault(path, value) == value, (method.name, path)


def test_what_is_advised_can_be_set_is_new_and_is_not_warned_of():
    tried = 0
    for method in methods():
        if method.method is None:
            continue
        before = set(warn_of_pairs(method.method))
        for advice in all_advice(method):
            if advice.sets:
                changed = set_fields(method.method, advice.sets)
                assert changed != method.method, method.name
                assert set(warn_of_pairs(changed)) <= before, method.name
                tried += 1
    assert tried > 500


def test_what_is_followed_is_not_advised_again():
    for method in methods():
        if method.method is None:
            continue
        for measure, effect in product(MEASURES, (LONGER, SHORTER)):
            first = advise(measure, effect, method)
            if first and first.sets:
                changed = set_fields(method.method, first.sets)
                after = InUse("changed", aggregation_after(method, first), "test", changed)
                second = advise(measure, effect, after)
                assert second is None or not second.sets, (method.name, measure)


def aggregation_after(method: InUse, advice: Advice) -> str:
    names = {
        "aggregation=Balanced": "balanced",
        "aggregation=TokenSum": "token_sum",
        "aggregation=ConstantBudget": "constant_budget",
    }
    return next((names[change] for change in advice.sets if change in names), method.aggregation)


def test_balanced_in_use_is_never_recommended():
    for base, modifier, effect in product(BASES, ("balanced", "balanced_update"), (LONGER, SHORTER)):
        advice = advise("within.length", effect, parse_method(f"{base}+{modifier}"))
        assert advice is None or (not advice.sets and "+balanced" not in advice.text)
        assert (advice is None) == base.startswith("eqlen")


@pytest.mark.parametrize(
    ("names", "measure", "effect", "sets", "evidence", "words"),
    [
        ("dapo", "within.length", LONGER, BALANCED, pieces.ONE_FACTOR, "incorrect responses count"),
        ("dapo_verl", "within.length", SHORTER, BALANCED, pieces.PUSH_LEFT, "correct responses count"),
        ("loss_type=dapo", "within.length", LONGER, BALANCED, pieces.NO_BIAS, "FairGRPOTrainer"),
        ("token-mean", "within.length", LONGER, BALANCED, pieces.TOKEN_MEAN, "fairlen verl"),
        ("grpo", "within.length", LONGER, ("aggregation=ConstantBudget",), pieces.NO_PUSH, "go on"),
        ("gspo", "within.length", LONGER, ("aggregation=TokenSum",), pieces.NO_PUSH, "--set aggregation=TokenSum"),
        ("loss_type=grpo", "within.length", SHORTER, ("aggregation=ConstantBudget",), pieces.LONG_TOKENS, 'loss_type="dr_grpo"'),
        ("dr_grpo", "within.length", LONGER, (), pieces.NO_PUSH, "nothing to change"),
        ("fspo", "within.length", LONGER, (), pieces.NO_PUSH, "nothing to change"),
        ("rloo", "acceptance.lre", LONGER, CENTRED, pieces.FIXED_CLIP, "are independent"),
        ("gspo", "acceptance.lre", LONGER, (*CENTRED, "aggregation=TokenSum"), pieces.ROOT, "root"),
        ("fspo", "acceptance.lre", LONGER, ("surrogate.drift=centred",), pieces.TWO_SIDES, "more often"),
        ("fspo_v3", "acceptance.lre", LONGER, ("surrogate.drift=centred",), pieces.NO_DRIFT, "less often"),
        ("eqlen+grpo", "streams.optimism", LONGER, ("sampling.survivor_reward=halving",), pieces.MAX_IS_BIASED, "best of"),
        ("eqlen+dapo", "streams.eos_advantage", SHORTER, ("sampling.survivor_reward=halving",), pieces.WHO_WINS, "stopping"),
        ("dapo", "channels.thinking", LONGER, (), pieces.ONE_CHANNEL, "reward.0.of=thinking"),
    ],
)  # fmt: skip
def test_advice_by_method(names, measure, effect, sets, evidence, words):
    found = advise(measure, effect, parse_method(names))
    assert found is not None and found.sets == sets
    assert evidence in found.evidence and words in found.text


@pytest.mark.parametrize(
    ("names", "measure", "effect"),
    [
        ("dapo", "within.bend", LONGER),
        ("dapo", "selection.dropped", LONGER),
        ("dapo", "shares.truncated_incorrect", LONGER),
        ("p_gspo", "within.length", LONGER),
        ("eqlen+grpo", "within.length", LONGER),
        ("fspo_centred", "acceptance.lre", LONGER),
        ("grpo", "acceptance.lre", LONGER),
        ("token_mean", "acceptance.lre", LONGER),
        ("eqlen_unbiased", "streams.optimism", LONGER),
        ("eqlen+grpo", "streams.eos_advantage", LONGER),
        ("eqlen_unbiased", "streams.eos_advantage", SHORTER),
        ("dapo", "within.length", NOTHING),
        ("dapo", "channels.thinking", SHORTER),
        ("dapo", "channels.observation", LONGER),
    ],
)
def test_where_nothing_is_proved_there_is_no_advice(names, measure, effect):
    assert advise(measure, effect, parse_method(names)) is advise(measure, LONGER, None) is None


def test_an_association_is_never_called_a_cause():
    texts = {advice.text for method in methods() for advice in all_advice(method)}
    assert len(texts) >= 12
    for text in texts:
        assert not re.search(r"\b(caus\w*|because|due to|leads? to|makes?|improv\w*|accura\w*)\b", text), text

"""Methods are what the papers say, and docs/papers.md has the source of every number, and the options of TRL and verl."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops import over

from fairlen.checks import is_described
from fairlen.methods.compose import compose, explain, find_component
from fairlen.methods.description import KINDS
from fairlen.methods.method import Method
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
from fairlen.methods.stages.micro import is_state
from fairlen.methods.stages.surrogate import MAX_LOG_RATIO
from fairlen.train.run.config import TrainConfig

PAGE = (Path(__file__).parents[1] / "docs" / "papers.md").read_text()
STAGES = {kind.__name__: kind for kinds in KINDS.values() for kind in kinds}
UNSAID = {"Independent", "Everything", "NoCorrection"}
"""Stages that a method has unless it says otherwise."""


def section(title: str) -> str:
    """The text between a heading and the next one."""
    assert f"\n## {title}\n" in PAGE, f"docs/papers.md has no heading ## {title}"
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def spans(text: str) -> list[str]:
    """Inline code, joined where a line ends in it."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def items(title: str) -> list[tuple[str, str]]:
    """What stands before the first colon of each item of a section's list, and what behind it."""
    text = section(title).replace("\n  ", " ")
    return [(head, rest) for head, _, rest in (line[2:].partition(": ") for line in re.findall(r"^- .*", text, re.M))]


def rows(title: str) -> list[tuple[str, str, str]]:
    """Their option, ours, and what to mind, of each translation of a section."""
    return [(theirs, *re.fullmatch(r"((?:`[^`]*`|[^`.,])*)[.,]?(.*)", rest).groups()) for theirs, rest in items(title)]  # type: ignore[union-attr, misc]


def stages_of(method: Method) -> list[Any]:
    """Every stage of a method that a page has to name."""
    values = [getattr(method, f.name) for f in dataclasses.fields(method)]
    flat = [stage for value in values for stage in (value if isinstance(value, tuple) else (value,))]
    return [s for s in flat if dataclasses.is_dataclass(s) and (type(s).__name__ not in UNSAID or s != type(s)())]


def build(text: str) -> Any:
    """The stage that `Name(field=value, …)` makes; every field that is on must be written out."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), text
    given = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    stage = STAGES[call.func.id](**given)
    on = {
        f.name
        for f in dataclasses.fields(stage)
        if not is_state(f) and is_described(stage, f) and getattr(stage, f.name) != math.inf
    }
    assert on == set(given), f"{text}: the page leaves out or adds {on ^ set(given)}"
    return stage


def named_stages(text: str) -> list[Any]:
    return [build(call) for call in re.findall(r"\w+\([^()]*\)", text)]


def numbers_of(stages: list[Any]) -> set[tuple[str, float]]:
    """Every number of some stages that is on, by the name of its field."""
    named = [(f.name, getattr(stage, f.name)) for stage in stages for f in dataclasses.fields(stage) if not is_state(f)]
    return {(name, one) for name, one in named if type(one) in (int, float) and one not in (0, math.inf)}


def test_papers_of_the_card_are_the_sources_of_the_page():
    """Each item names methods that share a source: its papers are those that cards of these methods name."""
    found = [
        (spans(head), set(re.findall(r"\d{4}\.\d{5}", rest))) for head, rest in items("Bases") + items("Modifiers")
    ]
    assert {name.lstrip("+") for names, _ in found for name in names} == BASES.keys() | MODIFIERS.keys()
    for names, papers in found:
        named = {paper for name in names for paper in find_component(name.lstrip("+")).papers}
        assert papers <= named, (
            f"{names}: docs/papers.md names {papers - named}, the summary in presets.py or modifiers.py does not"
        )
        assert not papers or named == papers
    assert explain("dapo+balanced+lp").papers == ["2502.04463", "2503.14476", "2505.18086", "2605.04077"]


def is_name(word: str) -> bool:
    return all(part in BASES or part in MODIFIERS for part in word.split("+"))


def our_spans(text: str) -> Iterator[list[str]]:
    """Code spans in fairlen's own words, split as a shell does."""
    for span in spans(text):
        words = shlex.split(span)
        if is_name(words[0]) or words[0].startswith("--"):
            yield words


def check_ours(words: list[str]) -> None:
    """A method name with settings composes; any other flag is one of `fairlen train`."""
    names = words.pop(0) if is_name(words[0]) else "grpo"
    settings, flags, waiting = [], {f.name for f in dataclasses.fields(TrainConfig)}, iter(words)
    for word in waiting:
        if word == "--set":
            settings.append(next(waiting))
        elif word.startswith("--"):
            assert word[2:].replace("-", "_") in flags, f"{word}: fairlen train has no such flag"
    compose(names, settings)


SETTINGS = {
    "grpo": "GroupNormalized(ddof=0, eps=0.0, eps_in='std'), TokenClip(clip_low=0.2, clip_high=0.2), SequenceMean()",
    "reinforce": "GroupCentered(), PolicyGradient(), TokenSum(count='rows')",
    "rloo": "LeaveOneOut(), SequenceRatioClip(clip_low=0.2, clip_high=0.2), TokenSum(count='rows')",
    "dr_grpo": "GroupCentered(), ConstantBudget()",
    "dapo": (
        "MixedOutcomes(), SoftOverlong(margin=0.2, factor=1.0), TokenClip(clip_low=0.2, clip_high=0.28), "
        "TokenMean(scope='group')"
    ),
    "dapo_verl": (
        "MixedOutcomes(), SoftOverlong(margin=0.2, factor=1.0), TokenClip(clip_low=0.2, clip_high=0.28), "
        "TokenMean(scope='update')"
    ),
    "gspo": "SequenceClip(clip_low=0.0003, clip_high=0.0004)",
    "gspo_token": "SequenceTokenClip(clip_low=0.0003, clip_high=0.0004)",
    "luspo": "SequenceClip(clip_low=0.002, clip_high=0.0025), TokenSum(count='rows')",
    "p_gspo": "PowerClip(power=0.6, clip_low=0.0003, clip_high=0.0004), LengthPower(power=0.6)",
    "fspo": "FairBand(width=0.03, lower_share=1.0, z=0.0, drift='symmetric', rate=0.1), TokenSum(count='rows')",
    "fspo_v3": "FairBand(width=0.03, lower_share=1.0, z=0.0, drift='none', rate=0.1), TokenSum(count='rows')",
    "fspo_centred": "FairBand(width=0.03, lower_share=1.0, z=0.0, drift='centred', rate=0.1), TokenSum(count='rows')",
    "ctpo": (
        "GroupNormalized(ddof=1, eps=1e-06, eps_in='std'), "
        "PrefixBand(width_low=0.025, width_high=0.05, dual_width=0.05, power=0.5), TokenMean(scope='update')"
    ),
    "dler": (
        "MixedRewards(), TruncationPenalty(hard_target=1.0, easy_target=1.0, easy_above=0.5), "
        "BatchNormalized(eps=0.0), TokenClip(clip_low=0.2, clip_high=0.28, dual_clip=10.0), TokenMean(scope='update')"
    ),
    "da_dler": (
        "MixedRewards(), TruncationPenalty(hard_target=1.0, easy_target=0.5, easy_above=0.5), "
        "BatchNormalized(eps=0.0), TokenClip(clip_low=0.2, clip_high=0.28, dual_clip=10.0), TokenMean(scope='update')"
    ),
    "cispo": "DetachedClip(clip_low=1.0, clip_high=4.0), TokenMean(scope='update')",
    "aspo": (
        "GroupNormalized(ddof=1, eps=1e-06, eps_in='std'), InvertedClip(clip_low=0.2, clip_high=0.2, cap=3.0), "
        "TokenMean(scope='update')"
    ),
    "sapo": "SoftGate(tau_positive=1.0, tau_negative=1.05)",
    "gmpo": "GeometricClip(width_low=0.4, width_high=0.4)",
    "vespo": (
        "GroupCentered(), "
        "GammaKernel(power_positive=2.0, decay_positive=3.0, power_negative=3.0, decay_negative=2.0), "
        "TokenSum(count='rows')"
    ),
    "eqlen_unbiased": (
        "EqLen(streams=8, max_rounds=0, survivor_reward='halving', round_weight='halving', prefix_gradient=False), "
        "LeaveOneOut(), SequenceRatioClip(clip_low=0.2, clip_high=0.2), TokenSum(count='planned')"
    ),
    "tree_unbiased": (
        "Tree(n=4, branching=2, depth=3, parts=8, level_weight='branching', compare='siblings'), LeaveOneOut(), "
        "SequenceRatioClip(clip_low=0.2, clip_high=0.2), TokenSum(count='planned')"
    ),
    "eqlen": "EqLen(streams=8, max_rounds=0, survivor_reward='max', round_weight='none', prefix_gradient=False)",
    "tree": "Tree(n=4, branching=2, depth=3, parts=8, level_weight='none', compare='siblings')",
    "treerpo": "Tree(n=8, branching=8, depth=3, parts=3, level_weight='none', compare='siblings')",
    "dynamic": "MixedOutcomes()",
    "lspo": "LengthWindow(short=0.3, long_from=0.65, long_to=0.95)",
    "overlong_filter": "",
    "toplambda": "SomeCorrect(), TopLambda(fraction=0.2, alpha=0.6, min_accuracy=0.0)",
    "lp": "LengthPenalty(alpha=0.6)",
    "gr3": "SomeIncorrect(), RelativeLength(alpha=0.33)",
    "solved_length": "SolvedLength(alpha=0.25)",
    "overlong": "SoftOverlong(margin=0.2, factor=1.0)",
    "no_std": "GroupCentered()",
    "std_trl": "GroupNormalized(ddof=1, eps=0.0001, eps_in='std')",
    "std_verl": "GroupNormalized(ddof=1, eps=1e-06, eps_in='std')",
    "std_ba": "GroupNormalized(ddof=0, eps=1e-06, eps_in='variance')",
    "maxrl": "MeanNormalized()",
    "ddca": "ConditionalLength(alpha=0.2)",
    "clip_higher": "TokenClip(clip_low=0.2, clip_high=0.28)",
    "dual_clip": "TokenClip(clip_low=0.2, clip_high=0.2, dual_clip=3.0)",
    "two_sided": "TokenClip(clip_low=0.2, clip_high=0.2, delta=4.0)",
    "balanced": "Balanced(scope='group')",
    "balanced_update": "Balanced(scope='update')",
    "vl_norm": "InverseLength(power=0.75)",
    "turns": "Independent(n=16, unit='turn')",
    "turn_baseline": "Independent(n=16, unit='turn', compare='turns')",
    "turn_mean": "Independent(n=16, unit='turn'), TurnMean()",
    "turn_count": "TurnCount()",
    "balanced_turns": "Independent(n=16, unit='turn'), Balanced(scope='group', by='turns')",
    "kl": "ReferenceKL(coefficient=0.001, estimator='k3')",
    "entropy": "EntropyBonus(coefficient=0.001)",
    "mismatch": "SamplerMismatch(level='token', above_cap='truncate', cap=2.0)",
}
"""The stages of a method that grpo does not have, as its sources describe them."""


def test_every_method_has_its_settings() -> None:
    assert list(SETTINGS) == [*BASES, *MODIFIERS]
    plain = stages_of(BASES["grpo"]())
    for name, settings in SETTINGS.items():
        made = stages_of(compose(name))
        assert named_stages(settings) == [stage for stage in made if stage not in plain or name == "grpo"], name
    assert compose("overlong_filter").mask_truncated


def test_every_number_of_a_method_is_on_the_page_with_its_source() -> None:
    """But for the 16 responses to a prompt, which its first lines have, and what a modifier leaves as it is in grpo."""
    plain, listed = stages_of(BASES["grpo"]()), []
    for head, text in (*items("Bases"), *items("Modifiers")):
        said = {(field, float(value)) for field, value in re.findall(r"`(\w+)=([\d.e-]+)`", text)}
        for name in spans(head):
            made = stages_of(compose(name))
            changed = numbers_of([stage for stage in made if stage not in plain or name == "grpo"]) - {("n", 16)}
            changed -= numbers_of(plain) if name in MODIFIERS else set()
            assert changed <= said <= numbers_of(made), (name, changed ^ said)
            assert not said or re.search(r"\[(paper|code|ours)\b", text), f"{name}: no source"
            listed.append(name)
    assert sorted(listed) == sorted([*BASES, *MODIFIERS])


@over("name", [*BASES, *MODIFIERS])
def test_every_name_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_method_and_flag_on_the_page_is_one() -> None:
    found = list(our_spans(PAGE))
    for words in found:
        check_ours(words)
    assert len(found) > 150


@pytest.mark.parametrize("framework", ["From TRL 1.16", "From verl 0.9.1"])
def test_every_translation_is_in_our_words_or_says_that_there_is_none(framework: str) -> None:
    for theirs, ours, *_ in rows(framework):
        assert list(our_spans(ours)) or ours in ("none", "always so"), theirs
        for span in spans(ours):
            assert is_name(span.split()[0]) or span.startswith("--"), (
                f"{theirs}: {span} is not a method or flag of ours"
            )


def test_every_trl_option_is_a_field_of_its_configuration() -> None:
    trl = pytest.importorskip("trl", reason="needs the extra trl")
    defaults = {f.name: f.default for f in dataclasses.fields(trl.GRPOConfig)}
    theirs = [span for cells in rows("From TRL 1.16") for span in spans(cells[0]) if "(" not in span]
    assert len(theirs) > 20  # docs/trl.md has every loss_type
    for option in theirs:
        assert option.partition("=")[0] in defaults, option
    for cells in rows("From TRL 1.16"):
        if "(default" in cells[0]:
            option, _, value = spans(cells[0])[0].partition("=")
            assert defaults[option] == ast.literal_eval(value), cells[0]
    source = Path(importlib.util.find_spec("trl").origin).parent / "trainer" / "grpo_trainer.py"  # type: ignore[union-attr, arg-type]
    for option in theirs:
        name, _, value = option.partition("=")
        if value.startswith('"'):
            assert value in source.read_text(), f"{name}: TRL's trainer knows no {value}"
    assert "get_soft_overlong_punishment" in dir(__import__("trl.rewards", fromlist=["rewards"]))


def verl_source() -> Path:
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        pytest.skip("needs the extra verl")
    return Path(found.origin).parent


def test_every_verl_option_is_a_key_of_its_configuration() -> None:
    yaml = pytest.importorskip("yaml")
    root = verl_source()
    keys = yaml.safe_load((root / "trainer/config/_generated_ppo_trainer.yaml").read_text())
    rules = (root / "trainer/ppo/core_algos.py").read_text()
    theirs = [span for cells in rows("From verl 0.9.1") for span in spans(cells[0]) if "." in span.partition("=")[0]]
    assert len(theirs) > 30
    for option in theirs:
        path, _, value = option.partition("=")
        node: Any = keys
        for key in re.sub(r"^(actor|rollout)\.", r"actor_rollout_ref.\1.", path).split("."):
            assert isinstance(node, dict) and key in node, f"{option}: no key {key}"
            node = node[key]
        if path.endswith(("loss_mode", "loss_agg_mode", "adv_estimator", "kl_loss_type")):
            assert f'"{value}"' in rules, f"{option}: verl knows no {value}"
    assert "overlong_buffer_cfg" in (root / "experimental/reward_loop/reward_manager/dapo.py").read_text()


SAID = {
    "EqLen, appendix B": "at most 32768 tokens, prompt included; a KL penalty in all runs",
    "Balanced Aggregation, section 4.1": "`--max-response-length 2048` (Qwen2.5-Math-7B) or "
    "`--max-response-length 8192` (Qwen3-1.7B)",
    "its 500 total steps are verl's": "--rollout-batches 500",
    "DAPO, section 4.1": "`--max-response-length 20480 --prompts-per-batch 512 --updates-per-batch 16 --learning-rate 1e-6`",
    "DLER, table of settings": "512 prompts in mini-batches of 64",
    "DLER, dler.sh": "`filter_groups.metric=seq_reward`",
    "EqLen, where equations 5 and 6 are": "sections 3.2 (pairs) and 3.3 (what they are worth), equations 3 to 6",
    "TRL, get_gamma_weights": "The correction for vLLM's log-probs goes into W there",
    "TRL, delta": 'At `importance_sampling_level="sequence"` it bounds the ratio of the sequence there',
    "TRL, experimental": "GMPOTrainer in trl.experimental.gmpo",
    "FSPO, section 3.1": "The paper does not define the advantage",
    "the bound of methods/stages/surrogate.py": f"**Log ratios are held at {MAX_LOG_RATIO:g}.** No source has this bound.",
    "groups of unequal size": "groups of 8 and of 2 responses get .5 and .5",
}
"""What the sources were read for, sentence by sentence, and what the page says of it."""


@pytest.mark.parametrize("source", SAID)
def test_the_page_says_what_the_source_has(source: str) -> None:
    assert SAID[source] in " ".join(PAGE.split())


def test_what_is_said_of_frameworks_is_in_their_source() -> None:
    trl = pytest.importorskip("trl", reason="needs the extra trl")
    root = Path(trl.__file__).parent
    trainer = (root / "trainer" / "grpo_trainer.py").read_text()
    kernel = trainer.partition("def get_gamma_weights")[2].partition("def _compute_loss")[0]
    assert "importance_sampling_ratio" in kernel and "math.log(1e-8)" in kernel and "20.0" in kernel
    level, _, after = trainer.partition("coef_1 = torch.exp(log_importance_weights)")
    assert "importance_sampling_level ==" in level and "max=self.args.delta" in after  # after either level
    assert "epsilon: float = field(\n        default=0.4" in (root / "experimental/gmpo/gmpo_config.py").read_text()
    rules = (verl_source() / "trainer/ppo/core_algos.py").read_text()
    assert "min=-20.0, max=20.0" in rules and "clamp(log_seq_importance_ratio, max=10.0)" in rules
    alone = rules.partition("def compute_rloo_outcome_advantage")[2].partition("\ndef ")[0]
    assert (
        "if len(id2score[idx]) == 1:\n                id2mean[idx] = torch.tensor(0.0)" in alone
    )  # the reward stays as it is
    table = {cells[0]: cells[2] for cells in rows("From verl 0.9.1")}
    assert "A group of one gets its raw reward" in table["`algorithm.adv_estimator=rloo`"]


def test_a_wrong_setting_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match="leaves out or adds"):
        build("TokenClip(clip_low=0.2)")
    with pytest.raises(ValueError, match="clip_hgh"):
        check_ours(shlex.split("grpo --set surrogate.clip_hgh=0.3"))
    with pytest.raises(AssertionError, match="no such flag"):
        check_ours(["--rollout-batch", "4"])

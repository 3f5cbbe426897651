"""docs/papers.md says what the code does: names, settings, and the options of TRL and verl."""

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

from fairlen.checks import is_described
from fairlen.methods.catalogue import find_papers
from fairlen.methods.compose import compose
from fairlen.methods.describe import KINDS
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


def section(title: str, level: str = "##") -> str:
    """The text between a heading and the next one of its level or above."""
    start = re.search(rf"^{level} {re.escape(title)}$", PAGE, re.MULTILINE)
    assert start, f"docs/papers.md has no heading {level} {title}"
    rest = PAGE[start.end() :]
    end = re.search(rf"^#{{2,{len(level)}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def spans(text: str) -> list[str]:
    """Inline code, joined where a line ends in it."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


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
    return [build(span) for span in spans(text) if span.partition("(")[0] in STAGES and span.endswith(")")]


def sources() -> Iterator[tuple[str, str]]:
    """Each base and modifier with what the page says of its source."""
    for name in BASES:
        yield name, section(f"`{name}`", "###").partition("- Source:")[2].partition("\n- ")[0]
    for name, _, source, _ in rows("Modifiers"):
        yield name.strip("`"), source


def test_papers_of_the_card_are_the_sources_of_the_page():
    found = {name: set(re.findall(r"\d{4}\.\d{5}", text)) for name, text in sources()}
    assert found.keys() == BASES.keys() | MODIFIERS.keys()
    assert {name: set(find_papers(name)) for name in found} == found
    assert find_papers("dapo+balanced+lp") == ["2502.04463", "2503.14476", "2505.18086", "2605.04077"]


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


def test_the_settings_of_every_base_are_those_of_its_preset() -> None:
    for name, preset in BASES.items():
        settings = section(f"`{name}`", "###").partition("- Settings:")[2].partition("\n- ")[0]
        assert named_stages(settings) == stages_of(preset()), name


def test_the_table_of_modifiers_is_complete_and_says_what_each_changes() -> None:
    plain, listed = stages_of(BASES["grpo"]()), []
    for cells in rows("Modifiers"):
        name = spans(cells[0])[0]
        listed.append(name)
        changed = [stage for stage in stages_of(compose(name)) if stage not in plain]
        assert named_stages(cells[1]) == changed, name
    assert listed == list(MODIFIERS)
    assert compose("overlong_filter").mask_truncated


@pytest.mark.parametrize("name", [*BASES, *MODIFIERS])
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
    theirs = [span for cells in rows("From TRL 1.16") for span in spans(cells[0])]
    assert len(theirs) > 40
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
    assert len(theirs) > 40
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
    "TRL, delta": 'at `importance_sampling_level="sequence"` it bounds the ratio of the sequence there',
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

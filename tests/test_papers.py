"""docs/papers.md has every number of a method with its source, and the options of TRL and verl."""

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

from fairlen.methods.compose import compose, explain, find_component
from fairlen.methods.method import Method
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.peers import find_peer
from fairlen.methods.presets import BASES
from fairlen.methods.stages.micro import is_state
from fairlen.settings import names_of
from fairlen.train.run.config import TrainConfig

PAGE = (Path(__file__).parents[1] / "docs" / "papers.md").read_text()
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
    return bool(find_peer(word)) or all(part in BASES or part in MODIFIERS for part in word.split("+"))


def our_spans(text: str) -> Iterator[list[str]]:
    """Code spans in fairlen's own words, split as a shell does."""
    for span in spans(text):
        words = shlex.split(span)
        if is_name(words[0]) or words[0].startswith("--"):
            yield words


def check_ours(words: list[str]) -> None:
    """A method name with settings composes; any other flag is one of `fairlen train`."""
    names = words.pop(0) if is_name(words[0]) else "grpo"
    settings, flags, waiting = [], set(names_of(TrainConfig)), iter(words)
    for word in waiting:
        if word == "--set":
            settings.append(next(waiting))
        elif word.startswith("--"):
            assert word[2:].replace("-", "_") in flags, f"{word}: fairlen train has no such flag"
    compose(names, settings)


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


def test_every_method_and_flag_on_the_page_is_one() -> None:
    found = list(our_spans(PAGE))
    for words in found:
        check_ours(words)
    assert len(found) > 150


@over("framework", ["From TRL 1.16", "From verl 0.9.1"])
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
    assert len(theirs) > 20
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
    assert len(theirs) > 20
    for option in theirs:
        path, _, value = option.partition("=")
        node: Any = keys
        for key in re.sub(r"^(actor|rollout)\.", r"actor_rollout_ref.\1.", path).split("."):
            assert isinstance(node, dict) and key in node, f"{option}: no key {key}"
            node = node[key]
        if path.endswith(("loss_mode", "loss_agg_mode", "adv_estimator", "kl_loss_type")):
            assert f'"{value}"' in rules, f"{option}: verl knows no {value}"
    assert "overlong_buffer_cfg" in (root / "experimental/reward_loop/reward_manager/dapo.py").read_text()


def test_a_wrong_setting_would_be_noticed() -> None:
    with pytest.raises(ValueError, match="clip_hgh"):
        check_ours(shlex.split("grpo --set surrogate.clip_hgh=0.3"))
    with pytest.raises(AssertionError, match="no such flag"):
        check_ours(["--rollout-batch", "4"])


def test_gspo_of_trl_is_what_the_page_says() -> None:
    """TRL's default loss averages over the tokens of the update; `loss_type="grpo"` averages sequences, as GSPO does."""
    settings = "importance_sampling_level=sequence+epsilon=3e-4+epsilon_high=4e-4"
    assert compose(f"trl:grpo+{settings}") == compose("gspo+std_trl")
    over_tokens = ["aggregation=TokenMean", "aggregation.scope=update"]
    assert compose(f"trl:{settings}") == compose("gspo+std_trl", over_tokens) != compose("gspo+std_trl")


def test_rollout_batches_of_trls_steps_are_what_the_page_says() -> None:
    """A rollout batch of TRL is used for steps_per_generation / gradient_accumulation_steps * num_iterations updates."""
    options = {span for head, _ in items("From TRL 1.16") for span in spans(head)}
    ours = " ".join(span for _, rest in items("From TRL 1.16") for span in spans(rest))

    def theirs(name: str) -> int:
        return min(int(option.partition("=")[2]) for option in options if option.startswith(f"{name}="))

    updates = theirs("steps_per_generation") // theirs("gradient_accumulation_steps")
    batches = theirs("max_steps") // (updates * theirs("num_iterations"))
    assert f"--updates-per-batch {updates}" in ours
    assert f"--epochs-per-batch {theirs('num_iterations')} --rollout-batches {batches}" in ours

"""Logs are understood by what columns hold: the verdict of a clean log, or a question that names the column; nothing else."""

import math
import random
import warnings
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_variants import Variant, cut_rows, image_rows, list_variants, make_rows, plain, write

from fairlen.audit.audit import audit
from fairlen.audit.conclusion import conclude, within_log
from fairlen.audit.readers import Options, read
from fairlen.cli import main

PLANTED, SAME = 1.5, 0.02
KINDS = {"text": lambda rows: rows, "cut": cut_rows, "images": image_rows}
Clean = dict[tuple[float, str], tuple[list[dict[str, Any]], tuple[str, float] | str]]
"""By planted ratio of lengths and kind: the rows of a log, and its verdict."""


def read_verdict(path: Path) -> tuple[str, float] | str:
    """Return the status and the relative difference of lengths of a log, or the sentence that refuses it."""
    reading = read([str(path)])
    if not reading.sources:
        return " ".join(reading.unreadable)
    (source,) = reading.sources
    within = within_log(source.log)
    return conclude(within).status, math.expm1(within.gap.value)


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    path, found = tmp_path_factory.mktemp("clean") / "clean.jsonl", {}
    for gap in (PLANTED, 1.0):
        for kind, made in KINDS.items():
            rows = made(make_rows(gap))
            found[gap, kind] = rows, read_verdict(write(path, list(map(plain, rows))))
    return found


def find_wrong(variants: Iterable[Variant], folder: Path, clean: Clean) -> tuple[list[str], list[str]]:
    """Return what is wrong with each variant, of one clean log or the other in turn, and the names of those that are refused."""
    wrong, refused = list[str](), list[str]()
    for variant, gap in zip(variants, cycle((PLANTED, PLANTED, 1.0)), strict=False):
        rows, expected = clean[gap, variant.clean]
        found = read_verdict(variant.write(folder, rows))
        assert isinstance(expected, tuple)
        if isinstance(found, str):
            refused += [variant.name]
            asks = "--columns " in found or "--unit" in found
            wrong += [] if asks and not variant.is_documented else [f"{variant.name}: refused: {found}"]
        elif found[0] != expected[0] or abs(found[1] - expected[1]) > SAME:
            wrong.append(
                f"{variant.name}, {gap} as long: {found[0]} {found[1]:+.1%}, not {expected[0]} {expected[1]:+.1%}"
            )
    return wrong, sorted(set(refused))


VARIANTS = list_variants()
ASKED = {
    "length: prompt and response",  # or reasoning that is hidden
    "reasoning: encrypted",
}
"""What cannot be known."""
FAMILIES = sorted({variant.name.split(":")[0] for variant in VARIANTS})


def test_the_clean_logs_have_the_planted_effects(tmp_path):
    """Incorrect responses are 1.5 times as long, or as long; 30 prompts of 8 leave a standard error of some 4%."""
    for gap, status in ((PLANTED, "effect"), (1.0, "unknown")):
        found = read_verdict(write(tmp_path / "clean.jsonl", list(map(plain, make_rows(gap)))))
        assert isinstance(found, tuple) and found[0] == status and abs(found[1] - (gap - 1)) < 0.1


def test_there_are_many_variants_and_few_may_ask():
    names = {variant.name for variant in VARIANTS}
    assert len(VARIANTS) == len(names) >= 80 and names > ASKED and len(ASKED) <= len(VARIANTS) / 5


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_variant_has_the_clean_verdict_or_asks(tmp_path, clean, family):
    wrong, asked = find_wrong((v for v in VARIANTS if v.name.split(":")[0] == family), tmp_path, clean)
    assert not wrong, "\n".join(wrong)
    assert set(asked) <= ASKED


# ------------------------------------------------------------------------------------------- what is asked and said


def test_a_log_of_references_alone_is_refused_without_a_flag_that_leads_nowhere(tmp_path):
    rows = [
        {"prompt": r["prompt"], "response": r["gold"] * 9, "reward": float(r["correct"])} for r in make_rows(PLANTED)
    ]
    found = read_verdict(write(tmp_path / "a.jsonl", rows))
    assert (
        isinstance(found, str)
        and "`response`" in found
        and "no other column can be the response" in found
        and "\n" not in found
    )


def test_a_flag_answers_what_was_asked(tmp_path):
    """Two texts that are as long may both be the responses; and a bar for what is correct may be named."""
    rows = [
        {"prompt": r["prompt"], "one": r["text"], "two": r["text"][::-1], "reward": r["correct"] + 1.5}
        for r in make_rows(PLANTED)
    ]
    path = write(tmp_path / "a.jsonl", rows)
    found = read_verdict(path)
    assert isinstance(found, str) and "--columns response=one or --columns response=two" in found
    (source,) = read([str(path)], Options({"response": "two", "correct": "reward>2"})).sources
    assert [bool(one) for one in source.log.correct] == [r["correct"] for r in make_rows(PLANTED)]
    (source,) = read([str(path)], Options({"response": "one", "prompt": "prompt", "correct": "2*reward>4"})).sources
    assert source.log.responses.length.sum() == sum(r["size"] for r in make_rows(PLANTED))


def test_notes_say_what_was_chosen(tmp_path):
    rows = [{"question": r["prompt"], "answer": r["gold"], "uid": r["id"], "code": r["text"], "is_correct": r["correct"]}
            for r in image_rows(make_rows(PLANTED))]  # fmt: skip
    (source,) = read([str(write(tmp_path / "a.jsonl", rows))]).sources
    assert "`code`" in source.notes[0] and "`question+answer`" in source.notes[0]


def test_the_weights_of_parts_that_explain_the_advantage_count(tmp_path):
    """Rewards of 30 prompts are a + 0.2 b, of which the advantage is normalised by prompt."""
    rng = np.random.default_rng(0)
    parts, rows = rng.random((30, 8, 2)).round(2), []
    parts[..., 0] = parts[..., 0].round()
    reward = parts[..., 0] + 0.2 * parts[..., 1]
    advantage = (reward - reward.mean(1, keepdims=True)) / reward.std(1, keepdims=True)
    for prompt, place in np.ndindex(30, 8):
        a, b = parts[prompt, place].tolist()
        text = "word " * int(rng.integers(3, 30)) + f"{prompt} {place}"
        row = {"prompt": f"q{prompt}", "response": text, "reward_a": a, "reward_b": b}
        rows.append(row | {"advantage": float(advantage[prompt, place])})
    (source,) = read([str(write(tmp_path / "a.jsonl", rows))]).sources
    assert source.log.responses.outcome == pytest.approx(reward.ravel()) and "reward_a+0.2*reward_b" in source.notes[0]


def test_lengths_of_encrypted_reasoning_are_not_guessed(tmp_path):
    said = {
        "role": "assistant",
        "content": [{"type": "redacted_thinking", "data": "Em"}, {"type": "text", "text": "It is."}],
    }
    rows = [{"prompt": r["prompt"], "completion": [said], "reward": float(r["correct"])} for r in make_rows(PLANTED)]
    found = read_verdict(write(tmp_path / "a.jsonl", rows))
    assert isinstance(found, str) and "encrypted" in found and "--columns tokens=" in found


@pytest.mark.parametrize("command", ["report", "compare"])
def test_commands_for_runs_name_the_audit_for_other_rollouts(tmp_path, command, capsys):
    write(tmp_path / "a.jsonl", list(map(plain, make_rows(PLANTED))))
    assert main([command, *[str(tmp_path)] * (1 + (command == "compare"))]) == 2
    assert "fairlen audit" in capsys.readouterr().err


def test_a_bin_of_lengths_without_weight_has_no_ratio(tmp_path):
    """Ten prompts have correct and short responses alone: balanced gives their tokens nothing, and n / 0 is no number."""
    draw = random.Random(0)
    rows = [
        {"prompt": f"q{n}", "num_tokens": draw.randint(*(2, 4) if n < 10 else (50, 200)), "reward": float(n < 10 or k % 2)}
        for n in range(40) for k in range(8)
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,), _ = audit([str(write(tmp_path / "a.jsonl", rows))])
    assert found.weights["balanced"].per_token[0] == 0 and math.isnan(found.weights["balanced"].long_to_short)

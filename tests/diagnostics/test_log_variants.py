"""Logs are understood by what columns hold: the verdict of a clean log, or a question that names the column; nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from log_variants import Variant, cut_rows, image_rows, list_variants, make_rows, plain, write

from fairlen.diagnostics.conclusion import conclude, within_log
from fairlen.diagnostics.readers import read

PLANTED, SAME = 1.5, 0.02
KINDS = {"text": lambda rows: rows, "cut": cut_rows, "images": image_rows}


def read_verdict(path: Path) -> tuple[str, float] | str:
    """Return the status and the relative difference of lengths of a log, or the sentence that refuses it."""
    reading = read([str(path)])
    if not reading.sources:
        return " ".join(reading.unreadable)
    (source,) = reading.sources
    within = within_log(source.log)
    return conclude(within).status, math.expm1(within.gap.value)


def find_wrong(variants: Iterable[Variant], folder: Path) -> tuple[list[str], list[str]]:
    """Return what is wrong with each variant, of both clean logs, and the names of those that are refused."""
    wrong, refused = list[str](), list[str]()
    logs = {(gap, kind): made(make_rows(gap)) for gap in (PLANTED, 1.0) for kind, made in KINDS.items()}
    truth: dict[tuple[float, str], tuple[str, float] | str] = {}
    for key, rows in logs.items():
        truth[key] = read_verdict(write(folder / "clean.jsonl", list(map(plain, rows))))
    for variant in variants:
        for gap in (PLANTED, 1.0):
            found, expected = (
                read_verdict(variant.write(folder, logs[gap, variant.clean])),
                truth[gap, variant.clean],
            )
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


@pytest.mark.parametrize("family", FAMILIES)
def test_every_variant_has_the_clean_verdict_or_asks(tmp_path, family):
    wrong, asked = find_wrong((v for v in VARIANTS if v.name.split(":")[0] == family), tmp_path)
    assert not wrong, "\n".join(wrong)
    assert set(asked) <= ASKED

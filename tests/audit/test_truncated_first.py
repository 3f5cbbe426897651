"""Truncation comes first: piles of lengths at a limit, logs that have none by nature, and where the verdict says it."""

import re
from pathlib import Path

import numpy as np
import pytest
from lines import write_lines

from fairlen.audit.audit import audit, audit_source
from fairlen.audit.readers import Options, Source, read

WORDS = ("so", "we", "add", "then", "and", "thus", "carry", "digit", "sum", "times")


def read_lengths(path: Path, length: np.ndarray, correct: np.ndarray, texts: list[str] | None = None) -> Source:
    """Eight responses to each prompt; nothing says which were truncated."""
    pairs = zip(length.tolist(), correct.tolist(), strict=True)
    rows = [{"prompt": f"q{n // 8}", "num_tokens": size, "reward": float(one)} for n, (size, one) in enumerate(pairs)]
    if texts:
        rows = [row | {"response": text} for row, text in zip(rows, texts, strict=True)]
    (source,) = read([str(write_lines(path, *rows))]).sources
    return source


@pytest.mark.parametrize("accuracy", [0.0, 0.16, 0.5], ids="{:.0%}".format)
@pytest.mark.parametrize("share", [0.1, 0.35, 0.63], ids="{:.0%}".format)
def test_a_pile_at_the_limit_is_seen_whatever_its_accuracy(tmp_path, share, accuracy):
    """Of 480 lognormal lengths the longest are cut at N, half of the others are correct; another tokenizer makes a tenth N - 1
    and a tenth N + 1. All of these and at most a tenth more count as truncated."""
    for seed, median in enumerate((60, 400, 3000)):
        rng = np.random.default_rng(seed)
        length = np.round(median * np.exp(0.5 * rng.normal(size=480))).astype(np.int64)
        limit = int(np.quantile(length, 1 - share))
        cut = length >= limit
        correct = rng.random(480) < np.where(cut, accuracy, 0.5)
        spread = np.where(cut, limit + rng.choice((-1, 0, 1), 480, p=(0.1, 0.8, 0.1)), np.minimum(length, limit - 2))
        for read_as in (np.minimum(length, limit), spread):
            log = read_lengths(tmp_path / "a.jsonl", read_as, correct).log
            assert "truncated" in log.known, (median, seed)
            assert (log.responses.truncated & cut).sum() >= 0.85 * cut.sum(), (median, seed)
            assert (log.responses.truncated & ~cut).sum() <= 0.1 * cut.sum() + 2, (median, seed)


def test_one_absurd_length_takes_no_memory_of_its_own(tmp_path):
    """Every number from 80% of 2**53 on takes 14 petabytes; a sentinel is one length among 240, and no pile."""
    length = np.append(np.arange(239) + 20, 2**53)
    assert "truncated" not in read_lengths(tmp_path / "a.jsonl", length, length % 2).log.known


def natural(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Lengths and verdicts of 480 responses that no limit ended."""
    flip, done = rng.random(480) < 0.5, rng.random(480) < 0.6
    longer = np.where(flip, 1.0, 1.3)
    walks = rng.integers(20, 60, 60).repeat(8)
    return {
        "single letters": (np.ones(480), flip), "short": (rng.poisson(8, 480) + 1, flip), "words": (rng.poisson(40, 480), flip),
        "normal": (400 * longer * np.exp(0.5 * rng.normal(size=480)), flip),
        "long": (3000 * np.exp(0.6 * rng.normal(size=480)), flip),
        "moves of a game, those that solve it the longest": (np.where(done, 81, rng.integers(20, 81, 480)), done),
        "a length for each prompt": (np.where(flip, walks, walks + rng.poisson(2, 480)), flip),
        "few forms of an answer": (rng.choice((22, 25, 31, 34, 40, 44), 480, p=(0.1, 0.1, 0.1, 0.1, 0.1, 0.5)), flip),
        "at most forty": (20 + rng.binomial(20, 0.9, 480), flip),
        "one length": (np.full(480, 64), flip),
    }  # fmt: skip


def test_logs_without_a_limit_are_not_called_truncated(tmp_path):
    wrong = [
        (name, seed)
        for seed in range(4)
        for name, (length, correct) in natural(np.random.default_rng(seed)).items()
        if read_lengths(
            tmp_path / "a.jsonl", np.maximum(np.round(length), 1).astype(np.int64), correct
        ).log.responses.truncated.any()
    ]
    assert not wrong


def test_texts_tell_a_form_from_a_limit(tmp_path):
    """A third of the responses have 90 tokens: where those end like the others do it is their form, in the middle of a word a
    limit."""
    rng = np.random.default_rng(1)
    length = np.where(rng.random(480) < 1 / 3, 90, rng.integers(25, 80, 480))
    correct = rng.random(480) < np.where(length == 90, 0.2, 0.5)
    for ends, expected in ((True, False), (False, True)):
        texts = [" ".join(rng.choice(WORDS, size)) + ("." if ends or size < 90 else " th") for size in length.tolist()]
        log = read_lengths(tmp_path / "a.jsonl", length, correct, texts).log
        assert log.responses.truncated.any() == expected, ends


def cut_rows(limit: int = 32) -> list[dict]:
    """The longest 60% of 320 texts of a word a token end at the limit, 16% of these are correct."""
    rng = np.random.default_rng(7)
    rows = []
    for n in range(320):
        size = int(rng.integers(4, limit)) if rng.random() > 0.6 else limit
        correct = rng.random() < (0.16 if size == limit else 0.5)
        text = " ".join(rng.choice(WORDS, size))
        rows.append({"prompt": f"q{n // 8}", "response": text, "num_tokens": size, "reward": float(correct)})
    return rows


def make_tokenizer(path: Path) -> Path:
    """Every word is a token, `thus` two: a text at the limit of another tokenizer has some more."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate([*WORDS, "th", "us", "?"])}, unk_token="?")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" |(?<= th)(?=us)"), "removed")
    tokenizer.save(str(path))
    return path


def test_the_same_log_says_the_same_with_and_without_flags(tmp_path):
    """More than half at the limit: the verdict's first words are that share, whatever was asked for."""
    path, tokenizer = write_lines(tmp_path / "a.jsonl", *cut_rows()), make_tokenizer(tmp_path / "tokenizer.json")
    found = {}
    for name, options in {
        "none": Options(), "limit": Options(max_response_length=32), "tokenizer": Options(tokenizer=str(tokenizer)),
        "both": Options(tokenizer=str(tokenizer), max_response_length=32), "words": Options(unit="words"),
        "a limit above all": Options(max_response_length=4096),
    }.items():  # fmt: skip
        ((one,), _) = audit([str(path)], options)
        found[name] = one.conclusion.status, pytest.approx(one.log.responses.truncated.mean(), abs=0.02)
        assert re.match(r"(58|59)% of responses end at the limit", one.conclusion.sentence), (
            name,
            one.conclusion.sentence,
        )
        assert one.findings[0].measure == "selection.truncated", name
        assert one.findings[0].advice and "limit of generation" in one.findings[0].advice.text
    assert all(one == found["none"] for one in found.values()), found


def test_the_verdict_says_what_is_known_of_truncation(tmp_path):
    rows = [{"prompt": f"q{n // 8}", "num_tokens": 30 + n % 17, "reward": float(n % 3 > 0)} for n in range(240)]
    for shares, says in (
        ({}, "whether responses were truncated is unknown"), ({"stop": 1.0}, "no response was truncated"),
        ({"stop": 0.9, "length": 0.1}, "; 10% of responses end at the limit"), ({"length": 0.5, "stop": 0.5}, "50% of responses"),
    ):  # fmt: skip
        words = [word for word, share in shares.items() for _ in range(round(240 * share))]
        told = [row | {"finish_reason": words[7 * n % 240]} if words else row for n, row in enumerate(rows)]
        (source,) = read([str(write_lines(tmp_path / "a.jsonl", *told))]).sources
        one = audit_source(source)
        assert says in one.conclusion.sentence, one.conclusion.sentence
        assert [found.measure for found in one.findings][:1] == (["selection.truncated"] if "50%" in says else [])


def test_the_advice_names_the_limit_as_the_framework_does(tmp_path):
    rows = [
        {"input": f"q{n // 8}", "output": "a " * (40 if n % 2 else n % 39 + 1), "score": float(n % 3 == 0), "step": 1}
        for n in range(320)
    ]
    ((one,), _) = audit([str(write_lines(tmp_path / "1.jsonl", *rows))])
    assert one.findings and one.findings[0].advice and "data.max_response_length" in one.findings[0].advice.text

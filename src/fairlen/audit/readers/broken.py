"""Responses that are not whole, found by their form: empty and failed ones, and texts that a log cut."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Bools, Ints

SPECIAL = re.compile(r"<[|｜][^|｜<>]*[|｜]>|</?(?:s|pad|eos|bos|unk)>", re.I)
NULLS = frozenset(
    [
        "",
        "none",
        "null",
        "nan",
        "na",
        "n/a",
        "undefined",
        "nil",
        "empty",
        "no response",
        "no output",
        "empty response",
        "no completion",
        "no answer generated",
    ]
)
"""Words that stand for no text."""
MAX_FAILURE = 400  # characters of a message of a failure; longer texts are responses
FAILURE = re.compile(
    r"^[\W_]*(?:[\w.]{0,60}(?:Error|Exception|Timeout|Failure)\b|(?i:error|exception|timed? ?out|aborted|cancell?ed|traceback|"
    r"failed to|failure|max retries|rate.?limit|out of memory|(?:cuda|gpu) (?:error|out of)|[45]\d\d (?:service|internal|bad|too|"
    r"gateway|server|client)|internal server|service unavailable|bad gateway|too many requests|"
    r"(?:http|status|code)\W{0,3}(?:error\W{0,3})?[45]\d\d\b|(?:request|generation|connection|server|api|"
    r"sampling|rollout|inference|engine|model|call|worker)\w* (?:\w+ ){0,2}(?:timed out|failed|aborted|refused|error|reset|"
    r"cancell?ed|unavailable|overloaded|closed|crashed|died|rejected)))"
)
"""Beginning of a text that a program wrote in place of a response."""
MIN_SAME, MIN_SAME_SHARE, MIN_SAME_PROMPTS = 5, 0.02, 5
"""Responses with one text, their share, and their prompts, from which on the text may be a message and not a response."""
MAX_SAME = 0.5  # share of the incorrect responses with such a text, from which on it is a usual response
MIN_CUT = 0.05  # share of texts that a log cut from which on lengths are not known
CUT_WORDS = (
    "truncated",
    "omitted",
    "clipped",
    "elided",
    "cut off",
    "snip",
    " more",
    "char",
    "token",
    "shortened",
    "trimmed",
)
CUT_MARK = re.compile(
    r"(?:\.{2,}|…|[\[(<{])\s*(?:\.{2,}|…)?\s*[^\[\]()<>{}\n]{0,30}?\b(?:truncated|omitted|clipped|elided|shortened|trimmed|"
    r"cut off|snip(?:ped)?|\d[\d,]* (?:more )?(?:chars?|characters|tokens|words|bytes|lines)|more (?:chars?|characters|tokens))"
    r"\b",
    re.I,
)
"""Remark that a part of a text was removed: `... [truncated]`, `<1,234 chars omitted>`."""
ELLIPSIS = re.compile(r"(?:\.{3}|…|\[\.{3}\]|\[…\])[\"')\]]?\s*$")
MAX_WORD = 15  # characters by which texts that end before a word are shorter than the limit
MIN_CHARACTERS = 40  # of a text from which on its number of characters may be a limit of the log
NOT_CUT, REMARKED, ELLIPSED = 0, 1, 2


@dataclass(frozen=True)
class Messages:
    """Texts that occur as the response to several prompts and are never correct: failures, and those that may be one."""

    failures: frozenset[str] = frozenset()
    repeated: frozenset[str] = frozenset()
    can_be_correct: bool = False  # whether a text that looks empty or like a failure is a correct response of this log


def is_empty(text: str) -> bool:
    """Return whether a text contains no letter or digit, or only a word that stands for no text."""
    if len(text) > 200:
        return not any(character.isalnum() for character in text)
    words = SPECIAL.sub("", text) if "<" in text else text
    return words.strip("\"'`<>[](){}|.-_/ \t\n").lower() in NULLS or not any(character.isalnum() for character in words)


def is_failure(text: str) -> bool:
    """Return whether a text is the message of an error in place of a response."""
    return len(text) <= MAX_FAILURE and bool(FAILURE.match(text))


def normalise(text: str) -> str:
    """Return a text without its numbers, in which messages of one failure differ."""
    return re.sub(r"\d+", "0", text.strip())


def find_messages(texts: Sequence[str], prompt: Ints, correct: Bools) -> Messages:
    """Return the texts that answer several prompts and are never correct, from the first rows of a log."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        if text and len(text) <= MAX_FAILURE and not is_empty(text):
            places[normalise(text)].append(row)
    least = max(MIN_SAME, MIN_SAME_SHARE * len(texts))
    failures, repeated = set[str](), set[str]()
    for text, rows in places.items():
        if correct[rows].any():
            continue
        if is_failure(text):
            failures.add(text)
        elif len(rows) >= least and len(np.unique(prompt[rows])) >= MIN_SAME_PROMPTS:
            repeated.add(text)
    are_outcomes = sum(len(places[text]) for text in repeated) > MAX_SAME * (~correct).sum()
    can_be_correct = any(
        text.strip() and (is_empty(text) or is_failure(text))
        for text, right in zip(texts, correct, strict=True)
        if right
    )
    return Messages(frozenset(failures), frozenset() if are_outcomes else frozenset(repeated), can_be_correct)


def find_cut_mark(text: str) -> int:
    """Return whether a text has a remark that a part of it was removed, or ends with an ellipsis."""
    if any(word in text for word in CUT_WORDS) and CUT_MARK.search(text):
        return REMARKED
    return (
        ELLIPSED if text[-12:].rstrip().endswith((".", "…", "]", '"', "'")) and ELLIPSIS.search(text[-12:]) else NOT_CUT
    )


def find_cut(mark: Ints, characters: Ints, is_whole: Bools) -> tuple[Bools, str]:
    """Return the texts that the log cut, and how; none if they are too few to matter.

    `is_whole`: whether each text ends as one that is finished does.
    """
    longest = int(characters.max(initial=0))
    nothing = np.zeros(len(mark), np.bool_)
    if longest < MIN_CHARACTERS:
        return nothing, ""
    least = max(3, MIN_CUT * len(mark))
    remarked = mark == REMARKED
    if remarked.sum() >= least:
        return remarked, "with a remark that a part was removed"
    exact = characters == longest
    if exact.sum() >= least and is_pile(characters, longest):
        return exact, f"at {longest:,} characters"
    ellipsed = (mark == ELLIPSED) & (characters >= 0.85 * longest)
    other = characters[mark != ELLIPSED].max(initial=0)
    is_at_limit = (
        characters[mark == ELLIPSED].min(initial=longest) >= 0.7 * longest
        or ellipsed.sum() >= 0.8 * (mark == ELLIPSED).sum()
    )
    if ellipsed.sum() >= least and other <= longest and is_at_limit:
        return ellipsed, f"with an ellipsis, at about {longest:,} characters"
    at_end = characters > longest - MAX_WORD
    if (
        at_end.sum() >= 2 * least
        and is_dense(characters, longest)
        and is_whole[at_end].mean() < 0.5 * is_whole[~at_end].mean()
    ):
        return at_end, f"at the last word before {longest:,} characters"
    return nothing, ""


def is_dense(characters: Ints, longest: int) -> bool:
    """Return whether many more texts end within a word of the largest number of characters than in any stretch of that width."""
    counts = np.bincount((longest - characters) // MAX_WORD)
    return len(counts) > 4 and counts[0] > 4 * counts[1 : max(len(counts) // 2, 2)].max()


def is_pile(characters: Ints, longest: int) -> bool:
    """Return whether many more texts have the largest number of characters than any other number."""
    others = Counter(characters[characters < longest].tolist()).most_common(1)
    return (characters == longest).sum() > 4 * (others[0][1] if others else 1)

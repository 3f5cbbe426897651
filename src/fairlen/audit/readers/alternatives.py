"""Questions that the files of a log leave open, with their answers. The audit compares the verdicts of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairlen.audit.log import Answer, Log, Question, halfway
from fairlen.audit.readers.blocks import PLAIN_FENCE, BlockForms, bare_name
from fairlen.batch import Bools, Ints

MIN_TEXT = 0.005  # share of the text in blocks below which their origin cannot matter
MIN_WORD = 0.005  # share of responses with a finish word below which its meaning cannot matter
MAX_WORDS = 3  # finish words that are asked about; the most frequent ones count
BETTER = 0.5  # ratio of spreads below which one text explains the numbers of tokens and the other does not
MAX_ERRORS = 0.5  # share of incorrect responses with an error from which on errors are outcomes
MIN_SCORES = 20  # scores from which on their bar is asked about
MIN_TOP = 0.05  # share of responses with the highest score, and without it, from which on that may be the bar
FAR = 5.0  # times the distance of two values, from which on a third one above them is far
OPTION = "--means"


def ask_about_blocks(
    length: Ints, spent: Ints, forms: BlockForms, are_counted: bool, sizes: Ints | None
) -> Iterator[Question]:
    """Yield a question for each block of unknown origin.

    Args:
        length: Length of each response, [N].
        spent: Size of the text by channel, [N, channels + blocks].
        forms: Forms of the blocks.
        are_counted: Whether lengths are numbers of tokens in the files.
        sizes: Size of each block in the unit of `length`, [N, blocks]; None: in proportion to `spent`.
    """
    own = spent[:, :-1].astype(np.float64)
    total = np.maximum(own.sum(1), 1)
    first = own.shape[1] - len(forms.unknown)
    for place, name in enumerate(forms.unknown, first):
        block = own[:, place]
        if block.sum() < MIN_TEXT * own.sum() or (are_counted and explains_better(length, total - block, total)):
            continue
        part = np.rint(length * block / total).astype(np.int64) if sizes is None else sizes[:, place - first]
        shorter = np.minimum(part, length - 1)
        share = f"in {(block > 0).mean():.0%} of responses, {block.sum() / own.sum():.0%} of their text"
        value = bare_name(name)
        yield Question(
            f"whether the policy wrote or read {show_block(name)} ({share})",
            (
                Answer("written", OPTION, f"{value}=written"),
                Answer("read", OPTION, f"{value}=read", shorter=shorter),
            ),
        )


def show_block(name: str) -> str:
    """Return the name of a block for a sentence."""
    if name == PLAIN_FENCE:
        return "fences without a label"
    return f"fences `{name[3:]}`" if name.startswith("```") else f"`{name}`"


def explains_better(tokens: Ints, without: np.ndarray, total: np.ndarray) -> bool:
    """Return whether numbers of tokens follow the text without a block much closer than the whole text."""
    rows = (without > 0) & (tokens > 0)
    if rows.sum() < 10:
        return False
    spreads = [float(np.std(np.log(tokens[rows] / size[rows]))) for size in (without, total)]
    return spreads[0] < BETTER * spreads[1]


def ask_about_words(word: Ints, names: Mapping[int, str], counts: Bools) -> Iterator[Question]:
    """Yield a question for each finish word that is not known, except one that most responses have: it is the usual end."""
    hashes, numbers = np.unique(word[(word != 0) & counts], return_counts=True)
    order = np.argsort(-numbers)[: MAX_WORDS + 1]
    for key, number in zip(hashes[order].tolist(), numbers[order].tolist(), strict=True):
        name = names.get(key, "")
        if not MIN_WORD * counts.sum() <= number <= 0.5 * counts.sum():
            continue
        yield Question(
            f"what the finish word `{name}` means (in {number:,} rows)",
            (
                Answer("ended by the policy", OPTION, f"{name}=ended"),
                Answer("truncated", OPTION, f"{name}=truncated", excluded=word == key),
            ),
        )


def ask_about_repeated(is_repeated: Bools, examples: Sequence[str]) -> Iterator[Question]:
    """Yield a question about texts that many prompts have as an incorrect response."""
    if not is_repeated.any():
        return
    example = f", such as `{min(examples, key=len):.40}`" if examples else ""
    yield Question(
        f"whether texts that many prompts have in common and that are never correct ({is_repeated.mean():.0%} of responses"
        f"{example}) are responses",
        (
            Answer("responses", OPTION, "repeated=written"),
            Answer("failures", OPTION, "repeated=failed", excluded=is_repeated),
        ),
    )


def ask_about_errors(has_error: Bools, correct: Bools, active: Bools) -> Iterator[Question]:
    """Yield a question about responses that have an error beside them, unless errors are what makes responses incorrect."""
    has_error = has_error & active
    incorrect = active & ~correct
    if has_error.sum() < MIN_WORD * active.sum() or (has_error & incorrect).sum() > MAX_ERRORS * incorrect.sum():
        return
    yield Question(
        f"whether responses with an error beside them ({has_error.mean():.0%}) are whole",
        (
            Answer("whole", OPTION, "error=written"),
            Answer("failed", OPTION, "error=failed", excluded=has_error),
        ),
    )


def ask_about_beside(size: Ints, name: str, given: Mapping[str, str]) -> Iterator[Question]:
    """Yield a question about the text of objects next to the responses."""
    if not name or not size.any():
        return
    flag = ",".join(f"{role}={column}" for role, column in ({**given, "calls": name}).items())
    yield Question(
        f"whether the policy wrote the text in `{name}`, next to the response",
        (
            Answer("not a part of the response", "--ignore-columns", name),
            Answer("written", "--columns", flag, shorter=-size),
        ),
    )


def find_apart(values: np.ndarray) -> float | None:
    """Return the one of three values that is far from the two others, as of responses that were not graded."""
    if len(values) != 3:
        return None
    low, high = float(values[1] - values[0]), float(values[2] - values[1])
    if values[0] < 0 <= values[1] and low >= high:
        return float(values[0])
    return float(values[2]) if high >= FAR * low else None


def name_value(reward: str, value: float) -> str:
    """Return how the flag --means names a value of a reward."""
    return f"{reward.lower()}:{value:g}"


def ask_about_ungraded(log: Log, reward: str, given: Mapping[str, str]) -> Iterator[Question]:
    """Yield a question about a value of the reward that is far from two others, as -1 is beside 0 and 1."""
    outcome = log.responses.outcome
    values = np.unique(outcome[log.responses.active])
    apart = find_apart(values)
    if "correct" in log.known or not reward or apart is None or name_value(reward, apart) in given:
        return
    is_apart = (outcome == apart) & log.responses.active
    others = values[values != apart]
    name = name_value(reward, apart)
    yield Question(
        f"whether a `{reward}` of {apart:g} (in {is_apart.sum():,} rows) is a grade",
        (
            Answer("a grade", OPTION, f"{name}=written"),
            Answer("no grade", OPTION, f"{name}=failed", excluded=is_apart, correct=outcome > others.mean()),
        ),
    )


def ask_about_bar(log: Log, reward: str, given: Mapping[str, str]) -> Iterator[Question]:
    """Yield a question about the bar of a score of which many responses have the highest value, as if all tests passed."""
    outcome = log.responses.outcome[log.responses.active]
    values = np.unique(outcome)
    if "correct" in log.known or not reward or len(values) <= 2 or len(outcome) < MIN_SCORES:
        return
    share = float((outcome == values[-1]).mean())
    half = halfway(outcome)
    if not MIN_TOP <= share <= 1 - MIN_TOP or values[-2] <= half:
        return
    columns = {role: name for role, name in given.items() if role != "correct"}
    bars = {"above half of its range": half, "its highest value": float(values[-2] + values[-1]) / 2}
    flags = [
        ",".join(f"{role}={name}" for role, name in (columns | {"correct": f"{reward}>{bar:.6g}"}).items())
        for bar in bars.values()
    ]
    yield Question(
        f"which values of `{reward}` are correct",
        tuple(
            Answer(text, "--columns", flag, correct=log.responses.outcome > bar)
            for (text, bar), flag in zip(bars.items(), flags, strict=True)
        ),
    )

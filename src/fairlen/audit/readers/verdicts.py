"""Which column says whether a response is correct: a verdict has two values, every other number is a score.

Candidates are columns whose names say so. Among several the one with two values decides. A score is compared with a bar, and the
audit's sentence says with which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fairlen.audit.readers.rows import Values, numbers, pair_keys
from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.files.formats import Unreadable

NAMES_VERDICT = re.compile(
    r"(^|[_./ -])(is_?)?(correct(ness)?|acc|accuracy|passe?[ds]?|success|successful|solved|resolved|verified|verdict|right|"
    r"exact_?match|em|valid_answer|graded?|judge?ment|won|win)([_./ -]|$)",
    re.I,
)
"""Names of columns that may say whether a response is correct."""
NAMES_SCORE = re.compile(r"(^|[_./ -])(rewards?|scores?|returns?|raw|outcome|points|grade|utility)([_./ -]|$)", re.I)
"""Names of columns that may be a reward."""
NAMES_WRONG = re.compile(
    r"(^|[_./ -])(is_?)?(wrong|incorrect|fail(ed|ures?|s)?|errors?|loss|lost|mistakes?|invalid|rejected)([_./ -]|$)",
    re.I,
)
"""Names of columns in which a higher value is worse."""
NAMES_OTHER = re.compile(
    r"format|count|num(ber)?(_|$)|total|length|len(_|$)|tokens?|turns?|time|cost|advantage|baseline|mean|std|max|min|weight|"
    r"threshold|step|epoch|penalty|bonus|(^|[_./ -])(id|idx|index|seed|rank|model|version|prompt|hash)([_./ -]|$)",
    re.I,
)
"""Names of numbers that are neither."""
WORD = re.compile(r"[^\s,;()=+>]{1,24}")  # a text that a flag may name
ROUNDING = 0.005  # share of the range of values up to which two are the same, rounded
MIN_KNOWN = 0.9  # share of rows that have a verdict, for a column to be taken as one
MAX_SCALES = 20
RATIO_OF_SCALES = 1.5  # of the ranges of rewards from which on one bar does not fit all


@dataclass
class Outcome:
    """Which columns are the reward and the verdict, and clauses for the notes and for the verdict's sentence."""

    roles: dict[str, str]
    notes: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)


def list_values(values: Values) -> Floats:
    """Return the different numbers in a column, sorted; empty if it holds anything else than numbers and verdicts."""
    known = [value for value in values if value is not None]
    if not known or any(isinstance(value, (list, dict)) for value in known):
        return np.zeros(0)
    read, bad = numbers(known)
    if bad.any():
        return np.zeros(0)
    distinct = np.unique(read[np.isfinite(read)])
    if len(distinct) < 3:
        return distinct
    is_new = np.diff(distinct, prepend=-np.inf) > ROUNDING * np.ptp(distinct)  # a value in few bits is not another one
    return distinct[is_new]


def list_candidates(columns: dict[str, Values], taken: set[str]) -> Iterator[str]:
    """Yield the columns of numbers whose name says that they may be a verdict or a score."""
    for name in columns:
        words = split_name(name)
        if (
            name not in taken
            and not NAMES_OTHER.search(words)
            and (NAMES_VERDICT.search(words) or NAMES_SCORE.search(words))
        ):
            yield name


def split_name(name: str) -> str:
    """Return a name with its words separated by underscores: math_accuracy of mathAccuracy."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)


def names_verdict(name: str) -> bool:
    """Return whether the name of a column says that it may be a verdict."""
    return bool(NAMES_VERDICT.search(split_name(name)))


def choose_outcome(columns: dict[str, Values], roles: dict[str, str], group: Ints, given: set[str]) -> Outcome:
    """Return the roles of reward and verdict. `columns` has the cells of every column, those in `roles` by their text there.

    `given` has the roles that the user named; they stay as they are.
    """
    found = Outcome({role: roles[role] for role in ("reward", "correct") if role in roles})
    taken = {name for role, name in roles.items() if role not in ("reward", "correct")}
    values = {name: list_values(cells) for name, cells in columns.items() if name not in taken}
    if "correct" not in given:
        reject_score(found, columns, values)
    if "reward" not in given:
        prefer_raw(found, columns, values, group)
    if "correct" not in found.roles and "correct" not in given and not is_two(values, found.roles.get("reward", "")):
        promote_verdict(found, columns, values)
    if "correct" not in found.roles and "correct" not in given:
        ask_about_threshold(found, columns, values, group)
    compare_verdicts(found, columns, values)
    set_bar(found, values)
    return found


def is_two(values: dict[str, Floats], name: str) -> bool:
    return len(values.get(name, ())) == 2


def share_known(cells: Values) -> float:
    """Return the share of cells that are not None."""
    return sum(cell is not None for cell in cells) / max(len(cells), 1)


def reject_score(found: Outcome, columns: dict[str, Values], values: dict[str, Floats]) -> None:
    """Drop a verdict that has more than two values, or that is true of all responses while rewards differ."""
    name, reward = found.roles.get("correct", ""), found.roles.get("reward", "")
    number = len(values.get(name, ()))
    if not name or number == 0 or number == 2:
        return
    if number > 2:
        del found.roles["correct"]
        found.roles.setdefault("reward", name)
        found.notes.append(f"`{name}` has {number} values, so that it is a score and not a verdict")
    elif reward and len(values.get(reward, ())) > 1 and values[name][0] > 0 and share_known(columns[name]) == 1:
        del found.roles["correct"]  # that a request went well


def prefer_raw(found: Outcome, columns: dict[str, Values], values: dict[str, Floats], group: Ints) -> None:
    """Take a raw reward if the one chosen is normalised within groups, or its sign."""
    name = found.roles.get("reward", "")
    if len(values.get(name, ())) <= 2 or not is_normalised(numbers(columns[name])[0], group):
        return
    others = [other for other in list_candidates(columns, {name}) if len(values.get(other, ())) > 1]
    if not others:  # by its two values, whatever its name
        others = [other for other in values if is_two(values, other) and not NAMES_OTHER.search(split_name(other))]
    raw = [other for other in others if not is_normalised(numbers(columns[other])[0], group)]
    plain = [other for other in raw if is_two(values, other) and varies_within(columns[other], group)]
    raw = [other for other in raw if go_together(columns[other], columns[name], group) > 0.3]
    if plain and not raw and "correct" not in found.roles:
        flags = " or ".join(f"--columns correct={other}" for other in [*plain, f"{name}>0"])
        raise Unreadable(
            f"`{name}` is normalised by group and says another thing than `{plain[0]}`: name the verdict: {flags}"
        )
    if raw:
        best = min(
            raw, key=lambda other: (not is_two(values, other), -go_together(columns[other], columns[name], group))
        )
        found.roles["reward"] = best
        found.caveats.append(f"`{name}` is normalised by group, so that the reward is `{best}`")
    elif "correct" not in found.roles:
        found.roles["correct"] = f"{name}>0"
        found.caveats.append(f"`{name}` is normalised by group, so that above 0 counts as correct")


def is_normalised(reward: Floats, group: Ints) -> bool:
    """Return whether rewards have a mean of 0 in nearly every group in which they vary."""
    known = np.isfinite(reward)
    reward, group = reward[known], group[known]
    number = int(group.max(initial=-1)) + 1
    size = np.maximum(count_by(group, number), 1)
    mean = sum_by(group, reward, number) / size
    spread = np.sqrt(np.maximum(sum_by(group, reward**2, number) / size - mean**2, 0))
    varied = spread > 1e-6
    return varied.sum() >= 5 and bool(np.mean(abs(mean[varied]) < 0.02 * spread[varied] + 1e-4) > 0.9)


def go_together(one: Values, other: Values, group: Ints) -> float:
    """Return the correlation of two columns within groups."""
    x, y = (centre(numbers(cells)[0], group) for cells in (one, other))
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / size) if size > 0 else 0.0


def varies_within(cells: Values, group: Ints) -> bool:
    """Return whether a column differs within groups."""
    return bool(np.abs(centre(numbers(cells)[0], group)).max(initial=0.0) > 0)


def centre(values: Floats, group: Ints) -> Floats:
    """Return values less the mean of their group; 0 for missing ones."""
    known = np.isfinite(values)
    number = int(group.max(initial=-1)) + 1
    filled = np.where(known, values, 0.0)
    mean = sum_by(group, filled, number) / np.maximum(sum_by(group, known.astype(np.float64), number), 1)
    return np.where(known, filled - mean[group], 0.0)


def promote_verdict(found: Outcome, columns: dict[str, Values], values: dict[str, Floats]) -> None:
    """Take a column of two values whose name says that it is a verdict; the reward, a score, gives no bar then."""
    reward = found.roles.get("reward", "")
    names = [name for name in list_candidates(columns, {reward}) if is_two(values, name)]
    names = [name for name in names if names_verdict(name) or list_words(columns[name])]
    names = [name for name in names if share_known(columns[name]) >= MIN_KNOWN]
    if names:
        found.roles["correct"] = names[0]
        if reward:
            found.notes.append(f"correct or not is what `{names[0]}` says; `{reward}` has more than two values")


def list_words(cells: Values) -> list[str]:
    """Return the two short texts that a column consists of; empty if it holds anything else."""
    words = {cell.strip() if isinstance(cell, str) else None for cell in cells if cell is not None}
    texts = sorted(word for word in words if word)
    are_short = all(WORD.fullmatch(text) for text in texts)
    return texts if len(words) == len(texts) == 2 and are_short else []


def ask_about_threshold(found: Outcome, columns: dict[str, Values], values: dict[str, Floats], group: Ints) -> None:
    """Ask for the verdict if a column of two words cuts a score in two: the score's better side is not known.

    Raises:
        Unreadable: with a flag for each word.
    """
    reward = found.roles.get("reward", "")
    if len(values.get(reward, ())) < 3:
        return
    score = numbers(columns[reward])[0]
    for name, cells in columns.items():
        words = list_words(cells) if name != reward else []
        if not words or is_two(values, name):
            continue
        is_first = np.array([isinstance(cell, str) and cell.strip() == words[0] for cell in cells], np.bool_)
        sides = [score[rows & np.isfinite(score)] for rows in (is_first, ~is_first)]
        is_cut = all(map(len, sides)) and (sides[0].max() < sides[1].min() or sides[1].max() < sides[0].min())
        are_scales = has_other_values(score, is_first.astype(np.int64))
        if is_cut and not are_scales and varies_within([float(one) for one in is_first], group):
            flags = " or ".join(f"--columns correct={name}={word}" for word in words)
            raise Unreadable(f"`{name}` cuts the score `{reward}` in two: name the word of correct responses: {flags}")


def compare_verdicts(found: Outcome, columns: dict[str, Values], values: dict[str, Floats]) -> None:
    """State how often another column of two values disagrees with the verdict."""
    name = found.roles.get("correct", found.roles.get("reward", ""))
    if not is_two(values, name):
        return
    decides = is_upper(columns[name], values[name])
    for other in {found.roles.get("reward", name), *list_candidates(columns, {name})} - {name}:
        if not is_two(values, other):
            continue
        cells = numbers(columns[other])[0]
        known = np.isfinite(cells) & np.isfinite(numbers(columns[name])[0])
        share = float(np.mean((decides != is_upper(columns[other], values[other]))[known])) if known.any() else 0.0
        if share > 0:
            found.caveats.append(
                f"`{name}` decides who is correct; `{other}` disagrees in {max(share, 0.001):.1%} of rows"
            )


def is_upper(cells: Values, values: Floats) -> Bools:
    """Return which cells have the upper one of two values."""
    return numbers(cells)[0] > (values[0] + values[-1]) / 2


def set_bar(found: Outcome, values: dict[str, Floats]) -> None:
    """Write the bar of a verdict whose two values do not lie on both sides of a half."""
    name = found.roles.get("correct", "")
    if is_two(values, name) and not values[name][0] <= 0.5 < values[name][1]:
        found.roles["correct"] = f"{name}>{(values[name][0] + values[name][1]) / 2:g}"


def find_scale(columns: dict[str, Values], reward: str, prompt: Ints, group: Ints) -> str:
    """Return the column that tells rewards of several scales apart: the same for a prompt, with other ranges; empty without."""
    outcome = numbers(columns[reward])[0]
    for name, cells in columns.items():
        if name == reward or not all(cell is None or isinstance(cell, (str, int)) for cell in cells):
            continue
        kinds, place = np.unique([str(cell) for cell in cells], return_inverse=True)
        if not 2 <= len(kinds) <= MAX_SCALES:
            continue
        if pair_keys(prompt, place).max() != prompt.max():
            if has_other_values(outcome, place):
                return name
            continue
        ranges = [np.ptp(outcome[(place == kind) & np.isfinite(outcome)]) for kind in range(len(kinds))]
        ranges = [width for width in ranges if width > 0]
        if len(ranges) > 1 and max(ranges) > RATIO_OF_SCALES * min(ranges):
            return name
    return ""


def has_other_values(outcome: Floats, place: Ints) -> bool:
    """Return whether rewards have two values in every place, and no two places have the same ones."""
    known = np.isfinite(outcome)
    pairs = [tuple(np.unique(outcome[known & (place == one)]).tolist()) for one in range(int(place.max()) + 1)]
    return all(len(pair) == 2 for pair in pairs) and len({value for pair in pairs for value in pair}) == 2 * len(pairs)


def has_scale_per_prompt(outcome: Floats, prompt: Ints) -> bool:
    """Return whether every prompt has at most two rewards, the higher one of which differs between prompts."""
    known = np.isfinite(outcome)
    values = np.unique(np.column_stack([prompt[known], outcome[known]]), axis=0)
    prompts, first, number = np.unique(values[:, 0], return_index=True, return_counts=True)
    mixed = number == 2
    if np.mean(number <= 2) < 0.98 or mixed.sum() < 10 or np.bincount(prompt).max() < 4:
        return False
    tops = values[first[mixed] + 1, 1]
    bottoms = values[first[mixed], 1]
    kinds, counts = np.unique(tops, return_counts=True)
    return (
        len(kinds) > 1
        and np.sort(counts)[-2] >= 0.1 * mixed.sum()
        and len(np.unique(bottoms)) == 1
        and len(prompts) > 10
    )

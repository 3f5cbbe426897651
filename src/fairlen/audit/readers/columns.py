"""Which column is what: by its name and by what it holds, checked against what is true of all rollouts; in doubt it is asked.

Texts of correct and incorrect responses to a prompt differ, else they are references. What tells problems apart leaves both kinds
of responses to one, else it is an answer. A number of tokens goes with the text. The parts of a reward explain the advantage.
Not here: formats, whose columns have a meaning already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from fairlen.audit.log import halfway
from fairlen.audit.readers.calls import DESCRIBES, write_call
from fairlen.audit.readers.finish import SAYS_CUT, kind_of, word_of
from fairlen.audit.readers.messages import is_hidden, split_chat, text_of
from fairlen.audit.readers.rows import Options, Values, differs, hashes, is_error, is_mixed, numbers, pair_keys
from fairlen.audit.readers.token_counts import CHARACTERS, choose_count, includes_prompt, is_plausible
from fairlen.audit.readers.unfold import is_chat, unfold_head
from fairlen.audit.readers.verdicts import (
    choose_outcome,
    find_scale,
    has_scale_per_prompt,
    list_candidates,
    list_values,
    names_verdict,
    split_name,
)  # fmt: skip
from fairlen.audit.statistics.within import MIN_PROMPTS
from fairlen.batch import Bools, Floats, Ints, count_by, number_keys, sum_by
from fairlen.console import suggest
from fairlen.files.formats import Chunk, Unreadable

ROLES: dict[str, tuple[str, ...]] = {
    role: tuple(names.split())
    for role, names in {
        "prompt": "prompt question query problem instruction input prompt_text question_text question_content problem_statement "
        "task_prompt prompt_id problem_id question_id example_id task_id doc_id instance_id group group_id uid id index idx",
        "response": "response completion output generation generated_text model_response model_output model_answer llm_response "
        "llm_answer llm_output full_response text prediction responses completions outputs generations resp reply candidate "
        "trajectory rollout assistant generated decoded_output raw_output sample messages conversation conversations code "
        "solution pred answer output_list",
        "reasoning": "reasoning_content reasoning thinking thoughts thought cot chain_of_thought reasoning_trace",
        "reward": "reward score outcome rewards scores reward_score total_reward return",
        "correct": "correct is_correct acc accuracy passed success solved is_solved resolved exact_match verified graded_list",
        "step": "step global_step rollout_batch iteration training_step",
        "tokens": "response_mask loss_mask completion_mask num_tokens n_tokens completion_tokens response_length "
        "completion_length output_tokens num_output_tokens response_tokens completion_ids response_ids output_ids length",
        "turns": "num_turns n_turns",
        "finish": "finish_reason finish stop_reason finish_reasons stop_reasons done_reason stop_type truncated is_truncated "
        "was_truncated hit_limit hit_max_length hit_max_tokens length_limited is_clipped overlong is_finished finished "
        "termination_reason status incomplete_details",
        "advantage": "advantage advantages",
        "age": "age staleness policy_lag off_policy_steps",
        "group": "",
        "scale": "",
        "error": "",
        "calls": "",
        "beside": "",
    }.items()
}
"""Columns that fairlen reads, and their names in files, the surest first; `group` tells responses to a prompt apart, `scale` the
rewards that have a range of their own, `beside` a text of objects next to the response, which the policy may have written."""
IN_OBJECTS = {
    "finish": "meta_info.finish_reason", "tokens": "meta_info.completion_tokens", "reward": "reward_info.reward",
}  # fmt: skip
"""Of roles that no column has, where servers such as SGLang's and simulations of agents write them."""
PART = re.compile(
    r"^(rewards?|scores?)[_/.:-](?!.*(std|min|max|count|weight|threshold|model|id)$)|[_/.](reward|score)s?(/mean)?$", re.I
)  # fmt: skip
"""Names of columns whose numbers are a part of the reward."""
IDENTITY = re.compile(r"(^|[._])(id|idx|index|key|hash)$|^extra_info\.", re.I)
REFERENCE = re.compile(
    r"^(gts?|gold.*|(.*\.)?ground_truth|(.*_)?answers?|(.*_)?solutions?|labels?|(.*_)?targets?|ref.*|expected.*|images?.*)$",
    re.I,
)
FRESH = re.compile(r"(^|[._])(u?uid|group(_?(id|idx|index))?)$", re.I)
"""Identifiers of problems in all of a file, by reference, and in one step, where frameworks draw it anew for each."""
OF_PROBLEM = re.compile(r"prompt|question|problem|task|example|doc|instance|group|(^|\.)(u?uid|id|idx|index)$", re.I)
"""Names of those that say of what; a contest or a chapter has many problems."""
OF_RESPONSE = re.compile("response|sample|generation|completion|rollout|trial|request|session|seed|rank|worker", re.I)
"""Ids of other things than problems."""
NO_RESPONSE = re.compile(
    "judge|grad|critic|verif|feedback|error|std(out|err)|time|date|path|url|name|model$|(^|_)id$|hash|type|source|finish|status|system|"
    "prompt|question|image|version|meta|reference|gold|truth|target|label|expected|comment|reason", re.I,
)  # fmt: skip
"""Names that never hold the policy's own text."""
COUNTS_RESPONSE = re.compile("response|completion|output|mask", re.I)
"""Names of numbers of tokens that say of what; with reasoning that is hidden they are more than the text."""
BAR = re.compile(r"(.+)>([-+]?[\d.]+(?:e[-+]?\d+)?)")  # a column, and what it is above where a response is correct
NAMES_LENGTH = re.compile(r"(^|_)(n|num|number)?_?(tok(en)?s?|len(gth)?)(_|$)", re.I)
NAMES_ERROR = re.compile(r"(^|_)(errors?|exceptions?|failed|failure|aborted|crash(ed)?|traceback)(_|$)", re.I)
NAMES_CALLS = re.compile(r"(^|_)(tool|function)_?(calls?|uses?|invocations?)$", re.I)
NAMES_END = re.compile(r"reason|stop|finish|(^|_)end|termin|status|exit|halt|done", re.I)
MAX_WORD, MAX_WORDS = 60, 12  # characters of a word for the end of a response, and words in a column
MIN_BESIDE = (
    0.1  # share of the responses' text that objects next to them hold, from which on it may matter who wrote that
)
MAX_DEPTH = 3  # of objects in which columns are sought
MAX_UNIQUE = 0.98  # share of rows with a prompt of their own from which on it is an id of rows
SAME_GROWTH = 0.95  # correlation within prompts from which on a number of tokens grows with the text and nothing else
MUCH_LONGER = 4  # times the length of another text, from which on the longer one may be the response
STEP = re.compile(
    r"(gen(eration)?|policy|weights?|model|actor|train(ing|er)?|global|rollout|opt(imizer|imization)?|update|grad(ient)?|learner)"
    r"_?(step|iter(ation)?|version|epoch|batch|round|update)s?|rollout_id|steps|iter|epoch",
    re.I,
)
"""Names of columns that number the versions of a policy."""
MIN_IN_STEP = 1.5
"""Responses that a prompt has in each step on average, without which a number counts the responses instead."""
MIN_TEXTS = 0.05
"""Share of texts that differ, and of texts of several words, below which a column next to numbers of tokens holds labels."""
MAX_PARTS = 8  # columns of which all sets are tried
SAME, ENOUGH = (1e-9, 1e-4, 0.5), 0.9
"""Share of an advantage's squares in a prompt that may be left: of exact numbers, rounded ones, and what a method changed, as by
a penalty on length; share of prompts explained."""


def choose(columns: set[str], given: dict[str, str]) -> dict[str, str]:
    chosen = dict(given)
    for role, names in ROLES.items():
        free = (name for name in names if name in columns and name not in chosen.values())
        if role not in chosen and (name := next(free, None)):
            chosen[role] = name
    return chosen


def choose_all(head: Chunk, given: dict[str, str]) -> dict[str, str]:
    """Return `choose`, and where nothing is a reward the sum of all columns of numbers that are named as parts of one."""
    roles = choose(set(head.columns), given)
    if step := find_step(head, roles):
        roles["step"] = step
    for role, path in IN_OBJECTS.items():
        if role not in roles and any(value is not None for value in column_at(head, path)):
            roles[role] = path
    named = [name for name in head.columns if PART.search(name) and name not in roles.values()]
    parts = [name for name in named if is_numeric(head.get(name))]
    if {"reward", "correct"} & roles.keys():
        return roles
    if parts:
        return roles | {"reward": "+".join(parts)}
    columns = {name: flatten_lists(column_at(head, name)) for name in (*head.columns, *list_inside(head))}
    verdicts = [name for name in list_candidates(columns, set(roles.values())) if len(list_values(columns[name])) == 2]
    verdicts.sort(key=lambda name: not names_verdict(name))
    return roles | {"correct": verdicts[0]} if verdicts else roles


def flatten_lists(cells: Values) -> Values:
    """Return the elements of cells that are lists, as lines of many responses have them."""
    return [item for cell in cells for item in (cell if isinstance(cell, list) else [cell])]


def find_step(head: Chunk, roles: dict[str, str]) -> str:
    """Return a column of whole numbers that is named like a step, if prompts have several responses in each; else no name."""
    if "step" in roles:
        return ""
    prompt = hashes(column_at(head, roles["prompt"], "prompt")) if "prompt" in roles else np.arange(len(head))
    for name in head.columns:
        if not STEP.fullmatch(name) or name in roles.values():
            continue
        step, is_wrong = numbers(head.get(name))
        is_whole = not is_wrong.any() and bool(((step >= 0) & (step == np.floor(step))).all())
        if is_whole and len(head) >= MIN_IN_STEP * len(np.unique(pair_keys(prompt, hashes(head.get(name))))):
            return name
    return ""


def is_numeric(values: Values) -> bool:
    return not all(value is None for value in values) and not numbers(values)[1].any()


def check_given(given: dict[str, str], columns: set[str]) -> str:
    for role, text in given.items():
        for name in names_in(text):
            if name not in columns and name.split(".")[0] not in columns:
                return f"--columns {role}={text}: no column {name!r}: {suggest(name, sorted(columns))}"
        if ">" in text and not BAR.fullmatch(text):
            return f"--columns {role}={text}: {text.partition('>')[2]!r} is no number to compare with"
    return ""


def names_in(text: str) -> list[str]:
    """Return the columns in what `column_at` reads: a and b of 2*a+b>0.5."""
    return [part.rpartition("*")[2] for part in re.split("[>=]", text)[0].split("+")]


def column_at(chunk: Chunk, name: str, role: str = "") -> Values:
    """Return a column, a path such as info.score in (lists of) objects, a sum a+b, of a prompt both, or 2*a.

    A bar a>0.5 and a word a=yes give 1 and 0.
    """
    if name in chunk.columns:
        return chunk.get(name)
    if found := BAR.fullmatch(name):
        values, bar = numbers(column_at(chunk, found[1]))[0], float(found[2])
        return [None if value != value else float(value > bar) for value in values]
    if "=" in name:
        column, _, word = name.partition("=")
        return [None if value is None else float(str(value).strip() == word) for value in column_at(chunk, column)]
    if "+" in name and role in ("prompt", "group"):
        return [list(values) for values in zip(*(column_at(chunk, one) for one in name.split("+")), strict=True)]
    if "+" in name or "*" in name:
        factors = [one.rpartition("*") for one in name.split("+")]
        return add_up([(column_at(chunk, of), float(by or 1)) for by, _, of in factors])
    first, *rest = name.split(".")
    cells = chunk.get(first)
    return [[inside(v, *rest) for v in one] if rest and isinstance(one, list) else inside(one, *rest) for one in cells]


def add_up(columns: list[tuple[Values, float]]) -> Values:
    """Return the sums of columns with weights, each where it is there, None where none is; what is no number stays as it is."""
    read = [numbers(values) for values, _ in columns]
    table = np.stack([values * by for (values, _), (_, by) in zip(read, columns, strict=True)], 1)
    sums: Values = [None if np.isnan(row).all() else float(np.nansum(row)) for row in table]
    for (_, bad), (values, _) in zip(read, columns, strict=True):
        for row in np.flatnonzero(bad).tolist():
            sums[row] = values[row]
    return sums


def write_sum(weights: dict[str, float]) -> str:
    """Return columns with weights as `column_at` reads their sum: a+0.1*b."""
    return "+".join(name if by == 1.0 else f"{by:g}*{name}" for name, by in weights.items())


def inside(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


@dataclass(frozen=True)
class ColumnChoice:
    """Which column has which role, by what the first rows hold."""

    roles: dict[str, str]
    count: str = "number"  # how cells of `tokens` are counted, a key of token_counts.COUNTS
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()  # clauses of the verdict's sentence
    counts: tuple[str, ...] = ()  # columns that may be numbers of tokens, and are not read
    has_prompt: bool = True  # whether a column or the messages hold the prompt


def choose_by_content(head: Chunk, options: Options, assigned: dict[str, str] | None = None) -> ColumnChoice:
    """Return which column has which role. Raises Unreadable with the flag that answers if that cannot be known.

    `assigned` has columns whose roles are known by what they hold, and not by their names.
    """
    given = options.columns
    roles = choose_all(head, (assigned or {}) | given)
    if not {"reward", "correct"} & roles.keys():
        return ColumnChoice(roles)
    drop_shared_verdict(head, roles, given)
    if (
        "response" in roles.keys() - given.keys()
        and "tokens" not in roles
        and are_ids(column_at(head, roles["response"]))
    ):
        roles["tokens"] = roles.pop("response")
    for _ in range(2):  # a line may hold several prompts with several responses each
        graded = [column_at(head, roles[role]) for role in ("reward", "correct") if role in roles]
        responses = column_at(head, roles["response"]) if "response" in roles else [None] * len(head)
        head = unfold_head(head, graded, responses)
    questions = [split_chat(cell)[0] for cell in column_at(head, roles["response"])] if "response" in roles else []
    notes, caveats = list[str](), list[str]()
    if "prompt" not in roles and not any(questions):
        return ColumnChoice(roles, has_prompt=False)
    step = hashes(column_at(head, roles["step"])) if "step" in roles else np.zeros(len(head), np.int64)
    first = hashes(column_at(head, roles["prompt"], "prompt") if "prompt" in roles else questions)
    outcome = choose_outcome(list_outcomes(head, roles), roles, pair_keys(step, first), set(given))
    roles = {role: name for role, name in roles.items() if role not in ("reward", "correct")} | outcome.roles
    notes += outcome.notes
    caveats += outcome.caveats
    correct = find_correct(head, roles)
    drop_status_of_verdict(head, roles, given, correct)
    add_by_content(head, roles, pair_keys(step, first))
    if "prompt" in roles and "prompt" not in given:
        caveats += replace_row_ids(head, roles, questions, step, correct)
    if "prompt" in roles and "prompt" not in given:
        roles |= tell_problems(head, roles, step, correct)
    prompt = hashes(column_at(head, roles["prompt"], "prompt") if "prompt" in roles else questions)
    group = pair_keys(step, prompt)
    group = pair_keys(group, hashes(column_at(head, roles["group"], "group"))) if "group" in roles else group
    mixed = is_mixed(group, correct)
    if "response" not in given and "prompt" in roles:
        roles |= find_response(head, roles, group, mixed, roles.pop("response", ""))
    if "reasoning" in roles.keys() - given.keys() and not is_beside(head, roles, group, mixed):
        del roles["reasoning"]
    if not {"calls", "beside", "tokens"} & roles.keys() and (name := find_beside(head, roles, options, group, mixed)):
        roles["beside"] = name
    count = "number"
    if "tokens" in roles:
        count, why = check_tokens(head, roles, group, "tokens" in given)
        if why:
            notes.append(f"`{roles.pop('tokens')}` {why}, so that lengths are measured by the text")
    if "advantage" in roles and "+" in roles.get("reward", "") and "reward" not in given:
        names, credit = roles["reward"].split("+"), numbers(column_at(head, roles["advantage"]))[0]
        explained = explain_credit(head, names, credit, group)
        roles["reward"] = write_sum(explained or ask("reward", names, "no sum explains the advantage"))
    if "correct" not in roles and "scale" not in given:
        caveats += choose_scale(head, roles, prompt, group)
    chosen = {role: roles[role] for role in ROLES if role in roles}
    counts = () if "tokens" in roles else tuple(list_counts(head, chosen))
    return ColumnChoice(chosen, count, tuple(notes), tuple(caveats), counts)


def list_counts(head: Chunk, roles: dict[str, str]) -> Iterator[str]:
    """Yield the columns of whole numbers that vary and whose name says that they are lengths, without a role."""
    for name in (*head.columns, *list_inside(head)):
        if name in roles.values() or not NAMES_LENGTH.search(split_name(name)):
            continue
        values, is_wrong = numbers(column_at(head, name))
        is_whole = not is_wrong.any() and bool((values >= 1).all()) and bool((values == np.floor(values)).all())
        if is_whole and len(np.unique(values)) > 2:
            yield name


def are_ids(cells: Values) -> bool:
    """Return whether cells are lists of whole numbers, as ids of tokens are."""
    items = [item for cell in cells if isinstance(cell, list) for item in cell[:8]]
    return bool(items) and all(isinstance(cell, list) for cell in cells) and all(type(item) is int for item in items)


def add_by_content(head: Chunk, roles: dict[str, str], group: Ints) -> None:
    """Set the roles of errors, of calls beside the response, and of ends, whose columns are known by what they hold."""
    free = [name for name in head.columns if name not in roles.values()]
    for name in free:
        cells = head.get(name)
        if "error" not in roles and NAMES_ERROR.search(name) and 0 < np.mean([*map(is_error, cells)]) < 0.5:
            roles["error"] = name
        is_text = isinstance(
            next((cell for cell in column_at(head, roles.get("response", "")) if cell is not None), None), str
        )
        if "calls" not in roles and is_text and NAMES_CALLS.search(name) and any(map(write_call, cells)):
            roles["calls"] = name
    remaining = [name for name in free if name not in roles.values()]
    if "finish" not in roles and (name := find_ends(head, remaining, group, find_correct(head, roles))):
        roles["finish"] = name


def find_beside(head: Chunk, roles: dict[str, str], options: Options, group: Ints, mixed: Bools) -> str:
    """Return the column of objects with long texts next to texts of responses, which the policy may have written, if any."""
    texts = read_texts("", column_at(head, roles.get("response", "")))
    first = next((cell for cell in column_at(head, roles.get("response", "")) if cell is not None), None)
    taken = {name for names in roles.values() for name in names_in(names)} | {*options.groups.ignored}
    for name, cells in head.columns.items():
        is_known = name in taken or bool(NO_RESPONSE.search(name)) or bool(DESCRIBES.search(name))
        if is_known or not isinstance(first, str) or not any(isinstance(cell, list) for cell in cells):
            continue
        calls = [write_call(cell) if isinstance(cell, list) and not is_chat(cell) else "" for cell in cells]
        size = sum(map(len, calls))
        if size > MIN_BESIDE * sum(map(len, texts)) and differs(hashes(calls), group, mixed):
            return name
    return ""


def find_ends(head: Chunk, names: list[str], group: Ints, correct: Bools) -> str:
    """Return the column of words for ends that vary within prompts; empty if there is none.

    Some of its words are for a limit, or for failures, which are then no more than a part of the incorrect responses.
    """
    for name in names:
        cells = [cell for cell in head.get(name) if cell is not None]
        is_flag = bool(cells) and all(isinstance(cell, bool) for cell in cells)
        if is_flag and SAYS_CUT.search(name.lower()) and any(cells) and not all(cells):
            return name
        if not cells or not all(isinstance(cell, str) and len(cell) < MAX_WORD for cell in cells):
            continue
        words = [word_of(cell) for cell in head.get(name)]
        kinds = {word: kind_of(word) for word in set(words)}
        number = len(np.unique(hashes(words)))
        failed = np.array([kinds[word] == "failed" for word in words], np.bool_)
        are_faults = bool(failed.any()) and not (failed & correct).any() and 2 * failed.sum() < (~correct).sum()
        if not (are_faults or "truncated" in kinds.values()) or not 2 <= number <= MAX_WORDS:
            continue
        known = np.mean([kinds[word] in ("truncated", "ended", "failed") for word in words])
        varies = pair_keys(group, hashes(words)).max() > 1.1 * (len(np.unique(group)) - 1)
        if varies and (known > 0.5 or NAMES_END.search(name)):
            return name
    return ""


def drop_shared_verdict(head: Chunk, roles: dict[str, str], given: dict[str, str]) -> None:
    """Drop a verdict on all responses to a prompt together, if there is a list of rewards."""
    if "reward" in roles and "correct" in roles.keys() - given.keys():
        listed = [
            any(isinstance(cell, list) for cell in column_at(head, roles[role])) for role in ("reward", "correct")
        ]
        if listed == [True, False]:
            del roles["correct"]


def drop_status_of_verdict(head: Chunk, roles: dict[str, str], given: dict[str, str], correct: Bools) -> None:
    """Drop a column of ends that failed in exactly the rows that are incorrect: it is a verdict, and no reason for an end."""
    if "finish" in roles.keys() - given.keys():
        failed = [kind_of(word_of(cell)) == "failed" for cell in column_at(head, roles["finish"])]
        if any(failed) and np.array_equal(failed, ~correct):
            del roles["finish"]


def list_outcomes(head: Chunk, roles: dict[str, str]) -> dict[str, Values]:
    """Return the columns that may hold a reward or a verdict: all of the rows, those inside objects, and those chosen."""
    names = [*head.columns, *list_inside(head)]
    names += [roles[role] for role in ("reward", "correct") if role in roles and roles[role] not in names]
    return {name: column_at(head, name) for name in names}


def replace_row_ids(head: Chunk, roles: dict[str, str], questions: list[Any], step: Ints, correct: Bools) -> list[str]:
    """Replace an id that differs in every row by the question in the messages or in another column; return what to say."""
    name = roles["prompt"]
    cells = column_at(head, name, "prompt")
    if len(head) < MIN_PROMPTS or len(np.unique(hashes(cells))) < MAX_UNIQUE * len(head):
        return []
    if any(questions) and is_mixed(pair_keys(step, hashes(questions)), correct).any():
        del roles["prompt"]
        return [f"`{name}` differs in every row, so that the prompt is the question in `{roles['response']}`"]
    others = [other for other in ROLES["prompt"] if other in head.columns and other not in roles.values()]
    others += [other for other in head.columns if OF_PROBLEM.search(other) and other not in (*others, *roles.values())]
    for other in others:
        if is_mixed(pair_keys(step, hashes(column_at(head, other))), correct).any():
            roles["prompt"] = other
            return [f"`{name}` differs in every row, so that the prompt is `{other}`"]
    return []


def check_tokens(head: Chunk, roles: dict[str, str], group: Ints, is_given: bool) -> tuple[str, str]:
    """Return how numbers of tokens are counted, and why they are not of the text, empty if they are.

    Raises Unreadable if they may count reasoning that is hidden.
    """
    texts = read_texts("response", column_at(head, roles.get("response", "")))
    found = choose_count(column_at(head, roles["tokens"]), texts, roles["tokens"])
    if is_given or not texts:
        return found.kind, ""
    asked = read_texts("response", column_at(head, roles["prompt"].split("+")[0])) if "prompt" in roles else []
    if asked and includes_prompt(found.values, texts, asked):
        return found.kind, "counts the prompt as well as the response"
    return found.kind, doubt_tokens(head, roles, group, found.values)


def choose_scale(head: Chunk, roles: dict[str, str], prompt: Ints, group: Ints) -> list[str]:
    """Set the role `scale` if one bar does not fit the rewards of all prompts; return what to say."""
    reward, prompt = roles.get("reward", ""), number_keys(prompt)
    outcome = numbers(column_at(head, reward))[0]
    if len(np.unique(outcome[np.isfinite(outcome)])) <= 2:
        return []
    names = [name for name in (*head.columns, *list_inside(head)) if name not in roles.values()]
    columns = {name: column_at(head, name) for name in names} | {reward: column_at(head, reward)}
    if name := find_scale(columns, reward, prompt, group):
        roles["scale"] = name
        return [f"rewards have several scales by `{name}`, so that correct is above half of the range of each"]
    if "prompt" in roles and has_scale_per_prompt(outcome, prompt):
        roles["scale"] = roles["prompt"]
        return ["prompts have two rewards each, of several scales, so that the higher one of each is correct"]
    return []


def ask(role: str, names: list[str], why: str) -> Any:
    """Raise Unreadable with the flags that answer which column is in a role."""
    flags = " or ".join(f"--columns {role}={name}" for name in names)
    raise Unreadable(f"{why}: name it: {flags}" if flags else f"{why}, and no other column can be the {role}: add one")


def find_correct(head: Chunk, roles: dict[str, str]) -> Bools:
    cells = column_at(head, roles.get("correct", roles.get("reward", "")))
    parts = [list(one.values()) if isinstance(one, dict) else [one] for one in cells]
    values = np.array([np.nansum(numbers(part)[0]) for part in parts])
    return values > (0.5 if np.isin(values, (0.0, 1.0)).all() else halfway(values[np.isfinite(values)]))


def tell_problems(head: Chunk, roles: dict[str, str], step: Ints, correct: Bools) -> dict[str, str]:
    """Return the prompt, and ids and references that tell more problems apart; what leaves no mixed group is an answer."""
    found, fresh, prompt = [roles["prompt"]], list[str](), hashes(column_at(head, roles["prompt"]))
    group = pair_keys(step, prompt)
    for name, kind in list_identities(head, roles):
        key = hashes(column_at(head, name))
        split, ids, both = pair_keys(group, key), len(np.unique(key)), len(np.unique(pair_keys(key, prompt)))
        if split.max() == group.max() or (kind is not REFERENCE and both > 1.01 * ids):
            continue
        if is_mixed(split, correct).sum() < 0.1 * is_mixed(group, correct).sum():
            if kind is IDENTITY and ids == len(head) and not is_regular(group):
                why = f"`{name}` differs in all rows, and few share `{roles['prompt']}` alike"
                ask("prompt", [roles["prompt"], name], why)
            continue
        group = split
        (fresh if kind is FRESH else found).append(name)
    if not is_mixed(group, correct).any():  # a prompt that is never the same, as with examples that are drawn for each
        ids = [name for name, kind in list_identities(head, roles) if kind is not REFERENCE and OF_PROBLEM.search(name)]
        for name in ids:
            if is_mixed(pair_keys(step, hashes(column_at(head, name))), correct).any():
                return {"prompt": name}
    return {"prompt": "+".join(found)} | ({"group": "+".join(fresh)} if fresh else {})


def list_identities(head: Chunk, roles: dict[str, str]) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the columns, and those inside objects, that may tell problems apart: ids, references, then ids of one step."""
    names = (*head.columns, *sorted(list_inside(head)))
    free = [name for name in names if name not in roles.values() and not OF_RESPONSE.search(name)]
    filled = [name for name in free if any(value is not None for value in column_at(head, name))]
    for kind in (IDENTITY, REFERENCE, FRESH):
        yield from ((n, kind) for n in filled if kind.search(n) and (kind is not IDENTITY or not FRESH.search(n)))


def list_inside(head: Chunk, lists: bool = False) -> list[str]:
    first = ((name, cells[0]) for name, cells in head.columns.items())
    objects = {name: cell[0] if lists and isinstance(cell, list) and cell else cell for name, cell in first}
    return [f"{name}.{key}" for name, keys in objects.items() if isinstance(keys, dict) for key in keys]


def list_paths(head: Chunk) -> list[str]:
    """Return the columns of a file, and the fields of objects in them up to three deep."""
    paths = list[str]()

    def add(name: str, cells: Values, depth: int) -> None:
        objects = [cell for cell in cells if isinstance(cell, dict)]
        if not objects or depth == MAX_DEPTH:
            paths.append(name)
            return
        for key in dict.fromkeys(key for cell in objects[:MIN_PROMPTS] for key in cell):
            add(f"{name}.{key}", [cell.get(key) if isinstance(cell, dict) else None for cell in cells], depth + 1)

    for name, cells in head.columns.items():
        add(name, cells, 0)
    return paths


def is_regular(group: Ints) -> bool:
    size = count_by(group, int(group.max()) + 1).astype(np.int64)
    return bool(np.mean(size % np.bincount(size).argmax() == 0) > 0.5)


def find_response(head: Chunk, roles: dict[str, str], group: Ints, mixed: Bools, first: str) -> dict[str, str]:
    """Return the column of texts that differ within prompts, by name or length; `first` is what its name alone would choose."""
    taken = {name for role, names in roles.items() if role != "reasoning" for name in names.split("+")}
    texts = {name: told for name in head.columns if name not in taken and (told := read_texts(name, head.get(name)))}
    named = [name for name in (*ROLES["response"], *ROLES["reasoning"]) if name in texts] or [first] * bool(first)
    if not texts or not mixed.any():
        return {"response": named[0]} if named else {}
    labels = {name for name in texts if "tokens" in roles and are_labels(texts[name])}
    usual = [name for name in texts if name in named or not (NO_RESPONSE.search(name) or name in labels)]
    varied = [name for name in usual if differs(hashes(texts[name]), group, mixed)]
    asked = read_texts("", column_at(head, roles["prompt"].split("+")[0])) or [""] * len(head)
    whole = [n for n in varied if not is_inside(asked, texts[n])] or varied  # without the prompt, where there are both
    size = {name: median(map(len, texts[name])) for name in varied}
    found = next((name for name in named if name in varied), "")
    longest = max((n for n in whole if n not in ROLES["reasoning"]), key=lambda name: size[name], default=found)
    if not found and longest:
        found, others = longest, [name for name in whole if name == longest or texts[name] != texts[longest]]
        rivals = [name for name in others if MUCH_LONGER * size[name] > size[longest]]
        if len(rivals) > 1:
            ask("response", rivals, "several columns of texts may be the responses")
    elif found and longest != found and found in whole and size[longest] >= MUCH_LONGER * size[found]:
        if not is_inside(texts[found], texts[longest]):
            why = f"`{longest}` is much longer than `{found}`, and both may be the responses"
            ask("response", [found, longest], why)
        found = longest
    if not found and named and "tokens" not in roles and len(np.unique(group[mixed])) >= MIN_PROMPTS:
        others = [name for name in texts if name != named[0] and differs(hashes(texts[name]), group, mixed)]
        why = "is one text for correct and incorrect responses to a prompt, so a reference"
        ask("response", others, f"`{named[0]}` {why}")
    return {"response": found or named[0]} if found or named else {}


def are_labels(texts: list[str]) -> bool:
    """Return whether texts repeat, or are single words, as names and ids are."""
    fewest = MIN_TEXTS * len(texts)
    return len(set(texts)) < fewest or sum(" " in text.strip() for text in texts) < fewest


def read_texts(name: str, values: Values) -> list[str]:
    """Return a column as texts; empty where most cells are none, or numbers in a column that is not named as a response."""
    told = [text_of(value) if isinstance(value, str) or not is_hidden(value) else None for value in values]
    is_text = sum(one is not None for one in told) > len(told) / 2
    return [one or "" for one in told] if is_text and (name in ROLES["response"] or not is_numeric(values)) else []


def is_inside(parts: list[str], wholes: list[str]) -> bool:
    found = sum(bool(part) and part.strip() in whole for part, whole in zip(parts, wholes, strict=True))
    return found > 0.8 * len(parts)


def is_beside(head: Chunk, roles: dict[str, str], group: Ints, mixed: Bools) -> bool:
    name, response = roles["reasoning"], roles.get("response", "")
    texts, said = (read_texts("response", column_at(head, one)) for one in (name, response))
    if name == response or not texts or not said or is_inside(texts, said):
        return False
    return not mixed.any() or differs(hashes(texts), group, mixed)


def doubt_tokens(head: Chunk, roles: dict[str, str], group: Ints, tokens: Floats) -> str:
    """Return why numbers of tokens are not of the text. Raises Unreadable where they may count reasoning that is hidden."""
    name = roles["tokens"]
    texts = read_texts("response", column_at(head, roles.get("response", "")))
    size, number = np.array(list(map(len, texts)), np.float64), int(group.max()) + 1
    if not texts or number < MIN_PROMPTS or np.isnan(tokens).any() or len(set(texts)) < 0.2 * len(texts):
        return ""
    x, y = (one - (sum_by(group, one, number) / count_by(group, number))[group] for one in (size, tokens))
    if not x.any():
        return ""
    if not y.any():
        return "is the same for all responses to a prompt"
    if np.mean(tokens == size) > 0.95:
        return "counts characters"
    slope, common = (x * y).sum() / (x**2).sum(), (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())
    beyond = tokens.mean() - slope * size.mean()
    if size.sum() > CHARACTERS[1] * tokens.sum():
        return "counts far less than the text"
    if common > SAME_GROWTH and is_plausible(float(slope)) and beyond > max(0.25 * tokens.mean(), 16):
        return "counts more than the text, by about as much for every response"
    if COUNTS_RESPONSE.search(name) or (common > 0.5 and beyond < max(0.25 * tokens.mean(), 16)):
        return ""
    if common > 0.5 or tokens.mean() > size.mean():
        flags = f"--columns tokens={name} takes it for the response's, --unit words counts the text"
        more = f"the text of `{roles['response']}`, a prompt or hidden reasoning"
        raise Unreadable(f"`{name}` counts more than {more}: {flags}")
    return "does not go with the length of the text"


def explain_credit(head: Chunk, names: list[str], advantage: Floats, group: Ints) -> dict[str, float]:
    """Return the columns, with weights, whose sum goes with the advantage within groups; none where none does.

    Weights are 1 for the fewest columns whose sum does, else what solves for them. Advantages may be scaled by group, by batch or
    not, or be sums of parts that are normalised; a part may be nan where it does not apply.
    """
    parts = np.stack([numbers(head.get(name))[0] for name in names[:MAX_PARTS]])
    known = np.isfinite(advantage) & ~np.isnan(parts).all(0)
    number, group = int(group.max(initial=-1)) + 1, group[known]

    def centre(column: Floats) -> Floats:
        return column - (sum_by(group, column, number) / np.maximum(count_by(group, number), 1))[group]

    credit = centre(advantage[known])
    columns = np.stack([centre(np.nan_to_num(column)) for column in parts[:, known]])
    size = np.stack([sum_by(group, column**2, number) for column in columns])
    scale = np.sqrt(np.where(size > 0, size, 1.0))[:, group]
    for those, same in product((columns, columns / scale), SAME):
        if (weights := solve(those, credit, group, number, same)).any():
            return {name: by for name, by in zip(names, weights.tolist(), strict=False) if by}
    return {}


def solve(columns: Floats, credit: Floats, group: Ints, number: int, same: float) -> Floats:
    """Return the weights of centred columns, [m, N], whose sum is in proportion to the credit in nearly every group."""
    squares = sum_by(group, credit**2, number)
    some = squares > 1e-6
    with_credit = np.stack([sum_by(group, column * credit, number) for column in columns])[:, some]
    pairs = np.stack([[sum_by(group, a * b, number)[some] for a in columns] for b in columns])

    def explained(weights: Floats) -> float:
        along = weights @ with_credit
        whole = np.einsum("i,ijg,j->g", weights, pairs, weights) * squares[some]
        return float(np.mean((along > 0) & (along**2 > (1 - same) * whole))) if some.any() else 0.0

    sets = np.array(sorted(product((0.0, 1.0), repeat=len(columns)), key=sum))[1:]
    shares = [explained(weights) for weights in sets]
    if max(shares) >= ENOUGH:
        return next(weights for share, weights in zip(shares, sets, strict=True) if share >= max(shares) - 0.02)
    left = (pairs - with_credit[:, None] * with_credit[None] / squares[some]).sum(2)
    scale = np.sqrt(np.diag(pairs.sum(2)))
    varies = np.flatnonzero(scale > 0)
    weights = np.zeros(len(columns))
    if len(varies):  # those of which the least is left
        left = left[np.ix_(varies, varies)] / np.outer(scale[varies], scale[varies])
        weights[varies] = np.linalg.eigh(left)[1][:, 0] / scale[varies]
        weights *= np.sign((weights @ with_credit).sum()) / np.abs(weights).max()
        weights[np.abs(weights) < 1e-2] = 0.0
    return np.round(weights, 3) if explained(weights) >= ENOUGH else np.zeros(len(columns))

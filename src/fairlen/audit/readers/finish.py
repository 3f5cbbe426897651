"""Finish reasons: whether a limit ended a response, in the words of engines, servers and frameworks."""

from __future__ import annotations

import re
from typing import Any

from fairlen.audit.readers.rows import Found

KINDS = {
    "truncated": "length len max_tokens max_length truncated incomplete limit token_limit tokens token length_capped "
    "length_limit context_length context_window context prompt_too_long model_length model_context_window_exceeded time "
    "context_length_exceeded error_limit overlong max_turns max_steps timeout timed_out timeout_reached time_limit turn message "
    "working cost",
    "ended": "stop stopped eos eos_token eos_token_id eos_found end_turn end_of_turn end_id end_of_text endoftext end word "
    "stop_sequence stop_word stop_words stop_str stop_string stop_token stop_token_id matched matched_token matched_str "
    "matched_regex tool_call tool_calls tool_use function_call complete completed finish finished done success refusal "
    "user_stop agent_stop",
    "failed": "error failed abort aborted cancel canceled cancelled user_cancel interrupt interrupted pending in_progress "
    "not_finished content_filter content_filtered safety recitation blocklist prohibited_content spii guardrail_intervened "
    "error_toxic malformed_function_call ignored agent_timeout",
    "": "none null nan unknown unspecified",
}
"""Words for a limit, of tokens or of turns, time or cost; for an end by the policy; for what broke off, so that its reward is of
no whole response; and for nothing."""
ONE_TURN = "max_turns_reached"
"""What verifiers writes of every rollout of one turn, which no limit ended."""
KNOWN = {word: kind for kind, words in KINDS.items() for word in words.split()} | {"": ""}
MAX_TOKENS = re.compile(
    r"(reached_|hit_|exceeded_)?max(imum)?_([a-z]+_){0,2}?(tokens?|len|length)(_(reached|exceeded|limit))?"
)
LIMITS = re.compile(
    r"length|max(imum)?_?(turn|step|iter|round|call|token|len|seq|gen|new|output|response|completion|size|time|reach)|limit|"
    r"trunc|exceed|exhaust|budget|overflow|overlong|too_long|clipped|cut_?off|capped|(^|_)cap(_|$)|timeout|timed_out|deadline|"
    r"out_of_|ran_out|context|window"
)
FAILURES = re.compile(
    r"err(or)?(_|$|s)|exception|abort|fail|cancel|crash|kill|invalid|reject|preempt|evict|(^|_)lost|disconnect|unavailable|oom"
)
ENDS = re.compile(
    r"(^|_)(stop\w*|eos\w*|eot|end|ended|done|finish\w*|complet\w*|success\w*|natural\w*|normal\w*|ok|okay|submit\w*)(_|$)"
)
"""Forms of words that are in no list: for a limit, for a failure, for an end by the policy."""
OF_SIZE = re.compile(r"length|max|limit|token|context|trunc|exceed|budget")
NEGATED = re.compile(r"^(not|no|non|un|never)_")
PREFIX = re.compile(r"^([a-z0-9]+_)*?(finish|stop)_reason_(?=.)|^finish(ed)?_(?=.)")
"""Prefixes of names of enums, as in FinishReason.LENGTH, FINISH_LENGTH, FINISHED_LENGTH_CAPPED."""
SAYS_CUT = re.compile(r"trunc|limit|overlong|exceed|clip|cut|max_|incomplete|unfinished|not_finished")
SAYS_END = re.compile(r"^(?!.*reason).*(finish|eos|complete|done|ended|terminated)")
"""Names of columns of true and false, and which of the two the true ones are."""
TRUTH = dict.fromkeys(("true", "yes", "1", "1.0"), 1.0) | dict.fromkeys(("false", "no", "0", "0.0"), 0.0)
KEYS = ("incomplete_details", "reason", "type", "finish_reason", "stop_reason", "name", "status", "value")
"""Of an object, the surest first."""


def word_of(value: Any) -> str:
    """Return the word of a finish reason in lower case, of an object that of a key, of a list the last; empty where none is."""
    if isinstance(value, list):
        return word_of(value[-1]) if value else ""
    if isinstance(value, dict):
        return next((word for key in KEYS if (word := word_of(value.get(key)))), "")
    text = "" if value is None else str(value)[:999].strip("<> \t\n.")
    if text[:1] == "{":  # a table of text has objects as JSON, or as Python writes them
        return word_of(dict(re.findall(r"['\"](\w+)['\"]\s*:\s*['\"]([^'\"]+)", text)))
    text = re.sub(r"^.*\.(?=[A-Za-z])", "", text.split(":")[0])
    word = re.sub(r"[^\w.]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()).strip("_")
    return PREFIX.sub("", word)


def kind_of(word: str) -> str:
    """Return truncated, ended, failed, an empty text if the word means nothing, or unknown: by lists, then by form."""
    if word in KNOWN:
        return KNOWN[word]
    if MAX_TOKENS.fullmatch(word):
        return "truncated"
    if NEGATED.match(word):
        return "ended" if LIMITS.search(word) else "unknown"
    if FAILURES.search(word) and not OF_SIZE.search(word):
        return "failed"
    if LIMITS.search(word):
        return "truncated"
    return "ended" if ENDS.search(word) else "unknown"


def meaning_of(word: str, found: Found) -> str:
    """Return what a word means: what `--means` says, or `kind_of`."""
    given = found.meanings.get(word, "")
    return given if given in ("truncated", "ended", "failed") else kind_of(word)


def read_finish(value: Any, found: Found, name: str = "finish_reason") -> tuple[float | None, bool]:
    """Return whether a limit ended a response, 1 or 0, None if that is not known, and whether something else broke it off.

    A word that is not known is noted, and means neither; `--means WORD=truncated` (ended, failed) says what it means. `name` is
    that of the column: it says whether its true, or 1, is truncated or finished; a number in a column of reasons is a code.
    """
    word, is_cut = word_of(value), bool(SAYS_CUT.search(name.lower()))
    if word in TRUTH and (is_cut or SAYS_END.search(name.lower())):
        return TRUTH[word] if is_cut else 1.0 - TRUTH[word], False
    if (kind := meaning_of(word, found)) == "unknown":
        unknown = "which is not known: whether these responses were truncated is unknown"
        found.note(f"`{name}` says {word!r:.40}, {unknown}", 1)
    return {"truncated": 1.0, "ended": 0.0}.get(kind), kind == "failed"


def is_limit(value: Any) -> bool:
    """Return whether the stop condition of an environment is a limit."""
    word = word_of(value)
    return word != ONE_TURN and kind_of(word) == "truncated"

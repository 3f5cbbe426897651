"""Secrets, and their removal from all output: files, pages, services, the console.

Removed are values of names such as password or api_key, in texts and in the environment, credentials in URLs, tokens of known
forms, and private keys. Texts of models and problems are recorded as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
MIN_LENGTH = 8  # shorter values in the environment, such as "always", are no secrets
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
SURE = re.compile(r"passw|passphrase|secret|credential|authorization|bearer|api_?key|sshpass|pgpass")
"""Within a name, in lower case with its words joined by _."""
LAST = re.compile(
    r"(^|_)(auth|pass|pwd|pw|pat|dsn|cookies?|token|(access|private|signing|encryption|account|auth|ssh|service|shared|storage"
    r"|master|deploy|client|session|webhook|license|subscription|hub|hf|wandb|openai)_?(key|token))$"
)
"""At the end of a name."""
ORDINARY = re.compile(
    r"(^|_)((bos|eos|pad|unk|sep|cls|mask|stop|start|end|begin|image|video|audio|special|per|each|next|first|last|new|think"
    r"|thinking|boi|eoi|eot|eom|fim|decoder|forced|prompt|answer|separator|extra|tool|max|min|num|by|a)_token"
    r"|(forward|backward|single|first|second|one)_pass)$"
)
OPENS = re.compile(r"(?i)(^|[^a-z])(key|sig|signature|sign|code|hmac)$")
"""At the end of a name in a URL's query; elsewhere such names say nothing."""
USER = ("-u", "--user")  # flags that take NAME:PASSWORD
RANDOM = re.compile(r"(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]*\d)(?=[A-Za-z0-9+/]*[A-Za-z])[A-Za-z0-9+/]{16,}")
VALUE = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:(?i:bearer|basic|digest|token)\s+)?[^\s"'&,;<>)\]}]+"""
PAIRS = (
    re.compile(r"""(?<=[?&#;])(?P<name>[\w.~%-]+)(?P<between>=)(?P<value>[^&#;\s"'<>]+)"""),
    re.compile(rf"""(?<![\w.-])(?P<name>-{{0,2}}[A-Za-z_][\w.-]*)(?P<between>["']?(?:=|\s?:\s?))(?P<value>{VALUE})"""),
    re.compile(rf"""(?<![^\s"'])(?P<name>--?[A-Za-z][\w.-]*)(?P<between>\s+)(?P<value>(?!-)(?:{VALUE}))"""),
)
"""Names with their values: in the query of a URL, as NAME=VALUE or NAME: VALUE, and as a flag."""
FORMS = re.compile(
    r"(?<=://)(?:[^\s/@:\"'<>]*:(?!\d*[/?#])[^\s@\"'<>]*|(?!(?:[a-z]+)@)[^\s/@:?#\"'<>]+)(?:@[^\s/@\"'<>]+)*(?=@)"
    r"|(?<=://)(?<=http://|ttps://)[^\s/@:?#\"'<>]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\bhf_(?:(?=\w*[A-Z\d])[A-Za-z\d]{8,}|[a-z]{12,})|\b[srp]k[-_](?=[\w-]{0,99}[A-Z\d])[\w-]{12,}|\bgh[opsur]_\w{16,}"
    r"|\bgithub_pat_\w+|\b(?:AKIA|ASIA)[A-Z\d]{12,}|\bx(?:ox[a-z]|app)-[\w-]{8,}|\bAIza[\w-]{20,}|\bya29\.[\w-]+"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|\bSG\.[\w-]{16,}\.[\w-]+|(?<=[Bb]earer )[\w.~+/=-]{8,}"
    r"|\b(?:pypi|npm|glpat|gsk|r8|nvapi|tvly|xai|pplx|hvs|glsa|shpat|dop_v1|dckr_pat|lsv2_pt)[-_.][\w-]{16,}",
    re.DOTALL,
)
NO_SECRET = {"", "none", "null", "true", "false", "()", "[]", "{}", HIDDEN}


def is_secret(name: str, value: object) -> bool:
    """Whether a value is a secret by its name."""
    words = "_".join(WORD.findall(name)).lower()
    if str(value).strip("\"'").lower() in NO_SECRET:
        return False
    if SURE.search(words):
        return True
    is_long = isinstance(value, str) and len(value) > 3 and not value.startswith("/")  # no unit, and no path, as of PWD
    if is_long and LAST.search(words) and not ORDINARY.search(words):
        return True
    return words.endswith("_key") and (name.isupper() or bool(RANDOM.search(str(value))))


def hide(text: str, environment: Mapping[str, str] = os.environ) -> str:
    for name, value in environment.items():
        if len(value) >= MIN_LENGTH and value in text and is_secret(name, value):
            text = text.replace(value, HIDDEN)
    text = FORMS.sub(HIDDEN, text)
    for form in PAIRS:
        text = form.sub(hide_value, text)
    return text


def hide_value(found: re.Match[str]) -> str:
    """A name with its value, or with `***` for a secret."""
    name, between, value = found["name"], found["between"], found["value"]
    quote = value[0] if value[0] in "\"'" else ""
    known = is_secret(name, value)
    if between[0] in " :":  # prose, such as "token: a piece of a word", but for headers and sure names
        is_flag = name.startswith("-")
        known &= is_flag or bool(SURE.search(name.lower()) or name[0].isupper() or RANDOM.search(value))
    if found.re is PAIRS[0]:
        known |= bool(OPENS.search(name) or RANDOM.fullmatch(value))
    known |= name in USER and ":" in value
    return f"{name}{between}{quote}{HIDDEN}{quote}" if known else found[0]


def hide_all(value: Any, name: str = "") -> Any:
    """Replace secrets in settings: in texts, behind names, and in a command's words behind flags."""
    if isinstance(value, Mapping):
        return {key: hide_all(one, str(key)) for key, one in value.items()}
    if type(value) in (list, tuple):
        flags = ["", *(one if isinstance(one, str) and one.startswith("-") else "" for one in value)]
        return type(value)([hide_all(one, flag or name) for flag, one in zip(flags, value, strict=False)])
    text = str(value)
    if (is_secret(name, value) and not text.startswith("-")) or (name in USER and ":" in text):
        return HIDDEN
    return hide(value) if isinstance(value, str) else value

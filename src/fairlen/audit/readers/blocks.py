"""Blocks inside the text of a response, found by their form, and who wrote them.

A block is a part of a text that is marked: by a pair of tags, by a fence, by labels at the start of lines, or by the headers of
chat roles. No list of names decides what a block is. Text under the header of another role was read. The policy wrote every
block that begins or ends most responses, because a result of a tool can do neither, and every block that follows itself, because
a result follows an action. The origin of all other blocks is unknown: the audit computes its verdict with and without them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Literal

from pygments.lexers import find_lexer_class_by_name
from pygments.util import ClassNotFound

from fairlen.channels import MARKS

Origin = Literal["read", "written", "unknown"]
MIN_SHARE = 0.2  # share of responses with a block from which on it is a channel of its own
PLAIN_FENCE = "``` fence"  # name of a fence without a label
USUAL_BEGIN, USUAL_END = 0.5, 0.8
"""Share of the responses with a block that begin or end with it, from which on the policy wrote it."""
MAX_ROWS = 512  # responses in which blocks are sought
MAX_BLOCKS = 6  # blocks of unknown origin; the most frequent ones count
ROLE = (
    r"(?:user|human|tools?|functions?|system|developer|environment|env|observation|ipython|computer|executor)"
    r"(?:[_ ▁]?(?:response|result|output)s?)?|(?:functions?|tools?)\.[\w.]+"
)
OWN = r"assistant|model|gpt|ai|bot"
NAME = r"[A-Za-z][\w :.▁/-]{1,39}"
MARKED_HEADER = r"<[|｜]?[\w ]{{1,20}}[|｜]?>\s?(?i:{role})(?=\n|<|\s+to=)|<[|｜](?i:{role})[|｜]>"
HEADER = MARKED_HEADER + r"|^(?:\#{{1,4}} ?|\[)?(?i:{role})\]?(?::|\n)"
"""Header of a chat role: `<|im_start|>tool`, `<|tool|>`, `### Tool`, `Tool:`, or a line with the role and nothing else, as
decoding without special tokens leaves."""
SPECIAL = r"<[|｜][\w ]{1,30}[|｜]>"
TURN = re.compile(
    rf"(?:{SPECIAL}\s*)?(?:(?:{HEADER.format(role=ROLE)})(?P<inner>.*?)(?:{HEADER.format(role=OWN)})(?:{SPECIAL}(?<!channel\|>)\s*)?"
    rf"|(?:{MARKED_HEADER.format(role=ROLE)}|^(?:{ROLE})\n(?=<\w))(?P<last>.*?)\Z)",
    re.S | re.M,
)
"""Text from the header of another role up to the next header of the policy, or to the end after a marked header or a tag."""
MARKER = re.compile(
    rf"^[ \t]*(?P<fence>`{{3,}}|~{{3,}})[ \t]*(?P<label>[A-Za-z][\w.+#-]*|(?=$))[^\n`]*$"
    rf"|^[ \t]*(?P<above>[A-Za-z]\w*(?: \w+){{0,2}}):?[ \t]*\n+(?P<bare>`{{3,}}|~{{3,}})[ \t]*$"
    rf"|^(?P<arrows><{{3,}}|>{{3,}}) ?(?P<inside>{NAME})$"
    rf"|(?P<tag><[|｜]?[A-Za-z][\w.:▁-]{{0,39}}[|｜]?(?:\s[^<>\n]{{0,200}})?>|<!-- ?{NAME}-->)"
    rf"|(?P<other>\[{NAME}\]|\{{\{{?{NAME}\}}\}}?|<<{NAME}>>|^[-=*#~]{{2,}} ?{NAME}?[ -=*#~]*$)",
    re.M,
)
LABEL = re.compile(
    r"^[ \t]*(?:(?P<heading>#{1,6} ?)|[-=*~>]{0,5} ?)\[?(?P<name>[A-Za-z]\w*(?: [A-Za-z]\w*){0,2})(?: ?\d{1,3})?"
    r"(?:\]|:|\*\*:|:\*\*| ?[-=*#~]{3,}$|(?(heading)$|(?!)))",
    re.M,
)
"""A label at the start of a line, with a number or without: `Observation 2:`, `[Result]`, `=== Output ===`, `## Output`."""
WORDS_OF_END = ("begin", "end"), ("start", "end"), ("open", "close"), ("start", "stop")


@dataclass(frozen=True)
class Span:
    """One occurrence of a block in a text."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class BlockForms:
    """The blocks of some responses: those that were read, those of unknown origin, and whether other roles have headers."""

    origins: dict[str, Origin] = field(default_factory=dict)  # of blocks that are separated, by name
    shares: dict[str, float] = field(default_factory=dict)  # of responses that contain each block
    has_turns: bool = False

    def __bool__(self) -> bool:
        return self.has_turns or bool(self.separated)

    @cached_property
    def separated(self) -> frozenset[str]:
        """Return the blocks whose text is separated from the rest."""
        return frozenset(name for name, origin in self.origins.items() if origin != "written")

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Return the blocks of unknown origin."""
        return tuple(name for name, origin in self.origins.items() if origin == "unknown")

    def split_text(self, text: str) -> list[tuple[str, str]]:
        """Return the pieces of a text, each with the name of its block; empty for text outside of blocks, "turn" for a turn."""
        pieces: list[tuple[str, str]] = []
        for is_turn, part in split_turns(text) if self.has_turns else [(False, text)]:
            if is_turn:
                pieces.append((TURN_NAME, part))
                continue
            place = 0
            for span in find_spans(part, self.separated) if self.separated else ():
                pieces += [("", part[place : span.start]), (span.name, part[span.start : span.stop])]
                place = span.stop
            pieces.append(("", part[place:]))
        return [(name, piece) for name, piece in pieces if piece]


TURN_NAME = "turn"


def split_turns(text: str) -> list[tuple[bool, str]]:
    """Return the pieces of a text and whether each is under the header of another role."""
    pieces: list[tuple[bool, str]] = []
    place = 0
    for turn in TURN.finditer(text):
        pieces += [(False, text[place : turn.start()]), (True, turn["inner"] or turn["last"] or "")]
        place = turn.end()
    return [piece for piece in [*pieces, (False, text[place:])] if piece[1]]


@cache
def list_closings(opening: str) -> tuple[str, ...]:
    """Return the marks that may close a block: `</a>` for `<a b=c>`, `[/A]` for `[A]`, `<|a_end|>` for `<|a_begin|>`."""
    bare = re.sub(r"^(<[|｜]?[^\s<>!]+)\s[^<>]*>$", r"\1>", opening).strip()
    closings = [re.sub(r"^([<\[{]+(?:[|｜]|!-- ?)?)", r"\1/", bare)] if bare[0] in "<[{" else []
    if bare[:2] in ("<|", "<｜"):
        closings.append(bare[0] + "/" + bare[1:])
    brackets = re.match(r"([<\[{]+(?:[|｜]|!-- ?)?)(.*?)( ?(?:--|[|｜])?[>\]}]+)$", bare)
    if brackets:
        before, name, after = brackets.groups()
        closings += [f"{before}{text}{after}" for text in (f"end_{name}", f"{name}_end", f"end {name}", f"END {name}")]
    for first, last in WORDS_OF_END:
        for before, after in ((first, last), (first.upper(), last.upper()), (first.title(), last.title())):
            if before in bare:
                closings.append(bare.replace(before, after))
    return tuple(dict.fromkeys(closings))


def name_marker(opening: str) -> str:
    """Return the name of a block as messages show it, without attributes."""
    return re.sub(r"^(<[|｜]?[^\s<>!]+)\s[^<>]*>$", r"\1>", opening).strip()


def find_spans(text: str, names: frozenset[str]) -> list[Span]:
    """Return the blocks of some names in a text, without overlap. A block between two marks has priority over a label."""
    marked = list(find_marked(text, names, frozenset()))
    labelled = list(find_labelled(text, names)) if any(not is_marked(name) for name in names) else []
    separate = [span for span in labelled if not any(overlap(span, other) for other in marked)]
    return sorted([*marked, *separate], key=start_of)


def overlap(one: Span, other: Span) -> bool:
    return one.start < other.stop and other.start < one.stop


def start_of(span: Span) -> int:
    return span.start


def is_marked(name: str) -> bool:
    """Return whether a block has a mark at its end, unlike a label."""
    return name[:1] in "<>[{`~-=*#" or name.endswith((": ```", ": ~~~"))


def find_marked(text: str, names: frozenset[str] | None, skipped: frozenset[str]) -> Iterator[Span]:
    """Yield blocks between two marks: tags, other brackets, and fences with a label."""
    if not any(sign in text for sign in ("<", "[", "{", "```", "~~~", "---", "===", "***", "##")):
        return
    place = 0
    while mark := MARKER.search(text, place):
        place = mark.end()
        if mark["fence"]:
            name = f"```{mark['label'].lower()}" if mark["label"] else PLAIN_FENCE
            end = re.compile(rf"^[ \t]*{re.escape(mark['fence'])}[ \t]*$", re.M).search(text, place)
            stop = end.end() if end else 0
        elif mark["bare"]:
            name = f"{mark['above']}: {mark['bare'][:3]}"
            end = re.compile(rf"^[ \t]*{re.escape(mark['bare'])}[ \t]*$", re.M).search(text, place)
            stop = end.end() if end else 0
        elif mark["arrows"]:
            name = mark[0]
            end = re.compile("^[<>]{3,}$", re.M).search(text, place)
            stop = end.end() if end else 0
        else:
            name = name_marker(mark[0])
            if MARKS.match(mark[0]):
                continue
            ends = [
                (at, at + len(closing)) for closing in list_closings(mark[0]) if (at := text.find(closing, place)) >= 0
            ]
            stop = min(ends, default=(0, 0))[1]
        is_wanted = name not in skipped if names is None else name in names
        if stop and is_wanted:
            yield Span(name, mark.start(), stop)
            place = stop


def find_labelled(text: str, names: frozenset[str] | None = None) -> Iterator[Span]:
    """Yield the text from each label at the start of a line up to the next label."""
    if ":" not in text and "]" not in text and "--" not in text and "==" not in text and "##" not in text:
        return
    marks = list(LABEL.finditer(text))
    starts = [mark.start() for mark in marks] + [len(text)]
    for mark, stop in zip(marks, starts[1:], strict=True):
        name = mark["name"]
        if names is None or name in names:
            yield Span(name, mark.start(), stop)


def find_blocks(texts: Sequence[str], meanings: dict[str, str]) -> BlockForms:
    """Return the blocks of responses by what a sample of their texts has in common.

    `meanings` has blocks whose origin the user gave: "read" or "written", by name, without the marks around it.
    """
    texts = [text for text in texts if text.strip()]
    if len(texts) > MAX_ROWS:
        texts = [texts[len(texts) * place // MAX_ROWS] for place in range(MAX_ROWS)]
    if not texts:
        return BlockForms()
    has_turns = any(TURN.search(text) for text in texts if may_have_turns(text))
    outside = (
        ["\n".join(part for is_turn, part in split_turns(text) if not is_turn) for text in texts]
        if has_turns
        else texts
    )
    origins: dict[str, Origin] = {}
    shares: dict[str, float] = {}
    written: frozenset[str] = frozenset()
    for _ in range(3):  # a block that the policy wrote may contain others
        found = classify(outside, written, meanings)
        origins |= {name: origin for name, (origin, _) in found.items()}
        shares |= {name: share for name, (_, share) in found.items()}
        before, written = written, frozenset(name for name, origin in origins.items() if origin == "written")
        if written == before:
            break
    unknown = sorted((name for name, origin in origins.items() if origin == "unknown"), key=lambda name: -shares[name])
    for name in unknown[MAX_BLOCKS:]:
        origins[name] = "written"
    return BlockForms(origins, shares, has_turns)


def may_have_turns(text: str) -> bool:
    return "<" in text or "ssistant" in text or "ASSISTANT" in text


def classify(
    texts: Sequence[str], written: frozenset[str], meanings: dict[str, str]
) -> dict[str, tuple[Origin, float]]:
    """Return the origin of each block that is usual enough, and the share of responses that have it."""
    found: dict[str, tuple[Origin, float]] = {}
    for find in (partial(find_marked, names=None, skipped=written), find_labelled):
        usage: defaultdict[str, Usage] = defaultdict(Usage)
        for text in texts:
            count_spans(text, list(find(text)), usage)
        marked = {bare_name(name) for name in found}
        for name, use in usage.items():
            if not is_marked(name) and name.lower() in marked:
                continue  # the mark at the beginning of a block, which has one at its end too
            if name not in written and (origin := use.origin_of(name, len(texts), meanings)):
                found[name] = (origin, use.responses / len(texts))
    return found


@dataclass
class Usage:
    """How responses use a block."""

    number: int = 0  # occurrences
    responses: int = 0  # responses with it
    begins: int = 0  # responses that begin with it
    ends: int = 0
    in_rows: int = 0  # occurrences directly after another one, as of steps that are numbered

    def origin_of(self, name: str, num_responses: int, meanings: dict[str, str]) -> Origin | None:
        """Return who wrote the block; None if it is too rare to be a channel of its own."""
        meaning = meanings.get(bare_name(name))
        if meaning in ("read", "written"):
            return "read" if meaning == "read" else "written"
        if self.responses < MIN_SHARE * num_responses:
            return None
        is_first = self.begins >= USUAL_BEGIN * self.responses
        is_last = self.ends >= USUAL_END * self.responses and self.number < 1.5 * self.responses
        further = self.number - self.responses
        is_enumeration = further >= 0.3 * self.responses and self.in_rows >= 0.5 * further  # a result follows an action
        return "written" if is_first or is_last or is_enumeration or is_program(name) else "unknown"


def count_spans(text: str, spans: Sequence[Span], usage: defaultdict[str, Usage]) -> None:
    """Add the blocks of one response to the usage of each."""
    for span in spans:
        usage[span.name].number += 1
    for before, after in pairwise(spans):
        usage[after.name].in_rows += before.name == after.name and not text[before.stop : after.start].strip()
    for name in {span.name for span in spans}:
        usage[name].responses += 1
    if spans and not text[: spans[0].start].strip():
        usage[spans[0].name].begins += 1
    if spans and not text[spans[-1].stop :].strip():
        usage[spans[-1].name].ends += 1


def bare_name(name: str) -> str:
    """Return the name of a block without the marks around it, as the flag --means takes it."""
    return name.strip("<>[]{}|｜`~-=*#!: ").lower()


@cache
def is_program(name: str) -> bool:
    """Return whether a fence has the label of a programming language: no tool marks its result so."""
    if not name.startswith("```") or name == PLAIN_FENCE:
        return False
    try:
        lexer = find_lexer_class_by_name(name[3:])
    except ClassNotFound:
        return False
    is_session = any(
        word in f"{lexer.name} {lexer.__name__}".lower()
        for word in ("output", "text", "session", "traceback", "console")
    )
    is_data = any(
        mimetype.startswith(("application/json", "text/xml", "application/xml")) for mimetype in lexer.mimetypes
    )
    return not is_session and not is_data

"""Blocks inside the text of a response, found by their form, and who wrote them.

A block is a part of a text that is marked: by a pair of tags, by a fence, by labels at the start of lines, or by the headers of
chat roles. No list of names decides what a block is. Text under the header of another role was read. The policy wrote every
block that begins or ends most responses, because a result of a tool can do neither, and every block that follows itself, because
a result follows an action. The origin of all other blocks is unknown: the audit computes its verdict with and without them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
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
MIN_NAMED = 0.01  # the same of a block whose name is usual for text that was read
USUALLY_READ = re.compile(
    r"(?:tool|function|search|code|python|interpreter|env|environment|api|retriev)\w*[_ -]?(?:response|result|output)s?"
    r"|observations?"
    r"|information|interpreter|documents?|passages?|results?|outputs?|retrieved\w*|feedback|stdout|context",
    re.I,
)
"""Names under which tools give their results. They lead to a question only: no name decides what the policy wrote."""
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
    rf"|(?P<other>\[\[{NAME}\]\]|\[{NAME}\]|\{{\{{?{NAME}\}}\}}?|<<{NAME}>>|^[-=*#~]{{2,}} ?{NAME}?[ -=*#~]*$)",
    re.M,
)
LABEL = re.compile(
    r"^[ \t]*(?:(?P<heading>#{1,6} ?)|[-=*~>]{0,5} ?)\[?(?P<name>[A-Za-z]\w*(?: [A-Za-z]\w*){0,2})(?: ?\d{1,3})?"
    r"(?:\]|:|\*\*:|:\*\*| ?[-=*#~]{3,}$|(?(heading)$|(?!)))",
    re.M,
)
"""A label at the start of a line, with a number or without: `Observation 2:`, `[Result]`, `=== Output ===`, `## Output`."""
PAIRABLE = re.compile(r"<[|｜][^\s<>|｜]{1,40}[|｜]>|<<[^<>\n]{1,40}>>|\[\[[^\[\]\n]{1,40}\]\]|<!-- ?[^<>\n]{1,40}-->")
"""A mark in the form of a special token, which another mark may close whatever its name is."""
MIN_PAIRED = 0.95  # share of occurrences of a mark that one other mark follows, from which on that closes it
NUMBERED = re.compile(r"\d{1,3}\W*$")
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
    pairs: dict[str, str] = field(default_factory=dict)  # marks to the mark that closes each, by their order in texts
    lines: frozenset[str] = frozenset()  # labels whose block is one line, because text follows that no label begins

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
            for span in find_spans(part, self.separated, self.pairs, self.lines) if self.separated else ():
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


def find_spans(text: str, names: frozenset[str], pairs: dict[str, str], lines: frozenset[str]) -> list[Span]:
    """Return the blocks of some names in a text, without overlap. A block between two marks has priority over a label."""
    marked = list(find_marked(text, names, frozenset(), pairs))
    labelled = list(find_labelled(text, names, lines)) if any(not is_marked(name) for name in names) else []
    separate = [span for span in labelled if not any(overlap(span, other) for other in marked)]
    return sorted([*marked, *separate], key=start_of)


def overlap(one: Span, other: Span) -> bool:
    return one.start < other.stop and other.start < one.stop


def start_of(span: Span) -> int:
    return span.start


def is_marked(name: str) -> bool:
    """Return whether a block has a mark at its end, unlike a label."""
    return name[:1] in "<>[{`~-=*#" or name.endswith((": ```", ": ~~~"))


def find_marked(
    text: str, names: frozenset[str] | None, skipped: frozenset[str], pairs: dict[str, str]
) -> Iterator[Span]:
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
            closings = [*list_closings(mark[0]), *([pairs[name]] if name in pairs else [])]
            ends = [(at, at + len(closing)) for closing in closings if (at := text.find(closing, place)) >= 0]
            stop = min(ends, default=(0, 0))[1]
        is_wanted = name not in skipped if names is None else name in names
        if stop and is_wanted:
            yield Span(name, mark.start(), stop)
            place = stop


def find_labelled(
    text: str, names: frozenset[str] | None = None, lines: frozenset[str] = frozenset()
) -> Iterator[Span]:
    """Yield the text from each label at the start of a line up to the next label, or to the end of the line for `lines`."""
    if ":" not in text and "]" not in text and "--" not in text and "==" not in text and "##" not in text:
        return
    marks = list(LABEL.finditer(text))
    starts = [mark.start() for mark in marks] + [len(text)]
    for mark, stop in zip(marks, starts[1:], strict=True):
        name = mark["name"]
        if names is None or name in names:
            end = text.find("\n", mark.end()) if name in lines else -1
            yield Span(name, mark.start(), end if 0 <= end < stop else stop)


def find_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return marks in the form of special tokens to the mark that closes them: the one that always comes next.

    A mark that closes one and opens another, as headers of channels do, closes none.
    """
    followers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    leaders: defaultdict[str, Counter[str]] = defaultdict(Counter)
    numbers: Counter[str] = Counter()
    for text in texts:
        marks = [mark[0] for mark in PAIRABLE.finditer(text) if not MARKS.match(text, mark.start())]
        numbers.update(marks)
        for before, after in pairwise(marks):
            followers[before][after] += 1
            leaders[after][before] += 1
    pairs = dict[str, str]()
    for opening, after in followers.items():
        closing, number = after.most_common(1)[0]
        is_after = number >= MIN_PAIRED * numbers[opening]
        is_only_after = leaders[closing][opening] >= MIN_PAIRED * numbers[closing]
        if opening != closing and is_after and is_only_after:
            pairs[opening] = closing
    return {
        opening: closing
        for opening, closing in pairs.items()
        if not {opening} & {*pairs.values()} and closing not in pairs
    }


def find_lines(texts: Sequence[str]) -> frozenset[str]:
    """Return the labels without numbers after whose line other text follows, in most places where a block may end there."""
    followed, numbers = Counter[str](), Counter[str]()
    for text in texts:
        for span in find_labelled(text):
            block = text[span.start : span.stop].strip("\n")
            first, _, rest = block.partition("\n")
            label = first.partition(":")[0]
            has_text = bool(first.partition(":")[2].strip()) and not NUMBERED.search(label)
            numbers[span.name] += 1
            followed[span.name] += has_text and bool(rest.strip())
    return frozenset(name for name, number in numbers.items() if followed[name] > 0.5 * number)


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
    pairs = find_pairs(outside)
    lines: frozenset[str] = frozenset()
    for _ in range(3):  # a block that the policy wrote may contain others
        found = classify(outside, written, meanings, pairs, frozenset())
        origins |= {name: origin for name, (origin, _) in found.items()}
        shares |= {name: share for name, (_, share) in found.items()}
        before, written = written, frozenset(name for name, origin in origins.items() if origin == "written")
        if written == before:
            break
    if recurring := frozenset(name for name in written if not is_marked(name)) & find_lines(outside):
        by_line = classify(outside, written - recurring, meanings, pairs, recurring)
        lines = frozenset(name for name in recurring if by_line.get(name, ("", 0.0))[0] == "unknown")
        origins |= dict.fromkeys(lines, "unknown")
    unknown = sorted((name for name, origin in origins.items() if origin == "unknown"), key=lambda name: -shares[name])
    for name in unknown[MAX_BLOCKS:]:
        origins[name] = "written"
    return BlockForms(origins, shares, has_turns, pairs, lines)


def may_have_turns(text: str) -> bool:
    return "<" in text or "ssistant" in text or "ASSISTANT" in text


def classify(
    texts: Sequence[str],
    written: frozenset[str],
    meanings: dict[str, str],
    pairs: dict[str, str],
    lines: frozenset[str],
) -> dict[str, tuple[Origin, float]]:
    """Return the origin of each block that is usual enough, and the share of responses that have it."""
    found: dict[str, tuple[Origin, float]] = {}
    find_all_marked = partial(find_marked, names=None, skipped=written, pairs=pairs)
    for find in (find_all_marked, partial(find_labelled, lines=lines)):
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
        is_named = bool(USUALLY_READ.fullmatch(bare_name(name)))
        if self.responses < (MIN_NAMED if is_named else MIN_SHARE) * num_responses:
            return None
        if is_named:
            return "unknown"
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

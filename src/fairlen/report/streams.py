"""EqLen's streams as pictures: a line for each track, from where it was forked to where it ended, and on it what was compared."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from fairlen.report.figure import percent, plain
from fairlen.report.run import Piece, Shown
from fairlen.report.sections import ENDS

LANE, TOP = 34, 26  # pixels between tracks, and above the first one
PLOT = Markup(
    '<div class="stream-plot"><svg width="100%" height="{height}" role="group" '
    'aria-label="stream of {number} tracks; each piece leads to its text">{shapes}</svg></div>'
)
LINE = Markup('<line x1="{begin}" x2="{end}" y1="{top}" y2="{bottom}" class="{kind}"/>')
LINK = Markup(
    '<g class="c-{tone} {kind}"><a href="#r{track.number}" data-track="{track.number}" {span}aria-label="{words}">'
    "<title>{words}</title>{shape}</a></g>"
)
SPAN = Markup('data-from="{start}" data-to="{stop}" ')
BAR = Markup('<rect x="{x}" width="{width}" y="{y}" height="10" rx="2"/>')
VALUE = Markup('<text x="{x}" y="{y}" class="value">{text}</text>')
ENDINGS = {
    "correct": Markup('<circle cx="{x}" cy="{y}" r="6"/>'),
    **dict.fromkeys(("incorrect", "ungraded"), Markup('<circle cx="{x}" cy="{y}" r="5" class="ring"/>')),
    "truncated": Markup('<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" class="cut-mark"/>'),
}
NAME = Markup('<text x="{x}" dx="12" y="{base}" class="end-name">{text}</text>')


@dataclass(frozen=True)
class Stream:
    tracks: list[Shown]
    picture: Markup

    @property
    def rounds(self) -> int:
        return len(self.tracks) - 1

    @property
    def correct(self) -> int:
        return sum(track.correct for track in self.tracks)

    @property
    def ending(self) -> str:
        one, other = sorted(self.tracks, key=lambda t: (t.length, t.truncated))[-2:]
        words = ENDS[one.truncated + other.truncated if one.length == other.length else 3][1]
        if self.rounds - 1 in {piece.round for track in self.tracks for piece in track.pieces}:
            return words
        return f"{words}; no pair in its last round{'' if other.truncated else ', as both wrote the same'}"


def gather_streams(sample: list[Shown]) -> list[Stream]:
    groups = (list(tracks) for _, tracks in groupby(sample, lambda shown: (shown.prompt, shown.stream)))
    return [Stream(tracks, draw_stream(tracks)) for tracks in groups]


def find_parents(tracks: list[Shown]) -> dict[int, Shown]:
    survivors = {p.round: track for track in tracks for p in track.pieces if p.role == "survivor"}
    return {t.track: survivors[t.round - 1] for t in tracks if t.inherited and t.round - 1 in survivors}


def draw_stream(tracks: list[Shown]) -> Markup:
    longest, parents = max(t.length for t in tracks), find_parents(tracks)
    level = {t.track: TOP + LANE * i for i, t in enumerate(tracks)}
    trunk = [level[t.track] for t in tracks if not t.inherited]
    shapes = [LINE.format(begin=0, end=0, top=trunk[0], bottom=trunk[-1], kind="fork")] if trunk else []
    for track in tracks:
        at, y = percent(track.inherited / longest), level[track.track]
        if track.track in parents:
            top = level[parents[track.track].track]
            shapes.append(LINE.format(begin=at, end=at, top=top, bottom=y, kind="fork"))
        shapes.append(LINE.format(begin=at, end=percent(track.length / longest), top=y, bottom=y, kind="track"))
    for track in tracks:
        shapes += [draw_piece(track, piece, level[track.track], longest) for piece in track.pieces]
        shapes.append(draw_end(track, level[track.track], longest))
    return PLOT.format(height=TOP - 10 + LANE * len(tracks), number=len(tracks), shapes=Markup("").join(shapes))


def draw_end(track: Shown, y: int, longest: int) -> Markup:
    x = percent(track.length / longest)
    words = f"track {track.track}: {track.status}, {track.length} tokens, {track.finish}"
    shape = ENDINGS[track.kind].format(x=x, y=y, top=y - 8, bottom=y + 8)
    shape += NAME.format(x=x, base=y + 4, text=track.kind)
    tone = "correct" if track.correct else "incorrect"
    return LINK.format(tone=tone, kind="end-mark", track=track, span="", words=words, shape=shape)


def draw_piece(track: Shown, piece: Piece, y: int, longest: int) -> Markup:
    tone = "correct" if piece.advantage > 0 else "incorrect" if piece.advantage < 0 else "muted"
    words = (
        f"track {track.track}, round {piece.round}, {piece.role}, tokens {piece.start} to {piece.stop}: "
        f"value {plain(piece.value)}, advantage {piece.advantage:+.2f}"
    )
    begin, width = piece.start / longest, (piece.stop - piece.start) / longest
    shape = BAR.format(x=percent(begin), width=percent(width), y=y - 5)
    if width > 0.16:
        text = f"{plain(piece.value)} | {piece.advantage:+.2f}" if piece.advantage else plain(piece.value)
        shape += VALUE.format(x=percent(begin + width / 2), y=y - 9, text=text)
    span = SPAN.format(start=piece.start, stop=piece.stop)
    return LINK.format(tone=tone, kind=f"piece {piece.role}", track=track, span=span, words=words, shape=shape)

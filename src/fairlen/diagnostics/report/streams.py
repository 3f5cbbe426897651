"""EqLen's streams as pictures: a line for each track, from where it was forked to where it ended, and on it what was compared."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from fairlen.diagnostics.report.chart import percent, plain, tag
from fairlen.diagnostics.report.sample import Piece, Shown
from fairlen.sampling.stream_metrics import ENDINGS

LANE = 34
TOP = 16
WORDS = dict(
    zip(ENDINGS, ("ended in a tie", "one track truncated", "both tracks truncated", "limit of rounds"), strict=True)
)


@dataclass(frozen=True)
class Stream:
    """The tracks of one stream, as shown."""

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
        """How it ended, in words."""
        last = sorted(self.tracks, key=lambda t: (t.length, t.truncated))[-2:]
        together = len(last) == 2 and last[0].length == last[1].length
        return WORDS[ENDINGS[sum(t.truncated for t in last) if together else 3]]


def gather_streams(sample: list[Shown]) -> list[Stream]:
    """The streams of a sample that is in order."""
    groups = (list(tracks) for _, tracks in groupby(sample, lambda shown: (shown.prompt, shown.stream)))
    return [Stream(tracks, draw_stream(tracks)) for tracks in groups]


def find_parents(tracks: list[Shown]) -> dict[int, Shown]:
    """What each fork continues: the survivor of the round before it."""
    survivors = {p.round: track for track in tracks for p in track.pieces if p.role == "survivor"}
    return {t.track: survivors[t.round - 1] for t in tracks if t.inherited and t.round - 1 in survivors}


def draw_stream(tracks: list[Shown]) -> Markup:
    """The trunk and its branches; every piece is a link to the text it is a part of."""
    longest, parents = max(t.length for t in tracks), find_parents(tracks)
    height = TOP + LANE * len(tracks)
    levels = {t.track: TOP + LANE * i + 10 for i, t in enumerate(tracks)}
    shapes: list[Markup] = []
    for track in tracks:
        parent = parents.get(track.track)
        if parent is not None:
            at = percent(track.inherited / longest)
            shapes.append(tag("line", x1=at, x2=at, y1=levels[parent.track], y2=levels[track.track], class_="fork"))
    for track in tracks:
        shapes += draw_track(track, levels[track.track], longest)
    trunk = [t for t in tracks if not t.inherited]
    if len(trunk) > 1:
        shapes.insert(0, tag("line", x1=0, x2=0, y1=levels[trunk[0].track], y2=levels[trunk[-1].track], class_="fork"))
    label = f"stream of {len(tracks)} tracks; each piece leads to its text"
    svg = tag("svg", *shapes, width="100%", height=height, role="group", aria_label=label)
    return tag("div", svg, class_="stream-plot")


def draw_track(track: Shown, y: int, longest: int) -> list[Markup]:
    """The line, its pieces and its end."""
    found = [
        tag(
            "line",
            x1=percent(track.inherited / longest),
            x2=percent(track.length / longest),
            y1=y,
            y2=y,
            class_="track",
        )
    ]
    found += [
        draw_piece(track, piece, y, longest) for piece in track.pieces if piece.start >= track.inherited or piece.role
    ]
    end, title = (
        percent(track.length / longest),
        f"track {track.track}: {track.status}, {track.length} tokens, {track.finish}",
    )
    shape = tag("circle", cx=end, cy=y, r=6) if track.kind == "correct" else draw_cross(end, y, track.truncated)
    words = tag("text", track.kind, x=end, dx=12, y=y + 4, class_="end-name")
    link = tag(
        "a", tag("title", title), shape, words, href=f"#r{track.number}", data_track=track.number, aria_label=title
    )
    return [*found, tag("g", link, class_=f"c-{'correct' if track.correct else 'incorrect'} end-mark")]


def draw_cross(at: str, y: int, is_truncated: bool) -> Markup:
    """A bar for a track that was truncated, a ring for an incorrect end."""
    if is_truncated:
        return tag("line", x1=at, x2=at, y1=y - 8, y2=y + 8, class_="cut-mark")
    return tag("circle", cx=at, cy=y, r=5, class_="ring")


def draw_piece(track: Shown, piece: Piece, y: int, longest: int) -> Markup:
    """A bar in the colour of its advantage, with its value."""
    tone = "correct" if piece.advantage > 0 else "incorrect" if piece.advantage < 0 else "muted"
    words = (
        f"track {track.track}, round {piece.round}, {piece.role}, tokens {piece.start} to {piece.stop}: "
        f"value {plain(piece.value)}, advantage {piece.advantage:+.2f}"
    )
    begin, width = piece.start / longest, (piece.stop - piece.start) / longest
    bar = tag("rect", x=percent(begin), width=percent(width), y=y - 5, height=10, rx=2)
    parts = [tag("title", words), bar]
    if width > 0.16:
        text = f"{plain(piece.value)} | {piece.advantage:+.2f}" if piece.advantage else plain(piece.value)
        parts.append(tag("text", text, x=percent(begin + width / 2), y=y - 9, class_="worth"))
    link = tag("a", *parts, href=f"#r{track.number}", data_track=track.number, data_from=piece.start, data_to=piece.stop,
               aria_label=words)  # fmt: skip
    return tag("g", link, class_=f"c-{tone} piece {piece.role}")

"""The picture of docs/architecture.md: the rooms of src/fairlen, and an arrow from each to the rooms that it imports.

python docs/draw_rooms.py            # writes docs/rooms.svg
python docs/draw_rooms.py --check    # fails where the file differs

A room is a package with all that is in it. Modules beside the packages are rooms of their own, but for those that import no
package, which are one. An arrow is left out where other arrows lead to the same room.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fairlen"
PICTURE = ROOT / "docs" / "rooms.svg"
FOUNDATION = "foundation"
"""The room of the modules that import no package."""
PUBLIC = "import fairlen"
"""`fairlen/__init__.py`, the names of `import fairlen`."""
BOX, HEIGHT, GAP, ROW, HEAD, MARGIN = 132, 44, 22, 88, 8, 12
"""Width and height of a box, space beside it, distance of two layers, length of an arrow's head, margin: pixels."""
LETTER = 6.2
"""Width of a small letter, pixels, rounded up."""
PULL = 0.8
"""Where a room stands, of the mean of its neighbours' distances from the middle: below 1, so that the picture is narrow."""
LABEL = (
    "Rooms of src/fairlen, from the command line at the top to the foundation; an arrow leads to what a room imports."
)
STYLE = (
    "text{font:600 15px system-ui,sans-serif;fill:#222;text-anchor:middle}.s{font-size:12px;font-weight:400;fill:#555}"
    "rect{fill:#e6f3f2;stroke:#00798c}path{fill:none;stroke:#777;stroke-width:1.4}.h{fill:#777;stroke:none}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.s{fill:#bbb}rect{fill:#17363b;stroke:#4fb3bf}"
    "path{stroke:#aaa}.h{fill:#aaa;stroke:none}}"
)
Graph = dict[str, set[str]]
"""Of each room or module, those that it imports."""


def room_of(name: str) -> str:
    """Return the first name below fairlen of a module: a package or a module beside the packages."""
    first = name.split(".")[1] if "." in name else PUBLIC
    return "cli" if first == "__main__" else first


def find_imports(path: Path) -> Iterator[str]:
    """Yield every room whose module a file imports, in functions and for type checking too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fairlen":
            yield from (name if is_room(name) else PUBLIC for name in (alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairlen."):
            yield room_of(str(node.module))
        elif isinstance(node, ast.Import):
            yield from (room_of(alias.name) for alias in node.names if alias.name.split(".")[0] == "fairlen")


def is_room(name: str) -> bool:
    """Return whether fairlen has a package or a module of this name."""
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()


def read_rooms() -> tuple[Graph, list[str]]:
    """Return the rooms with their imports, and the modules that are the foundation."""
    graph: Graph = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        room = room_of(".".join(("fairlen", *parts)).removesuffix(".__init__"))
        graph.setdefault(room, set()).update(set(find_imports(path)) - {room})
    modules = {room for room in graph if not (SOURCE / room).is_dir()} - {PUBLIC, "cli"}
    while above := {module for module in modules if graph[module] - modules}:
        modules -= above
    rooms = {FOUNDATION: set[str]()} | {room: graph[room] for room in graph if room not in modules}
    merged = {
        room: {FOUNDATION if there in modules else there for there in found} - {room} for room, found in rooms.items()
    }
    return merged, sorted(modules)


def reduce_arrows(graph: Graph) -> Graph:
    """Return the graph without arrows to rooms that other arrows lead to."""
    reached: Graph = {}
    for room in TopologicalSorter(graph).static_order():
        reached[room] = set(graph[room]).union(*(reached[there] for there in graph[room]))
    return {room: found - set().union(*(reached[there] for there in found)) for room, found in graph.items()}


def find_layers(graph: Graph) -> dict[str, int]:
    """Return the layer of each room, 0 at the bottom: one above the highest room that it imports."""
    layers: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        layers[room] = 1 + max((layers[there] for there in graph[room]), default=-1)
    for room in graph.keys() - {FOUNDATION}:  # what imports nothing stands just below what imports it
        if not graph[room]:
            layers[room] = min((layers[other] - 1 for other in graph if room in graph[other]), default=0)
    return dict(sorted(layers.items()))


def find_ways(graph: Graph, layers: dict[str, int]) -> list[list[str]]:
    """Return of each arrow its rooms, and between them a point in every layer that it crosses; from the top."""
    return [
        [room, *(f"{room} {layer} {there}" for layer in range(layers[room] - 1, layers[there], -1)), there]
        for room in sorted(graph)
        for there in sorted(graph[room])
    ]


def sort_layers(ways: list[list[str]], layers: dict[str, int]) -> list[list[str]]:
    """Return rooms and points by layer, in an order with few crossings: by the mean place of their neighbours, in sweeps."""
    rows: list[list[str]] = [[] for _ in range(max(layers.values()) + 1)]
    for room, layer in layers.items():
        rows[layer].append(room)
    for way in ways:
        for step, point in enumerate(way[1:-1], 1):
            rows[layers[way[0]] - step].append(point)
    best = rows
    for sweep in range(40):
        place = {point: k - len(row) / 2 for row in rows for k, point in enumerate(row)}
        near = find_neighbours(ways, side=sweep % 2)
        rows = [list(row) for row in rows]
        for row in rows if sweep % 2 else reversed(rows):
            means = {point: mean([place[one] for one in near.get(point, [])] or [place[point]]) for point in row}
            row.sort(key=means.__getitem__)
            place |= {point: k - len(row) / 2 for k, point in enumerate(row)}
        best = min(best, rows, key=lambda found: count_crossings(ways, found))
    return best


def find_neighbours(ways: list[list[str]], side: int) -> dict[str, list[str]]:
    """Return of each point those just above it (side 0) or below it (side 1) on its arrows."""
    near: dict[str, list[str]] = {}
    for way in ways:
        for pair in pairwise(way):
            near.setdefault(pair[1 - side], []).append(pair[side])
    return near


def count_crossings(ways: list[list[str]], rows: list[list[str]]) -> int:
    """Return how often two arrows cross."""
    place = {point: (layer, k) for layer, row in enumerate(rows) for k, point in enumerate(row)}
    steps = [(place[upper], place[lower]) for way in ways for upper, lower in pairwise(way)]
    return sum(
        (one[0][1] - two[0][1]) * (one[1][1] - two[1][1]) < 0
        for k, one in enumerate(steps)
        for two in steps[:k]
        if one[0][0] == two[0][0]
    )


def place_points(ways: list[list[str]], rows: list[list[str]], rooms: Graph) -> dict[str, tuple[float, float]]:
    """Return where the middle of each room and point is, in pixels: near its neighbours, in the order of its layer."""
    width = {point: BOX if point in rooms else GAP for row in rows for point in row}
    x = {point: k * (BOX + GAP) - len(row) * (BOX + GAP) / 2 for row in rows for k, point in enumerate(row)}
    both = [find_neighbours(ways, side) for side in (0, 1)]
    for _ in range(60):
        for row in rows:
            wanted = [PULL * mean([x[one] for near in both for one in near.get(point, [])] or [0.0]) for point in row]
            rights, lefts = list(wanted), list(wanted)
            for k in range(1, len(row)):
                rights[k] = max(rights[k], rights[k - 1] + (width[row[k - 1]] + width[row[k]]) / 2 + GAP)
            for k in reversed(range(len(row) - 1)):
                lefts[k] = min(lefts[k], lefts[k + 1] - (width[row[k + 1]] + width[row[k]]) / 2 - GAP)
            x |= {point: (left + right) / 2 for point, left, right in zip(row, lefts, rights, strict=True)}
    left = min(x[point] - width[point] / 2 for point in x)
    return {
        point: (x[point] - left + MARGIN, MARGIN + HEIGHT / 2 + (len(rows) - 1 - layer) * ROW)
        for layer, row in enumerate(rows)
        for point in row
    }


def draw_way(way: list[str], places: dict[str, tuple[float, float]]) -> str:
    """Return an arrow from a room's lower edge to another's upper edge."""
    (x, y), (end, low) = places[way[0]], places[way[-1]]
    path = f"M{x:.0f},{y + HEIGHT / 2:.0f}"
    for above, below in pairwise(places[point] for point in way):
        (x, y), (end, low) = above, (below[0], below[1] - HEIGHT / 2)
        low -= HEAD if below == places[way[-1]] else 0
        middle = (y + HEIGHT / 2 + low) / 2
        path += f" V{y + HEIGHT / 2:.0f} C{x:.0f},{middle:.0f} {end:.0f},{middle:.0f} {end:.0f},{low:.0f}"
    return f'<path d="{path}"/><path class="h" d="M{end:.0f},{low + HEAD:.0f} l-4,-{HEAD} h8 z"/>'


def draw_room(room: str, x: float, y: float, inside: list[str]) -> Iterator[str]:
    """Yield a box with the room's name, and below it what is inside."""
    names = ", ".join(inside)
    width = max(BOX, LETTER * len(names) + MARGIN)
    yield f'<rect x="{x - width / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{width:.0f}" height="{HEIGHT}" rx="6"/>'
    yield f'<text x="{x:.0f}" y="{y + (-2 if inside else 5):.0f}">{room}</text>'
    if inside:
        yield f'<text class="s" x="{x:.0f}" y="{y + 15:.0f}">{names}</text>'


def draw() -> str:
    """Return the picture as SVG."""
    graph, foundation = read_rooms()
    graph = reduce_arrows(graph)
    layers = find_layers(graph)
    ways = find_ways(graph, layers)
    places = place_points(ways, sort_layers(ways, layers), graph)
    lines = [draw_way(way, places) for way in ways]
    for room in sorted(graph):
        packages = sorted(path.parent.name for path in (SOURCE / room).glob("*/__init__.py"))
        lines += draw_room(room, *places[room], foundation if room == FOUNDATION else packages)
    width = max(x for x, _ in places.values()) + BOX / 2 + MARGIN
    height = max(y for _, y in places.values()) + HEIGHT / 2 + MARGIN
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{LABEL}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *lines, "</svg>", ""])


def main() -> int:
    """Write the picture, or compare it with the file."""
    parser = argparse.ArgumentParser(description="Draw docs/rooms.svg.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file differs")
    only_check = parser.parse_args().check
    try:
        drawn = draw()
    except CycleError as error:
        print(f"rooms import each other in a circle: {' -> '.join(error.args[1])}", file=sys.stderr)
        return 1
    if not only_check:
        PICTURE.write_text(drawn, encoding="utf-8")
        print(f"wrote {PICTURE}")
    elif not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != drawn:
        print(f"{PICTURE} is not what src/fairlen imports: python docs/draw_rooms.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m research.real.recompute DIR`: values of DIR/figures.json again, from the run's Parquet tables alone and by other
routes: from definitions, with nothing of fairlen or of figures.py. It prints by how much each figure differs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

AGREE = 3e-5
"""Difference, relative above 1, that six digits and the last bits of sums leave."""
Rows = list[dict[str, Any]]
Found = Iterator[tuple[str, Any]]
Numbers = np.ndarray


def read(out: Path, kind: str) -> Rows:
    """Return the responses of a kind, prompts numbered through the files."""
    found, first = Rows(), 0
    for path in sorted((out / kind).glob("responses-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            right, cut = row["status"] == "correct", row["finish"] == "length"
            found.append(row | {"prompt": row["prompt"] + first, "right": right, "cut": cut})
        first = found[-1]["prompt"] + 1
    return found


def column(out: Path, name: str, of: str) -> Numbers:
    return np.array(
        [one for path in sorted((out / name).glob("*.parquet")) for one in pq.read_table(path)[of].to_pylist()]
    )


def group(rows: Rows, *names: str) -> list[Rows]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)

    return [list(part) for _, part in groupby(sorted(rows, key=key), key)]


def of(rows: Rows, name: str) -> Numbers:
    return np.array([row[name] for row in rows], float)


class Recomputed:
    """Values of all figures, by the names of their rows; of `kept` the edges of bins are read, and nothing else."""

    def __init__(self, out: Path, kept: dict[str, Rows]) -> None:
        self.out, self.kept, self.about = out, kept, json.loads((out / "about.json").read_text())
        self.rows, self.streams = read(out, "independent"), group(read(out, "streams"), "prompt", "stream")
        for stream in self.streams:
            stream.sort(key=lambda row: (row["length"], row["cut"]))  # as they ended

    def drawing(self) -> Found:
        sizes, tried = self.about["sizes"], group(read(self.out, "filter"), "prompt")
        solved = [of(rows, "right").mean() for rows in tried]
        yield "problems tried", len(solved)
        yield (
            "correct in the filter",
            np.mean([s for s in solved if sizes["low"] <= s <= sizes["high"]][: sizes["prompts"]]),
        )
        yield from (("correct", of(self.rows, "right").mean()), ("truncated", of(self.rows, "cut").mean()))
        yield "length", of(self.rows, "length").mean()

    def stopping(self) -> Found:
        """By counts at every token, and a line through zeros and ones."""
        for low, high in {(row["from"], row["to"]) for row in self.kept["stopping"] if "from" in row}:
            here = [row for row in self.rows if low <= row["length"] <= high and not row["cut"]]
            at_risk = sum((of(self.rows, "length") >= token).sum() for token in range(low, high + 1))
            yield from (
                (f"{low} {high} stops", len(here) / at_risk),
                (f"{low} {high} correct", of(here, "right").mean()),
            )
        x = np.concatenate([np.arange(row["length"]) for row in self.rows])
        y = np.concatenate([np.eye(row["length"])[-1] * (not row["cut"]) for row in self.rows])
        yield "slope", np.polyfit(x - x.mean(), y, 1)[0] * of(self.rows, "length").mean() / y.mean()

    def pair_cost(self) -> Found:
        """Two tracks run until a stream ends, at its longest response. Every end but the last makes a pair, but two truncated
        tracks and two equal ones make none."""
        last = [(ends[-2], ends[-1]) for ends in self.streams]
        rounds = sum(len(ends) - 1 for ends in self.streams)
        pairs = rounds - sum(a["cut"] or a["token_ids"] == b["token_ids"] for a, b in last)
        for name, number in (("pair", pairs), ("round", rounds)):
            yield f"tokens a {name}", sum(b["length"] for _, b in last) / number / of(self.rows, "length").mean()
            yield f"{name}s a stream", number / len(last)

    def eos_advantage(self) -> Found:
        """By the recursion from the end of each stream, V = (direct + V) / 2; what is truncated is worth nothing."""
        spread, gaps = of(self.rows, "outcome").std(), list[tuple[float, float, float, float]]()
        for ends in self.streams:
            worth, half = of(ends, "outcome") * ~of(ends, "cut").astype(bool), 0.0
            for place in range(len(ends) - 1, -1, -1):
                is_last, later = place == len(ends) - 2, worth[place + 1 :]
                if len(later) and not (is_last and ends[-1]["cut"] == ends[-2]["cut"]):
                    gaps.append((0.5**place, *(worth[place] - np.array([later.max(), later.mean(), half]))))
                half = (worth[place] + half) / 2 if len(later) else worth[place]
        mass, best, mean, halves = np.array(gaps).T
        for name, gap in (("max", best), ("mean", mean), ("halving", halves), ("max less halving", best - halves)):
            yield name, gap.mean() / spread
        yield "unbiased", mass @ halves / mass.sum() / spread

    def penalised_prefixes(self) -> Found:
        """By incorrect ends: each has as many prefixes as ended before it; those before the last correct one led there too."""
        wrong = both = 0
        for ends in self.streams:
            right = np.flatnonzero(of(ends, "right")).max(initial=0)
            for place in np.flatnonzero(1 - of(ends, "right")):
                wrong, both = wrong + min(place, len(ends) - 2), both + min(place, len(ends) - 2, right)
        yield "of penalised prefixes", both / wrong if wrong else np.nan

    def length_gap(self) -> Found:
        gaps = []
        for rows in group(self.rows, "prompt"):
            length, right = of(rows, "length"), of(rows, "right") == 1
            gap = (
                (length[~right].mean() - length[right].mean()) / length.mean()
                if 0 < right.sum() < len(rows)
                else np.nan
            )
            gaps.append(100 * gap)
        yield from (("percent", np.nanmean(gaps)), ("prompts with both verdicts", np.isfinite(gaps).mean()))

    def directions(self) -> Found:
        """By sums of the sketches themselves."""
        sketches = column(self.out, "gradients", "sketch").astype(float)
        limit, groups = self.about["max_response_length"], group(self.rows[: len(sketches)], "prompt")
        weights = [list(weights_of(rows, limit)) for rows in groups]
        loo, *sums = (np.concatenate(one) @ sketches for one in zip(*weights, strict=True))
        names = ("grpo", "dapo", "dr_grpo", "dapo+balanced", "grpo+vl_norm")
        found = {name: v @ loo / np.sqrt((v @ v) * (loo @ loo)) for name, v in zip(names, sums, strict=True)}
        yield from found.items()
        yield from ((f"{one} less {other}", found[one] - found[other]) for one, other in permutations(found, 2))

    def bands(self) -> Found:
        rows = [place for place, row in enumerate(self.rows) if row["prompt"] >= self.about["sizes"]["chunk"]]
        before, after = (column(self.out, name, "logprob")[rows] for name in ("before", "after"))
        held = [self.rows[place] for place in rows]
        length, moved = of(held, "length"), after - before
        short, bin = np.expm1(moved / length), bins_of(length)
        far = {
            "rloo": np.abs(np.expm1(moved)),
            "gspo": np.where(short > 0, short / 4, -short / 3),
            "fspo_v3": moved**2 / length,
        }
        number = -(-len(rows) * 4 // 5)
        errors = {rule: crossed(bin, one <= np.sort(one)[number - 1], of(held, "prompt")) for rule, one in far.items()}
        yield from errors.items()
        yield from ((f"fspo_v3 less {clip}", errors["fspo_v3"] - errors[clip]) for clip in ("rloo", "gspo"))
        yield from (("accepted", (far["fspo_v3"] <= 0.03**2).mean()), ("moved", moved.mean()))
        middle, spread = (
            [f(one[bin == b]) for b in range(max(bin) + 1)] for f, one in ((np.mean, length), (np.std, moved))
        )
        yield "exponent", np.polyfit(np.log(middle), np.log(spread), 1)[0] if len(middle) > 1 else np.nan
        yield "rounding", (before - [sum(row["logprobs"]) for row in held]).std() / moved.std()

    def choice(self) -> Found:
        """A fifth of the prompts, rounded up, by accuracy; ties by the hash that the method has."""
        prompts = sorted(group(self.rows, "prompt"), key=lambda rows: (-of(rows, "right").mean(), tie(rows)))
        number = -(-len(prompts) // 5)
        chosen = [row for rows in prompts[:number] if of(rows, "right").any() for row in rows]
        for name, one in (("length", "length"), ("correct", "right")):
            yield f"{name} over all", of(chosen, one).mean() / of(self.rows, one).mean()


def weights_of(rows: Rows, limit: int) -> Iterator[Numbers]:
    """Yield the weights of a prompt's responses, but for factors that all prompts share: leave-one-out, GRPO, DAPO, Dr. GRPO,
    DAPO balanced, VL Norm."""
    r, length = of(rows, "outcome"), of(rows, "length")
    yield r - (r.sum() - r) / (len(r) - 1)
    yield standard(r) / length
    a = standard(r - np.clip((length / limit - 0.8) / 0.2, 0, 1)) * (len(set(of(rows, "right"))) == 2)
    yield a / length.sum()
    yield r - r.mean()
    size, up = np.abs(a), a > 0
    yield (
        a
        * np.where(up, size[up].sum(), size[~up].sum())
        / np.where(up, (size * length)[up].sum() or 1, (size * length)[~up].sum() or 1)
    )
    yield standard(r) * length**-0.75


def standard(r: Numbers) -> Numbers:
    return (r - r.mean()) / (r.std() or 1.0)


def bins_of(length: Numbers) -> Numbers:
    """Return 8 quantile bins of at least 30: each ends at the first length at which it has its share of what is left."""
    found, left, begun = np.zeros(len(length), int), max(1, min(8, len(length) // 30)), 0
    for value in sorted(set(length)):
        reached = (length <= value).sum()
        if left > 1 and reached - begun >= max((len(length) - begun) / left, 30) and len(length) - reached >= 30:
            found, left, begun = found + (length > value), left - 1, reached
    return found


def crossed(bin: Numbers, inside: Numbers, prompt: Numbers) -> float:
    """Return LRE with the sign of a bin's distance from one half of the prompts and its size from the other, both ways round and
    less half of what halving the halves loses, over three pairings of quarters and sixteen ways to part prompts."""
    number, found = max(bin) + 1, []
    if number < 2:
        return np.nan

    def cross(one: Numbers, other: Numbers) -> float:
        shares = [
            np.bincount(bin[half], minlength=number) / half.sum() for half in (one & inside, one, other & inside, other)
        ]
        a, b = shares[0] - shares[1], shares[2] - shares[3]
        return (np.sign(a) @ b + np.sign(b) @ a) / 4

    for salt in range(1, 17):
        of_prompt = np.array([scramble(int(one) + (salt << 32)) & 3 for one in prompt])
        a, b, c, d = (of_prompt == quarter for quarter in range(4))
        for w, x, y, z in ((a, b, c, d), (a, c, b, d), (a, d, b, c)):
            found.append(2 * cross(w | x, y | z) - (cross(w, x) + cross(y, z)) / 2)
    return float(np.mean([one for one in found if np.isfinite(one)]))


def scramble(number: int) -> int:
    """Return splitmix64's hash."""
    mixed = number * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


def tie(rows: Rows) -> int:
    """Return the hash of a prompt's lengths and verdicts."""
    key, length = 0, of(rows, "length")
    for total in (length.sum(), (length**2).sum(), length @ of(rows, "right")):
        key = (key ^ int(total)) * 0x9E3779B97F4A7C15 % 2**64
        key ^= key >> 29
    return key


def compare(out: Path) -> dict[str, float]:
    """Return the largest difference of each figure; inf where a row is on one side alone, or has no number there."""
    kept = json.loads((out / "figures.json").read_text(encoding="utf-8"))
    again, found = Recomputed(out, kept), dict[str, float]()
    for name, rows in kept.items():
        made, differences = dict(getattr(again, name)()), [0.0]
        for row in rows:
            label = " ".join(str(value) for key, value in row.items() if key not in ("value", "low", "high", "prompts"))
            one, other = np.array([row["value"], made.get(label, np.inf)], float)
            same = one == other or np.isnan([one, other]).all()
            differences.append(0.0 if same else np.nan_to_num(abs(one - other) / max(abs(one), 1.0), nan=np.inf))
        found[name] = float(max(differences))
    return found


def main() -> None:
    """Print one line a figure, and end with 1 where one differs."""
    found = compare(Path(sys.argv[1]))
    for name, largest in found.items():
        print(f"{name}: largest difference {largest:.1e}{'' if largest <= AGREE else ': NOT THE SAME'}")
    sys.exit(max(found.values()) > AGREE)


if __name__ == "__main__":
    main()

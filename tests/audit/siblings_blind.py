"""Logs of invented trainers, each with a known truth, to test how an audit reads a log.

Every sibling belongs to a kind (R1 to R17) of situation in which a log is easy to misread.
The names, nesting and file formats are invented. They come from no existing trainer.

The lengths and verdicts are drawn with random numbers that depend only on the sibling's name.
A draw is repeated until its statistics within prompts agree with the truth.
Without that, one null in twenty would look like an effect by chance.

Run `python siblings_blind.py FOLDER` to write all logs, one subfolder per sibling.
"""

import csv
import datetime
import functools
import json
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TRUTHS = {
    # The only right verdict is an effect with longer incorrect responses.
    "effect longer": ("effect longer",),
    # The only right verdict is an effect with shorter incorrect responses.
    "effect shorter": ("effect shorter",),
    # A true effect that the log shows only to a reader who knows more than the log records.
    "effect longer or unknown": ("effect longer", "unknown"),
    # Nothing is planted. An effect in either direction is wrong.
    "none or unknown": ("none", "unknown"),
    # The log does not hold the lengths. Every other verdict is wrong.
    "unknown": ("unknown",),
}
"""Right verdicts for each truth; all others are wrong.

A question is always right: a refusal or an `unknown` that names a flag.
The flag, set to the answer in `Sibling.after`, must then lead to one of the verdicts listed here.
"""


ANSWERS = {
    "step column": "Column whose values are the steps, as a path of keys.",
    "step boundary": "Row with which a new step or run begins; no column holds the step.",
    "step": "Files or folders that are the steps.",
    "policy column": "Column whose values are the policies.",
    "policy": "Files that are the policies.",
    "prompt column": "Column that identifies the prompt.",
    "prompt": "Files that are the prompts.",
    "response column": "Column of the response's text or ids.",
    "trajectory column": "Column that the rows of one trajectory share.",
    "lines": "Meaning of a line, if it is not one response.",
    "verdict column": "Column that decides whether a response is correct.",
    "correct value": "Value of the verdict column that means correct.",
    "verdict": "Rule for the verdict, if a column alone does not decide.",
    "length column": "Column of the length, or how to compute the length from it.",
    "length": "Source of the length, if it is not a column.",
    "written by the policy": "Parts of a response that count.",
    "not written by the policy": "Parts of a response that were read and do not count.",
    "truncated": "Rows that ended at the limit of generation.",
    "failed": "Rows that hold no response of the policy.",
}
"""Keys of `Sibling.after`, with the question that each answers.

An answer that starts with "none" means that the log has no such column or row.
"""


@dataclass(frozen=True)
class Sibling:
    """A log with a known truth.

    Attributes:
        kind: Kind of situation, "R1" to "R17".
        name: Name of the sibling, unique within its kind.
        write: Function that writes the log into an empty folder.
        truth: Key of `TRUTHS`.
        why: Reason for the truth, and the reading that would be wrong.
        unit: Unit of length in which the truth holds; "auto" means any unit the log offers.
        after: Answers of a user who is asked, in words; the keys are those of `ANSWERS`.
    """

    kind: str
    name: str
    write: Callable[[Path], None]
    truth: str
    why: str
    unit: str = "auto"
    after: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the sibling's folder."""
        return f"{self.kind}_{self.name}"


REGISTERED: list[Sibling] = []


def sibling(kind: str, truth: str, why: str, unit: str = "auto", after: dict | None = None):
    """Register the decorated function as the writer of a sibling with the function's name."""
    if truth not in TRUTHS:
        raise ValueError(f"truth is {truth!r}; choose one of {', '.join(TRUTHS)}")

    def register(writer):
        name = writer.__name__
        write = functools.partial(writer, seed=f"{kind}_{name}")
        REGISTERED.append(Sibling(kind, name, write, truth, why, unit, after or {}))
        return writer

    return register


# Texts


def word_list(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


ENGLISH = word_list(
    "so we take the sum of both sides and divide by two which gives a value that must be checked "
    "again now let me see if the next term is larger or smaller than before because order matters"
)
GERMAN = word_list(
    "also nehmen wir die Summe beider Seiten und teilen durch zwei das ergibt einen Wert den wir "
    "noch einmal pruefen nun sehen wir ob der naechste Term kleiner ist als zuvor weil es zaehlt"
)
SPANISH = word_list(
    "entonces tomamos la suma de ambos lados y dividimos por dos lo que da un valor que revisamos "
    "otra vez ahora veamos si el siguiente es mayor o menor que antes porque el orden importa aqui"
)
CODE = word_list(
    "for i in range n : total = total + items i if total > limit : break else : print total "
    "return total def solve n : rows = list n while rows : rows pop"
)

TEMPLATES = {
    "en": "Problem {q}: a shelf holds {a} boxes of {b} screws. How many screws is that?",
    "de": "Aufgabe {q}: In {a} Kisten liegen je {b} Schrauben. Wie viele sind das?",
    "es": "Ejercicio {q}: hay {a} cajas con {b} tornillos cada una. Cuantos tornillos hay?",
    "code": "Task {q}: write a program that reads {a} rows of {b} numbers and prints their sum.",
}


def question(number: int, language: str = "en") -> str:
    """Return the text of a prompt; different numbers give different prompts."""
    return TEMPLATES[language].format(q=number, a=number % 83 + 13, b=number % 7 + 2)


def generator(seed: str) -> np.random.Generator:
    """Return random numbers that depend only on the seed's text."""
    return np.random.default_rng(zlib.crc32(seed.encode()))


def prose(rng: np.random.Generator, number: int, vocabulary: list[str] = ENGLISH) -> str:
    """Return `number` random words, with a full stop or a line break now and then."""
    words = [vocabulary[i] for i in rng.integers(0, len(vocabulary), max(int(number), 1)).tolist()]
    if vocabulary is CODE:
        for i in range(7, len(words), 8):
            words[i] += "\n"
    else:
        for i in range(11, len(words), 12):
            words[i] += "."
    return " ".join(words)


def solution(rng: np.random.Generator, number: int, correct: bool, q: int, vocabulary) -> str:
    """Return a response of `number` words that ends with a result of two digits."""
    right = 10 + q % 90
    result = right if correct else 10 + (q + int(rng.integers(1, 90))) % 90
    return f"{prose(rng, number - 2, vocabulary)} Result: {result}."


# Draws


@dataclass
class Rollout:
    """A drawn response.

    Attributes:
        q: Number of the prompt.
        k: Number of the response among those to the same prompt in the same stage.
        stage: Number of the step, policy or dataset that the response belongs to.
        ok: Whether the response is correct.
        n: Number of words that the policy wrote.
        level: Typical number of words for the prompt in this stage.
        cut: Whether the response ends at the limit of generation.
        text: Text of the response, of `n` words.
    """

    q: int
    k: int
    stage: int
    ok: bool
    n: int
    level: float
    cut: bool = False
    text: str = ""


def contrast(group: Iterable, value: Iterable, correct: Iterable) -> tuple[float, float]:
    """Return the mean difference within groups, incorrect minus correct, and its t statistic."""
    _, group = np.unique(np.asarray(list(group)), return_inverse=True)
    value = np.asarray(list(value), dtype=float)
    wrong = 1.0 - np.asarray(list(correct), dtype=float)
    size = np.bincount(group)
    value = value - (np.bincount(group, value) / size)[group]
    wrong = wrong - (np.bincount(group, wrong) / size)[group]
    slope = (value * wrong).sum() / (wrong**2).sum()
    freedom = len(value) - len(size) - 1
    error = np.sqrt(((value - slope * wrong) ** 2).sum() / freedom / (wrong**2).sum())
    return slope, slope / error


def agrees(rows: list[Rollout], factor: float) -> bool:
    """Return whether the rows show the planted factor within prompt and stage.

    For a null, three statistics must be small: the log length, its rank, and its distance from
    the prompt's median.
    """
    group = np.asarray([row.stage * 100_000 + row.q for row in rows])
    logs = np.log([row.n for row in rows])
    correct = np.asarray([row.ok for row in rows])
    slope, t = contrast(group, logs, correct)
    if factor != 1.0:
        return abs(slope - np.log(factor)) < 0.06 and abs(t) > 6
    if abs(t) > 0.7:
        return False
    ranks = np.empty(len(rows))
    distances = np.empty(len(rows))
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        ranks[members] = logs[members].argsort().argsort()
        distances[members] = abs(logs[members] - np.median(logs[members]))
    small_rank = abs(contrast(group, ranks, correct)[1]) < 0.9
    return small_rank and abs(contrast(group, distances, correct)[1]) < 0.9


def search(seed: str, make: Callable, accept: Callable) -> list:
    """Return the first draw of `make(rng)` that `accept` agrees with."""
    for attempt in range(2_000):
        rows = make(generator(f"{seed}/{attempt}"))
        if accept(rows):
            return rows
    raise RuntimeError(f"{seed}: no draw agrees with the truth")


def draw(
    seed: str,
    factor: float = 1.5,
    prompts: int = 100,
    samples: int = 8,
    base: float = 60.0,
    hardness: float = 0.0,
    stages: tuple[tuple[float, float], ...] | None = None,
    limit: int = 0,
    words: list[str] = ENGLISH,
) -> list[Rollout]:
    """Return responses to prompts of different accuracy and typical length.

    Args:
        seed: Text that fixes the random numbers.
        factor: Length of incorrect responses relative to correct ones to the same prompt.
        prompts: Number of prompts.
        samples: Number of responses to a prompt in each stage.
        base: Typical number of words.
        hardness: How much longer hard prompts are answered; negative means shorter.
        stages: Typical length and mean accuracy of each stage. Each prompt occurs in all stages.
        limit: Limit of generation in words; longer responses are cut and incorrect; 0 means none.
        words: Vocabulary of the texts.
    """
    plan = stages or ((base, 0.5),)

    def make(rng):
        spread = 0.4 if hardness else 0.25
        offset = rng.uniform(-spread, spread, prompts)
        level = np.exp(rng.normal(0, 0.3, prompts) - hardness * offset)
        rows = []
        for stage, (typical, accuracy) in enumerate(plan):
            chance = np.clip(accuracy + (offset if not stages else offset / 2), 0.05, 0.95)
            correct = rng.random((prompts, samples)) < chance[:, None]
            lengths = typical * level[:, None] * np.exp(rng.normal(0, 0.35, (prompts, samples)))
            lengths = np.where(correct, lengths, factor * lengths).astype(int) + 6
            for q in range(prompts):
                for k in range(samples):
                    row = Rollout(q, k, stage, bool(correct[q, k]), int(lengths[q, k]), 0.0)
                    row.level = float(typical * level[q]) + 6
                    if limit and row.n >= limit:
                        row.n, row.ok, row.cut = limit, False, True
                    rows.append(row)
        return rows

    rows = search(seed, make, lambda rows: agrees([row for row in rows if not row.cut], factor))
    rng = generator(f"{seed}/texts")
    for row in rows:
        if row.cut:
            row.text = prose(rng, row.n, words)
        else:
            row.text = solution(rng, row.n, row.ok, row.q, words)
    return rows


RISING = ((40.0, 0.3), (120.0, 0.7))
"""Length and accuracy rise together: pooled, incorrect responses look shorter."""

FALLING = ((120.0, 0.3), (40.0, 0.7))
"""Length falls while accuracy rises: pooled, incorrect responses look longer."""


def shuffled(rows: list, seed: str) -> list:
    """Return the rows in random order."""
    return [rows[i] for i in generator(f"{seed}/order").permutation(len(rows))]


def tokens(number: int) -> int:
    """Return the number of tokens of so many words, as a tokenizer would count them."""
    return round(1.3 * number)


def blocks_of(rows: list, size: int) -> list[list]:
    """Return the rows in blocks of `size`."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


# Files


def write_jsonl(path: Path, rows: Iterable) -> None:
    """Write one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def write_json(path: Path, value) -> None:
    """Write one JSON document."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def write_csv(path: Path, rows: Iterable[dict], delimiter: str = ",") -> None:
    """Write a table with a header."""
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Iterable[dict]) -> None:
    """Write a Parquet table; types follow from the values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


def load(folder: Path) -> list[dict]:
    """Return the rows of all files; the key "@file" holds each row's relative path."""
    rows = []
    for path in sorted(folder.rglob("*")):
        name = {"@file": str(path.relative_to(folder))}
        if path.suffix == ".jsonl":
            content = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        elif path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            content = content if isinstance(content, list) else [content]
        elif path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                header = file.readline()
                file.seek(0)
                delimiter = ";" if header.count(";") > header.count(",") else ","
                content = list(csv.DictReader(file, delimiter=delimiter))
        elif path.suffix == ".parquet":
            content = pq.ParquetFile(path).read().to_pylist()
        else:
            continue
        rows.extend({**row, **name} for row in content)
    return rows


# R1: step not known


@sibling(
    "R1",
    "none or unknown",
    "Nothing within a tick. Length and accuracy rise over the ticks, so pooled prompts mislead.",
    after={"step column": "meta.tick"},
)
def tick_in_meta(folder, seed):
    rows = draw(seed, 1.0, prompts=60, stages=RISING)
    rows.sort(key=lambda row: (row.stage, row.q // 10))
    write_jsonl(
        folder / "harvest.jsonl",
        (
            {
                "inp": question(row.q),
                "out": row.text,
                "gain": float(row.ok),
                "meta": {"tick": 6 * row.stage + row.q // 10, "node": f"n{row.k % 3}"},
            }
            for row in rows
        ),
    )


@sibling(
    "R1",
    "none or unknown",
    "The step is only a fingerprint of the weights, which has no order. Nothing within a step.",
    after={"step column": "gewichte"},
)
def weights_fingerprint(folder, seed):
    stages = ((120.0, 0.3), (85.0, 0.45), (60.0, 0.6), (40.0, 0.75))
    rows = shuffled(draw(seed, 1.0, prompts=40, stages=stages, words=GERMAN), seed)
    names = ("c09e41", "1fa77b", "e3d208", "5b6c90")
    write_csv(
        folder / "proben.csv",
        (
            {
                "gewichte": names[row.stage],
                "frage": question(row.q, "de"),
                "antwort": row.text,
                "punkte": int(row.ok),
            }
            for row in rows
        ),
        delimiter=";",
    )


@sibling(
    "R1",
    "none or unknown",
    "No column holds the step. The order of the rows does: two passes over the prompts.",
    after={"step boundary": "row 480"},
)
def order_of_rows_only(folder, seed):
    rows = draw(seed, 1.0, prompts=60, stages=RISING)
    ordered = shuffled(rows, seed)
    ordered.sort(key=lambda row: row.stage)
    write_jsonl(
        folder / "samples.jsonl",
        ({"query": question(row.q), "reply": row.text, "rew": int(row.ok)} for row in ordered),
    )


@sibling(
    "R1",
    "none or unknown",
    "A second run was appended to the log. The clock shows a gap of nine hours between the runs.",
    after={"step boundary": "row 400"},
)
def second_run_appended(folder, seed):
    rows = draw(seed, 1.0, prompts=50, stages=FALLING)
    start = datetime.datetime(2026, 3, 14, 5, 10)
    records = []
    for number, row in enumerate(rows):
        clock = start + datetime.timedelta(seconds=4 * number, hours=9 * row.stage)
        records.append(
            {
                "ts": clock.isoformat(),
                "userText": question(row.q),
                "botText": row.text,
                "solved": row.ok,
            }
        )
    write_jsonl(folder / "trainlog.jsonl", records)


@sibling(
    "R1",
    "none or unknown",
    "Each file holds one step, and only the file's name tells when it was written.",
    after={"step": "one per file"},
)
def clock_in_file_name(folder, seed):
    stages = ((40.0, 0.25), (60.0, 0.4), (85.0, 0.55), (120.0, 0.7))
    rows = draw(seed, 1.0, prompts=36, stages=stages)
    for stage in range(4):
        write_jsonl(
            folder / f"gen-20260314T{stage + 5:02}17Z.jsonl",
            (
                {
                    "task_text": question(row.q),
                    "gen": row.text,
                    "r": float(row.ok),
                }
                for row in rows
                if row.stage == stage
            ),
        )


@sibling(
    "R1",
    "none or unknown",
    "The step is a partition of the folder (`schritt=0040`), as data lakes write it.",
    after={"step": "schritt=..."},
)
def partition_folders(folder, seed):
    rows = draw(seed, 1.0, prompts=60, stages=FALLING, words=GERMAN)
    for stage in range(2):
        part = [row for row in rows if row.stage == stage]
        write_parquet(
            folder / f"schritt={40 * stage + 40:04}" / "part-0.parquet",
            (
                {
                    "eingabe": question(row.q, "de"),
                    "ausgabe": row.text,
                    "lohn": float(row.ok),
                }
                for row in part
            ),
        )


@sibling(
    "R1",
    "none or unknown",
    "A JSON document whose rows hold the pass over the data two levels deep.",
    after={"step column": "lauf.stand.runde"},
)
def pass_two_levels_deep(folder, seed):
    rows = shuffled(draw(seed, 1.0, prompts=60, stages=FALLING, words=GERMAN), seed)
    write_json(
        folder / "export.json",
        [
            {
                "lauf": {"id": "k7", "stand": {"runde": row.stage + 1}},
                "auftrag": question(row.q, "de"),
                "text": row.text,
                "richtig": row.ok,
            }
            for row in rows
        ],
    )


@sibling(
    "R1",
    "effect longer",
    "Within `optIter` incorrect responses are longer. Pooled over it the effect cancels.",
    after={"step column": "optIter"},
)
def effect_that_steps_cancel(folder, seed):
    rows = draw(seed, 1.5, prompts=60, stages=((40.0, 0.3), (112.0, 0.7)))
    write_jsonl(
        folder / "episodes.jsonl",
        (
            {
                "optIter": 250 * (row.stage + 1),
                "promptText": question(row.q),
                "modelText": row.text,
                "isRight": int(row.ok),
            }
            for row in shuffled(rows, seed)
        ),
    )


@sibling(
    "R1",
    "effect longer",
    "`packSlot` is the width of the batch that a response was packed into: a consequence of its "
    "length. Comparing only within it erases the effect.",
    after={"step column": "none: all rows are of one step"},
)
def slot_chosen_by_length(folder, seed):
    rows = draw(seed, 1.5)
    rows.sort(key=lambda row: -(-row.n // 16))
    write_jsonl(
        folder / "packed.jsonl",
        (
            {
                "packSlot": 16 * -(-row.n // 16),
                "question": question(row.q),
                "generation": row.text,
                "reward": float(row.ok),
            }
            for row in rows
        ),
    )


@sibling(
    "R1",
    "effect longer or unknown",
    "One step whose rows are in the order in which they ended, so short responses come first. "
    "The position is a consequence of the length.",
    after={"step column": "none: all rows are of one step"},
)
def short_responses_end_first(folder, seed):
    rows = draw(seed, 1.5)
    rows.sort(key=lambda row: row.n)
    write_jsonl(
        folder / "async_sink.jsonl",
        (
            {
                "ask": question(row.q),
                "said": row.text,
                "score": int(row.ok),
                "worker": row.k,
            }
            for row in rows
        ),
    )


# R2: lists of numbers and lengths


@sibling(
    "R2",
    "effect longer",
    "`tok_per_turn` lists the tokens of two turns. Its number of elements is always two.",
    after={"length column": "sum of tok_per_turn"},
)
def tokens_of_two_turns(folder, seed):
    records = []
    for row in draw(seed, 1.5):
        total = tokens(row.n)
        records.append(
            {
                "goal": question(row.q),
                "tok_per_turn": [total - total // 3, total // 3],
                "win": row.ok,
            }
        )
    write_jsonl(folder / "turns.jsonl", records)


@sibling(
    "R2",
    "effect longer",
    "`outIds` holds two lists of ids, before and after the tool. Both are the response.",
    after={"length column": "all ids in outIds"},
)
def two_lists_of_ids(folder, seed):
    rng = generator(f"{seed}/ids")
    records = []
    for row in draw(seed, 1.5):
        ids = rng.integers(5, 32_000, row.n).tolist()
        records.append(
            {
                "inText": question(row.q),
                "outIds": [ids[: row.n // 2], ids[row.n // 2 :]],
                "signal": {"hit": int(row.ok)},
            }
        )
    write_jsonl(folder / "ids.jsonl", records)


@sibling(
    "R2",
    "effect longer",
    "A flat list of ids: its number of elements is the length. Incorrect responses repeat small "
    "ids, so the sum of the ids is smaller although the response is longer.",
    after={"length column": "number of elements of completion"},
)
def flat_ids_of_loops(folder, seed):
    rng = generator(f"{seed}/ids")
    records = []
    for row in draw(seed, 1.5):
        top = 50_000 if row.ok else 9_000
        records.append(
            {
                "gruppe": f"g{row.q:03}",
                "completion": rng.integers(5, top, row.n).tolist(),
                "treffer": row.ok,
            }
        )
    write_parquet(folder / "batch.parquet", records)


@sibling(
    "R2",
    "effect longer",
    "A CSV column holds the lengths of three turns as text, joined by `|`.",
    after={"length column": "sum of longueurs"},
)
def lengths_joined_in_csv(folder, seed):
    records = []
    for row in draw(seed, 1.5):
        total = tokens(row.n)
        parts = [total // 2, total // 4, total - total // 2 - total // 4]
        records.append(
            {
                "exercice": f"ex-{row.q}",
                "essai": row.k,
                "longueurs": "|".join(str(part) for part in parts),
                "juste": int(row.ok),
            }
        )
    write_csv(folder / "journal.csv", records)


@sibling(
    "R2",
    "none or unknown",
    "Each segment has an origin and a number of tokens. Only the segments of `pol` were written "
    "by the policy. Those of `env` are longer where the response is incorrect.",
    after={"not written by the policy": "segments with src env"},
)
def segments_of_two_origins(folder, seed):
    rng = generator(f"{seed}/segments")
    records = []
    for row in draw(seed, 1.0):
        seen = int(rng.integers(40, 80)) * (1 if row.ok else 3)
        own = tokens(row.n)
        records.append(
            {
                "problem": question(row.q),
                "segs": [
                    {"src": "pol", "ntok": own // 2},
                    {"src": "env", "ntok": seen},
                    {"src": "pol", "ntok": own - own // 2},
                ],
                "success": row.ok,
            }
        )
    write_jsonl(folder / "segments.jsonl", records)


@sibling(
    "R2",
    "effect longer",
    "The only trace of the response is the log-probability of each of its tokens.",
    after={"length column": "number of elements of stats.lp"},
)
def logprob_of_each_token(folder, seed):
    rng = generator(f"{seed}/logprobs")
    records = []
    for row in draw(seed, 1.5, prompts=80):
        values = (-rng.exponential(0.4, row.n)).round(3).tolist()
        records.append({"pid": row.q, "stats": {"lp": values, "kl": 0.01}, "outcome": int(row.ok)})
    write_jsonl(folder / "lp.jsonl", records)


@sibling(
    "R2",
    "effect longer",
    "All sequences are padded to 400 tokens. `lossMask` marks the tokens that the policy wrote.",
    after={"length column": "sum of lossMask"},
)
def padded_ids_with_mask(folder, seed):
    rng = generator(f"{seed}/ids")
    records = []
    for row in draw(seed, 1.5, prompts=70):
        asked, own = 20 + row.q % 9, min(row.n, 360)
        padding = 400 - asked - own
        ids = [*rng.integers(5, 9_000, asked + own).tolist(), *[0] * padding]
        records.append(
            {
                "itemNo": row.q,
                "tokenIds": ids,
                "lossMask": [0] * asked + [1] * own + [0] * padding,
                "passed": row.ok,
            }
        )
    write_parquet(folder / "padded.parquet", records)


@sibling(
    "R2",
    "effect longer",
    "Two calls of the policy per response, each with its usage. The `in` tokens were read.",
    after={"length column": "sum of usage.calls.out"},
)
def usage_of_each_call(folder, seed):
    rng = generator(f"{seed}/usage")
    records = []
    for row in draw(seed, 1.5):
        total = tokens(row.n)
        calls = [
            {"in": int(rng.integers(900, 1500)), "out": total // 2},
            {"in": int(rng.integers(1900, 4500)), "out": total - total // 2},
        ]
        records.append(
            {
                "case": question(row.q, "code"),
                "usage": {"calls": calls},
                "resolved": row.ok,
            }
        )
    write_json(folder / "usage.json", records)


# R3: tool calls of other shapes

REMARKS = ("Let me run this.", "I will try that.", "Now to the code.", "One more check.")


def remark(rng: np.random.Generator) -> str:
    """Return a short text that does not depend on the verdict."""
    return REMARKS[rng.integers(0, len(REMARKS))]


@sibling(
    "R3",
    "effect longer",
    "The code that the policy wrote is in `fn.payload`. The plain text has one length.",
    after={"written by the policy": "fn.payload"},
)
def payload_of_fn(folder, seed):
    rng = generator(f"{seed}/remarks")
    records = []
    for row in draw(seed, 1.5, words=CODE):
        chat = [
            {"role": "user", "content": question(row.q, "code")},
            {
                "role": "assistant",
                "content": remark(rng),
                "fn": {"title": "py3", "payload": row.text},
            },
            {"role": "tool", "content": str(rng.integers(10, 99))},
            {"role": "assistant", "content": f"It prints {rng.integers(10, 99)}."},
        ]
        records.append({"chat": chat, "reward": float(row.ok)})
    write_jsonl(folder / "toolchat.jsonl", records)


@sibling(
    "R3",
    "effect longer",
    "Messages consist of blocks with a `kind`. The block `invoke` holds the script in `stdin`.",
    after={"written by the policy": "blocks with kind invoke"},
)
def blocks_with_a_kind(folder, seed):
    rng = generator(f"{seed}/remarks")
    records = []
    for row in draw(seed, 1.5, words=CODE):
        own = [
            {"kind": "say", "body": remark(rng)},
            {"kind": "invoke", "tool": "shell", "stdin": row.text},
        ]
        seen = [{"kind": "outcome", "stdout": prose(rng, 12)}]
        last = [{"kind": "say", "body": f"Done: {rng.integers(10, 99)}."}]
        records.append(
            {
                "issue": question(row.q, "code"),
                "dialog": [
                    {"from": "agent", "blocks": own},
                    {"from": "machine", "blocks": seen},
                    {"from": "agent", "blocks": last},
                ],
                "fixed": row.ok,
            }
        )
    write_jsonl(folder / "dialogs.jsonl", records)


@sibling(
    "R3",
    "effect longer",
    "The row has a short `reply` and, next to it, the `actions` that the policy wrote.",
    after={"written by the policy": "reply and actions.script"},
)
def actions_next_to_reply(folder, seed):
    rng = generator(f"{seed}/remarks")
    records = []
    for row in draw(seed, 1.5, words=CODE):
        half = len(row.text) // 2
        records.append(
            {
                "instruction": question(row.q, "code"),
                "reply": f"{remark(rng)} The result is {rng.integers(10, 99)}.",
                "actions": [
                    {"cmd": "python", "script": row.text[:half]},
                    {"cmd": "python", "script": row.text[half:]},
                ],
                "reward": int(row.ok),
            }
        )
    write_jsonl(folder / "agent_rows.jsonl", records)


@sibling(
    "R3",
    "effect longer",
    "German keys: a message has `teile`, and a part may be an `aufruf` of a tool with its input.",
    after={"written by the policy": "aufruf.eingabe"},
)
def werkzeug_aufruf(folder, seed):
    rng = generator(f"{seed}/remarks")
    records = []
    for row in draw(seed, 1.5, words=GERMAN):
        call = {"aufruf": {"werkzeug": "rechner", "eingabe": {"term": row.text, "stellen": 2}}}
        records.append(
            {
                "verlauf": [
                    {"sprecher": "mensch", "teile": [{"text": question(row.q, "de")}]},
                    {"sprecher": "ki", "teile": [{"text": "Ich rechne nach."}, call]},
                    {"sprecher": "werkzeug", "teile": [{"text": str(rng.integers(10, 99))}]},
                    {"sprecher": "ki", "teile": [{"text": f"Es sind {rng.integers(10, 99)}."}]},
                ],
                "bewertung": {"korrekt": row.ok},
            }
        )
    write_json(folder / "verlaeufe.json", records)


@sibling(
    "R3",
    "effect longer",
    "The call is a Python expression in a text of its own, next to an empty content.",
    after={"written by the policy": "invocation"},
)
def call_as_expression(folder, seed):
    rng = generator(f"{seed}/remarks")
    records = []
    for row in draw(seed, 1.5, words=CODE):
        trail = [
            {"who": "model", "content": "", "invocation": f"python(code={row.text!r})"},
            {"who": "sandbox", "content": prose(rng, 10)},
            {"who": "model", "content": f"Final: {rng.integers(10, 99)}", "invocation": None},
        ]
        records.append({"prompt": question(row.q, "code"), "trail": trail, "acc": int(row.ok)})
    write_jsonl(folder / "trails.jsonl", records)


@sibling(
    "R3",
    "effect longer",
    "A Parquet file with the usual key `tool_calls`, but flat calls and structured arguments.",
    after={"written by the policy": "tool_calls.kwargs.source"},
)
def kwargs_in_parquet(folder, seed):
    rng = generator(f"{seed}/remarks")
    records = []
    for row in draw(seed, 1.5, words=CODE):
        call = {"tool": "interp", "kwargs": {"source": row.text, "timeout": 5}}
        records.append(
            {
                "prompt": [{"role": "user", "content": question(row.q, "code")}],
                "completion": [
                    {"role": "assistant", "content": remark(rng), "tool_calls": [call]},
                    {"role": "tool", "content": "ok", "tool_calls": []},
                    {"role": "assistant", "content": "That is the sum.", "tool_calls": []},
                ],
                "correct": row.ok,
            }
        )
    write_parquet(folder / "rollouts.parquet", records)


@sibling(
    "R3",
    "none or unknown",
    "A call holds its input and its output. The output was read, and it is longer where the "
    "response is incorrect. The input has no effect.",
    after={"not written by the policy": "calls.output"},
)
def output_inside_the_call(folder, seed):
    rng = generator(f"{seed}/outputs")
    records = []
    for row in draw(seed, 1.0, words=CODE):
        output = prose(rng, int(rng.integers(20, 40)) * (1 if row.ok else 4))
        records.append(
            {
                "prompt": question(row.q, "code"),
                "response": [
                    {
                        "role": "assistant",
                        "content": remark(rng),
                        "calls": [{"name": "python", "input": row.text, "output": output}],
                    }
                ],
                "score": float(row.ok),
            }
        )
    write_jsonl(folder / "calls.jsonl", records)


@sibling(
    "R3",
    "none or unknown",
    "A list of events. Thoughts and acts were written; observations were read, and there is more "
    "to read where the response is incorrect.",
    after={"not written by the policy": "events with ev obs"},
)
def events_with_observations(folder, seed):
    rng = generator(f"{seed}/events")
    records = []
    for row in draw(seed, 1.0):
        own = row.text.split()
        half = len(own) // 2
        seen = prose(rng, int(rng.integers(25, 50)) * (1 if row.ok else 3))
        events = [
            {"ev": "thought", "txt": " ".join(own[:half])},
            {"ev": "act", "name": "lookup", "args": {"q": f"page {rng.integers(10, 99)}"}},
            {"ev": "obs", "txt": seen},
            {"ev": "answer", "txt": " ".join(own[half:])},
        ]
        records.append({"quest": question(row.q), "events": events, "won": int(row.ok)})
    write_jsonl(folder / "events.jsonl", records)


@sibling(
    "R3",
    "effect longer",
    "The whole content of a message is a JSON text that the policy wrote: all of it counts, not "
    "only the part under `final`.",
    after={"written by the policy": "the whole content"},
)
def reply_is_json_text(folder, seed):
    rng = generator(f"{seed}/remarks")
    records = []
    for row in draw(seed, 1.5, words=SPANISH):
        content = {"plan": row.text, "tool": "none", "final": f"Son {rng.integers(10, 99)}."}
        records.append(
            {
                "entrada": question(row.q, "es"),
                "salida": json.dumps(content),
                "acierto": int(row.ok),
            }
        )
    write_csv(folder / "registro.csv", records)


# R4: text that was read


def with_reading(rng, row: Rollout, opening: str, closing: str, words: list[str]) -> str:
    """Return the response with 40 words read once if it is correct, three times if not."""
    own = row.text.split()
    times = 1 if row.ok else 3
    size = max(len(own) // (times + 1), 1)
    parts = []
    for turn in range(times):
        parts.append(" ".join(own[turn * size : (turn + 1) * size]))
        parts.append(opening + prose(rng, 40, words) + closing)
    parts.append(" ".join(own[times * size :]))
    return "\n".join(parts)


def write_reading(folder, seed, opening, closing, language="en", words=ENGLISH, keys=None):
    """Write a null whose responses contain text that the policy read."""
    prompt, response, verdict = keys or ("prompt", "response", "reward")
    rng = generator(f"{seed}/reading")
    rows = draw(seed, 1.0, prompts=120, words=words)
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                prompt: question(row.q, language),
                response: with_reading(rng, row, opening, closing, words),
                verdict: int(row.ok),
            }
            for row in rows
        ),
    )


READING = "The policy read more where it is incorrect. What it wrote has no effect."


@sibling("R4", "none or unknown", READING, after={"not written by the policy": "<probe> blocks"})
def probe_tags(folder, seed):
    write_reading(folder, seed, "<probe>", "</probe>")


@sibling(
    "R4",
    "none or unknown",
    READING,
    after={"not written by the policy": "[[TOOL OUTPUT]] to [[/TOOL OUTPUT]]"},
)
def double_brackets(folder, seed):
    write_reading(
        folder,
        seed,
        "[[TOOL OUTPUT]]\n",
        "\n[[/TOOL OUTPUT]]",
        keys=("in_text", "out_text", "is_ok"),
    )


@sibling(
    "R4",
    "none or unknown",
    READING,
    after={"not written by the policy": "fences with the label ausgabe"},
)
def fence_ausgabe(folder, seed):
    write_reading(
        folder,
        seed,
        "```ausgabe\n",
        "\n```",
        "de",
        GERMAN,
        ("aufgabe", "loesung", "richtig"),
    )


@sibling(
    "R4",
    "none or unknown",
    READING,
    after={"not written by the policy": "from ### Environment: to ### Agent:"},
)
def headers_of_roles(folder, seed):
    write_reading(folder, seed, "### Environment:\n", "\n### Agent:", keys=("obs0", "log", "R"))


@sibling(
    "R4",
    "none or unknown",
    READING,
    after={"not written by the policy": "from <|umgebung|> to <|ende|>"},
)
def markers_umgebung(folder, seed):
    write_reading(
        folder,
        seed,
        "<|umgebung|>",
        "<|ende|>",
        "de",
        GERMAN,
        ("prompt", "completion", "erfolg"),
    )


@sibling(
    "R4",
    "none or unknown",
    READING,
    after={"not written by the policy": "lines that start with Observacion:"},
)
def lines_observacion(folder, seed):
    write_reading(
        folder,
        seed,
        "Observacion: ",
        "",
        "es",
        SPANISH,
        ("pregunta", "respuesta", "acierto"),
    )


@sibling(
    "R4",
    "none or unknown",
    "Search hits with attributes in their opening tag. " + READING,
    after={"not written by the policy": "<hit ...> blocks"},
)
def hits_with_attributes(folder, seed):
    write_reading(
        folder,
        seed,
        '<hit rank="1" src="kb">',
        "</hit>",
        keys=("query", "rollout", "reward"),
    )


@sibling(
    "R4",
    "effect longer",
    "The policy itself writes a sketch in tags, and the sketch is longer where it is incorrect. "
    "Removing every tagged block erases the effect.",
    after={"written by the policy": "<skizze> blocks"},
)
def own_sketch_in_tags(folder, seed):
    rng = generator(f"{seed}/answers")
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": question(row.q, "de"),
                "response": f"<skizze>{row.text}</skizze>\nErgebnis: {rng.integers(10, 99)}",
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5, words=GERMAN)
        ),
    )


@sibling(
    "R4",
    "effect longer",
    "The policy writes programs in fences, and they are longer where they are incorrect. "
    "Removing every fence erases the effect.",
    after={"written by the policy": "```py3 fences"},
)
def own_program_in_fences(folder, seed):
    rng = generator(f"{seed}/remarks")
    write_jsonl(
        folder / "gens.jsonl",
        (
            {
                "spec": question(row.q, "code"),
                "gen": f"{remark(rng)}\n```py3\n{row.text}\n```\nThis should pass.",
                "unit_tests_green": row.ok,
            }
            for row in draw(seed, 1.5, words=CODE)
        ),
    )


# R5: counts named like verdicts, several score columns


def tests_passed(rng, row: Rollout, total: int) -> int:
    """Return the number of passed tests: all if the response is correct, some if not."""
    return total if row.ok else int(rng.integers(1, total))


@sibling(
    "R5",
    "effect longer",
    "`bestanden` counts passed tests of `gesamt`. Nearly all counts are above any threshold. "
    "`reward` has two values and decides.",
    after={"verdict column": "reward"},
)
def bestanden_of_gesamt(folder, seed):
    rng = generator(f"{seed}/tests")
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "aufgabe": question(row.q, "code"),
                "programm": row.text,
                "bestanden": tests_passed(rng, row, 8),
                "gesamt": 8,
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5, words=CODE)
        ),
    )


@sibling(
    "R5",
    "effect longer",
    "`accuracy` is a percentage of passed cases. `eval.isSolved` is the verdict.",
    after={"verdict column": "eval.isSolved"},
)
def percentage_next_to_solved(folder, seed):
    rng = generator(f"{seed}/tests")
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": question(row.q, "code"),
                "completion": row.text,
                "accuracy": 10.0 * tests_passed(rng, row, 10),
                "eval": {"isSolved": row.ok, "seconds": round(float(rng.uniform(1, 4)), 2)},
            }
            for row in draw(seed, 1.5, words=CODE)
        ),
    )


@sibling(
    "R5",
    "effect longer",
    "`correct` is a judge's belief that favours long texts. `outcome` is the verdict.",
    after={"verdict column": "outcome", "correct value": "WIN"},
)
def belief_named_correct(folder, seed):
    rng = generator(f"{seed}/belief")
    records = []
    for row in draw(seed, 1.5):
        belief = 0.5 + 0.6 * np.log(row.n / row.level) + 0.1 * row.ok + rng.normal(0, 0.1)
        records.append(
            {
                "topic": question(row.q),
                "essay": row.text,
                "correct": round(float(np.clip(belief, 0.01, 0.99)), 3),
                "outcome": "WIN" if row.ok else "LOSS",
            }
        )
    write_csv(folder / "arena.csv", records)


@sibling(
    "R5",
    "effect longer",
    "`ok` counts passed checks, of a number that differs by prompt. `verdict` has two values.",
    after={"verdict column": "verdict"},
)
def ok_is_a_count(folder, seed):
    rng = generator(f"{seed}/tests")
    write_parquet(
        folder / "checks.parquet",
        (
            {
                "spec_id": row.q,
                "source_text": row.text,
                "ok": tests_passed(rng, row, 3 + row.q % 9),
                "verdict": int(row.ok),
            }
            for row in draw(seed, 1.5, words=CODE)
        ),
    )


@sibling(
    "R5",
    "effect longer",
    "Two columns have two values. `wohlgeformt` is about the format and is more often true for "
    "long responses. `geloest` is about correctness.",
    after={"verdict column": "geloest"},
)
def format_flag_next_to_verdict(folder, seed):
    rng = generator(f"{seed}/format")
    records = []
    for row in draw(seed, 1.5, words=GERMAN):
        chance = 1 / (1 + np.exp(-3 * np.log(row.n / row.level / 1.2)))
        records.append(
            {
                "frage": question(row.q, "de"),
                "antwort": row.text,
                "wohlgeformt": int(rng.random() < chance),
                "geloest": int(row.ok),
            }
        )
    write_jsonl(folder / "antworten.jsonl", records)


@sibling(
    "R5",
    "none or unknown",
    "`rTotal` subtracts a penalty that grows with length, so a threshold on it makes long "
    "responses incorrect. `rParts.hit` is the verdict and has no effect.",
    after={"verdict column": "rParts.hit"},
)
def total_with_length_penalty(folder, seed):
    rng = generator(f"{seed}/parts")
    records = []
    for row in draw(seed, 1.0):
        style = round(float(rng.uniform(0, 0.4)), 3)
        penalty = round(0.008 * row.n, 3)
        records.append(
            {
                "p": question(row.q),
                "c": row.text,
                "rTotal": round(row.ok + style - penalty, 3),
                "rParts": {"hit": float(row.ok), "style": style, "pen": -penalty},
            }
        )
    write_jsonl(folder / "rewards.jsonl", records)


@sibling(
    "R5",
    "effect longer",
    "`note` is a German grade, and 1 is the best. `versetzt` is the verdict.",
    after={"verdict column": "versetzt"},
)
def grade_where_one_is_best(folder, seed):
    rng = generator(f"{seed}/grades")
    write_jsonl(
        folder / "zeugnis.jsonl",
        (
            {
                "thema": question(row.q, "de"),
                "aufsatz": row.text,
                "note": int(rng.integers(1, 4)) if row.ok else int(rng.integers(4, 7)),
                "versetzt": "ja" if row.ok else "nein",
            }
            for row in draw(seed, 1.5, words=GERMAN)
        ),
    )


@sibling(
    "R5",
    "effect longer",
    "`score` counts failed tests, so 0 is the best. `reward` is the verdict.",
    after={"verdict column": "reward"},
)
def score_counts_failures(folder, seed):
    rng = generator(f"{seed}/tests")
    write_jsonl(
        folder / "ci.jsonl",
        (
            {
                "ticket": question(row.q, "code"),
                "patch": row.text,
                "score": 0 if row.ok else int(rng.integers(1, 12)),
                "reward": int(row.ok),
            }
            for row in draw(seed, 1.5, words=CODE)
        ),
    )


# R6: lines that hold many prompts or responses

POOLED = "Hard prompts get long responses, so many prompts taken for one mislead."


@sibling(
    "R6",
    "none or unknown",
    "A line holds the 80 responses of a step, and its prompts are lists of messages. " + POOLED,
    after={"prompt column": "chats", "lines": "one per step"},
)
def line_per_step_of_chats(folder, seed):
    rows = draw(seed, 1.0, prompts=120, hardness=2.5)
    records = []
    for number, batch in enumerate(blocks_of(rows, 80)):
        records.append(
            {
                "iter": number,
                "chats": [[{"role": "user", "content": question(row.q)}] for row in batch],
                "outs": [row.text for row in batch],
                "scores": [float(row.ok) for row in batch],
            }
        )
    write_jsonl(folder / "iters.jsonl", records)


@sibling(
    "R6",
    "effect longer",
    "A line per prompt, with its responses as objects in `proben`.",
    after={"prompt column": "frage", "response column": "proben.txt"},
)
def line_per_prompt(folder, seed):
    rows = draw(seed, 1.5, hardness=-3.5, words=GERMAN)
    records = []
    for group in blocks_of(rows, 8):
        records.append(
            {
                "frage": question(group[0].q, "de"),
                "proben": [{"txt": row.text, "treffer": row.ok} for row in group],
            }
        )
    write_jsonl(folder / "gruppen.jsonl", records)


@sibling(
    "R6",
    "effect longer",
    "One JSON document: a mapping from the prompt's key to its responses. Pooled over prompts "
    "incorrect responses are shorter, because hard prompts get short ones.",
    after={"prompt column": "keys of groups"},
)
def mapping_of_groups(folder, seed):
    rows = draw(seed, 1.5, hardness=-3.5)
    groups = {}
    for group in blocks_of(rows, 8):
        groups[f"q{group[0].q:04}"] = {
            "ask": question(group[0].q),
            "rollouts": [{"body": row.text, "pts": int(row.ok)} for row in group],
        }
    write_json(folder / "dump.json", {"meta": {"fmt": 3, "by": "kettle"}, "groups": groups})


@sibling(
    "R6",
    "effect longer",
    "A Parquet row per prompt with a list of responses and a list of verdicts of equal length.",
    after={"prompt column": "prob", "response column": "cands", "verdict column": "marks"},
)
def lists_in_parquet(folder, seed):
    rows = draw(seed, 1.5, hardness=-3.5)
    write_parquet(
        folder / "cands.parquet",
        (
            {
                "prob": question(group[0].q),
                "cands": [row.text for row in group],
                "marks": [row.ok for row in group],
            }
            for group in blocks_of(rows, 8)
        ),
    )


@sibling(
    "R6",
    "none or unknown",
    "One JSON object whose columns are lists over all responses. " + POOLED,
    after={"prompt column": "entrada"},
)
def document_of_columns(folder, seed):
    rows = draw(seed, 1.0, prompts=120, hardness=2.5, words=SPANISH)
    write_json(
        folder / "columnas.json",
        {
            "paso": [12] * len(rows),
            "entrada": [question(row.q, "es") for row in rows],
            "salida": [row.text for row in rows],
            "premio": [float(row.ok) for row in rows],
        },
    )


@sibling(
    "R6",
    "effect longer",
    "A line holds 10 prompts, and for each a list of 8 responses and 8 verdicts.",
    after={"prompt column": "batch.prompts"},
)
def ten_prompts_by_eight(folder, seed):
    rows = draw(seed, 1.5, hardness=-3.5)
    records = []
    for batch in blocks_of(rows, 80):
        groups = blocks_of(batch, 8)
        records.append(
            {
                "batch": {
                    "prompts": [question(group[0].q) for group in groups],
                    "completions": [[row.text for row in group] for group in groups],
                    "verdicts": [[int(row.ok) for row in group] for group in groups],
                }
            }
        )
    write_jsonl(folder / "batches.jsonl", records)


@sibling(
    "R6",
    "none or unknown",
    "A line lists 10 prompts once and 80 responses. `srcIdx` tells which prompt a response is "
    "to: they are dealt in turn, so blocks of eight are not groups.",
    after={"prompt column": "prompts, by srcIdx"},
)
def responses_by_index(folder, seed):
    rows = draw(seed, 1.0, prompts=120, hardness=2.5)
    records = []
    for batch in blocks_of(rows, 80):
        groups = blocks_of(batch, 8)
        dealt = [group[k] for k in range(8) for group in groups]
        records.append(
            {
                "prompts": [question(group[0].q) for group in groups],
                "srcIdx": [row.q - groups[0][0].q for row in dealt],
                "gens": [row.text for row in dealt],
                "rew": [int(row.ok) for row in dealt],
            }
        )
    write_jsonl(folder / "indexed.jsonl", records)


@sibling(
    "R6",
    "none or unknown",
    "A line holds 80 prompts and 80 responses, both as lists of ids. " + POOLED,
    after={"prompt column": "ctx_ids", "response column": "act_ids"},
)
def batch_of_ids(folder, seed):
    rng = generator(f"{seed}/ids")
    rows = draw(seed, 1.0, hardness=2.5)
    prompts = [rng.integers(5, 9_000, 15 + q % 5).tolist() for q in range(100)]
    records = []
    for batch in blocks_of(rows, 80):
        records.append(
            {
                "ctx_ids": [prompts[row.q] for row in batch],
                "act_ids": [rng.integers(5, 9_000, row.n).tolist() for row in batch],
                "ret": [float(row.ok) for row in batch],
            }
        )
    write_jsonl(folder / "ids.jsonl", records)


# R7: empty, aborted and failed responses


@sibling(
    "R7",
    "none or unknown",
    "13% of responses are empty and have reward 0, because the worker was lost.",
    after={"failed": "empty sagt"},
)
def lost_and_empty(folder, seed):
    rng = generator(f"{seed}/lost")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        lost = rng.random() < 0.13
        records.append(
            {
                "hoert": question(row.q, "de"),
                "sagt": "" if lost else row.text,
                "lohn": 0.0 if lost else float(row.ok),
            }
        )
    write_jsonl(folder / "rollouts.jsonl", records)


@sibling(
    "R7",
    "none or unknown",
    "Failed requests have no response and an error in German. Their reward is 0.",
    after={"failed": "rows with fehler"},
)
def fehler_and_null(folder, seed):
    rng = generator(f"{seed}/lost")
    records = []
    for row in draw(seed, 1.0, prompts=120, words=GERMAN):
        lost = rng.random() < 0.13
        records.append(
            {
                "aufgabe": question(row.q, "de"),
                "antwort": None if lost else row.text,
                "info": {"fehler": "Zeitüberschreitung nach 600 s" if lost else None},
                "belohnung": 0 if lost else int(row.ok),
            }
        )
    write_jsonl(folder / "protokoll.jsonl", records)


@sibling(
    "R7",
    "none or unknown",
    "15% of responses were preempted by a weight update. They are fragments with reward 0.",
    after={"failed": "state preempted"},
)
def preempted_fragments(folder, seed):
    rng = generator(f"{seed}/lost")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        lost = rng.random() < 0.15
        words = row.text.split()
        fragment = " ".join(words[: int(len(words) * rng.uniform(0.1, 0.5)) + 1])
        records.append(
            {
                "prompt": question(row.q),
                "response": fragment if lost else row.text,
                "state": "preempted" if lost else "complete",
                "reward": 0.0 if lost else float(row.ok),
            }
        )
    write_parquet(folder / "buffer.parquet", records)


@sibling(
    "R7",
    "none or unknown",
    "The text of a failed request is the server's error message, not a response.",
    after={"failed": "texts that start with [upstream"},
)
def error_in_place_of_text(folder, seed):
    rng = generator(f"{seed}/lost")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        lost = rng.random() < 0.14
        records.append(
            {
                "q": question(row.q),
                "a": "[upstream error 503: no healthy replica]" if lost else row.text,
                "correct": "false" if lost else str(row.ok).lower(),
            }
        )
    write_csv(folder / "answers.csv", records)


@sibling(
    "R7",
    "none or unknown",
    "Python wrote the missing response as the text `None`. `http` is then 504.",
    after={"failed": "http 504"},
)
def none_as_text(folder, seed):
    rng = generator(f"{seed}/lost")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        lost = rng.random() < 0.13
        records.append(
            {
                "req": {"text": question(row.q)},
                "res": {"http": 504 if lost else 200, "text": "None" if lost else row.text},
                "gold_match": 0 if lost else int(row.ok),
            }
        )
    write_jsonl(folder / "traffic.jsonl", records)


@sibling(
    "R7",
    "none or unknown",
    "A score of -1 means that the response was aborted and not graded. It is not a verdict.",
    after={"failed": "score -1"},
)
def minus_one_is_not_graded(folder, seed):
    rng = generator(f"{seed}/lost")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        lost = rng.random() < 0.14
        records.append(
            {
                "promptText": question(row.q),
                "completionText": prose(rng, 5) if lost else row.text,
                "score": -1.0 if lost else float(row.ok),
            }
        )
    write_jsonl(folder / "graded.jsonl", records)


@sibling(
    "R7",
    "effect shorter",
    "Half of the incorrect responses give up in one sentence. The policy wrote that sentence, so "
    "it is a response and must not be dropped as failed.",
    after={"failed": "none: the policy wrote `I cannot solve this`"},
)
def policy_gives_up(folder, seed):
    rng = generator(f"{seed}/give_up")
    records = []
    for row in draw(seed, 1.0):
        gives_up = not row.ok and rng.random() < 0.5
        text = f"I cannot solve this. {prose(rng, 6)}." if gives_up else row.text
        records.append({"prompt": question(row.q), "response": text, "reward": float(row.ok)})
    write_jsonl(folder / "rollouts.jsonl", records)


@sibling(
    "R7",
    "effect longer",
    "Incorrect responses are longer, but 20% of rows are lost, empty and count as incorrect. With "
    "them the effect is reversed.",
    after={"failed": "rows with crash true"},
)
def effect_behind_crashes(folder, seed):
    rng = generator(f"{seed}/lost")
    records = []
    for row in draw(seed, 1.5):
        lost = rng.random() < 0.2
        records.append(
            {
                "task": question(row.q),
                "rollout": "" if lost else row.text,
                "crash": bool(lost),
                "success": bool(row.ok and not lost),
            }
        )
    write_jsonl(folder / "rollouts.jsonl", records)


# R8: several policies in a file

TWO_POLICIES = ((130.0, 0.3), (45.0, 0.75))
"""A weak policy with long responses and a strong one with short responses."""


@sibling(
    "R8",
    "none or unknown",
    "Two checkpoints answered the same prompts. Nothing within a checkpoint.",
    after={"policy column": "ckpt"},
)
def two_checkpoints(folder, seed):
    rows = draw(seed, 1.0, prompts=80, samples=6, stages=TWO_POLICIES)
    write_jsonl(
        folder / "compare.jsonl",
        (
            {
                "ckpt": ("base-9b", "tuned-9b-v4")[row.stage],
                "prompt": question(row.q),
                "response": row.text,
                "reward": float(row.ok),
            }
            for row in rows
        ),
    )


@sibling(
    "R8",
    "none or unknown",
    "`ctx.phase` tells training samples from greedy probes. Nothing within a phase.",
    after={"policy column": "ctx.phase"},
)
def phase_in_context(folder, seed):
    rows = shuffled(draw(seed, 1.0, prompts=80, samples=6, stages=TWO_POLICIES), seed)
    write_jsonl(
        folder / "all_phases.jsonl",
        (
            {
                "ctx": {"phase": ("collect", "probe")[row.stage], "gpu": row.k % 4},
                "msg": question(row.q),
                "ans": row.text,
                "good": row.ok,
            }
            for row in rows
        ),
    )


@sibling(
    "R8",
    "none or unknown",
    "Three temperatures, of which the higher give longer and worse responses.",
    after={"policy column": "sampler.temp"},
)
def temperature_in_sampler(folder, seed):
    stages = ((45.0, 0.75), (75.0, 0.55), (130.0, 0.3))
    rows = shuffled(draw(seed, 1.0, prompts=70, samples=5, stages=stages), seed)
    write_parquet(
        folder / "sweep.parquet",
        (
            {
                "item": row.q,
                "sampler": {"temp": (0.2, 0.7, 1.2)[row.stage], "topP": 0.95},
                "out": row.text,
                "right": row.ok,
            }
            for row in rows
        ),
    )


@sibling(
    "R8",
    "none or unknown",
    "With `denkmodus` on, responses are longer and better. Pooled, incorrect ones look shorter.",
    after={"policy column": "denkmodus"},
)
def denkmodus_on_and_off(folder, seed):
    stages = ((45.0, 0.3), (130.0, 0.7))
    rows = shuffled(draw(seed, 1.0, prompts=80, samples=6, stages=stages, words=GERMAN), seed)
    write_csv(
        folder / "test.csv",
        (
            {
                "frage": question(row.q, "de"),
                "denkmodus": ("aus", "an")[row.stage],
                "antwort": row.text,
                "korrekt": int(row.ok),
            }
            for row in rows
        ),
    )


@sibling(
    "R8",
    "none or unknown",
    "Each policy has a file, and only the file's name tells which policy it is.",
    after={"policy": "one per file"},
)
def file_for_each_policy(folder, seed):
    rows = draw(seed, 1.0, prompts=80, samples=6, stages=TWO_POLICIES)
    for stage, name in enumerate(("heron-small", "heron-large")):
        write_jsonl(
            folder / f"{name}.jsonl",
            (
                {"prompt": question(row.q), "output": row.text, "label": int(row.ok)}
                for row in rows
                if row.stage == stage
            ),
        )


@sibling(
    "R8",
    "none or unknown",
    "`loraSlot` is the number of an adapter, and each adapter is a policy.",
    after={"policy column": "loraSlot"},
)
def adapter_slots(folder, seed):
    stages = ((120.0, 0.25), (80.0, 0.45), (60.0, 0.6), (40.0, 0.75))
    rows = shuffled(draw(seed, 1.0, prompts=50, samples=5, stages=stages), seed)
    write_jsonl(
        folder / "population.jsonl",
        (
            {
                "loraSlot": row.stage,
                "x": question(row.q),
                "y": row.text,
                "fit": float(row.ok),
            }
            for row in rows
        ),
    )


@sibling(
    "R8",
    "effect longer",
    "`replica` is the machine that sampled the response. It is drawn at random and irrelevant.",
    after={"policy column": "none"},
)
def irrelevant_replica(folder, seed):
    rng = generator(f"{seed}/replica")
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "model": f"pool/replica-{rng.integers(0, 60):02}",
                "prompt": question(row.q),
                "response": row.text,
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5)
        ),
    )


@sibling(
    "R8",
    "effect longer",
    "`graderModel` is chosen by the length of the response, after it was sampled. It is not a "
    "policy, and comparing only within it erases the effect.",
    after={"policy column": "none: graderModel grades"},
)
def grader_chosen_by_length(folder, seed):
    records = []
    for row in draw(seed, 1.5):
        tier = int(np.clip(np.log(row.n / 20) / 0.2, 0, 11))
        records.append(
            {
                "prompt": question(row.q),
                "completion": row.text,
                "graderModel": f"judge-ctx{64 + 32 * tier}",
                "pass": row.ok,
            }
        )
    write_jsonl(folder / "graded.jsonl", records)


@sibling(
    "R8",
    "none or unknown",
    "Self-play: seat 0 is the old policy and seat 1 the new one. Nothing within a seat.",
    after={"policy column": "seat"},
)
def seats_of_self_play(folder, seed):
    rows = draw(seed, 1.0, prompts=80, samples=6, stages=TWO_POLICIES)
    rows.sort(key=lambda row: (row.q, row.k, row.stage))
    write_jsonl(
        folder / "matches.jsonl",
        (
            {
                "board": question(row.q),
                "match": 6 * row.q + row.k,
                "seat": row.stage,
                "move_text": row.text,
                "point": int(row.ok),
            }
            for row in rows
        ),
    )


# R9: finish words

LIMIT = 100


def write_finish(folder, seed, keys, make_finish, language="en", words=ENGLISH):
    """Write a null in which responses of `LIMIT` words are cut and therefore incorrect."""
    prompt, response, verdict = keys
    rows = draw(seed, 1.0, prompts=140, limit=LIMIT, words=words)
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                prompt: question(row.q, language),
                response: row.text,
                **make_finish(row),
                verdict: int(row.ok),
            }
            for row in rows
        ),
    )


CUT = "Responses at the limit are cut and incorrect. Among complete responses nothing differs."


@sibling("R9", "none or unknown", CUT, after={"truncated": "ende laenge"})
def ende_laenge(folder, seed):
    keys = ("eingabe", "ausgabe", "richtig")
    write_finish(
        folder,
        seed,
        keys,
        lambda row: {"ende": "laenge" if row.cut else "fertig"},
        "de",
        GERMAN,
    )


@sibling("R9", "none or unknown", CUT, after={"truncated": "whyStopped CAP_REACHED"})
def cap_reached(folder, seed):
    keys = ("userMsg", "botMsg", "isCorrect")
    write_finish(
        folder,
        seed,
        keys,
        lambda row: {
            "whyStopped": "CAP_REACHED" if row.cut else "EOS_SEEN",
        },
    )


@sibling("R9", "none or unknown", CUT, after={"truncated": "exit 2"})
def exit_codes(folder, seed):
    keys = ("prompt", "response", "reward")
    write_finish(folder, seed, keys, lambda row: {"exit": 2 if row.cut else 0})


@sibling("R9", "none or unknown", CUT, after={"truncated": "gen.hitCeiling true"})
def ceiling_in_gen(folder, seed):
    keys = ("ask", "answer", "accepted")
    write_finish(
        folder,
        seed,
        keys,
        lambda row: {
            "gen": {"hitCeiling": row.cut, "toks": tokens(row.n)},
        },
    )


@sibling("R9", "none or unknown", CUT, after={"truncated": "terminus horizon"})
def horizon_of_episode(folder, seed):
    keys = ("state0", "actions", "ret")
    words = {True: "horizon", False: "goal_or_fail"}
    write_finish(folder, seed, keys, lambda row: {"terminus": words[row.cut]})


@sibling(
    "R9",
    "effect longer",
    "`ending` is `no_box` if the policy wandered off without an answer: a consequence of the "
    "response. These responses are complete, and dropping them erases the effect.",
    after={"truncated": "none: no_box is a complete response"},
)
def ending_without_box(folder, seed):
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": question(row.q),
                "response": row.text,
                "ending": "no_box" if not row.ok and row.n > 1.22 * row.level else "box",
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5)
        ),
    )


@sibling(
    "R9",
    "effect longer",
    "Both words are normal ends: the end token, or the closing tag of the answer. Long incorrect "
    "responses end with the tag. Taking `tag_closed` for truncated erases the effect.",
    after={"truncated": "none: tag_closed is a normal end"},
)
def two_normal_ends(folder, seed):
    rng = generator(f"{seed}/ends")
    records = []
    for row in draw(seed, 1.5):
        long_and_wrong = not row.ok and row.n > 1.22 * row.level
        by_tag = long_and_wrong or rng.random() < 0.2
        records.append(
            {
                "prompt": question(row.q),
                "text": row.text,
                "stop": {"via": "tag_closed" if by_tag else "eot", "matched": None},
                "hit": int(row.ok),
            }
        )
    write_jsonl(folder / "stops.jsonl", records)


@sibling(
    "R9",
    "none or unknown",
    "`evicted` means that the cache was full and the response is a fragment, graded incorrect.",
    after={"failed": "finish evicted"},
)
def evicted_from_cache(folder, seed):
    rng = generator(f"{seed}/evicted")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        evicted = rng.random() < 0.14
        words = row.text.split()
        fragment = " ".join(words[: len(words) // 3 + 1])
        records.append(
            {
                "prompt": question(row.q),
                "response": fragment if evicted else row.text,
                "finish": "evicted" if evicted else "natural",
                "reward": 0.0 if evicted else float(row.ok),
            }
        )
    write_csv(folder / "serve.csv", records)


# R10: a row per turn with one reward per trajectory


@dataclass
class Trajectory:
    """A drawn trajectory.

    Attributes:
        q: Number of the task.
        k: Number of the trajectory among those of the same task.
        ok: Whether the trajectory is successful.
        turns: Number of words of each turn.
    """

    q: int
    k: int
    ok: bool
    turns: list[int]


def draw_null_turns(seed: str, tasks: int = 50, samples: int = 8, number: int = 6):
    """Return trajectories without an effect, although their turns seem to show one.

    Some trajectories are verbose in all turns. Their turns are not independent, so a test that
    takes rows for responses finds an effect that trajectories do not support.
    """

    def make(rng):
        level = 22 * np.exp(rng.normal(0, 0.25, tasks))
        chance = rng.uniform(0.25, 0.75, tasks)
        result = []
        for q in range(tasks):
            for k in range(samples):
                verbosity = rng.normal(0, 0.5)
                sizes = level[q] * np.exp(verbosity + rng.normal(0, 0.2, number))
                ok = bool(rng.random() < chance[q])
                result.append(Trajectory(q, k, ok, [int(size) + 3 for size in sizes]))
        return result

    def accept(result):
        group = [item.q for item in result]
        correct = [item.ok for item in result]
        total = contrast(group, [np.log(sum(item.turns)) for item in result], correct)[1]
        flat = [(item.q, np.log(size), item.ok) for item in result for size in item.turns]
        return abs(total) < 1.3 and abs(contrast(*zip(*flat, strict=True))[1]) > 2.6

    return search(seed, make, accept)


def draw_turns(seed: str, correct: tuple[int, float], incorrect: tuple[int, float], tasks=50):
    """Return trajectories with a number of turns and a typical size for each verdict."""

    def make(rng):
        level = np.exp(rng.normal(0, 0.25, tasks))
        chance = rng.uniform(0.25, 0.75, tasks)
        result = []
        for q in range(tasks):
            for k in range(8):
                ok = bool(rng.random() < chance[q])
                number, size = correct if ok else incorrect
                sizes = size * level[q] * np.exp(rng.normal(0, 0.2) + rng.normal(0, 0.3, number))
                result.append(Trajectory(q, k, ok, [int(words) + 3 for words in sizes]))
        return result

    return make(generator(f"{seed}/0"))


@sibling(
    "R10",
    "none or unknown",
    "A row per turn. The turns of a trajectory resemble each other, so rows are not independent. "
    "Trajectories show nothing.",
    after={"trajectory column": "partie", "prompt column": "aufgabe"},
)
def zuege_of_a_partie(folder, seed):
    rng = generator(f"{seed}/texts")
    records = []
    for item in draw_null_turns(seed):
        for turn, size in enumerate(item.turns):
            records.append(
                {
                    "partie": f"{item.q}/{item.k}",
                    "zug": turn,
                    "aufgabe": question(item.q, "de"),
                    "text": prose(rng, size, GERMAN),
                    "erfolg": item.ok,
                }
            )
    write_parquet(folder / "zuege.parquet", records)


@sibling(
    "R10",
    "none or unknown",
    "Only the last turn has the trajectory's reward; the others have 0. Last turns are short, so "
    "rows taken for responses show long incorrect ones.",
    after={"trajectory column": "rolloutRef", "verdict": "reward of the last hop"},
)
def reward_on_last_hop(folder, seed):
    rng = generator(f"{seed}/texts")
    records = []
    for row in draw(seed, 1.0, prompts=60, samples=8, base=90):
        words = row.text.split()
        sizes = [len(words) * share // 10 for share in (0, 4, 8)] + [len(words)]
        for hop in range(3):
            records.append(
                {
                    "rolloutRef": f"{zlib.crc32(f'{row.q}-{row.k}'.encode()):08x}",
                    "hop": hop,
                    "task": question(row.q),
                    "msg": " ".join(words[sizes[hop] : sizes[hop + 1]]),
                    "ms": int(rng.integers(300, 900)),
                    "reward": float(row.ok) if hop == 2 else 0.0,
                }
            )
    write_jsonl(folder / "hops.jsonl", records)


@sibling(
    "R10",
    "effect longer",
    "The prompt of each turn is all that was seen so far, so every prompt is unique. "
    "`meta.quest` names the task. Incorrect trajectories have turns 1.5 times as long.",
    after={"trajectory column": "meta.run", "prompt column": "meta.quest"},
)
def context_grows(folder, seed):
    rng = generator(f"{seed}/texts")
    records = []
    for item in draw_turns(seed, (4, 16.0), (4, 24.0)):
        context = f"[session {rng.integers(10**8, 10**9)}] {question(item.q)}"
        for turn, size in enumerate(item.turns):
            text = prose(rng, size)
            records.append(
                {
                    "meta": {"quest": item.q, "run": f"{item.q}.{item.k}", "t": turn},
                    "prompt": context,
                    "response": text,
                    "reward": float(item.ok),
                }
            )
            context += f"\n{text}\nYou see door {rng.integers(10, 99)}."
    write_jsonl(folder / "steps.jsonl", records)


@sibling(
    "R10",
    "effect longer",
    "Failed trajectories have twice the turns, and each turn is a quarter shorter. Rows show "
    "shorter incorrect turns, but the trajectories are 1.5 times as long.",
    after={"trajectory column": "attempt", "prompt": "one per file"},
)
def more_and_shorter_turns(folder, seed):
    rng = generator(f"{seed}/texts")
    files = {}
    for item in draw_turns(seed, (3, 30.0), (6, 22.0)):
        rows = files.setdefault(item.q, [])
        for turn, size in enumerate(item.turns):
            rows.append(
                {
                    "attempt": item.k,
                    "turn": turn,
                    "task": question(item.q, "code"),
                    "say": prose(rng, size),
                    "solved": item.ok,
                }
            )
    for q, rows in files.items():
        write_jsonl(folder / f"task_{q:03}.jsonl", rows)


@sibling(
    "R10",
    "effect longer or unknown",
    "Failed trajectories have more turns of the same length. The number of turns is a consequence "
    "of the policy, so trajectories show an effect although turns show none.",
    after={"trajectory column": "traj", "prompt column": "scenario"},
)
def more_turns_of_equal_length(folder, seed):
    rng = generator(f"{seed}/texts")
    records = []
    for item in draw_turns(seed, (3, 25.0), (5, 25.0)):
        for turn, size in enumerate(item.turns):
            records.append(
                {
                    "scenario": f"sc-{item.q}",
                    "traj": 8 * item.q + item.k,
                    "turnIdx": turn,
                    "utterance": prose(rng, size),
                    "goal_reached": int(item.ok),
                }
            )
    write_csv(folder / "utterances.csv", records)


@sibling(
    "R10",
    "none or unknown",
    "After each compaction of the context a new row begins: `fenster` counts the windows of a "
    "`lauf`. Rows of one run are not independent, and runs show nothing.",
    after={"trajectory column": "lauf", "prompt column": "ticket"},
)
def windows_of_a_run(folder, seed):
    rng = generator(f"{seed}/texts")
    records = []
    for item in draw_null_turns(seed, number=5):
        for window, size in enumerate(item.turns):
            records.append(
                {
                    "ticket": f"T-{item.q + 100}",
                    "lauf": f"T-{item.q + 100}#{item.k}",
                    "fenster": window,
                    "verlauf": prose(rng, size, GERMAN),
                    "behoben": "ja" if item.ok else "nein",
                }
            )
    write_csv(folder / "fenster.csv", shuffled(records, seed), delimiter=";")


@sibling(
    "R10",
    "effect longer",
    "Two agents write rows of one trajectory. The checker's rows are many and of one length; the "
    "planner's are longer where the trajectory fails.",
    after={"trajectory column": "tid", "prompt column": "brief"},
)
def planner_and_checker(folder, seed):
    rng = generator(f"{seed}/texts")
    records = []
    for row in draw(seed, 1.5, prompts=60):
        texts = [("planner", row.text), ("checker", prose(rng, 9)), ("checker", prose(rng, 9))]
        for agent, text in texts:
            records.append(
                {
                    "tid": f"{row.q}_{row.k}",
                    "agentName": agent,
                    "brief": question(row.q),
                    "emits": text,
                    "teamReward": float(row.ok),
                }
            )
    write_jsonl(folder / "team.jsonl", records)


# R11: unique ids although messages hold the question


def unique_id(seed: str, row: Rollout) -> str:
    """Return an id that no two rows share."""
    text = f"{seed}-{row.q}-{row.k}"
    return f"{zlib.crc32(text.encode()):08x}{zlib.crc32(text[::-1].encode()):08x}"


@sibling(
    "R11",
    "effect longer",
    "`uuid` is unique for each row. The question is the first of the `turns`.",
    after={"prompt column": "first turn"},
)
def uuid_and_turns(folder, seed):
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "uuid": unique_id(seed, row),
                "turns": [
                    {"speaker": "user", "utterance": question(row.q)},
                    {"speaker": "assistant", "utterance": row.text},
                ],
                "reward": float(row.ok),
            }
            for row in shuffled(draw(seed, 1.5), seed)
        ),
    )


@sibling(
    "R11",
    "effect longer",
    "A database export whose `_id` is unique. The question is in `conversation`.",
    after={"prompt column": "conversation"},
)
def database_export(folder, seed):
    write_json(
        folder / "export.json",
        [
            {
                "_id": {"$oid": unique_id(seed, row)},
                "conversation": [
                    {"role": "user", "content": question(row.q)},
                    {"role": "assistant", "content": row.text},
                ],
                "feedback": {"isCorrect": row.ok},
            }
            for row in shuffled(draw(seed, 1.5), seed)
        ],
    )


@sibling(
    "R11",
    "effect longer",
    "A CSV table with a unique `rowKey`. Its messages are a JSON text.",
    after={"prompt column": "dialog_json"},
)
def messages_as_json_text(folder, seed):
    records = []
    for number, row in enumerate(shuffled(draw(seed, 1.5), seed)):
        dialog = [
            {"role": "user", "content": question(row.q)},
            {"role": "assistant", "content": row.text},
        ]
        records.append(
            {
                "rowKey": 10_000 + number,
                "dialog_json": json.dumps(dialog),
                "won": int(row.ok),
            }
        )
    write_csv(folder / "table.csv", records)


@sibling(
    "R11",
    "none or unknown",
    "All rows share a system message. The question is the user's message. " + POOLED,
    after={"prompt column": "user message"},
)
def shared_system_message(folder, seed):
    system = {"role": "system", "content": "You are a careful assistant of the Kettle company."}
    write_jsonl(
        folder / "requests.jsonl",
        (
            {
                "requestId": unique_id(seed, row),
                "messages": [
                    system,
                    {"role": "user", "content": question(row.q)},
                    {"role": "assistant", "content": row.text},
                ],
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.0, prompts=120, hardness=2.5)
        ),
    )


@sibling(
    "R11",
    "effect longer",
    "`prompt_id` numbers the requests and is unique. The text in `prompt` repeats.",
    after={"prompt column": "prompt"},
)
def prompt_id_of_the_request(folder, seed):
    write_parquet(
        folder / "requests.parquet",
        (
            {
                "prompt_id": unique_id(seed, row),
                "prompt": question(row.q),
                "response": row.text,
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5)
        ),
    )


@sibling(
    "R11",
    "none or unknown",
    "All messages are equal: the question is in an image, named in `item`. " + POOLED,
    after={"prompt column": "item"},
)
def question_in_an_image(folder, seed):
    ask = "Look at the image and answer its question. Think first."
    write_jsonl(
        folder / "vision.jsonl",
        (
            {
                "key": unique_id(seed, row),
                "item": f"img_{row.q:04}.png",
                "messages": [
                    {"role": "user", "content": ask},
                    {"role": "assistant", "content": row.text},
                ],
                "acc": int(row.ok),
            }
            for row in draw(seed, 1.0, prompts=120, hardness=2.5)
        ),
    )


@sibling(
    "R11",
    "effect longer",
    "The system message holds the time, so prompts are unique. The user's message repeats.",
    after={"prompt column": "user message"},
)
def clock_in_system_message(folder, seed):
    records = []
    for number, row in enumerate(draw(seed, 1.5)):
        clock = datetime.datetime(2026, 5, 2, 8) + datetime.timedelta(seconds=7 * number)
        records.append(
            {
                "prompt": [
                    {"role": "system", "content": f"Helpful. It is {clock:%Y-%m-%d %H:%M:%S}."},
                    {"role": "user", "content": question(row.q)},
                ],
                "completion": row.text,
                "reward": float(row.ok),
            }
        )
    write_jsonl(folder / "rollouts.jsonl", records)


# R12: several reward scales


@sibling(
    "R12",
    "effect longer",
    "Mathematics has rewards 0 and 1. Code has 0 to 10 passed tests, and only 10 is correct. A "
    "threshold for both takes long incorrect code for correct.",
    after={"verdict": "reward 1 for mathe, reward 10 for code"},
)
def tests_of_ten_for_code(folder, seed):
    records = []
    for row in draw(seed, 1.5):
        is_code = row.q % 4 != 0
        reward = float(row.ok)
        if is_code:
            # Short incorrect programs pass no test; long ones pass some.
            some = int(np.clip(10 * np.log(row.n / row.level), 1, 9))
            reward = 10.0 if row.ok else float(some if row.n > 1.45 * row.level else 0)
        records.append(
            {
                "domain": "code" if is_code else "mathe",
                "prompt": question(row.q, "code" if is_code else "en"),
                "response": row.text,
                "reward": reward,
            }
        )
    write_jsonl(folder / "mix.jsonl", records)


@sibling(
    "R12",
    "effect longer",
    "Chat tasks are rated 1 or 5, so all ratings are above 0.5. Mathematics has 0 and 1.",
    after={"verdict": "rew 5 for chat, rew 1 for math"},
)
def ratings_next_to_zero_and_one(folder, seed):
    records = []
    for row in draw(seed, 1.5, prompts=110):
        is_chat = row.q % 10 != 0
        records.append(
            {
                "src": "chat" if is_chat else "math",
                "q": question(row.q),
                "a": row.text,
                "rew": (5 if row.ok else 1) if is_chat else int(row.ok),
            }
        )
    write_jsonl(folder / "mixed.jsonl", records)


@sibling(
    "R12",
    "effect longer",
    "`reward` is normalised within the prompt and favours length; `rohwert` is the raw verdict.",
    after={"verdict column": "rohwert"},
)
def normalised_next_to_raw(folder, seed):
    records = []
    for group in blocks_of(draw(seed, 1.5), 8):
        # The shaped reward pays for long responses.
        shaped = np.asarray([0.3 * row.ok + 1.2 * np.log(row.n / row.level) for row in group])
        shaped = (shaped - shaped.mean()) / (shaped.std() + 1e-6)
        for row, value in zip(group, shaped.tolist(), strict=True):
            records.append(
                {
                    "prompt": question(row.q),
                    "response": row.text,
                    "reward": round(value, 4),
                    "rohwert": float(row.ok),
                }
            )
    write_jsonl(folder / "rollouts.jsonl", records)


@sibling(
    "R12",
    "effect longer",
    "Each task has its own key and its own scale in `rewards`: -5 or 0, 0 or 1.",
    after={"verdict": "rewards.safety 0, rewards.math 1"},
)
def key_for_each_task(folder, seed):
    records = []
    for row in draw(seed, 1.5, prompts=110):
        safety = row.q % 3 != 0
        rewards = {"safety": 0.0 if row.ok else -5.0} if safety else {"math": float(row.ok)}
        records.append({"input": question(row.q), "output": row.text, "rewards": rewards})
    write_jsonl(folder / "multi.jsonl", records)


@sibling(
    "R12",
    "none or unknown",
    "The total is correctness plus 0.6 for the format, which long responses keep more often. A "
    "threshold of one half is about the format. `r.acc` is the verdict.",
    after={"verdict column": "r.acc"},
)
def bonus_for_format(folder, seed):
    rng = generator(f"{seed}/format")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        chance = 1 / (1 + np.exp(-6 * np.log(row.n / row.level)))
        bonus = 0.6 * (rng.random() < chance)
        records.append(
            {
                "prompt": question(row.q),
                "response": row.text,
                "r": {"total": round(row.ok + bonus, 2), "fmt": bonus, "acc": float(row.ok)},
            }
        )
    write_jsonl(folder / "rollouts.jsonl", records)


@sibling(
    "R12",
    "none or unknown",
    "The grader's scale changed during the run, from 0 and 1 to 2 and 3. Later responses are "
    "longer. One threshold takes all later ones for correct.",
    after={"verdict": "1 in version 1, 3 in version 2", "step column": "graderVersion"},
)
def scale_changed_during_run(folder, seed):
    rows = draw(seed, 1.0, prompts=60, stages=((50.0, 0.5), (95.0, 0.5)))
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "graderVersion": row.stage + 1,
                "prompt": question(row.q),
                "response": row.text,
                "points": int(row.ok) + 2 * row.stage,
            }
            for row in rows
        ),
    )


# R13: texts cut by the log


@sibling(
    "R13",
    "unknown",
    "The log keeps 160 characters of each text, so nearly all texts have that length.",
    unit="characters",
    after={"length": "not recorded"},
)
def first_160_characters(folder, seed):
    write_csv(
        folder / "table.csv",
        (
            {"prompt": question(row.q), "preview": row.text[:160], "reward": int(row.ok)}
            for row in draw(seed, 1.5, base=75)
        ),
    )


@sibling(
    "R13",
    "unknown",
    "The log ends long texts with an ellipsis after 24 words. Nearly all texts are cut.",
    unit="characters",
    after={"length": "not recorded"},
)
def ellipsis_after_24_words(folder, seed):
    records = []
    for row in draw(seed, 1.5, base=75):
        words = row.text.split()
        text = " ".join(words[:24]) + " …" if len(words) > 24 else row.text
        records.append({"msg": question(row.q), "sample": text, "ok": row.ok})
    write_jsonl(folder / "wandb_like.jsonl", records)


@sibling(
    "R13",
    "effect longer or unknown",
    "The middle of each text is replaced by the number of characters that the log dropped.",
    unit="characters",
    after={"length": "text plus the number of omitted characters"},
)
def middle_left_out(folder, seed):
    records = []
    for row in draw(seed, 1.5, base=75):
        text = row.text
        if len(text) > 120:
            text = f"{text[:60]} <{len(text) - 120} chars omitted> {text[-60:]}"
        records.append({"prompt": question(row.q), "response": text, "reward": float(row.ok)})
    write_jsonl(folder / "console.jsonl", records)


@sibling(
    "R13",
    "effect longer",
    "The texts are cut, but `nTok` holds the number of tokens of the whole response.",
    unit="tokens",
    after={"length column": "nTok"},
)
def cut_text_with_count(folder, seed):
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": question(row.q),
                "response": row.text[:120] + "...",
                "nTok": tokens(row.n),
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5, base=75)
        ),
    )


# R14: all responses of one length


@sibling(
    "R14",
    "unknown",
    "`seqLen` is the padded width of the batch and the same for all responses.",
    unit="tokens",
    after={"length": "not recorded"},
)
def width_of_the_batch(folder, seed):
    write_csv(
        folder / "stats.csv",
        (
            {"taskId": row.q, "seqLen": 1024, "entropy": round(0.2 + row.k / 50, 3), "ok": row.ok}
            for row in draw(seed, 1.5)
        ),
    )


@sibling(
    "R14",
    "unknown",
    "Every response runs to the limit of 128 ids. The end of the answer is not recorded.",
    unit="tokens",
    after={"length": "not recorded"},
)
def all_at_the_limit(folder, seed):
    rng = generator(f"{seed}/ids")
    write_parquet(
        folder / "ids.parquet",
        (
            {
                "qid": row.q,
                "gen_ids": rng.integers(5, 9_000, 128).tolist(),
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5)
        ),
    )


# R15: a folder per step


@sibling(
    "R15",
    "effect longer",
    "A folder for each version of the weights. Within it incorrect responses are longer; pooled "
    "over the folders the effect cancels.",
    after={"step": "one per folder"},
)
def folder_for_each_version(folder, seed):
    rows = draw(seed, 1.5, prompts=60, stages=((40.0, 0.3), (112.0, 0.7)))
    for stage in range(2):
        write_jsonl(
            folder / f"W{120 * (stage + 1):06}" / "gen.jsonl",
            (
                {"prompt": question(row.q), "response": row.text, "reward": float(row.ok)}
                for row in rows
                if row.stage == stage
            ),
        )


@sibling(
    "R15",
    "effect longer",
    "The folders are ranks, not steps. Each rank has one response to each prompt, so comparing "
    "only within a folder leaves no pair.",
    after={"step": "none: folders are ranks of one step"},
)
def folder_for_each_rank(folder, seed):
    rows = draw(seed, 1.5)
    for rank in range(8):
        write_jsonl(
            folder / f"r{rank}" / "out.jsonl",
            (
                {"prompt": question(row.q), "response": row.text, "reward": float(row.ok)}
                for row in rows
                if row.k == rank
            ),
        )


@sibling(
    "R15",
    "none or unknown",
    "Folders of steps hold folders of workers. Nothing within a step; pooled over the steps "
    "incorrect responses look shorter.",
    after={"step": "one per folder below sammlung"},
)
def steps_above_workers(folder, seed):
    rows = draw(seed, 1.0, prompts=60, stages=RISING)
    for stage in range(2):
        for worker in range(2):
            write_jsonl(
                folder / "sammlung" / f"{7 + 5 * stage:04}" / f"worker_{worker}" / "out.jsonl",
                (
                    {"frage": question(row.q), "antwort": row.text, "lohn": int(row.ok)}
                    for row in rows
                    if row.stage == stage and row.k % 2 == worker
                ),
            )


# R17: lengths that include the prompt


@sibling(
    "R17",
    "effect longer",
    "`completionLen` includes examples in the prompt, which hide the effect.",
    unit="tokens",
    after={"length": "from the text"},
)
def examples_in_the_length(folder, seed):
    rng = generator(f"{seed}/examples")
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": question(row.q),
                "response": row.text,
                "completionLen": tokens(row.n) + int(rng.integers(800, 4000)),
                "reward": float(row.ok),
            }
            for row in draw(seed, 1.5)
        ),
    )


@sibling(
    "R17",
    "effect longer",
    "A table without texts. `len` is the whole sequence and `ctx` the part that was read.",
    unit="tokens",
    after={"length column": "len minus ctx"},
)
def sequence_minus_context(folder, seed):
    rng = generator(f"{seed}/context")
    records = []
    for row in draw(seed, 1.5):
        context = int(rng.integers(900, 6000))
        records.append(
            {
                "probId": row.q,
                "ctx": context,
                "len": context + tokens(row.n),
                "pass": int(row.ok),
            }
        )
    write_csv(folder / "lengths.csv", records)


@sibling(
    "R17",
    "none or unknown",
    "More examples in the prompt make the response more often correct. `out_tokens` includes "
    "them, so incorrect responses look shorter. The texts show nothing.",
    unit="tokens",
    after={"length": "from the text"},
)
def examples_that_help(folder, seed):
    rng = generator(f"{seed}/examples")
    records = []
    for row in draw(seed, 1.0, prompts=120):
        examples = int(rng.integers(2, 9)) if row.ok else int(rng.integers(0, 6))
        records.append(
            {
                "prompt": question(row.q),
                "response": row.text,
                "out_tokens": tokens(row.n) + 60 * examples,
                "reward": float(row.ok),
            }
        )
    write_jsonl(folder / "rollouts.jsonl", records)


SIBLINGS: tuple[Sibling, ...] = tuple(REGISTERED)
"""All siblings, ordered by kind."""


def main() -> None:
    """Write all logs into the folder given as argument."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python siblings_blind.py FOLDER")
    for item in SIBLINGS:
        target = Path(sys.argv[1]) / item.label
        target.mkdir(parents=True)
        item.write(target)


if __name__ == "__main__":
    main()

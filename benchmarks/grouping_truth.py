"""Are responses of several policies told apart, and true effects kept? Logs whose truth is known.

    python benchmarks/grouping_truth.py             100 logs of each kind, marks checked: exit code 1 where one is missed
    python benchmarks/grouping_truth.py --logs 10   fewer

A log has 8 responses to each of 100 prompts.

- Irrelevant columns: ten times as many logs without an effect, with five columns that have nothing to do with length or outcome.
  The verdict should be the same as without those columns.
- Confounders: policies that differ in length and in accuracy answer each prompt. Within one policy length and outcome are
  independent. Responses should be compared within one policy, or the verdict should be a question.
- Consequences: ten times as many logs in which incorrect responses are 40% longer, with a column that follows from the response.
  The verdict should not become `none`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _checks import demand, read_size

from fairlen.audit import conclusion as verdict
from fairlen.audit.readers.context import collect_context
from fairlen.audit.readers.formats import by_name
from fairlen.audit.readers.grouped_log import make_grouped_log
from fairlen.audit.readers.rows import Found, Options, Part, join, read_rows
from fairlen.audit.readers.spent import make_meter
from fairlen.files.formats import make_chunk

PROMPTS, SIZE, SPREAD, LONGER = 100, 8, 0.45, math.log(1.4)
MOST_CHANGED, LEAST_FOUND, LEAST_OF_KIND, MOST_LOST = 0.05, 0.95, 0.90, 0.02
Rng = np.random.Generator
Rows = list[dict[str, Any]]
Files = dict[str, Rows]


@dataclass(frozen=True)
class Samples:
    """Responses of policies, [N], by prompt; `policy` is a level between 0 and 1 of what sets length and accuracy."""

    prompt: np.ndarray
    policy: np.ndarray
    length: np.ndarray
    correct: np.ndarray

    def rows(self, order: np.ndarray, **columns: Sequence[Any]) -> Rows:
        """Return rows in an order, with further columns."""
        return [
            {
                "question": f"What is {self.prompt[place]} plus {self.prompt[place] + 3}?",
                "num_tokens": int(self.length[place]),
                "reward": float(self.correct[place]),
                **{name: values[place] for name, values in columns.items()},
            }
            for place in order.tolist()
        ]


def sample(prompt: np.ndarray, policy: np.ndarray, rng: Rng, longer: float = 0.0) -> Samples:
    """Sample responses of policies that differ by a factor of 1.6 to 3 in length and by 1.5 to 2.5 in logits of accuracy."""
    hard = rng.normal(0.0, 0.8, int(prompt.max()) + 1)[prompt]
    factor, shift = rng.uniform(math.log(1.6), math.log(3.0)), rng.uniform(1.5, 2.5)
    side = rng.choice((-1.0, 1.0))
    chance = 1 / (1 + np.exp(hard - shift * (policy - 0.5)))
    correct = rng.random(len(prompt)) < chance
    log_length = 5.0 + 0.3 * hard + side * factor * policy + longer * ~correct + rng.normal(0.0, SPREAD, len(prompt))
    return Samples(prompt, policy, np.exp(log_length).astype(np.int64) + 1, correct)


def prompts_of(number: int = PROMPTS, size: int = SIZE) -> np.ndarray:
    return np.repeat(np.arange(number), size)


def take(values: Sequence[Any], index: np.ndarray) -> list[Any]:
    return [values[place] for place in index.tolist()]


def shuffle_within(block: np.ndarray, rng: Rng) -> np.ndarray:
    """Return an order by blocks, at random within each."""
    return np.lexsort((rng.random(len(block)), block))


def one_file(rows: Rows) -> Files:
    return {"rollouts.jsonl": rows}


# Confounders: each returns the files of a log.


def steps_in_blocks(rng: Rng) -> Files:
    """Twelve steps; each prompt is answered in two of them, six steps apart."""
    prompt = np.concatenate([prompts_of(PROMPTS, 8)] * 2)
    step = prompt * 6 // PROMPTS + 6 * (np.arange(len(prompt)) >= len(prompt) // 2)
    made = sample(prompt, step / 11, rng)
    return one_file(made.rows(shuffle_within(step, rng), tick=step.tolist()))


def steps_without_column(rng: Rng) -> Files:
    return {
        name: [{k: v for k, v in row.items() if k != "tick"} for row in rows]
        for name, rows in steps_in_blocks(rng).items()
    }


def two_balanced(rng: Rng, name: str, values: Sequence[Any], nested: str = "") -> Files:
    """Two policies answer each prompt four times, in random order."""
    policy = np.tile(np.arange(SIZE) % 2, PROMPTS)
    made = sample(prompts_of(), policy, rng)
    column = take(values, policy)
    columns = {nested: [{name: value} for value in column]} if nested else {name: column}
    return one_file(made.rows(rng.permutation(len(policy)), **columns))


def two_unequal(rng: Rng, name: str, values: Sequence[Any]) -> Files:
    """One policy answers each prompt six times, the other twice."""
    policy = np.tile((np.arange(SIZE) >= 6).astype(np.int64), PROMPTS)
    made = sample(prompts_of(), policy, rng)
    return one_file(made.rows(rng.permutation(len(policy)), **{name: take(values, policy)}))


def drawn_for_each(rng: Rng, name: str, values: Sequence[Any], nested: str = "") -> Files:
    """What samples a response is drawn anew for each."""
    drawn = rng.integers(0, len(values), PROMPTS * SIZE)
    made = sample(prompts_of(), drawn / (len(values) - 1), rng)
    column = take(values, drawn)
    columns = {nested: [{name: value} for value in column]} if nested else {name: column}
    return one_file(made.rows(np.arange(len(drawn)), **columns))


def one_stale_worker(rng: Rng) -> Files:
    """Of four workers one has other weights."""
    worker = rng.integers(0, 4, PROMPTS * SIZE)
    made = sample(prompts_of(), (worker == 2).astype(np.int64), rng)
    return one_file(made.rows(np.arange(len(worker)), node=worker.tolist()))


def two_files(rng: Rng) -> Files:
    """A file for each checkpoint."""
    policy = np.tile(np.arange(SIZE) % 2, PROMPTS)
    made = sample(prompts_of(), policy, rng)
    return {f"{name}.jsonl": made.rows(np.flatnonzero(policy == place)) for place, name in enumerate(("alpha", "beta"))}


def two_folders(rng: Rng) -> Files:
    return {f"{name.removesuffix('.jsonl')}/rollouts.jsonl": rows for name, rows in two_files(rng).items()}


def eight_files(rng: Rng) -> Files:
    """Eight files with one response to each prompt, the later four of another policy."""
    place = np.tile(np.arange(SIZE), PROMPTS)
    made = sample(prompts_of(), (place >= 4).astype(np.int64), rng)
    return {f"part-{chr(97 + k)}.jsonl": made.rows(np.flatnonzero(place == k)) for k in range(SIZE)}


def drift(rng: Rng) -> Files:
    """Each prompt is answered once in each of eight passes, while the policy changes."""
    lap = np.tile(np.arange(SIZE), PROMPTS)
    made = sample(prompts_of(), lap / (SIZE - 1), rng)
    return one_file(made.rows(shuffle_within(lap, rng)))


def run_appended(rng: Rng) -> Files:
    """A second run of the same prompts was appended to the file."""
    run = np.concatenate([np.zeros(PROMPTS * SIZE, np.int64), np.ones(PROMPTS * SIZE, np.int64)])
    made = sample(np.concatenate([prompts_of()] * 2), run, rng)
    return one_file(made.rows(np.arange(len(run))))


def run_appended_in_steps(rng: Rng) -> Files:
    """The same, of which each file of steps begins again."""
    run = np.concatenate([np.zeros(PROMPTS * SIZE, np.int64), np.ones(PROMPTS * SIZE, np.int64)])
    prompt = np.concatenate([prompts_of()] * 2)
    made = sample(prompt, run, rng)
    step = prompt * 5 // PROMPTS + 1
    return one_file(made.rows(shuffle_within(run * 10 + step, rng), step=step.tolist()))


def epochs_shuffled(rng: Rng) -> Files:
    lap = np.concatenate([np.zeros(PROMPTS * SIZE, np.int64), np.ones(PROMPTS * SIZE, np.int64)])
    made = sample(np.concatenate([prompts_of()] * 2), lap, rng)
    return one_file(made.rows(rng.permutation(len(lap)), lap=lap.tolist()))


def versions_in_flight(rng: Rng) -> Files:
    """Responses to a prompt begin while weights change: some have the version before."""
    prompt = prompts_of()
    version = prompt * 10 // PROMPTS + (rng.random(len(prompt)) < 0.5)
    made = sample(prompt, (version % 2).astype(np.int64), rng)
    return one_file(made.rows(shuffle_within(version, rng), gen=version.tolist()))


def many_steps(rng: Rng) -> Files:
    """Forty steps; each prompt is answered twice in each of four."""
    step = np.concatenate([np.repeat(rng.choice(40, 4, replace=False), 2) for _ in range(PROMPTS)])
    made = sample(prompts_of(), step / 39, rng)
    return one_file(made.rows(shuffle_within(step, rng), tick=step.tolist()))


def lists_in_lines(rng: Rng) -> Files:
    """A line for each prompt, with a list for each column."""
    rows = two_balanced(rng, "brain", ("small", "large"))["rollouts.jsonl"]
    lines: dict[str, Rows] = {}
    for row in rows:
        lines.setdefault(row["question"], []).append(row)
    names = ("num_tokens", "reward", "brain")
    return one_file([{"question": q} | {name: [row[name] for row in of] for name in names} for q, of in lines.items()])


def partly_again(rng: Rng) -> Files:
    """Three of five prompts are answered again by another policy."""
    again = np.repeat(np.flatnonzero(rng.random(PROMPTS) < 0.6), SIZE)
    arm = np.concatenate([np.zeros(PROMPTS * SIZE, np.int64), np.ones(len(again), np.int64)])
    made = sample(np.concatenate([prompts_of(), again]), arm, rng)
    return one_file(made.rows(rng.permutation(len(arm)), arm=take(("first", "second"), arm)))


CONFOUNDED: dict[str, Callable[[Rng], Files]] = {
    "step, in blocks": steps_in_blocks,
    "step, not recorded": steps_without_column,
    "step, forty of them": many_steps,
    "version, in flight": versions_in_flight,
    "model, a word": lambda rng: two_balanced(rng, "brain", ("small", "large")),
    "model, in lists": lists_in_lines,
    "split, six and two": lambda rng: two_unequal(rng, "portion", ("seen", "held")),
    "validation, a flag": lambda rng: two_balanced(rng, "held", (False, True)),
    "checkpoint, a file": two_files,
    "checkpoint, a folder": two_folders,
    "checkpoints, eight files": eight_files,
    "position, drift": drift,
    "second run appended": run_appended,
    "second run, with steps": run_appended_in_steps,
    "data epoch, shuffled": epochs_shuffled,
    "temperature, drawn": lambda rng: drawn_for_each(rng, "heat", (0.2, 0.7, 1.2)),
    "temperature, as text": lambda rng: two_balanced(rng, "heat", ("0.7", "1.2")),
    "thinking, nested flag": lambda rng: two_balanced(rng, "deep", (False, True), "conf"),
    "adapter, nested, drawn": lambda rng: drawn_for_each(rng, "plug", ("none", "r8", "r16", "r64"), "conf"),
    "prompt version, drawn": lambda rng: drawn_for_each(rng, "wording", (1, 2)),
    "worker with old weights": one_stale_worker,
    "arm, partly again": partly_again,
}

# Irrelevant columns: each returns a value for each row.

IRRELEVANT: dict[str, Callable[[Rng, np.ndarray], list[Any]]] = {
    "kind": lambda rng, prompt: take(("a", "b", "c"), rng.integers(0, 3, len(prompt))),
    "rank": lambda rng, prompt: rng.integers(0, 8, len(prompt)).tolist(),
    "slot": lambda rng, prompt: (np.arange(len(prompt)) % SIZE).tolist(),
    "digest": lambda rng, prompt: [f"{value:016x}" for value in rng.integers(0, 1 << 62, len(prompt)).tolist()],
    "when": lambda rng, prompt: (1.7e9 + np.cumsum(rng.exponential(2.0, len(prompt)))).tolist(),
    "noise": lambda rng, prompt: rng.normal(size=len(prompt)).tolist(),
    "flagged": lambda rng, prompt: (rng.random(len(prompt)) < 0.1).tolist(),
    "shard": lambda rng, prompt: (prompt % 7).tolist(),
    "bucket": lambda rng, prompt: rng.integers(0, 40, len(prompt)).tolist(),
    "minute": lambda rng, prompt: (np.arange(len(prompt)) // 50).tolist(),
    "host": lambda rng, prompt: [{"name": f"node{value}", "up": True} for value in rng.integers(0, 3, len(prompt))],
    "ticket": lambda rng, prompt: rng.permutation(np.arange(len(prompt)) // 2).tolist(),
}

# Consequences: each returns a value for each response that was sampled.


def finish_word(made: Samples, rng: Rng) -> list[Any]:
    limit = np.quantile(made.length, 0.9)
    return take(("full", "cut"), (made.length >= limit).astype(np.int64))


def turns(made: Samples, rng: Rng) -> list[Any]:
    return np.maximum(np.round(made.length / 60 * np.exp(rng.normal(0, 0.2, len(made.length)))), 1).astype(int).tolist()


def format_flag(made: Samples, rng: Rng) -> list[Any]:
    chance = 0.55 + 0.3 * made.correct - 0.15 * (made.length > np.median(made.length))
    return (rng.random(len(made.length)) < chance).tolist()


def judge_label(made: Samples, rng: Rng) -> list[Any]:
    agrees = rng.random(len(made.length)) < rng.uniform(0.8, 0.95)
    return take(("bad", "good"), (made.correct == agrees).astype(np.int64))


CONSEQUENCES = {
    ("finish_word", "ending"): finish_word,
    ("num_turns", "rounds"): turns,
    ("format_ok", "tidy"): format_flag,
    ("judge_label", "stamp"): judge_label,
}


def conclude(files: Files, pool: bool = False) -> str:
    """Return the verdict on files: effect, none, unknown, or asked. Columns are named, as by --columns."""
    roles = {"prompt": "question", "tokens": "num_tokens", "reward": "reward"}
    roles |= {"step": "step"} if "step" in next(iter(files.values()))[0] else {}
    format, meter = by_name(roles), make_meter(None, "")
    found = Found(files={name: place for place, name in enumerate(files)})
    parts = list[Part]()
    for name, rows in files.items():
        chunk = make_chunk(Path(name), list(range(1, len(rows) + 1)), rows, None)
        found.context.append(collect_context(chunk, set(roles.values())))
        parts.append(read_rows(format.read(chunk, found), meter, found))
    log = make_grouped_log("generic", join(parts), meter, found, Options(pool=pool))
    if log.question:
        return "asked"
    is_grouped = log.grouping or ("step" not in roles and len(np.unique(log.batch)) > 1)
    return verdict.conclude(verdict.within_log(log)).status + (", grouped" if is_grouped else "")


def irrelevant_log(rng: Rng) -> tuple[Files, Files]:
    """Return a log without an effect, with five irrelevant columns and without."""
    made = sample(prompts_of(), np.zeros(PROMPTS * SIZE), rng)
    order = np.arange(len(made.prompt)) if rng.random() < 0.5 else rng.permutation(len(made.prompt))
    names = rng.choice(list(IRRELEVANT), 5, replace=False).tolist()
    plain = made.rows(order)
    columns = {name: IRRELEVANT[name](rng, made.prompt[order]) for name in names}
    return one_file([row | {n: of[k] for n, of in columns.items()} for k, row in enumerate(plain)]), one_file(plain)


def consequence_log(names: tuple[str, str], rng: Rng) -> Files:
    """Return a log with an effect and a column that follows from the response, under a usual name or an invented one."""
    made = sample(prompts_of(), np.zeros(PROMPTS * SIZE), rng, LONGER)
    order = np.arange(len(made.prompt)) if rng.random() < 0.5 else rng.permutation(len(made.prompt))
    return one_file(made.rows(order, **{names[int(rng.random() < 0.5)]: CONSEQUENCES[names](made, rng)}))


def conclude_made(make: Callable[[Rng], Files], pool: bool, rng: Rng) -> str:
    return conclude(make(rng), pool)


def conclude_consequence(names: tuple[str, str], rng: Rng) -> str:
    return conclude(consequence_log(names, rng))


def count_verdicts(kind: str, seed: int, number: int, make: Callable[[Rng], str]) -> Counter[str]:
    rng = np.random.default_rng(seed)
    counts = Counter(make(rng) for _ in range(number))
    shown = ", ".join(f"{name} {share / number:.1%}" for name, share in counts.most_common())
    print(f"{kind:36} {number:6,} {shown}", flush=True)
    return counts


def main() -> None:
    """Print the verdicts on each kind of log, and check the marks."""
    (number, is_asked), missed = read_size("--logs", 100, smoke=3), list[str]()

    def compare(rng: Rng) -> str:
        before, after = (conclude(files) for files in reversed(irrelevant_log(rng)))
        return "same" if before == after else f"{before} became {after}"

    print(f"{'kind':36} {'logs':>6} verdicts")
    counts = count_verdicts("irrelevant columns", 1, 10 * number, compare)
    if (changed := 1 - counts["same"] / counts.total()) > MOST_CHANGED:
        missed.append(f"{changed:.1%} of verdicts change with irrelevant columns")
    total = Counter[str]()
    for seed, (kind, make) in enumerate(CONFOUNDED.items(), 2):
        counts = count_verdicts(kind, seed, number, partial(conclude_made, make, "folder" in kind))
        total += counts
        if (found := 1 - counts["effect"] / number) < LEAST_OF_KIND:
            missed.append(f"{kind}: {found:.1%} found")
    wrong = total["effect"]
    print(f"{'all confounded logs':36} {total.total():6,} not told apart {wrong / total.total():.1%}")
    if 1 - wrong / total.total() < LEAST_FOUND:
        missed.append(f"{wrong / total.total():.1%} of confounded logs are not told apart")
    total = Counter[str]()
    for seed, names in enumerate(CONSEQUENCES, 101):
        total += count_verdicts(names[0], seed, 10 * number // 4, partial(conclude_consequence, names))
    lost = total["none"] + total["none, grouped"]
    print(
        f"{'all consequences':36} {total.total():6,} lost {lost / total.total():.1%}, asked {total['asked'] / total.total():.1%}"
    )
    if lost / total.total() > MOST_LOST:
        missed.append(f"{lost / total.total():.1%} of effects are lost to consequences")
    if is_asked:
        demand(not missed, "; ".join(missed))
        print(f"all marks are met by {number:,} logs of each kind")


if __name__ == "__main__":
    main()

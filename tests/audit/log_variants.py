"""The same rollouts as many programs write them: a hundred variants of a log with an effect and of one without.

A variant is right where its verdict is that of the clean log (status, and size within 2% of length), or where it is refused in
one line that names a flag. What a framework documents is never refused.
"""

import csv
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SIZE = 8
"""Responses to a prompt."""
Row = dict[str, Any]
WORDS = ("so", "we", "add", "then", "and", "thus", "carry", "digit")


@dataclass(frozen=True)
class Variant:
    """One way to write a log."""

    name: str
    row: Callable[[Row], Row] = lambda row: row
    container: str = "jsonl"
    clean: str = "text"
    """Which clean log it is to be compared with: text, cut (with truncated responses), images."""
    is_documented: bool = False
    """Whether a framework writes it, so that it is never refused."""
    table: Callable[[list[Row]], list[Row]] | None = None
    """What makes the rows where one needs the others."""

    def write(self, folder: Path, rows: list[Row]) -> Path:
        """Write the variant of some rows."""
        made = self.table(rows) if self.table else [self.row(row) for row in rows]
        return write(folder / f"rows.{self.container}", made)


def write(path: Path, rows: list[Row]) -> Path:
    """Write rows in the container that the suffix says."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n" if path.suffix == ".jsonl" else "[" + ",\n".join(lines) + "]")
    return path


# ------------------------------------------------------------------------------------------------------------ clean logs


def make_rows(gap: float, num_prompts: int = 30, seed: int = 0) -> list[Row]:
    """Return rollouts whose incorrect responses are `gap` times as long; prompt, response, reference, verdict, words."""
    draw, rows = random.Random(seed), list[Row]()
    for number in range(num_prompts):
        gold, chance = draw.randint(10, 99), min(max(draw.gauss(0.5, 0.15), 0.2), 0.8)
        for _ in range(SIZE):
            correct = draw.random() < chance
            size = max(3, round(draw.lognormvariate(math.log(80), 0.25) * (1 if correct else gap)))
            text = " ".join(draw.choice(WORDS) for _ in range(size - 1)) + f" {gold if correct else gold + 1}"
            rows.append({"id": number, "prompt": f"What is item {number} of the list?", "text": text, "gold": str(gold),
                         "correct": correct, "size": size, "answer": text.split()[-1]})  # fmt: skip
    return rows


def cut_rows(rows: list[Row], seed: int = 5) -> list[Row]:
    """Return rollouts of which half of the incorrect ones, and no other, ended at a limit of 250 words."""
    draw, made = random.Random(seed), list[Row]()
    for row in rows:
        cut = not row["correct"] and draw.random() < 0.5
        size = 250 if cut else min(row["size"], 249)
        made.append(row | {"cut": cut, "size": size, "text": " ".join(["so"] * size)})
    return made


def image_rows(rows: list[Row]) -> list[Row]:
    """Return problems that share eleven texts and differ in their image and reference; odd ones are hard and long."""
    draw, made = random.Random(4), list[Row]()
    for row in rows:
        odd = row["id"] % 2
        size = row["size"] * (2 if odd else 1)
        correct = row["correct"] if draw.random() < 0.4 else not odd
        text = " ".join(["so"] * size) if correct == row["correct"] else " ".join(["so"] * (size + draw.randint(-9, 9)))
        made.append(
            row | {"prompt": f"<image>Find angle {'ABCDEFGHIJK'[row['id'] % 11]}.", "text": text, "correct": correct}
        )
    return made


def plain(row: Row) -> Row:
    """Return the clean log's row: what needs no guess."""
    return {"prompt": f"{row['id']}: {row['prompt']}", "response": row["text"], "reward": float(row["correct"])} | (
        {"finish_reason": "length" if row["cut"] else "stop"} if "cut" in row else {}
    )


# ------------------------------------------------------------------------------------------------- the name of the text

TEXTS = [
    "response", "completion", "output", "generation", "model_response", "model_answer", "llm_answer", "full_response",
    "code", "generations", "pred", "solution", "answer", "resp", "candidate", "sample", "trajectory", "rollout",
    "assistant", "text", "reply", "model_output", "prediction", "generated_text", "decoded_output", "my_own_column",
    "llm_response", "raw_output",
]  # fmt: skip
REFERENCES = ["answer", "solution", "ground_truth", "gts", "target", "label", "reference", "gold_answer"]


def text_variants() -> Iterator[Variant]:
    """Yield the text under many names, a reference beside it, and texts that are neither."""
    for place, name in enumerate(TEXTS):
        reference = next(one for one in REFERENCES[place % 5 :] if one != name)

        def row(row: Row, name: str = name, reference: str = reference) -> Row:
            question = {"question": row["prompt"], reference: f"{row['gold']} because it is so"}
            return question | {name: row["text"], "is_correct": row["correct"]}

        yield Variant(f"text: in {name}, reference in {reference}", row)
    asked = {"question": "prompt", "is_correct": "correct"}
    beside: dict[str, Callable[[Row], Row]] = {
        "extracted in pred": lambda r: {"response": r["text"], "pred": r["answer"], "answer": r["gold"]},
        "extracted in output": lambda r: {"output": r["answer"], "full_response": r["text"], "answer": r["gold"]},
        "extracted in answer": lambda r: {"answer": r["answer"], "model_output": r["text"], "ground_truth": r["gold"]},
        "prompt and response in text": lambda r: {"text": r["prompt"] * 9 + r["text"], "response": r["text"]},
        "reference solution first": lambda r: {"solution": f"it is {r['gold']}", "output": r["text"]},
        "number as reference": lambda r: {"answer": int(r["gold"]), "model_answer": r["text"]},
        "reference list": lambda r: {"answers": [r["gold"], r["gold"]], "generated": r["text"]},
        "reasoning of the reference": lambda r: {"reasoning": f"it is {r['gold']}", "response": r["text"]},
        "reasoning and an extracted answer": lambda r: {"cot": r["text"], "answer": r["answer"], "gold": r["gold"]},
        "judge beside": lambda r: {"judge_response": f"it {r['correct']}s at {r['size'] % 7}", "model_reply": r["text"]},
    }  # fmt: skip
    for name, made in beside.items():

        def row(row: Row, made: Callable[[Row], Row] = made) -> Row:
            return {name: row[of] for name, of in asked.items()} | made(row)

        yield Variant(f"text: {name}", row)


# ------------------------------------------------------------------------------------------------------------- reasoning


def reasoning_variants() -> Iterator[Variant]:
    """Yield reasoning in many places, where the answer itself says nothing about length."""
    answer = {"type": "text", "text": "It is."}
    part = {
        "thinking part": lambda t: {"content": [{"type": "thinking", "thinking": t, "signature": "x"}, answer]},
        "reasoning part": lambda t: {"content": [{"type": "reasoning", "reasoning": t}, answer]},
        "reasoning": lambda t: {"reasoning": t, "content": "It is."},
        "reasoning_content": lambda t: {"reasoning_content": t, "content": "It is."},
        "thinking": lambda t: {"thinking": t, "content": "It is."},
        "thought": lambda t: {"thought": t, "content": "It is."},
        "reasoning_details": lambda t: {"reasoning_details": [{"type": "reasoning.text", "text": t}], "content": "It is."},
        "reasoning twice": lambda t: {"reasoning": t, "reasoning_content": t, "content": "It is."},
        "both": lambda t: {"reasoning": t, "reasoning_details": [{"type": "reasoning.text", "text": t}], "content": "It is."},
        "summary": lambda t: {"reasoning_details": [{"type": "reasoning.summary", "summary": t}], "content": "It is."},
        "reasoning alone": lambda t: {"reasoning": t, "content": None},
        "inline": lambda t: {"content": f"<think>{t}</think> It is."},
    }  # fmt: skip
    for name, message in part.items():

        def row(row: Row, message: Callable[[str], Row] = message) -> Row:
            said = [{"role": "assistant"} | message(row["text"])]
            return {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "completion": said,
                "reward": float(row["correct"]),
            }

        yield Variant(f"reasoning: message with {name}", row)
        if name in ("reasoning", "reasoning_content", "thinking part"):

            def result(row: Row, message: Callable[[Row], Row] = row) -> Row:
                return message(row) | {"example_id": row["id"], "answer": "It is", "task": "t"}

            yield Variant(f"reasoning: verifiers with {name}", result, is_documented=True)
    for name in ("reasoning", "thinking", "cot", "reasoning_content", "thoughts"):

        def beside(row: Row, name: str = name) -> Row:
            return {"prompt": row["prompt"], "response": "It is.", name: row["text"], "reward": float(row["correct"])}

        yield Variant(f"reasoning: column {name}", beside)
    hidden = [{"type": "reasoning.encrypted", "data": "gAAAA"}]

    def encrypted(row: Row) -> Row:
        said = [{"role": "assistant", "reasoning_details": hidden, "content": row["answer"]}]
        return {"prompt": row["prompt"], "completion": said, "reward": float(row["correct"])}

    yield Variant("reasoning: encrypted", encrypted)
    yield Variant("reasoning: encrypted, with tokens", lambda r: encrypted(r) | {"completion_tokens": r["size"]})


# ------------------------------------------------------------------------------------------------------------ truncation


def finish_variants() -> Iterator[Variant]:
    """Yield the words of engines for a response that the limit ended, and for one that ended by itself."""
    words: dict[str, tuple[str, Any, Any]] = {
        "vLLM": ("finish_reason", "length", "stop"), "Anthropic": ("stop_reason", "max_tokens", "end_turn"),
        "sglang": ("finish_reason", {"type": "length", "length": 250}, {"type": "stop", "matched": 2}),
        "OpenAI responses": ("status", "incomplete", "completed"),
        "OpenAI reason": ("finish_reason", "max_output_tokens", "stop"), "Mistral": ("finish_reason", "model_length", "stop"),
        "llama.cpp": ("stop_type", "limit", "eos"),
        "enumeration": ("finish_reason", "FinishReason.LENGTH", "FinishReason.STOP"),
        "Gemini": ("finish_reason", "MAX_TOKENS", "STOP"), "truncated": ("truncated", True, False),
        "TGI": ("finish_reason", "length", "eos_token"), "Ollama": ("done_reason", "length", "stop"),
        "upper case": ("finish_reason", "LENGTH", "EOS"), "words in a text": ("is_truncated", "true", "false"),
    }  # fmt: skip
    for name, (column, yes, no) in words.items():

        def row(row: Row, column: str = column, yes: Any = yes, no: Any = no) -> Row:
            said = {"prompt": row["prompt"], "response": row["text"], "reward": float(row["correct"])}
            return said | {column: yes if row["cut"] else no}

        yield Variant(f"finish: {name}", row, clean="cut")


# ------------------------------------------------------------------------------------------------------------ TRL's table


def add_advantage(rows: list[Row], rewards: Callable[[Row], float], scale: bool = True) -> list[float]:
    """Return TRL's advantage of rows that come in groups of SIZE."""
    found: list[float] = []
    for start in range(0, len(rows), SIZE):
        group = [rewards(row) for row in rows[start : start + SIZE]]
        by = statistics.stdev(group) + 1e-4 if scale else 1.0
        found += [(value - statistics.mean(group)) / by for value in group]
    return found


def trl_table(
    names: list[str], columns: dict[str, Callable[[Row], Any]], rewards: Callable[[Row], float], scale: bool = True
) -> Callable[[list[Row]], list[Row]]:
    """Return what makes a table of TRL's with columns in the order of `names`."""
    known = {
        "step": lambda r: 1, "prompt": lambda r: r["prompt"], "completion": lambda r: r["text"],
        "num_words": lambda r: r["size"], "__index_level_0__": lambda r: 0,
    } | columns  # fmt: skip

    def make(rows: list[Row]) -> list[Row]:
        advantage = add_advantage(rows, rewards, scale)
        made = [{name: known[name](row) for name in names if name != "advantage"} for row in rows]
        for place, row in enumerate(made):
            if "__index_level_0__" in row:
                row["__index_level_0__"] = place
        return [{n: advantage[p] if n == "advantage" else row[n] for n in names} for p, row in enumerate(made)]

    return make


def style(row: Row) -> float:
    """Return a second reward, that says nothing about length."""
    return 0.1 * (sum(map(ord, row["text"][:12])) % 3)


def trl_variants() -> Iterator[Variant]:
    """Yield TRL's completions with a number of somebody's own in every place, and rewards of many kinds."""
    base = ["step", "prompt", "completion", "grade", "advantage"]
    grade = {"grade": lambda r: float(r["correct"])}
    for extra in ("num_words", "__index_level_0__"):
        for place in range(len(base) + 1):
            names = [*base[:place], extra, *base[place:]]
            table = trl_table(names, grade, lambda r: float(r["correct"]))
            between = names.index(extra) in (4, 5, len(base))  # after the rewards, as log_extra and pandas write them
            yield Variant(f"TRL: {extra} at {place}", table=table, container="parquet", is_documented=between)
    two = [*base[:4], "tidy", "num_words", "advantage"]
    both = grade | {"tidy": style}

    def made(
        name: str, names: list[str], columns: dict[str, Any], rewards: Callable[[Row], float], scale: bool = True
    ) -> Variant:
        table = trl_table(names, columns, rewards, scale)
        return Variant(f"TRL: {name}", table=table, container="parquet", is_documented=True)

    yield made("two rewards", two, both, lambda r: float(r["correct"]) + style(r))
    yield made("two rewards, weighed", two, both, lambda r: r["correct"] + 0.5 * style(r))
    yield made("not scaled", two, both, lambda r: float(r["correct"]) + style(r), scale=False)
    yield made("a weight of 0", two, both, lambda r: float(r["correct"]))
    names = [*base[:4], "prompt_tokens", "gold", "advantage"]
    extra = grade | {"prompt_tokens": lambda r: 100 * r["id"], "gold": lambda r: r["gold"]}
    yield made("tokens of the prompt", names, extra, lambda r: float(r["correct"]))
    nothing = grade | {"code": lambda r: None}
    yield made("a reward that never applied", [*base[:3], "code", *base[3:]], nothing, lambda r: float(r["correct"]))
    total = grade | {"tidy": style, "total": lambda r: r["correct"] + style(r)}
    names = [*base[:4], "tidy", "total", "advantage"]
    yield made("their sum logged too", names, total, lambda r: float(r["correct"]) + style(r))
    names = ["step", "prompt", "completion", "grade", "tidy", "advantage"]
    yield made(
        "a penalty on length in the advantage", names, both, lambda r: r["correct"] + style(r) - r["size"] / 1000
    )
    verdict = {"accuracy_reward": lambda r: float(r["correct"])}
    names = ["step", "prompt", "completion", "accuracy_reward", "num_words", "advantage"]
    yield made("named like a verdict", names, verdict, lambda r: float(r["correct"]))


# -------------------------------------------------------------------------------------------------------------- prompts

IDS = ["uid", "problem_id", "id", "index", "question_id", "example_id", "task_id", "doc_id"]


def prompt_variants() -> Iterator[Variant]:
    """Yield problems behind few texts that an id, a reference or an image tells apart, and ids of responses."""

    def image(row: Row, **more: Any) -> Row:
        return {"step": 1, "prompt": row["prompt"], "response": row["text"], "reward": float(row["correct"])} | more

    for name in IDS:
        yield Variant(f"images: {name}", lambda r, name=name: image(r, **{name: r["id"]}), clean="images")
    more: dict[str, Callable[[Row], Row]] = {
        "gts": lambda r: {"gts": str(r["id"])},
        "answer": lambda r: {"answer": f"{r['id']} degrees"},
        "image": lambda r: {"image": f"images/{r['id']}.png"},
        "extra_info.index": lambda r: {"extra_info": {"split": "train", "index": r["id"]}},
    }
    for name, made in more.items():
        yield Variant(f"images: {name}", lambda r, made=made: image(r, **made(r)), clean="images")

    def verl(row: Row, **more: Any) -> Row:
        said = {"input": f"user\n{row['prompt']}\nassistant\n", "output": row["text"], "gts": "30"}
        return said | {"score": float(row["correct"]), "step": 1} | more

    yield Variant("images: verl, gts", lambda r: verl(r, gts=str(r["id"])), clean="images", is_documented=True)
    yield Variant("images: verl, uid", lambda r: verl(r, uid=f"u{r['id']}"), clean="images", is_documented=True)

    def keys(rows: list[Row]) -> list[Row]:
        return [verl(row, uid=f"0f1e-{row['id']}_{place % SIZE}_0") for place, row in enumerate(rows)]

    yield Variant("images: verl, keys of v1", table=keys, clean="images", is_documented=True)
    yield Variant("ids: verl, keys of v1", table=keys, is_documented=True)

    def skyrl(row: Row) -> Row:
        said = {"input_prompt": row["prompt"], "output_response": row["text"], "score": float(row["correct"])}
        return said | {"stop_reason": "stop", "env_extras": {"ground_truth": str(row["id"])}}

    yield Variant("images: SkyRL", skyrl, clean="images", is_documented=True)

    def slime(rows: list[Row]) -> list[Row]:
        tail = {"loss_mask": None, "status": "completed"}
        return [
            {"group_index": row["id"], "index": place, "prompt": row["prompt"], "response": row["text"], "label": "30",
             "response_length": row["size"], "reward": float(row["correct"])} | tail
            for place, row in enumerate(rows)
        ]  # fmt: skip

    yield Variant("images: slime", table=slime, clean="images", is_documented=True)
    grade = {"grade": lambda r: float(r["correct"]), "gold": lambda r: str(r["id"])}
    names = ["step", "prompt", "completion", "grade", "gold", "advantage"]
    table = trl_table(names, grade, lambda r: float(r["correct"]))
    yield Variant("images: TRL, gold", table=table, clean="images", container="parquet", is_documented=True)

    for name in ("uid", "id", "index", "response_id", "example_id"):

        def numbered(rows: list[Row], name: str = name) -> list[Row]:
            return [image(row) | {name: place} for place, row in enumerate(rows)]

        yield Variant(f"ids: every response has its own {name}", table=numbered)
    yield Variant("ids: sample_id", table=lambda rows: [image(r, sample_id=n % SIZE) for n, r in enumerate(rows)])
    yield Variant(
        "ids: index of the response", table=lambda rows: [image(r, index=n % SIZE) for n, r in enumerate(rows)]
    )
    yield Variant("ids: extracted answer", lambda r: image(r, answer=r["answer"]))
    yield Variant("ids: extracted pred and gts", lambda r: image(r, pred=r["answer"], gts=r["gold"]))
    yield Variant(
        "ids: an id alone", lambda r: {k: v for k, v in image(r, problem_id=r["id"]).items() if k != "prompt"}
    )
    draw = random.Random(1)
    yield Variant(
        "ids: a prompt of its own", lambda r: image(r, problem_id=r["id"], prompt=f"{draw.random()} {r['prompt']}")
    )


# --------------------------------------------------------------------------------------------- lengths, rewards, containers


def length_variants() -> Iterator[Variant]:
    """Yield numbers that are called lengths and are none of the response."""

    def made(row: Row, **more: Any) -> Row:
        return {"prompt": row["prompt"], "response": row["text"], "reward": float(row["correct"])} | more

    counts: dict[str, Callable[[Row], Row]] = {
        "tokens of the prompt": lambda r: {"num_tokens": 40 + r["id"] % 7},
        "tokens of the prompt in length": lambda r: {"length": 9},
        "prompt and response": lambda r: {"num_tokens": 900 + r["id"] + r["size"]},
        "characters": lambda r: {"length": len(r["text"])},
        "the limit": lambda r: {"length": 4096},
        "of other rows": lambda r: {"length": 10 + hash(r["prompt"] + r["text"][:20]) % 90},
    }  # fmt: skip
    for name, of in counts.items():
        yield Variant(f"length: {name}", lambda r, of=of: made(r, **of(r)))
    yield Variant("length: tokens", lambda r: made(r, num_tokens=r["size"] + 1))


def reward_variants() -> Iterator[Variant]:
    """Yield rewards of which half of the range is no verdict."""

    def penalised(low: float, share: float, high: float = 1.0, base: float = 0.0) -> Callable[[list[Row]], list[Row]]:
        def make(rows: list[Row]) -> list[Row]:
            draw = random.Random(9)
            rewards = [high if r["correct"] else low if draw.random() < share else base for r in rows]
            return [
                {"prompt": r["prompt"], "response": r["text"], "reward": reward}
                for r, reward in zip(rows, rewards, strict=True)
            ]

        return make

    for low, share, high, base in (
        (-10, 0.1, 1, 0),
        (-100, 0.06, 1, 0),
        (-10, 0.1, 1, -1),
        (-10, 0.6, 1, 0),
        (-5, 0.1, 1.1, 0.1),
    ):
        table = penalised(low, share, high, base)
        yield Variant(f"reward: {low} for {share:.0%} of incorrect, {base} else, {high} correct", table=table)

    def parts(rows: list[Row]) -> list[Row]:
        gains = add_advantage(rows, lambda r: r["correct"] + style(r))
        return [
            {"prompt": r["prompt"], "response": r["text"], "reward_grade": float(r["correct"]), "reward_style": style(r),
             "score_length": r["size"], "advantage": gain}
            for r, gain in zip(rows, gains, strict=True)
        ]  # fmt: skip

    yield Variant("reward: parts, one of which is a length", table=parts)


def container_variants() -> Iterator[Variant]:
    """Yield two shapes in four containers."""

    def listed(rows: list[Row]) -> list[Row]:
        groups = [rows[start : start + SIZE] for start in range(0, len(rows), SIZE)]
        return [
            {"idx": n, "question": group[0]["prompt"], "answer": group[0]["gold"], "solution": f"it is {group[0]['gold']}",
             "code": [r["text"] for r in group], "pred": [r["answer"] for r in group], "score": [r["correct"] for r in group]}
            for n, group in enumerate(groups)
        ]  # fmt: skip

    def chat(row: Row) -> Row:
        turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["text"]}]
        return {"messages": turns, "answer": row["gold"], "reward": {"accuracy": float(row["correct"]), "format": 0.5}}

    yield Variant("container: lists of a problem's responses", table=listed)
    yield Variant("container: a chat with a reference", chat)
    for container in ("jsonl", "json", "csv", "parquet"):
        yield Variant(f"container: {container}", plain, container)

        def sibling(row: Row) -> Row:
            question = {"question": row["prompt"], "answer": f"{row['gold']} because it is so"}
            return question | {"model_response": row["text"], "is_correct": row["correct"]}

        yield Variant(f"container: {container}, with a reference", sibling, container)


def list_variants() -> list[Variant]:
    """Return all variants."""
    kinds = (
        text_variants, reasoning_variants, finish_variants, trl_variants, prompt_variants, length_variants, reward_variants,
        container_variants,
    )  # fmt: skip
    return [variant for kind in kinds for variant in kind()]

"""fairlen's problems as the parquet files that verl reads, their verifiers as its reward function, and what a model's files say.

`extra_info.fairlen_problem` has the problem as JSON, for `compute_score`: verl's `custom_reward_function` for such files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen import channels, playground
from fairlen.console import warn
from fairlen.files.folders import replacing, write_file
from fairlen.files.foreign import read_file_bytes, read_json_object
from fairlen.files.formats import describe
from fairlen.files.limits import bounded_memory, bounded_seconds
from fairlen.rollouts import VERDICTS
from fairlen.settings import VerifierSettings
from fairlen.tasks.data_row import Answers, Choice, DataRow, Program
from fairlen.tasks.dataset import warn_of_cheats
from fairlen.tasks.grader import Verifier, check_kinds
from fairlen.tasks.load import read_sets
from fairlen.tasks.playground import PLAYGROUND, Playground
from fairlen.tasks.prompt import MAX_SECONDS
from fairlen.tasks.task import Problem, Verdict

LIMIT = 120.0
"""Seconds for one verdict, whatever the verifier's own deadlines are."""
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The prompt of the playground as a chat template."""
UNUSED = ("<|im_end|>", "\n")
"""verl's reader of Qwen3 prompts asks for tokens of these; the playground never writes them."""
UNKNOWN = "<pad>"
"""Token that stands for text foreign to the playground: vLLM tries the template with words of its own."""
TYPES: dict[str, type[Answers] | type[Choice] | type[Program]] = {one.kind: one for one in (Answers, Choice, Program)}


def playground_rows(count: int, held_out: bool) -> Iterator[dict[str, Any]]:
    task = Playground()
    problems = task.held_out(count) if held_out else map(task.train, range(count))
    for number, problem in enumerate(problems):
        yield verl_row(PLAYGROUND, [("user", problem.text)], problem.answer, number, {"kind": PLAYGROUND})


def opens_thinking(model: str) -> bool:
    """Whether the chat template of a model begins its thinking, so that an answer counts after </think> alone."""
    from fairlen.files.pretrained import read_tokenizer  # needs torch

    tokenizer = read_tokenizer(model)
    if not getattr(tokenizer, "chat_template", None):
        return False
    messages = [{"role": "user", "content": "1"}]
    try:
        with bounded_memory(), bounded_seconds(MAX_SECONDS):
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates are programs, which raise whatever they like
        raise ValueError(f"model={model}: its chat template does not render: {describe(error)}") from error
    return channels.opens_thinking(str(text))


def check_model(place: str, tokenizer_alone: bool = False) -> None:
    """Raise ValueError for a folder on this machine with code of its own, or with files that cannot be loaded."""
    place = os.path.expanduser(place)
    if not place or not Path(place).is_dir():
        return
    from fairlen.files.pretrained import ANY_KIND, check_for_others, names_code, read_tokenizer  # needs torch

    if name := names_code(place):
        raise ValueError(f"model={place}: its {name} names code of its own (auto_map), never run here: remove it there")
    if tokenizer_alone:
        read_tokenizer(place)
    else:
        check_for_others(place, kinds=ANY_KIND)


def data_rows(
    places: Sequence[str],
    starts_inside: bool = False,
    form: str = "auto",
    held_out: Sequence[str] = (),
    is_training: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the problems of data sets as rows of verl's.

    Args:
        places: Data sets: files, folders or ids of the hub, of any schema that fairlen reads.
        starts_inside: Whether prompts end within the model's thinking.
        form: Form of the answers, as `--answer` has it.
        held_out: Data sets whose problems are skipped.
        is_training: Whether the rows are trained on; a warning names rows that a program can cheat.

    Raises:
        ValueError: A data set has a share (`=WEIGHT`), which verl does not keep.
    """
    number, left_out = 0, {row.key for found in read_sets(held_out) for row in found.rows}
    sets = read_sets(places)
    if is_training and (warning := warn_of_cheats([row for rows in sets for row in rows.rows])):
        warn(warning)
    for found in sets:
        if found.source.weight != 1.0:
            raise ValueError(f"--data {found.source.text}: verl mixes by size; leave ={found.source.weight:g} out")
        check_kinds({row.kind for row in found.rows}, form)
        for row in (row for row in found.rows if row.key not in left_out):
            stored = json.loads(row.canonical()) | {"starts_inside": starts_inside, "form": form}
            messages = [*row.earlier, ("user", f"{row.question}\n\n{row.reference.instruction(form)}".strip())]
            yield verl_row(found.name, messages, row.reference.shown, number, stored)
            number += 1


def verl_row(
    source: str, messages: Sequence[tuple[str, str]], answer: str, number: int, stored: dict[str, Any]
) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": role, "content": content} for role, content in messages],
        "ability": stored["kind"],
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"index": number, "fairlen_problem": json.dumps(stored)},
    }


def write_rows(rows: Iterable[dict[str, Any]], path: Path) -> int:
    """Writes the rows and returns how many. Raises ValueError where there are none."""
    table = pa.Table.from_pylist(list(rows))
    if not table.num_rows:
        raise ValueError(f"--data: there is no problem to write into {path}")
    with replacing(path) as staging:
        pq.write_table(table, staging)
    return table.num_rows


def read_problem(stored: dict[str, Any]) -> DataRow:
    reference: dict[str, Any] = {
        name: tuple(tuple(x) if isinstance(x, list) else x for x in value) if isinstance(value, list) else value
        for name, value in stored["reference"].items()
    }
    return DataRow(
        stored["id"], stored["dataset"], stored["question"], TYPES[stored["kind"]](**reference), stored["columns"]
    )


@cache
def verifier_of(kind: str, form: str) -> Verifier:
    """One verifier of each kind and form in a process; its workers stay."""
    return Verifier({kind}, VerifierSettings(answer="auto" if kind == Program.kind else form))


async def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """The verdict on a finished response: its score, `acc`, whether it is correct, and `verdict`, whether there is one.

    There is none where the verifier timed out or failed. Raises ValueError for a row that `fairlen verl` did not write.
    """
    stored = (extra_info or {}).get("fairlen_problem")
    if not stored:
        raise ValueError(
            f"data_source={data_source!r}: the row has no extra_info.fairlen_problem, which this reward function reads; "
            "convert the data with `fairlen verl --data`, or give a reward function of your own"
        )
    try:
        verdict = await asyncio.wait_for(grade(json.loads(stored), ground_truth, solution_str), LIMIT)
    except TimeoutError:
        verdict = Verdict("timeout", 0.0)
    return {
        "score": verdict.outcome,
        "acc": float(verdict.status == "correct"),
        "verdict": float(verdict.status in VERDICTS),
    }


async def grade(stored: dict[str, Any], answer: str, text: str) -> Verdict:
    if stored["kind"] == PLAYGROUND:
        return await Playground().verify(Problem("", "", (0,), answer), text)
    row: DataRow = read_problem(stored)
    return await verifier_of(row.kind, stored.get("form", "auto"))(row, text, bool(stored.get("starts_inside")))


def read_eos_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that end a text: the tokenizer's, and those of the model's generation_config, which servers know too."""
    own = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
    return frozenset(own) | read_model_eos_ids(str(getattr(tokenizer, "name_or_path", "")))


@cache
def read_model_eos_ids(place: str) -> frozenset[int]:
    """EOS tokens of a model's generation_config; none where there is no such file."""
    from transformers import GenerationConfig

    with contextlib.suppress(OSError, ValueError):
        found = GenerationConfig.from_pretrained(place).eos_token_id if place else None
        return frozenset(found if isinstance(found, list) else () if found is None else (found,))
    return frozenset()


def copy_shipped(folder: Path, source: str | Path = playground.PATH) -> Path:
    """A shipped model with what verl asks of a chat model: a template, and a token that ends a turn."""
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        write_file(folder / name, read_file_bytes(Path(source) / name))
    settings = read_json_object(Path(source) / "tokenizer_config.json")
    write_file(folder / "tokenizer_config.json", json.dumps(settings | {"chat_template": TEMPLATE}, indent=2).encode())
    tokenizer = read_json_object(Path(source) / "tokenizer.json")
    tokenizer["model"]["unk_token"] = UNKNOWN
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    number = max(tokenizer["model"]["vocab"].values()) + 1
    for offset, text in enumerate(UNUSED):
        tokenizer["added_tokens"].append({"id": number + offset, "content": text, "special": True} | flags)
    write_file(folder / "tokenizer.json", json.dumps(tokenizer).encode())
    return folder

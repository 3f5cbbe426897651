r"""From a problem to the prompt that the model reads: instruction, chat template, token ids. Nothing is truncated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from fairlen.channels import opens_thinking
from fairlen.console import plural
from fairlen.files.formats import columns_of, stream
from fairlen.files.limits import bounded_memory, bounded_seconds
from fairlen.tasks.data_row import DataRow, Program, UnusableRow
from fairlen.tasks.schemas import choose_schema
from fairlen.tasks.source import DataError, locate, read_source
from fairlen.tasks.task import Problem
from fairlen.verify.answer import FORMS, PATTERN, last_of, match_exactly

MAX_SECONDS = 10.0  # time of a chat template, which is a program, for one prompt, and of a pattern for one example
PIECE = 1000

MARK = re.compile(r"\s*####[^\n]*\s*\Z")
"""The answer at the end of a solution of GSM8K."""


@dataclass(frozen=True)
class Shot:
    """A solved example before each problem."""

    row: DataRow
    solution: str


@dataclass(frozen=True)
class Prompter:
    """Turns rows into problems. Raises ValueError for settings that the tokenizer cannot follow."""

    tokenizer: Any
    template: str = "auto"  # "chat" by the chat template, "plain" as text, "auto" chat where there is a template
    system_prompt: str = ""  # system message, or text before a plain prompt
    instruction: str = "auto"  # text after each question; "auto" asks for the form of answer that the verifier reads
    thinking: str = "auto"  # handed to templates that know `enable_thinking`; "auto" leaves it to the template
    form: str = "auto"  # in which answers are read
    shots: tuple[Shot, ...] = ()  # before each problem

    def __post_init__(self) -> None:
        if self.template == "chat" and not self.is_chat:
            raise ValueError("--template chat: the model's tokenizer has no chat template; use --template plain")
        if self.thinking == "auto":
            return
        if not self.is_chat:
            raise ValueError(f"--thinking {self.thinking}: plain prompts have no such switch; use --thinking auto")
        if "enable_thinking" not in self.tokenizer.get_chat_template():
            raise ValueError(
                f"--thinking {self.thinking}: the chat template does not know enable_thinking; use --thinking auto, "
                "and ask for it in the system prompt if the model can be asked"
            )

    @property
    def is_chat(self) -> bool:
        return self.template != "plain" and bool(getattr(self.tokenizer, "chat_template", None))

    def pose(self, row: DataRow) -> Problem:
        text = self.render(row)
        return Problem(
            id=row.id,
            text=self.ask(row),
            token_ids=tuple(self.encode([text])[0]),
            answer=row.reference.shown,
            columns=row.columns | {"dataset": row.dataset},
            starts_inside=opens_thinking(text),
        )

    def ask(self, row: DataRow) -> str:
        instruction = row.reference.instruction(self.form) if self.instruction == "auto" else self.instruction
        return f"{row.question}\n\n{instruction}" if instruction else row.question

    def render(self, row: DataRow) -> str:
        chat = self.messages(row)
        if not self.is_chat:
            return "\n\n".join(message["content"] for message in chat) + "\n"
        switch: dict[str, Any] = {} if self.thinking == "auto" else {"enable_thinking": self.thinking == "on"}
        try:
            with bounded_seconds(MAX_SECONDS):
                text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **switch)
            text.encode()  # half of a character is no text
            if not text:
                raise ValueError("it makes nothing of it")
        except Exception as error:  # templates are programs, which raise whatever they like
            model = getattr(self.tokenizer, "name_or_path", "") or "the model"
            what = f"{model}: the chat template fails on problem {row.id}: {error or type(error).__name__}"
            raise ValueError(f"{what}; mend it, use --template plain, or leave --system-prompt out") from error
        return text

    def messages(self, row: DataRow) -> list[dict[str, str]]:
        earlier = [{"role": role, "content": content} for role, content in row.earlier]
        if self.system_prompt and any(message["role"] == "system" for message in earlier):
            raise ValueError(
                f"problem {row.id}: it has a system message of its own; leave --system-prompt out, or remove it from the data"
            )
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        own = earlier[:1] if earlier and earlier[0]["role"] == "system" else []
        solved = [(("user", self.ask(shot.row)), ("assistant", shot.solution)) for shot in self.shots]
        shots = [{"role": role, "content": content} for pair in solved for role, content in pair]
        return [*system, *own, *shots, *earlier[len(own) :], {"role": "user", "content": self.ask(row)}]

    @cached_property
    def shot_keys(self) -> frozenset[str]:
        return frozenset(shot.row.key for shot in self.shots)

    def describe_shots(self, row: DataRow, max_length: float = math.inf) -> str:
        """A line on the solved examples before a row; empty without any. Raises ValueError where they alone are too long."""
        if not self.shots:
            return ""
        number, tokens = len(self.shots), self.measure([row])[0] - replace(self, shots=()).measure([row])[0]
        line = f"{number} solved {plural('example', number)}, {tokens} tokens of each prompt"
        if tokens >= max_length:
            raise ValueError(f"--shots: {line}, and max_prompt_length={max_length}: raise it, or give fewer examples")
        return f"shots: {line}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Templates write BOS themselves; plain text gets the tokenizer's own in front and nothing behind."""
        found = self.tokenizer(list(texts), add_special_tokens=not self.is_chat)["input_ids"]
        return found if self.is_chat else [ids[: len(ids) - self.num_after] for ids in found]

    @cached_property
    def num_after(self) -> int:
        """Special tokens that the tokenizer puts behind plain text, such as EOS."""
        bare = self.tokenizer("1", add_special_tokens=False)["input_ids"]
        ids = self.tokenizer("1")["input_ids"]
        start = next(i for i in range(len(ids)) if ids[i : i + len(bare)] == bare)
        return len(ids) - start - len(bare)

    def measure(self, rows: Sequence[DataRow]) -> list[int]:
        pieces = (rows[start : start + PIECE] for start in range(0, len(rows), PIECE))
        with bounded_memory():
            return [len(ids) for piece in pieces for ids in self.encode([self.render(row) for row in piece])]

    def describe(self) -> dict[str, Any]:
        return {
            "template": "chat" if self.is_chat else "plain",
            "system_prompt": self.system_prompt,
            "instruction": self.instruction,
            "thinking": self.thinking,
        } | ({"shots": [[shot.row.question, shot.solution] for shot in self.shots]} if self.shots else {})


def read_shots(text: str, form: str = "auto") -> tuple[Shot, ...]:
    """Read the examples of FILE:N, with answers in a form. Raises ValueError."""
    place, _, number = text.rpartition(":")
    if not place or not number.isdecimal() or not int(number):
        raise ValueError(f"--shots {text}: write FILE:N, a file as --data takes it and how many of its first problems")
    try:
        shots = tuple(islice(find_shots(place, form), int(number)))
    except DataError as error:
        raise ValueError(str(error).replace("--data", "--shots", 1)) from None
    if len(shots) < int(number):
        raise ValueError(f"--shots {text}: {place} has {len(shots)} problems with answers; give at most that many")
    return shots


def find_shots(place: str, form: str) -> Iterator[Shot]:
    source = read_source(place)
    for path in locate(source)[0]:
        schema = choose_schema(place, columns_of(path))
        for raw in (raw for chunk in stream(path) for raw in chunk.rows()):
            if all(one.accepts(raw.get(one.column)) for one in source.filters):
                with suppress(UnusableRow):
                    row = schema.parse(raw)
                    if not isinstance(row.reference, Program):
                        yield Shot(row, solve(row, (raw.get("solution"), raw.get(schema.needed[1])), form))


def solve(row: DataRow, cells: tuple[Any, ...], form: str) -> str:
    """The solution of a row that has one, which ends with the answer in the form."""
    answer, letters, read = row.reference.shown, getattr(row.reference, "letters", ""), None
    given = (cell.strip() for cell in cells if isinstance(cell, str))
    solution = next((cell for cell in given if len(cell.split()) > len(answer.split()) + 1), "")
    if form in FORMS:
        read = FORMS[form].read(solution, letters)
    else:
        with suppress(TimeoutError), bounded_seconds(MAX_SECONDS):
            read = last_of(re.compile(form.removeprefix(PATTERN)), solution := solution or answer)
    if read and match_exactly(read, answer):
        return solution
    if form not in FORMS:
        raise ValueError(f"--shots: --answer {form} does not read {answer!r} in {solution[-80:]!r}; change one")
    return f"{MARK.sub('', solution)}\n{FORMS[form].written.format(answer)}".lstrip()

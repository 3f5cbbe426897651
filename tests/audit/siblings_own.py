"""Logs of invented programs, each with a known truth: what a reader has to understand without knowing any name in them.

Each log is made from one of three sources: PLANTED, whose incorrect responses are half as long again, SHORTER, whose incorrect
responses are shorter, and SAME, without any effect. A sibling is a way to write one of them.
"""

import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WORDS = [
    "take",
    "the",
    "first",
    "number",
    "and",
    "add",
    "what",
    "remains",
    "then",
    "carry",
    "over",
    "so",
    "that",
    "both",
    "sides",
    "agree",
    "because",
    "nothing",
    "else",
    "is",
    "left",
    "to",
    "check",
    "here",
    "unless",
    "we",
    "started",
    "from",
    "a",
    "wrong",
    "place",
    "which",
    "happens",
    "when",
    "signs",
    "are",
    "lost",
]
LONGER, SHORT, NO_EFFECT, UNKNOWN = "effect longer", "effect shorter", "none or unknown", "unknown"


@dataclass(frozen=True)
class Sibling:
    """A log with its truth."""

    kind: str
    name: str
    write: Callable[[Path], None]
    truth: str
    why: str
    after: str = ""
    """Text in the flag that answers the audit's question, if it asks one; empty: any flag leads to the truth."""
    unit: str = ""


def draw_words(rng: random.Random, number: int) -> str:
    """Return a text of so many words, with a full stop now and then."""
    words = [rng.choice(WORDS) for _ in range(max(number, 1))]
    for place in range(9, len(words), 10):
        words[place] += "."
    return " ".join(words)


def make_rows(factor: float, num_prompts: int = 120, size: int = 8, seed: int = 0, base: float = 50.0) -> list[Row]:
    """Return rollouts whose incorrect responses are `factor` times as long as correct ones to the same prompt."""
    rng, rows = random.Random(seed), list[Row]()
    for number in range(num_prompts):
        level, chance = base * math.exp(rng.gauss(0, 0.3)), rng.uniform(0.3, 0.7)
        left, right = rng.randint(100, 999), rng.randint(100, 999)
        for place in range(size):
            correct = rng.random() < chance
            words = 4 + int(level * math.exp(rng.gauss(0, 0.3)) * (1 if correct else factor))
            text = f"{draw_words(rng, words)} It is {left + right if correct else left + right + rng.randint(1, 9)}."
            rows.append(
                {
                    "q": number,
                    "k": place,
                    "prompt": f"Item {number}: what is {left} and {right} together?",
                    "text": text,
                    "correct": correct,
                    "n": len(text.split()),
                }
            )
    return rows


PLANTED, SHORTER, SAME = make_rows(1.5), make_rows(0.65, seed=1), make_rows(1.0, num_prompts=160, seed=2)


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(rows: list[Row], make: Callable[[Row], Row]) -> Callable[[Path], None]:
    """Return what writes a log of one file, whose rows `make` gives."""
    return lambda folder: write_lines(folder / "log.jsonl", map(make, rows))


def plain(row: Row, **more: Any) -> Row:
    """Return the row of a log in which nothing is hidden."""
    return {"prompt": row["prompt"], "response": row["text"], "reward": float(row["correct"])} | more


def halves(text: str) -> tuple[str, str]:
    """Return the two halves of a text."""
    words = text.split()
    return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])


def of(row: Row) -> random.Random:
    """Return a generator of the row's own."""
    return random.Random(row["q"] * 100 + row["k"])


SIBLINGS: list[Sibling] = []


def add(kind: str, name: str, write: Callable[[Path], None], truth: str, why: str, after: str = "") -> None:
    """Add a sibling to the list."""
    SIBLINGS.append(Sibling(kind, name, write, truth, why, after))


# -------------------------------------------------------------------------------- R2: numbers in lists

add(
    "R2",
    "spent_per_round",
    lines(
        PLANTED,
        lambda r: (
            plain(r, gen_tokens_num=[r["n"] // 2, r["n"] - r["n"] // 2])
            | {"output_tokens": [r["n"] // 2, r["n"] - r["n"] // 2]}
        ),
    ),
    LONGER,
    "two numbers of tokens, to be summed",
)
add(
    "R2",
    "ids_flat",
    lines(PLANTED, lambda r: plain(r, completion_ids=[of(r).randrange(9000) for _ in range(r["n"])])),
    LONGER,
    "a list of ids, to be counted",
)
add(
    "R2",
    "ids_by_turn",
    lines(SHORTER, lambda r: plain(r, response_ids=[[7] * (r["n"] // 2), [8] * (r["n"] - r["n"] // 2)])),
    SHORT,
    "lists of ids in a list",
)
add(
    "R2",
    "dicts_of_steps",
    lines(PLANTED, lambda r: plain(r, num_tokens=None) | {"moves": [{"ac_len": r["n"] - 12}, {"ac_len": 12}]}),
    LONGER,
    "a list of objects with a number each, beside the text",
)
add(
    "R2",
    "one_number_per_sentence",
    lines(
        PLANTED,
        lambda r: plain(r, response_tokens=[len(part.split()) for part in r["text"].split(".") if part.strip()]),
    ),
    LONGER,
    "a number for each sentence",
)
add(
    "R2",
    "sum_without_text",
    lines(
        PLANTED,
        lambda r: {"prompt": r["prompt"], "reward": float(r["correct"]), "output_tokens": [r["n"] * 3, 41 + r["k"]]},
    ),
    LONGER,
    "numbers of two turns, and no text",
)
add(
    "R2",
    "mask_of_turns",
    lines(SAME, lambda r: plain(r, response_mask=[1] * r["n"] + [0] * (30 + 90 * (not r["correct"])))),
    NO_EFFECT,
    "a mask, whose zeros were read",
)


# ---------------------------------------------------------------------------------- R3: calls of tools

CALLS: dict[str, Callable[[str], Row]] = {
    "action_object": lambda t: {
        "role": "assistant",
        "content": "One moment.",
        "action": {"tool": "shell", "tool_input": t},
    },
    "code_field": lambda t: {"role": "assistant", "content": "One moment.", "code": t},
    "args_text": lambda t: {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "calc", "args": json.dumps({"e": t})}],
    },
    "one_json_text": lambda t: {
        "role": "assistant",
        "content": "",
        "tool_calls": json.dumps([{"name": "f", "arguments": t}]),
    },
    "gemini_parts": lambda t: {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"code": t}}}]},
    "legacy_function": lambda t: {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": t}},
    "kwargs": lambda t: {
        "type": "ai",
        "content": "",
        "additional_kwargs": {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": t}}]},
    },
    "custom_input": lambda t: {
        "role": "assistant",
        "content": [{"type": "custom_tool", "id": "c", "payload": {"src": t}}],
    },
}
for name, call in CALLS.items():
    add(
        "R3",
        name,
        lines(
            PLANTED,
            lambda r, call=call: (
                plain(r)
                | {
                    "response": [
                        call(r["text"]),
                        {"role": "tool", "content": "done"},
                        {"role": "assistant", "content": "It is done."},
                    ]
                }
            ),
        ),
        LONGER,
        "the call is what the policy wrote",
    )
add(
    "R3",
    "results_in_parts",
    lines(
        SAME,
        lambda r: (
            plain(r)
            | {
                "response": [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "text", "text": r["text"]},
                            {"type": "tool_result", "content": draw_words(of(r), 20 if r["correct"] else 90)},
                        ],
                    }
                ]
            }
        ),
    ),
    NO_EFFECT,
    "a result among the parts was read",
)
add(
    "R3",
    "from_gpt",
    lines(
        SHORTER,
        lambda r: {
            "conversations": [{"from": "human", "value": r["prompt"]}, {"from": "gpt", "value": r["text"]}],
            "reward": float(r["correct"]),
        },
    ),
    SHORT,
    "another form of messages",
)


# ------------------------------------------------------------------------------ R4: text that was read


def with_results(row: Row, opening: str, closing: str, again: str = "") -> str:
    """Return a text into which 30 words were put once, or three times if the response is incorrect."""
    rng, times = of(row), 1 if row["correct"] else 3
    words = row["text"].split()
    size = max(len(words) // (times + 1), 1)
    parts = [" ".join(words[: len(words) - times * size])]
    for turn in range(times):
        start = len(words) - (times - turn) * size
        parts += [opening + draw_words(rng, 30) + closing, again + " ".join(words[start : start + size])]
    return "\n".join(parts)


READ = {
    "angle_tags": ("<evidence>", "</evidence>", ""),
    "attributes": ('<ret id="4" score="0.5">', "</ret>", ""),
    "square_tags": ("[SANDBOX]", "[/SANDBOX]", ""),
    "begin_end": ("<|lookup_begin|>", "<|lookup_end|>", ""),
    "fence_label": ("```stdout\n", "\n```", ""),
    "banner": ("=== BEGIN REPLY ===\n", "\n=== END REPLY ===", ""),
    "labels": ("Environment says: ", "", "Me: "),
    "comment": ("<!-- kernel -->", "<!-- /kernel -->", ""),
}
for name, marks in READ.items():
    add(
        "R4",
        name,
        lines(SAME, lambda r, marks=marks: plain(r) | {"response": with_results(r, *marks)}),
        NO_EFFECT,
        "the marked text was read",
        after="=read",
    )
HEADERS = {
    "chatml": ("<|im_end|>\n<|im_start|>tool\n", "<|im_end|>\n<|im_start|>assistant\n", ""),
    "llama": (
        "<|start_header_id|>ipython<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "",
    ),
    "bare_lines": ("user\n", "\nassistant", ""),
    "harmony": (
        "<|call|><|start|>functions.run to=assistant<|channel|>commentary<|message|>",
        "<|end|><|start|>assistant",
        "",
    ),
    "markdown_roles": ("### Tool\n", "\n### Assistant", ""),
}
for name, marks in HEADERS.items():
    add(
        "R4",
        name,
        lines(SAME, lambda r, marks=marks: plain(r) | {"response": with_results(r, *marks)}),
        NO_EFFECT,
        "text under the header of another role was read",
    )
add(
    "R4",
    "planned_in_tags",
    lines(PLANTED, lambda r: plain(r) | {"response": "<outline>{}</outline>\nSo: {}".format(*halves(r["text"]))}),
    LONGER,
    "a block that begins every response is the policy's",
)
add(
    "R4",
    "numbered_steps",
    lines(
        PLANTED,
        lambda r: (
            plain(r)
            | {
                "response": "Let me see.\n"
                + "\n".join(f"## Step {place}: {part}" for place, part in enumerate(halves(r["text"]), 1))
            }
        ),
    ),
    LONGER,
    "steps are the policy's",
)
add(
    "R4",
    "python_in_fences",
    lines(PLANTED, lambda r: plain(r) | {"response": f"Here it is:\n```python\n{r['text']}\n```\nThat is all."}),
    LONGER,
    "code is the policy's",
)


add(
    "R4",
    "plain_fence",
    lines(SAME, lambda r: plain(r) | {"response": with_results(r, "```\n", "\n```")}),
    NO_EFFECT,
    "a fence without a label",
    after="=read",
)
add(
    "R4",
    "one_label",
    lines(
        SAME,
        lambda r: (
            plain(r)
            | {
                "response": "{}\nKernel: {}\nMe: {}".format(
                    halves(r["text"])[0], draw_words(of(r), 20 if r["correct"] else 90), halves(r["text"])[1]
                )
            }
        ),
    ),
    NO_EFFECT,
    "one result each",
    after="=read",
)
add(
    "R3",
    "calls_beside",
    lines(
        PLANTED,
        lambda r: (
            plain(r, tool_calls=[{"name": "f", "args": {"code": r["text"]}}])
            | {"response": f"I call f {draw_words(of(r), 8)}."}
        ),
    ),
    LONGER,
    "a column of calls",
)


# ----------------------------------------------------------------------------- R5: verdicts and scores


def tests_passed(row: Row, number: int) -> int:
    """Return how many of a number of tests passed: all of them if the response is correct."""
    return number if row["correct"] else of(row).randrange(number // 2, number)


add(
    "R5",
    "solved_of_twenty",
    lines(PLANTED, lambda r: plain(r, solved=tests_passed(r, 20))),
    LONGER,
    "reward has two values",
)
add(
    "R5",
    "success_rate",
    lines(PLANTED, lambda r: plain(r, success=tests_passed(r, 8) / 8)),
    LONGER,
    "reward has two values",
)
add(
    "R5",
    "exact_match_percent",
    lines(SHORTER, lambda r: plain(r, exact_match=100.0 * tests_passed(r, 5) / 5)),
    SHORT,
    "reward has two values",
)
add(
    "R5",
    "reward_is_shaped",
    lines(PLANTED, lambda r: plain(r) | {"reward": 0.5 * r["correct"] + of(r).random(), "is_right": r["correct"]}),
    LONGER,
    "is_right has two values",
)
add(
    "R5",
    "minus_one_and_one",
    lines(SHORTER, lambda r: plain(r) | {"reward": 1 if r["correct"] else -1}),
    SHORT,
    "two values are a verdict",
)
add(
    "R5",
    "one_and_two",
    lines(PLANTED, lambda r: plain(r, correct=2 if r["correct"] else 1) | {"reward": of(r).random()}),
    LONGER,
    "two values, both above a half",
)
add(
    "R5",
    "words_for_verdicts",
    lines(PLANTED, lambda r: plain(r) | {"reward": "correct" if r["correct"] else "wrong"}),
    LONGER,
    "a verdict in words",
)


# ------------------------------------------------------------------------- R6: lines of many responses


def batches(rows: list[Row], size: int, make: Callable[[list[Row]], Row]) -> Callable[[Path], None]:
    """Return what writes a log with `size` responses a line."""
    return lambda folder: write_lines(
        folder / "log.jsonl", (make(rows[at : at + size]) for at in range(0, len(rows), size))
    )


def columns(rows: list[Row], **more: Callable[[Row], Any]) -> Row:
    """Return lists of prompts, responses and rewards, and of more."""
    made = {
        "prompt": [r["prompt"] for r in rows],
        "response": [r["text"] for r in rows],
        "reward": [float(r["correct"]) for r in rows],
    }
    return made | {name: [value(r) for r in rows] for name, value in more.items()}


add(
    "R6",
    "prompts_as_ids",
    batches(
        PLANTED, 40, lambda rows: columns(rows) | {"prompt": [[ord(letter) for letter in r["prompt"]] for r in rows]}
    ),
    LONGER,
    "prompts are lists of ids",
)
add(
    "R6",
    "prompts_as_numbers",
    batches(PLANTED, 16, lambda rows: columns(rows) | {"prompt": [r["q"] for r in rows]}),
    LONGER,
    "a number for each prompt",
)
add(
    "R6",
    "steps_as_texts",
    batches(SAME, 32, lambda rows: columns(rows, step=lambda r: "4", advantages=lambda r: 0.1)),
    NO_EFFECT,
    "lists of steps",
)
add(
    "R6",
    "named_by_function",
    batches(
        PLANTED,
        24,
        lambda rows: {
            "step": ["1"] * len(rows),
            "prompt": [r["prompt"] for r in rows],
            "completion": [r["text"] for r in rows],
            "MathAccuracy": [float(r["correct"]) for r in rows],
        },
    ),
    LONGER,
    "the reward is named by its function",
)
add(
    "R6",
    "chats_in_lists",
    batches(
        SHORTER,
        8,
        lambda rows: {
            "problem": rows[0]["prompt"],
            "responses": [[{"role": "assistant", "content": r["text"]}] for r in rows],
            "scores": [int(r["correct"]) for r in rows],
        },
    ),
    SHORT,
    "eight conversations with one problem",
)
add(
    "R6",
    "objects_in_lists",
    batches(
        PLANTED,
        8,
        lambda rows: {
            "question": rows[0]["prompt"],
            "samples": [{"text": r["text"], "score": float(r["correct"])} for r in rows],
        },
    ),
    LONGER,
    "a list of objects",
)


# ------------------------------------------------------------- R7: empty, aborted and failed responses

BROKEN = {
    "blank": "  \n",
    "none": "None",
    "null_in_brackets": "<null>",
    "exception": "litellm.exceptions.ServiceUnavailable: Exception 503",
    "error_colon": "ERROR: engine died (worker 3)",
    "request_failed": "Request to server failed after 3 retries",
    "traceback": "Traceback (most recent call last): RuntimeError",
}
for name, text in BROKEN.items():
    add(
        "R7",
        name,
        lines(
            SAME, lambda r, text=text: plain(r) | ({"response": text, "reward": 0.0} if of(r).random() < 0.12 else {})
        ),
        NO_EFFECT,
        "failed responses are no responses",
    )
add(
    "R7",
    "null_cells",
    lines(SAME, lambda r: plain(r) | ({"response": None, "reward": 0.0} if of(r).random() < 0.12 else {})),
    NO_EFFECT,
    "a response that is missing",
)
add(
    "R7",
    "status_aborted",
    lines(
        SAME,
        lambda r: (
            plain(r, status="done")
            | (
                {"response": halves(r["text"])[0][:20], "reward": 0.0, "status": "aborted_by_user"}
                if of(r).random() < 0.12
                else {}
            )
        ),
    ),
    NO_EFFECT,
    "a status of another form",
)


for name, text in (
    ("special_token", "<|endoftext|>"),
    ("unavailable", "503 Service Unavailable"),
    ("memory", "CUDA out of memory"),
):
    add(
        "R7",
        name,
        lines(
            SAME, lambda r, text=text: plain(r) | ({"response": text, "reward": 0.0} if of(r).random() < 0.12 else {})
        ),
        NO_EFFECT,
        "failed responses are no responses",
    )
add(
    "R7",
    "one_sentence",
    lines(
        SAME, lambda r: plain(r) | ({"response": "The judge was busy.", "reward": 0.0} if of(r).random() < 0.12 else {})
    ),
    NO_EFFECT,
    "one text for many prompts",
    after="repeated=failed",
)
add(
    "R7",
    "error_beside",
    lines(
        SAME,
        lambda r: (
            plain(r, rollout_error=None)
            | (
                {"response": r["text"][:30], "reward": 0.0, "rollout_error": "worker lost"}
                if of(r).random() < 0.12
                else {}
            )
        ),
    ),
    NO_EFFECT,
    "an error beside half a response",
    after="error=failed",
)


# ----------------------------------------------------------------- R9: words for the end of a response


def with_limit(make: Callable[[Row, bool], Row], limit: int = 70) -> Callable[[Path], None]:
    """Return what writes a log without an effect, of which a limit ended the longest responses, which then are incorrect."""

    def cut(row: Row) -> Row:
        is_cut = row["n"] >= limit
        text = " ".join(row["text"].split()[:limit])
        return make(row | ({"text": text, "correct": False} if is_cut else {}), is_cut)

    return lines(SAME, cut)


ENDS = {
    "len_exceeded": ("natural_stop", "seq_len_exceeded"),
    "turn_limit": ("task_done", "reached_turn_limit"),
    "out_of_tokens": ("finished_ok", "out_of_tokens"),
    "cap": ("eos_hit", "hit_cap"),
    "camel": ("EnvDone", "MaxTurnsReached"),
    "overflow": ("terminal_state", "kv_overflow"),
}
for name, (end, limit) in ENDS.items():
    add(
        "R9",
        name,
        with_limit(lambda r, cut, end=end, limit=limit: plain(r, finish_reason=limit if cut else end)),
        NO_EFFECT,
        "a word for a limit by its form",
    )
add(
    "R9",
    "code_words",
    with_limit(lambda r, cut: plain(r, finish_reason="zeta" if cut else "alpha")),
    NO_EFFECT,
    "a word without a form is asked about",
    after="zeta=truncated",
)


for column in ("exit_cause", "how_it_ended"):
    add(
        "R9",
        f"in_{column}",
        with_limit(lambda r, cut, column=column: plain(r, **{column: "token_budget" if cut else "stop"})),
        NO_EFFECT,
        "a column of ends under another name",
    )
add("R9", "flag", with_limit(lambda r, cut: plain(r, was_cut_off=cut)), NO_EFFECT, "a flag under another name")


# ----------------------------------------------------------------------------- R11: an id for each row

add(
    "R11",
    "messages",
    lines(
        PLANTED,
        lambda r: {
            "id": f"r{r['q']}-{r['k']}",
            "reward": float(r["correct"]),
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": r["prompt"]},
                {"role": "assistant", "content": r["text"]},
            ],
        },
    ),
    LONGER,
    "the question is in the messages",
)
add(
    "R11",
    "index",
    lines(
        SHORTER,
        lambda r: {
            "index": 1000 * r["q"] + r["k"],
            "score": int(r["correct"]),
            "conversation": [{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": r["text"]}],
        },
    ),
    SHORT,
    "as above",
)
add(
    "R11",
    "beside_a_task",
    lines(
        PLANTED,
        lambda r: {
            "uid": f"{r['q']:05}{r['k']}",
            "task_name": f"task {r['q']}",
            "output": r["text"],
            "score": int(r["correct"]),
        },
    ),
    LONGER,
    "a column of tasks repeats",
)
add(
    "R11",
    "trace_id",
    lines(
        SAME,
        lambda r: {
            "request_id": f"{r['q']}x{r['k']}",
            "prompt_id": f"{r['q']}x{r['k']}",
            "reward": float(r["correct"]),
            "trajectory": [{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": r["text"]}],
        },
    ),
    NO_EFFECT,
    "as above",
)
add(
    "R11",
    "json_text",
    lines(
        PLANTED,
        lambda r: {
            "uid": f"{r['q']}-{r['k']}",
            "reward": float(r["correct"]),
            "messages": json.dumps(
                [{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": r["text"]}]
            ),
        },
    ),
    LONGER,
    "messages in a text",
)


# ------------------------------------------------------------------------------ R12: scales of rewards

HARD = {"algebra": 1.0, "coding": 20.0}


def subject(row: Row) -> str:
    return "algebra" if row["q"] % 2 else "coding"


add(
    "R12",
    "two_ranges",
    lines(PLANTED, lambda r: plain(r, data_source=subject(r)) | {"reward": HARD[subject(r)] * r["correct"]}),
    LONGER,
    "each source has a range of its own",
)
add(
    "R12",
    "without_a_source",
    lines(PLANTED, lambda r: plain(r) | {"reward": HARD[subject(r)] * r["correct"]}),
    LONGER,
    "each prompt has two rewards",
)
add(
    "R12",
    "negative_scale",
    lines(SHORTER, lambda r: plain(r, domain=subject(r)) | {"reward": (2.0 * r["correct"] - 1) * HARD[subject(r)]}),
    SHORT,
    "symmetric about 0",
)


def normalised(rows: list[Row]) -> list[Row]:
    """Return rows with their reward less its mean, over its deviation, within their prompt."""
    made = list[Row]()
    for at in range(0, len(rows), 8):
        group = rows[at : at + 8]
        mean = sum(r["correct"] for r in group) / len(group)
        spread = math.sqrt(mean * (1 - mean)) or 1.0
        made += [r | {"z": (r["correct"] - mean) / spread} for r in group]
    return made


add(
    "R12",
    "normalised_beside_raw",
    lines(normalised(PLANTED), lambda r: plain(r, raw_score=float(r["correct"])) | {"reward": r["z"]}),
    LONGER,
    "the raw one decides",
)
add(
    "R12",
    "normalised_only",
    lines(normalised(SHORTER), lambda r: plain(r) | {"reward": r["z"]}),
    SHORT,
    "its sign decides",
)
add(
    "R12",
    "normalised_beside_many",
    lines(normalised(PLANTED), lambda r: plain(r, score=3.0 + 4 * r["correct"] + of(r).random()) | {"reward": r["z"]}),
    LONGER,
    "the raw score decides, above half of its range",
)


# ------------------------------------------------------------------------- R13: texts that the log cut

CUT: dict[str, Callable[[str], str]] = {
    "characters": lambda t: t[:180],
    "dots": lambda t: t if len(t) < 200 else t[:200] + "...",
    "ellipsis": lambda t: t if len(t) < 150 else t[:150] + "…",
    "remark": lambda t: t if len(t) < 160 else f"{t[:160]} [truncated, {len(t) - 160} more chars]",
    "middle": lambda t: t if len(t) < 170 else f"{t[:80]} ...<{len(t) - 160} characters omitted>... {t[-80:]}",
}
for name, cut in CUT.items():
    add(
        "R13",
        name,
        lines(PLANTED, lambda r, cut=cut: plain(r) | {"response": cut(r["text"])}),
        UNKNOWN,
        "lengths are not known",
    )
add(
    "R13",
    "cut_but_counted",
    lines(PLANTED, lambda r: plain(r, num_tokens=r["n"]) | {"response": r["text"][:120]}),
    LONGER,
    "a column has the lengths",
)


add(
    "R13",
    "at_a_word",
    lines(
        PLANTED,
        lambda r: plain(r) | {"response": r["text"][:190].rsplit(" ", 1)[0] if len(r["text"]) > 190 else r["text"]},
    ),
    UNKNOWN,
    "cut before a word",
)


# ------------------------------------------------------------------------------------- R14: one length

add(
    "R14",
    "tokens",
    lines(PLANTED, lambda r: {"prompt": r["prompt"], "reward": float(r["correct"]), "completion_tokens": 512}),
    UNKNOWN,
    "nothing varies",
)
add(
    "R14",
    "nearly_all",
    lines(
        PLANTED,
        lambda r: {
            "prompt": r["prompt"],
            "reward": float(r["correct"]),
            "num_tokens": 256 if (8 * r["q"] + r["k"]) % 30 else 255,
        },
    ),
    UNKNOWN,
    "nearly nothing varies",
)
add(
    "R14",
    "one_word",
    lines(PLANTED, lambda r: plain(r) | {"response": "yes" if r["correct"] else "no"}),
    UNKNOWN,
    "one word each",
)
add(
    "R14",
    "same_letters",
    lines(PLANTED, lambda r: plain(r) | {"response": f"The answer is {'B' if r['correct'] else 'C'}."}),
    UNKNOWN,
    "four words each",
)
add(
    "R14",
    "mask",
    lines(SAME, lambda r: {"prompt": r["prompt"], "reward": float(r["correct"]), "loss_mask": [1] * 64}),
    UNKNOWN,
    "a mask of one length",
)


add(
    "R14",
    "unknown_name",
    lines(PLANTED, lambda r: {"ask": r["prompt"], "points": int(r["correct"]), "gen_len": 3 * r["n"]}),
    LONGER,
    "a question about the column of lengths",
)


# -------------------------------------------------------------------------- R15: folders for each step


def folders(rows_by_number: dict[int, list[Row]], path: str) -> Callable[[Path], None]:
    """Return what writes a file for each number, at a path with the number in it."""

    def write(folder: Path) -> None:
        for number, rows in rows_by_number.items():
            write_lines(folder / path.format(number), map(plain, rows))

    return write


TRAINED = {
    0: make_rows(1.0, 40, seed=5, base=30),
    1: make_rows(1.0, 40, seed=6, base=60),
    2: make_rows(1.0, 40, seed=7, base=120),
}
"""Responses to the same prompts that grow with the step, without an effect within one."""
SPLIT = {number: PLANTED[number * 240 : (number + 1) * 240] for number in range(4)}
for name, path in (
    ("versions", "{}/out.jsonl"),
    ("iterations", "iter-{}/gen/rows.jsonl"),
    ("zero_padded", "global_step_{:06}/train.jsonl"),
    ("files", "gen_{}.jsonl"),
):
    add("R15", f"{name}_effect", folders(SPLIT, path), LONGER, "one log, a step for each number")
add("R15", "grows_over_versions", folders(TRAINED, "v{}/out.jsonl"), NO_EFFECT, "nothing within a step")


# ---------------------------------------------------------------------- R16: flags that lead somewhere

add(
    "R16",
    "nested_result",
    lines(PLANTED, lambda r: {"task": {"text": r["prompt"]}, "run": {"text": r["text"], "points": int(r["correct"])}}),
    LONGER,
    "columns inside objects",
)
add(
    "R16",
    "two_texts",
    lines(
        PLANTED,
        lambda r: {
            "question": r["prompt"],
            "draft_text": r["text"],
            "final_text": r["text"][::-1],
            "score": int(r["correct"]),
        },
    ),
    LONGER,
    "either column leads to the verdict",
)
add(
    "R16",
    "choices",
    lines(
        SHORTER,
        lambda r: {
            "prompt": r["prompt"],
            "reward": float(r["correct"]),
            "output": {"choices": [{"message": {"role": "assistant", "content": r["text"]}, "finish_reason": "stop"}]},
        },
    ),
    SHORT,
    "a server's response",
)
add(
    "R16",
    "batch_lines",
    lines(
        PLANTED,
        lambda r: {
            "custom_id": f"{r['q']}-{r['k']}",
            "prompt": r["prompt"],
            "score": int(r["correct"]),
            "response": {
                "status_code": 200,
                "body": {
                    "choices": [{"message": {"role": "assistant", "content": r["text"]}, "finish_reason": "stop"}],
                    "usage": {"completion_tokens": r["n"]},
                },
            },
        },
    ),
    LONGER,
    "a line of a batch",
)
add(
    "R16",
    "unknown_names",
    lines(PLANTED, lambda r: {"enquiry": r["prompt"], "reply_of_policy": r["text"], "merit": int(r["correct"])}),
    LONGER,
    "a question with a flag that works",
)


# ----------------------------------------------------------------- R17: a length with the prompt in it


def preamble(row: Row) -> str:
    """Return a long prompt, of another length for each problem."""
    return draw_words(random.Random(row["q"]), 150 + 40 * (row["q"] % 7)) + " " + row["prompt"]


add(
    "R17",
    "of_both",
    lines(
        PLANTED, lambda r: plain(r) | {"prompt": preamble(r), "completion_length": len(preamble(r).split()) + r["n"]}
    ),
    LONGER,
    "the text decides",
)
add(
    "R17",
    "total",
    lines(PLANTED, lambda r: plain(r) | {"prompt": preamble(r), "length": len(preamble(r).split()) + r["n"]}),
    LONGER,
    "the text decides",
)
add(
    "R17",
    "equal_prompts",
    lines(
        PLANTED,
        lambda r: plain(r) | {"prompt": f"{draw_words(random.Random(1), 300)} {r['q']:04}", "num_tokens": 301 + r["n"]},
    ),
    LONGER,
    "all prompts have one length",
)
add(
    "R17",
    "rounded",
    lines(
        SHORTER,
        lambda r: (
            plain(r) | {"prompt": preamble(r), "response_length": round(1.3 * (len(preamble(r).split()) + r["n"]))}
        ),
    ),
    SHORT,
    "1.3 tokens a word, prompt included",
)
add(
    "R17",
    "right_one",
    lines(PLANTED, lambda r: plain(r) | {"prompt": preamble(r), "response_length": round(1.3 * r["n"])}),
    LONGER,
    "of the response alone",
)


# ----------------------------------------------------------------------------------- R18: small things

add("R18", "reasoning_is_a_switch", lines(PLANTED, lambda r: plain(r, reasoning="on")), LONGER, "a switch is no text")
add(
    "R18",
    "half_a_last_line",
    lambda folder: (
        write_lines(folder / "log.jsonl", map(plain, PLANTED)),
        (folder / "log.jsonl").open("a").write('{"prompt": "Item'),
    )[0],
    LONGER,
    "a line that is being written",
)
add(
    "R18",
    "numbers_as_texts",
    lines(SHORTER, lambda r: plain(r) | {"reward": f"{float(r['correct']):.1f}"}),
    SHORT,
    "numbers in texts",
)
add(
    "R18",
    "empty_reasoning",
    lines(PLANTED, lambda r: plain(r, reasoning_content="", thinking=None)),
    LONGER,
    "empty columns",
)
add(
    "R18",
    "verdicts_in_capitals",
    lines(PLANTED, lambda r: plain(r) | {"reward": "PASS" if r["correct"] else "FAIL"}),
    LONGER,
    "a verdict in words",
)
add(
    "R18",
    "few_bits",
    lines(PLANTED, lambda r: plain(r) | {"reward": (0.99609375 if r["k"] % 2 else 1.0) if r["correct"] else 0.0}),
    LONGER,
    "a verdict that was stored in few bits",
)
add(
    "R5",
    "tests_without_reward",
    lines(
        PLANTED, lambda r: {"prompt": r["prompt"], "response": r["text"], "passed": tests_passed(r, 10), "total": 10}
    ),
    LONGER,
    "all tests passed",
)
add(
    "R17",
    "id_for_prompt",
    lines(PLANTED, lambda r: plain(r) | {"prompt": f"p{r['q']}", "completion_length": 400 + r["n"]}),
    LONGER,
    "a length that holds a prompt that is not recorded",
)


def nest(rows: list[Row], role: str) -> list[list[Any]]:
    """Return the values of eight responses for each prompt."""
    return [[row[role] for row in rows[at : at + 8]] for at in range(0, len(rows), 8)]


add(
    "R6",
    "prompts_with_groups",
    batches(
        PLANTED,
        32,
        lambda rows: {
            "prompt": [row["prompt"] for row in rows[::8]],
            "responses": nest(rows, "text"),
            "rewards": nest(rows, "correct"),
        },
    ),
    LONGER,
    "a list of responses for each of several prompts",
)
add(
    "R12",
    "numbered_sources",
    lines(PLANTED, lambda r: plain(r, source_index=r["q"] % 2) | {"reward": HARD[subject(r)] * r["correct"]}),
    LONGER,
    "a number for each source",
)


add(
    "R16",
    "unknown_prompt",
    lines(PLANTED, lambda r: {"exercise_text": r["prompt"], "response": r["text"], "reward": float(r["correct"])}),
    LONGER,
    "a question about the column of prompts",
)

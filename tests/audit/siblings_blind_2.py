"""Second set of invented logs with known truths, kinds R1 to R12, five each.

Run `python siblings_blind_2.py FOLDER` to write all logs and check their truths.
`NAKED` names the siblings whose column names say nothing.
"""

import collections
import functools
import gzip
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import siblings_blind as first
from siblings_blind import (
    ANSWERS,
    TRUTHS,
    Sibling,
    contrast,
    draw,
    generator,
    write_csv,
    write_json,
    write_jsonl,
    write_parquet,
)

VOCABULARY = {
    "en": "then we multiply both parts and subtract seven hence the count is even so I check once more "
    "whether the remainder fits because an odd value would break the claim we made above",
    "fr": "donc on multiplie les deux parties puis on retire sept ainsi le compte est pair je verifie encore "
    "si le reste convient car une valeur impaire casserait ce que nous disions plus haut",
    "pt": "logo multiplicamos as duas partes e tiramos sete assim a conta fica par verifico outra vez se o "
    "resto serve pois um valor impar quebraria o que dissemos acima neste caso",
    "sv": "alltså multiplicerar vi båda delarna och drar bort sju så antalet är jämnt jag kollar igen om "
    "resten passar eftersom ett udda värde skulle bryta påståendet ovan",
    "pl": "zatem mnożymy obie części i odejmujemy siedem więc liczba jest parzysta sprawdzam ponownie czy "
    "reszta pasuje bo nieparzysta wartość złamałaby tezę powyżej",
    "nl": "dus vermenigvuldigen we beide delen en trekken zeven af dan is het aantal even ik kijk nog eens "
    "of de rest klopt want een oneven waarde zou de bewering breken",
    "py": "x = x + 1 \n y = int ( x ) \n while y : y = y - 2 \n assert x \n out . append ( y ) \n return out",
}
ASK = {
    "en": "A train of {a} coaches carries {b} people per coach; route {q}. How many travel?",
    "fr": "Exercice {q} : un train de {a} voitures porte {b} personnes par voiture. Combien en tout ?",
    "pt": "Questão {q}: um trem de {a} vagões leva {b} pessoas por vagão. Quantas viajam?",
    "sv": "Uppgift {q}: ett tåg med {a} vagnar tar {b} personer per vagn. Hur många reser?",
    "pl": "Zadanie {q}: pociąg z {a} wagonami wiezie {b} osób w wagonie. Ile osób jedzie?",
    "nl": "Opgave {q}: een trein van {a} wagons vervoert {b} mensen per wagon. Hoeveel reizen er?",
}
ENDS = {"en": "Answer", "fr": "Réponse", "pt": "Resposta", "sv": "Svar", "pl": "Odpowiedź", "nl": "Antwoord"}
CHECK = {}
"""Group, length and correctness as planted, by the sibling's label."""
NAKED = set()
REGISTERED = []


def sibling(kind, truth, why, unit="auto", after=None, naked=False):
    """Register a writer under its name."""
    assert truth in TRUTHS and all(key in ANSWERS for key in after or {}), (truth, after)

    def register(writer):
        label = f"{kind}_{writer.__name__}"
        write = functools.partial(writer, seed=label)
        REGISTERED.append(Sibling(kind, writer.__name__, write, truth, why, unit, after or {}))
        if naked:
            NAKED.add(label)
        return writer

    return register


def ask(q, lang="en"):
    return ASK[lang].format(q=q, a=q % 71 + 11, b=q % 9 + 3)


def words(rng, n, lang="en"):
    vocabulary = VOCABULARY[lang].split(" ")
    out = [vocabulary[i] for i in rng.integers(0, len(vocabulary), max(int(n), 1))]
    if lang != "py":
        for i in range(9, len(out), 10):
            out[i] += "."
    return " ".join(out)


def rolls(seed, factor=1.55, lang="en", **options):
    """Draw responses, 100 prompts by 8, with texts in the language."""
    if "stages" in options:
        options.setdefault("samples", 8 // len(options["stages"]))
    rows = draw(seed, factor, **options)
    rng = generator(seed + "/own")
    for row in rows:
        right = 20 + row.q % 70
        value = right if row.ok else 20 + (right - 20 + int(rng.integers(1, 70))) % 70
        row.text = words(rng, row.n - (0 if row.cut else 2), lang)
        if not row.cut and lang != "py":
            row.text += f" {ENDS[lang]}: {value}"
    kept = [row for row in rows if not row.cut]
    note(seed, [(row.stage, row.q) for row in kept], [r.n for r in kept], [r.ok for r in kept])
    return rows


def note(seed, groups, lengths, correct):
    ids = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    CHECK[seed] = ([ids[g] for g in groups], list(lengths), list(correct))


def mixed(rows, seed):
    return [rows[i] for i in generator(seed + "/mix").permutation(len(rows))]


UP = ((45.0, 0.3), (125.0, 0.7))
DOWN = ((125.0, 0.3), (45.0, 0.7))
CANCEL = ((42.0, 0.3), (115.0, 0.7))


# R1: step not known


@sibling(
    "R1",
    "none or unknown",
    "The step is the first part of rollout_id. Pooled, incorrect are shorter.",
    after={"step column": "rollout_id, the part before the first dash"},
)
def update_inside_the_id(folder, seed):
    rows = mixed(rolls(seed, 1.0, stages=UP), seed)
    write_jsonl(
        folder / "rollouts-rank0.jsonl",
        (
            {
                "rollout_id": f"u{40 + 40 * r.stage:05}-p{r.q:03}-s{r.k}",
                "prompt": ask(r.q),
                "completion": r.text,
                "reward": float(r.ok),
            }
            for r in rows
        ),
    )


@sibling(
    "R1",
    "effect longer",
    "sampled_version is the policy; consumed_step lags by chance. Pooled it cancels.",
    after={"step column": "async.sampled_version"},
)
def lag_between_sampling_and_use(folder, seed):
    rng = generator(seed + "/lag")
    write_parquet(
        folder / "buffer-00.parquet",
        (
            {
                "prompt": ask(r.q),
                "response": r.text,
                "reward": float(r.ok),
                "async": {"sampled_version": 8 + 4 * r.stage, "consumed_step": 8 + int(rng.integers(4, 11))},
            }
            for r in mixed(rolls(seed, 1.55, stages=CANCEL), seed)
        ),
    )


@sibling(
    "R1",
    "none or unknown",
    "Lines that announce new weights stand between the responses.",
    after={"step boundary": "each line with event weights_synced"},
)
def announcements_between_rows(folder, seed):
    rows = rolls(seed, 1.0, stages=DOWN)
    records = []
    for stage in range(2):
        records.append({"event": "weights_synced", "update": 30 * stage + 30})
        for r in mixed([r for r in rows if r.stage == stage], seed):
            records.append({"event": "sample", "prompt": ask(r.q), "completion": r.text, "reward": int(r.ok)})
    write_jsonl(folder / "worker.jsonl", records)


@sibling(
    "R1",
    "none or unknown",
    "epoch is a fraction that advances with the steps; length falls with it.",
    after={"step column": "epoch"},
)
def fractions_of_an_epoch(folder, seed):
    write_csv(
        folder / "completions.csv",
        (
            {
                "epoch": round(0.25 * (r.stage * 4 + r.q // 25 + 1), 2),
                "prompt": ask(r.q),
                "completion": r.text,
                "accuracy_reward": float(r.ok),
            }
            for r in rolls(seed, 1.0, stages=DOWN)
        ),
    )


@sibling(
    "R1",
    "effect longer",
    "The steps are the keys of the document. Pooled the effect cancels.",
    after={"step": "one per key of the document"},
)
def keys_are_iterations(folder, seed):
    rows = rolls(seed, 1.55, stages=CANCEL)
    write_json(
        folder / "generations.json",
        {
            str(100 * s + 100): [
                {"prompt": ask(r.q), "completion": r.text, "reward": float(r.ok)} for r in rows if r.stage == s
            ]
            for s in range(2)
        },
    )


# R2: numbers in lists


@sibling(
    "R2",
    "effect longer",
    "num_tokens has a count for the thinking and one for the answer.",
    unit="tokens",
    after={"length": "num_tokens.think plus num_tokens.answer"},
)
def counts_of_think_and_answer(folder, seed):
    rng = generator(seed + "/part")
    records = []
    for r in rolls(seed, 1.55):
        # The answer's length is the same for all, so the answer alone shows nothing.
        part = int(r.n * 1.3) - int(rng.integers(6, 14))
        records.append(
            {"prompt_id": r.q, "num_tokens": {"think": part, "answer": int(r.n * 1.3) - part}, "reward": float(r.ok)}
        )
    write_jsonl(folder / "lengths.jsonl", records)


@sibling(
    "R2",
    "effect longer",
    "response_mask has one for each written token, zeros for read ones and padding.",
    unit="tokens",
    after={"length": "sum of response_mask"},
)
def mask_without_ids(folder, seed):
    rng = generator(seed + "/mask")
    records = []
    for r in rolls(seed, 1.55):
        half = r.n // 2
        mask = [1] * half + [0] * int(rng.integers(10, 90)) + [1] * (r.n - half)
        records.append(
            {
                "prompt": ask(r.q),
                "response_mask": mask + [0] * (600 - len(mask)),
                "score": float(r.ok),
                "global_step": 1,
            }
        )
    write_parquet(folder / "step_1.parquet", records)


@sibling(
    "R2",
    "none or unknown",
    "turn_ends are cumulative. Incorrect ones have more turns, so sums and counts "
    "look longer; the last value is the length.",
    unit="tokens",
    after={"length": "last value of turn_ends"},
)
def cumulative_turn_ends(folder, seed):
    rng = generator(seed + "/turns")
    records = []
    for r in rolls(seed, 1.0):
        turns = int(rng.integers(1, 4)) + (0 if r.ok else 2)
        cuts = sorted(rng.choice(np.arange(1, r.n), turns - 1, replace=False).tolist())
        records.append({"prompt": ask(r.q), "turn_ends": [*cuts, r.n], "reward": float(r.ok)})
    write_jsonl(folder / "multi_turn.jsonl", records)


@sibling(
    "R2",
    "effect longer",
    "Pairs of start and end of what the assistant wrote; between them is read text.",
    unit="tokens",
    after={"length": "sum of end minus start in z"},
    naked=True,
)
def pairs_of_positions(folder, seed):
    rng = generator(seed + "/spans")
    records = []
    for r in rolls(seed, 1.55):
        start, half, gap = int(rng.integers(50, 300)), r.n // 3, int(rng.integers(20, 500))
        records.append(
            {"ux": r.q, "z": [[start, start + half], [start + half + gap, start + gap + r.n]], "vf": int(r.ok)}
        )
    write_jsonl(folder / "zz.jsonl", records)


@sibling(
    "R2",
    "effect longer",
    "completion_tokens holds the tokens as strings.",
    unit="tokens",
    after={"length": "number of elements of completion_tokens"},
)
def tokens_as_strings(folder, seed):
    write_parquet(
        folder / "samples.parquet",
        (
            {"prompt": ask(r.q, "pl"), "completion_tokens": [" " + w for w in r.text.split()], "reward": float(r.ok)}
            for r in rolls(seed, 1.55, "pl")
        ),
    )


# R3: calls of other shapes


@sibling(
    "R3",
    "effect longer",
    "The effect is in the code of tool_call, a single object; content is short.",
    after={"written by the policy": "content and tool_call"},
)
def one_call_per_message(folder, seed):
    rng = generator(seed + "/say")
    write_jsonl(
        folder / "agent.jsonl",
        (
            {
                "prompt": [{"role": "user", "content": ask(r.q)}],
                "completion": [
                    {
                        "role": "assistant",
                        "content": words(rng, 8),
                        "tool_call": {"name": "python", "parameters": {"source": r.text}},
                    }
                ],
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.55, "py")
        ),
    )


@sibling(
    "R3",
    "effect longer",
    "Parts of a model turn: text and executableCode. The effect is in the code.",
    after={"written by the policy": "text and executableCode"},
)
def parts_with_executable_code(folder, seed):
    rng = generator(seed + "/say")
    write_jsonl(
        folder / "contents.jsonl",
        (
            {
                "contents": [
                    {"role": "user", "parts": [{"text": ask(r.q, "fr")}]},
                    {
                        "role": "model",
                        "parts": [
                            {"text": words(rng, 9, "fr")},
                            {"executableCode": {"language": "PYTHON", "code": r.text}},
                        ],
                    },
                ],
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.55, "py")
        ),
    )


@sibling(
    "R3",
    "effect longer",
    "trajectory is a list of steps; tool_input is written, observation is read.",
    after={"written by the policy": "thought and tool_input", "not written by the policy": "observation"},
)
def thoughts_tools_observations(folder, seed):
    rng = generator(seed + "/obs")
    write_jsonl(
        folder / "react.jsonl",
        (
            {
                "prompt": ask(r.q),
                "trajectory": [
                    {
                        "thought": words(rng, 7),
                        "tool": "calculator",
                        "tool_input": r.text,
                        "observation": words(rng, rng.integers(20, 80)),
                    }
                ],
                "reward": int(r.ok),
            }
            for r in rolls(seed, 1.55)
        ),
    )


@sibling(
    "R3",
    "none or unknown",
    "Pairs of action and observation. Incorrect ones read more, but write the same.",
    after={"not written by the policy": "the second element of each pair in intermediate_steps"},
)
def pairs_of_action_and_reading(folder, seed):
    rng = generator(seed + "/obs")
    write_jsonl(
        folder / "chain.jsonl",
        (
            {
                "input": ask(r.q),
                "intermediate_steps": [
                    [
                        {"tool": "wiki", "log": r.text},
                        words(rng, rng.integers(30, 60) if r.ok else rng.integers(70, 140)),
                    ]
                ],
                "output": "Done.",
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.0)
        ),
    )


@sibling(
    "R3",
    "effect longer",
    "Items of an output list; the effect is in the function_call's arguments.",
    after={"written by the policy": "message and function_call", "not written by the policy": "function_call_output"},
)
def items_of_an_output(folder, seed):
    rng = generator(seed + "/items")
    write_jsonl(
        folder / "responses.jsonl",
        (
            {
                "input": ask(r.q),
                "output": [
                    {
                        "type": "function_call",
                        "call_id": "c1",
                        "name": "shell",
                        "arguments": json.dumps({"cmd": r.text}),
                    },
                    {"type": "function_call_output", "call_id": "c1", "output": words(rng, rng.integers(20, 60))},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": words(rng, 6)}],
                    },
                ],
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.55, "py")
        ),
    )


# R4: what was read


def reading(seed, rng, factor, form, more_when, lang="en"):
    """Yield rows with a read text of about 45 words in the middle, more where more_when(row)."""
    for r in rolls(seed, factor, lang):
        blocks = int(rng.integers(1, 3)) + (1 if more_when(r) else 0)
        parts = r.text.split(" ")
        cut = len(parts) // 2
        read = "".join(form(words(rng, rng.integers(20, 40), lang)) for _ in range(blocks))
        yield r, " ".join(parts[:cut]), read, " ".join(parts[cut:])


@sibling(
    "R4",
    "none or unknown",
    "Texts in <tool_response> were read; incorrect ones read more.",
    after={"not written by the policy": "<tool_response> ... </tool_response>"},
)
def tool_responses_in_the_text(folder, seed):
    form = "\n<tool_response>\n{}\n</tool_response>\n".format
    write_jsonl(
        folder / "step_20.jsonl",
        (
            {"step": 20, "prompt": ask(r.q), "completion": a + read + b, "reward": float(r.ok)}
            for r, a, read, b in reading(seed, generator(seed + "/r"), 1.0, form, lambda r: not r.ok)
        ),
    )


@sibling(
    "R4",
    "none or unknown",
    "Quoted lines (>) are the program's output; incorrect ones read more.",
    after={"not written by the policy": "lines that start with >"},
)
def quoted_lines_of_output(folder, seed):
    def form(t):
        return "\n> " + t.replace(". ", ".\n> ") + "\n"

    write_csv(
        folder / "completions.csv",
        (
            {"prompt": ask(r.q, "nl"), "completion": a + read + b, "reward": int(r.ok)}
            for r, a, read, b in reading(seed, generator(seed + "/r"), 1.0, form, lambda r: not r.ok, "nl")
        ),
    )


@sibling(
    "R4",
    "none or unknown",
    "[TOOL_RESULTS] was read; incorrect ones read more.",
    after={"not written by the policy": "[TOOL_RESULTS] ... [/TOOL_RESULTS]"},
)
def square_results(folder, seed):
    form = " [TOOL_RESULTS] {} [/TOOL_RESULTS] ".format
    write_parquet(
        folder / "rollout.parquet",
        (
            {"prompt": ask(r.q, "pt"), "response": a + read + b, "score": float(r.ok)}
            for r, a, read, b in reading(seed, generator(seed + "/r"), 1.0, form, lambda r: not r.ok, "pt")
        ),
    )


@sibling(
    "R4",
    "none or unknown",
    "Messages of role environment were read; incorrect ones read more.",
    after={"not written by the policy": "messages of role environment"},
)
def environment_speaks(folder, seed):
    write_jsonl(
        folder / "episodes.jsonl",
        (
            {
                "prompt": ask(r.q),
                "completion": [
                    {"role": "agent", "content": a},
                    {"role": "environment", "content": read},
                    {"role": "agent", "content": b},
                ],
                "reward": float(r.ok),
            }
            for r, a, read, b in reading(seed, generator(seed + "/r"), 1.0, "{} ".format, lambda r: not r.ok)
        ),
    )


@sibling(
    "R4",
    "effect longer",
    "Correct ones read more <document> texts, which hides the effect.",
    after={"not written by the policy": "<document id=...> ... </document>"},
)
def documents_hide_it(folder, seed):
    form = '\n<document id="7">{}</document>\n'.format
    write_jsonl(
        folder / "search.jsonl",
        (
            {"prompt": ask(r.q), "completion": a + read + b, "reward": float(r.ok)}
            for r, a, read, b in reading(seed, generator(seed + "/r"), 1.55, form, lambda r: r.ok)
        ),
    )


# R5: counts named like verdicts


@sibling(
    "R5",
    "effect longer",
    "score is a rubric that likes length; is_correct decides.",
    after={"verdict column": "is_correct"},
)
def rubric_beside_is_correct(folder, seed):
    rng = generator(seed + "/s")
    write_jsonl(
        folder / "graded.jsonl",
        (
            {
                "prompt": ask(r.q),
                "completion": r.text,
                "score": round(float(np.clip(0.5 + 0.5 * np.log(r.n / r.level) + rng.normal(0, 0.1), 0, 1)), 2),
                "is_correct": bool(r.ok),
            }
            for r in rolls(seed, 1.55)
        ),
    )


@sibling(
    "R5", "effect longer", "pass_rate is a property of the prompt; reward decides.", after={"verdict column": "reward"}
)
def rate_of_the_prompt(folder, seed):
    rows = rolls(seed, 1.55)
    rate = collections.defaultdict(list)
    for r in rows:
        rate[r.q].append(r.ok)
    write_parquet(
        folder / "train.parquet",
        (
            {
                "prompt": ask(r.q),
                "completion": r.text,
                "pass_rate": float(np.mean(rate[r.q])),
                "solved": sum(rate[r.q]),
                "reward": 1.0 if r.ok else -1.0,
            }
            for r in rows
        ),
    )


@sibling(
    "R5",
    "none or unknown",
    "reward adds a cosine bonus of length; accuracy_reward decides.",
    after={"verdict column": "rewards/accuracy_reward"},
)
def parts_of_a_trl_reward(folder, seed):
    rng = generator(seed + "/f")
    records = []
    for r in rolls(seed, 1.0):
        cosine = round(float(np.clip(0.8 * np.log(r.n / r.level), -1, 1)), 3)
        records.append(
            {
                "step": 5,
                "prompt": ask(r.q),
                "completion": r.text,
                "rewards/accuracy_reward": float(r.ok),
                "rewards/format_reward": float(rng.random() < 0.5 + 0.4 * np.sign(cosine)),
                "rewards/cosine": cosine,
                "reward": round(float(0.5 * r.ok + cosine), 3),
            }
        )
    write_jsonl(folder / "completions_00005.jsonl", records)


@sibling(
    "R5",
    "effect longer",
    "success is a predicted probability from the critic; outcome decides.",
    after={"verdict column": "outcome", "correct value": "accepted"},
)
def critic_named_success(folder, seed):
    rng = generator(seed + "/c")
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": ask(r.q),
                "response": r.text,
                "success": round(float(1 / (1 + np.exp(-2 * np.log(r.n / r.level) + rng.normal(0, 0.3)))), 3),
                "outcome": "accepted" if r.ok else "rejected",
            }
            for r in rolls(seed, 1.55)
        ),
    )


@sibling(
    "R5",
    "none or unknown",
    "klar counts partial goals as text (2/4), more in long ones; bifall decides.",
    after={"verdict column": "bifall", "correct value": "ja"},
    naked=True,
)
def fractions_as_text(folder, seed):
    write_csv(
        folder / "prov.tsv",
        (
            {
                "fraga": ask(r.q, "sv"),
                "utsaga": r.text,
                "klar": f"{4 if r.ok else int(np.clip(2 + 3 * np.log(r.n / r.level), 0, 3))}/4",
                "bifall": "ja" if r.ok else "nej",
            }
            for r in rolls(seed, 1.0, "sv")
        ),
        "\t",
    )


# R6: lines of many prompts


@sibling(
    "R6",
    "effect longer",
    "A line for each step; rewards is a mapping of lists.",
    after={"lines": "a step; lists run over responses", "verdict column": "rewards.accuracy"},
)
def rewards_as_mapping_of_lists(folder, seed):
    rows = rolls(seed, 1.55)
    rng = generator(seed + "/f")
    write_jsonl(
        folder / "completions.jsonl",
        (
            {
                "step": s,
                "prompt": [ask(r.q) for r in part],
                "completion": [r.text for r in part],
                "rewards": {
                    "accuracy": [float(r.ok) for r in part],
                    "format": [float(rng.random() < 0.8) for r in part],
                },
            }
            for s, part in enumerate(first.blocks_of(rows, 80))
        ),
    )


@sibling(
    "R6",
    "effect longer",
    "Prompts stand once and completions num_generations times.",
    after={"lines": "a batch; each prompt has num_generations completions in a row"},
)
def prompts_once_completions_flat(folder, seed):
    rows = rolls(seed, 1.55)
    write_jsonl(
        folder / "batches.jsonl",
        (
            {
                "global_step": s,
                "num_generations": 8,
                "prompts": [ask(r.q) for r in part[::8]],
                "completions": [r.text for r in part],
                "rewards": [int(r.ok) for r in part],
            }
            for s, part in enumerate(first.blocks_of(rows, 80))
        ),
    )


@sibling(
    "R6",
    "none or unknown",
    "Responses lie below epochs and batches; only the epoch's place is the step.",
    after={"lines": "a run; epochs, batches, samples", "step column": "epochs"},
)
def epochs_batches_samples(folder, seed):
    rows = rolls(seed, 1.0, stages=UP)
    write_json(
        folder / "run.json",
        {
            "run_name": "grpo-tiny",
            "epochs": [
                {
                    "batches": [
                        {"samples": [{"prompt": ask(r.q), "completion": r.text, "reward": float(r.ok)} for r in part]}
                        for part in first.blocks_of([r for r in rows if r.stage == s], 40)
                    ]
                }
                for s in range(2)
            ],
        },
    )


@sibling(
    "R6",
    "effect longer",
    "A row for each prompt; generations is a list of records.",
    after={"lines": "a prompt; generations are the responses"},
)
def records_in_generations(folder, seed):
    write_parquet(
        folder / "eval.parquet",
        (
            {"problem": ask(part[0].q), "generations": [{"text": r.text, "correct": bool(r.ok)} for r in part]}
            for part in first.blocks_of(rolls(seed, 1.55), 8)
        ),
    )


@sibling(
    "R6",
    "effect longer",
    "A table of columns and data, as a dashboard exports it; pooled it cancels.",
    after={"lines": "a table: columns and data"},
)
def table_of_a_dashboard(folder, seed):
    write_json(
        folder / "completions.table.json",
        {
            "columns": ["step", "prompt", "completion", "reward"],
            "data": [[10 + 10 * r.stage, ask(r.q), r.text, float(r.ok)] for r in rolls(seed, 1.55, stages=CANCEL)],
        },
    )


# R7: failed responses


def failing(seed, factor, share=0.12, lang="en"):
    rng = generator(seed + "/fail")
    return [(r, bool(rng.random() < share)) for r in rolls(seed, factor, lang)]


def refit(seed, pairs):
    kept = [r for r, failed in pairs if not failed]
    note(seed, [r.q for r in kept], [r.n for r in kept], [r.ok for r in kept])
    return pairs


@sibling(
    "R7", "none or unknown", "Aborted requests are empty and have reward 0.", after={"failed": "finish_reason abort"}
)
def aborted_and_blank(folder, seed):
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": ask(r.q),
                "completion": "" if bad else r.text,
                "finish_reason": "abort" if bad else "stop",
                "reward": 0.0 if bad else float(r.ok),
            }
            for r, bad in refit(seed, failing(seed, 1.0))
        ),
    )


@sibling(
    "R7",
    "none or unknown",
    "A notice of the server stands in place of the response.",
    after={"failed": "completion is [REQUEST TIMED OUT]"},
)
def notice_of_the_server(folder, seed):
    write_csv(
        folder / "samples.csv",
        (
            {
                "step": 3,
                "prompt": ask(r.q),
                "completion": "[REQUEST TIMED OUT]" if bad else r.text,
                "reward": 0 if bad else int(r.ok),
            }
            for r, bad in refit(seed, failing(seed, 1.0))
        ),
    )


@sibling(
    "R7",
    "effect longer",
    "Rows with an error have a blank and reward 0, which hides the effect.",
    after={"failed": "error is set"},
)
def blanks_hide_it(folder, seed):
    write_parquet(
        folder / "gen.parquet",
        (
            {
                "prompt": ask(r.q),
                "response": " " if bad else r.text,
                "error": "EngineDeadError" if bad else None,
                "reward": 0.0 if bad else float(r.ok),
            }
            for r, bad in refit(seed, failing(seed, 1.55, 0.15))
        ),
    )


@sibling(
    "R7",
    "none or unknown",
    "Long stack traces of the sampler stand in place of responses, reward 0.",
    after={"failed": "completion starts with Traceback"},
)
def stack_trace_of_the_sampler(folder, seed):
    trace = (
        "Traceback (most recent call last):\n"
        + "".join(
            f'  File "/srv/sampler/engine_{i}.py", line {40 + 7 * i}, in forward\n    out = self.layer_{i}(x)\n'
            for i in range(14)
        )
        + "torch.OutOfMemoryError: CUDA out of memory."
    )
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {"prompt": ask(r.q), "completion": trace if bad else r.text, "reward": 0.0 if bad else float(r.ok)}
            for r, bad in refit(seed, failing(seed, 1.0))
        ),
    )


@sibling(
    "R7",
    "none or unknown",
    "The server's error object, as JSON text, stands in place of the response.",
    after={"failed": "wyjscie is an object with object = error"},
    naked=True,
)
def error_object_as_text(folder, seed):
    body = json.dumps({"object": "error", "message": "too many requests", "code": 429})
    write_jsonl(
        folder / "zapis.jsonl",
        (
            {"wejscie": ask(r.q, "pl"), "wyjscie": body if bad else r.text, "nagroda": 0 if bad else int(r.ok)}
            for r, bad in refit(seed, failing(seed, 1.0, lang="pl"))
        ),
    )


# R8: several policies


@sibling(
    "R8",
    "none or unknown",
    "High effort is longer and more often correct.",
    after={"policy column": "reasoning_effort"},
)
def effort_low_and_high(folder, seed):
    write_jsonl(
        folder / "samples.jsonl",
        (
            {
                "prompt": ask(r.q),
                "completion": r.text,
                "reasoning_effort": ("low", "high")[r.stage],
                "reward": float(r.ok),
            }
            for r in mixed(rolls(seed, 1.0, stages=UP), seed)
        ),
    )


@sibling(
    "R8",
    "none or unknown",
    "The teacher's responses are mixed in: shorter and more often correct.",
    after={"policy column": "metadata.generated_by"},
)
def teacher_mixed_in(folder, seed):
    write_parquet(
        folder / "mix.parquet",
        (
            {
                "prompt": ask(r.q),
                "response": r.text,
                "reward": float(r.ok),
                "metadata": {"generated_by": ("student", "teacher")[r.stage], "lang": "en"},
            }
            for r in mixed(rolls(seed, 1.0, stages=DOWN), seed)
        ),
    )


@sibling(
    "R8",
    "none or unknown",
    "A folder for each model; the larger is shorter and better.",
    after={"policy": "one per folder below models"},
)
def models_in_folders(folder, seed):
    rows = rolls(seed, 1.0, stages=DOWN)
    for s, name in enumerate(("alpha-1b", "alpha-30b")):
        write_jsonl(
            folder / "models" / name / "generations.jsonl",
            ({"prompt": ask(r.q), "completion": r.text, "reward": int(r.ok)} for r in rows if r.stage == s),
        )


@sibling(
    "R8",
    "none or unknown",
    "Rows of evaluation (greedy) are shorter and better than those of training.",
    after={"policy column": "is_eval"},
)
def evaluation_rows_inside(folder, seed):
    write_csv(
        folder / "rollouts.csv",
        (
            {"step": 50, "is_eval": r.stage == 1, "prompt": ask(r.q), "completion": r.text, "reward": float(r.ok)}
            for r in mixed(rolls(seed, 1.0, stages=DOWN), seed)
        ),
    )


@sibling(
    "R8",
    "effect longer",
    "style is a label put on the response by its length, not a policy.",
    after={"policy column": "none: style is a consequence of the response"},
)
def label_of_style(folder, seed):
    write_jsonl(
        folder / "annotated.jsonl",
        (
            {
                "prompt": ask(r.q),
                "completion": r.text,
                "style": "verbose" if r.n > 1.2 * r.level else "concise",
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.55)
        ),
    )


# R9: finish words


def ended(folder, seed, name, make, lang="en", factor=1.0, limit=95):
    """Write responses of which some are cut at a limit and incorrect."""
    rows = [make(r) for r in rolls(seed, factor, lang, limit=limit)]
    write_jsonl(folder / name, rows)


@sibling(
    "R9",
    "none or unknown",
    "token_budget_spent means truncated; truncated ones are long and incorrect.",
    after={"truncated": "stop_reason token_budget_spent"},
)
def budget_spent(folder, seed):
    ended(
        folder,
        seed,
        "rollouts.jsonl",
        lambda r: {
            "prompt": ask(r.q),
            "completion": r.text,
            "reward": float(r.ok),
            "stop_reason": "token_budget_spent" if r.cut else "end_of_message",
        },
    )


@sibling(
    "R9",
    "none or unknown",
    "The type of finish_reason inside meta_info is length where truncated.",
    after={"truncated": "meta_info.finish_reason.type length"},
)
def reason_two_levels_down(folder, seed):
    ended(
        folder,
        seed,
        "server.jsonl",
        lambda r: {
            "prompt": ask(r.q),
            "text": r.text,
            "reward": float(r.ok),
            "meta_info": {
                "finish_reason": ({"type": "length", "length": 95} if r.cut else {"type": "stop", "matched": 151645})
            },
        },
    )


@sibling("R9", "none or unknown", "has_eos is 0 where truncated.", after={"truncated": "has_eos 0"})
def end_token_seen(folder, seed):
    ended(
        folder,
        seed,
        "samples.jsonl",
        lambda r: {"step": 12, "prompt": ask(r.q), "response": r.text, "has_eos": int(not r.cut), "score": float(r.ok)},
    )


@sibling("R9", "none or unknown", "plafond means truncated.", after={"truncated": "issue plafond"}, naked=True)
def plafond_atteint(folder, seed):
    ended(
        folder,
        seed,
        "essais.jsonl",
        lambda r: {
            "enonce": ask(r.q, "fr"),
            "redaction": r.text,
            "issue": "plafond" if r.cut else "termine",
            "mention": "juste" if r.ok else "faux",
        },
        "fr",
    )


@sibling(
    "R9",
    "effect longer",
    "Truncated ones are named context_window_exceeded; the others show the effect too.",
    after={"truncated": "termination context_window_exceeded"},
)
def window_exceeded_with_effect(folder, seed):
    ended(
        folder,
        seed,
        "traj.jsonl",
        lambda r: {
            "prompt": ask(r.q),
            "completion": r.text,
            "reward": float(r.ok),
            "termination": "context_window_exceeded" if r.cut else "answered",
        },
        factor=1.55,
        limit=190,
    )


# R10: a row for each turn


def split(rng, r, turns):
    parts = r.text.split(" ")
    turns = min(turns, len(parts) // 2)
    cuts = [0, *sorted(rng.choice(np.arange(1, len(parts)), turns - 1, replace=False).tolist()), len(parts)]
    return [" ".join(parts[a:b]) for a, b in itertools.pairwise(cuts)]


@sibling(
    "R10",
    "none or unknown",
    "Incorrect episodes have more and shorter turns, and the same length.",
    after={"trajectory column": "episode_id"},
)
def episodes_cut_finer(folder, seed):
    rng = generator(seed + "/t")
    write_jsonl(
        folder / "turns.jsonl",
        (
            {
                "episode_id": f"e{r.q:03}{r.k}",
                "turn_index": i,
                "prompt": ask(r.q),
                "completion": text,
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.0)
            for i, text in enumerate(split(rng, r, int(rng.integers(1, 4)) + (0 if r.ok else 2)))
        ),
    )


@sibling(
    "R10",
    "effect longer",
    "Turns are of equal length; incorrect trajectories have more of them.",
    after={"trajectory column": "info.traj_uid"},
)
def uid_below_info(folder, seed):
    write_parquet(
        folder / "agent_loop.parquet",
        (
            {
                "prompt": ask(r.q),
                "response": " ".join(r.text.split(" ")[i : i + 12]),
                "reward": float(r.ok),
                "info": {"traj_uid": f"{r.q * 8 + r.k:08x}", "env": "shop"},
            }
            for r in rolls(seed, 1.55)
            for i in range(0, r.n, 12)
        ),
    )


@sibling(
    "R10",
    "effect longer or unknown",
    "Turns and rewards are in two files, joined by episode_id.",
    after={"trajectory column": "episode_id", "verdict": "episode_return in returns.csv, by episode_id"},
)
def returns_in_another_file(folder, seed):
    rng, rows = generator(seed + "/t"), rolls(seed, 1.55)
    write_jsonl(
        folder / "turns.jsonl",
        (
            {"episode_id": r.q * 8 + r.k, "turn": i, "prompt": ask(r.q), "completion": text}
            for r in rows
            for i, text in enumerate(split(rng, r, int(rng.integers(1, 4))))
        ),
    )
    write_csv(folder / "returns.csv", ({"episode_id": r.q * 8 + r.k, "episode_return": float(r.ok)} for r in rows))


@sibling(
    "R10",
    "effect longer",
    "step is the turn in the episode. Incorrect ones have more turns of equal length.",
    after={"trajectory column": "rollout_id", "step column": "none: step is the turn"},
)
def turn_named_step(folder, seed):
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "rollout_id": r.q * 8 + r.k,
                "step": i // 15,
                "prompt": ask(r.q),
                "completion": " ".join(r.text.split(" ")[i : i + 15]),
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.55)
            for i in range(0, r.n, 15)
        ),
    )


@sibling(
    "R10",
    "none or unknown",
    "Each response is logged once for each of four update passes, so rows repeat. "
    "The chance difference (t about 1.5) looks certain when repeats count.",
    after={"trajectory column": "sample_id", "lines": "a response in one update pass; passes repeat it"},
)
def logged_in_four_passes(folder, seed):
    for attempt in range(5000):
        rng = generator(f"{seed}/{attempt}")
        chance = rng.uniform(0.25, 0.75, 100)
        ok = rng.random((100, 8)) < chance[:, None]
        n = (60 * np.exp(rng.normal(0, 0.3, (100, 1)) + rng.normal(0, 0.35, (100, 8)))).astype(int) + 6
        groups = np.repeat(np.arange(100), 8)
        slope, t = contrast(groups, np.log(n.ravel()), ok.ravel())
        if 1.35 < t < 1.65 and slope < 0.045:
            break
    note(seed, groups.tolist(), n.ravel().tolist(), ok.ravel().tolist())
    base = [
        {"sample_id": q * 8 + k, "prompt": ask(q), "response": words(rng, n[q, k]), "reward": float(ok[q, k])}
        for q in range(100)
        for k in range(8)
    ]
    write_jsonl(
        folder / "update_batches.jsonl",
        ({"ppo_epoch": e, **row} for e in range(4) for row in mixed(base, f"{seed}{e}")),
    )


# R11: unique ids


@sibling(
    "R11",
    "effect longer",
    "A random tag ends each prompt, so texts are unique; index is the problem.",
    after={"prompt column": "extra_info.index"},
)
def tag_at_the_end_of_prompts(folder, seed):
    rng = generator(seed + "/tag")
    write_parquet(
        folder / "rollouts.parquet",
        (
            {
                "prompt": f"{ask(r.q)} [variation {rng.integers(10**8)}]",
                "response": r.text,
                "reward": float(r.ok),
                "extra_info": {"index": r.q, "split": "train"},
            }
            for r in rolls(seed, 1.55)
        ),
    )


@sibling("R11", "effect longer", "uid is unique; the text in input repeats.", after={"prompt column": "input"})
def uid_beside_input(folder, seed):
    lines = "".join(
        json.dumps(
            {"uid": first.unique_id(seed, r), "input": ask(r.q), "output": r.text, "score": float(r.ok), "step": 1}
        )
        + "\n"
        for r in rolls(seed, 1.55)
    )
    (folder / "step_1.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))


@sibling(
    "R11",
    "effect longer",
    "Worked examples in the prompt are shuffled for each sample; problem repeats.",
    after={"prompt column": "doc.problem"},
)
def shuffled_examples_in_prompt(folder, seed):
    rng = generator(seed + "/shots")
    write_jsonl(
        folder / "samples.jsonl",
        (
            {
                "id": f"trains_{r.q:04}_s{r.k}",
                "doc": {"problem": ask(r.q), "target": str(20 + r.q % 70)},
                "prompt": "\n\n".join([*(ask(int(i)) + " Answer: 40" for i in rng.integers(200, 900, 4)), ask(r.q)]),
                "completion": r.text,
                "exact_match": int(r.ok),
            }
            for r in rolls(seed, 1.55)
        ),
    )


@sibling(
    "R11",
    "none or unknown",
    "prompt is the template and the same everywhere; problem is the question. Hard problems have shorter responses.",
    after={"prompt column": "problem"},
)
def template_named_prompt(folder, seed):
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "prompt": "You are given a problem. Think, then write the answer.\n\n{problem}",
                "problem": ask(r.q),
                "completion": r.text,
                "reward": float(r.ok),
            }
            for r in rolls(seed, 1.0, hardness=-2.5)
        ),
    )


@sibling(
    "R11",
    "none or unknown",
    "Numbers start anew in each source, so an id is two problems. One source is long and hard.",
    unit="tokens",
    after={"prompt column": "data_source and problem_id"},
)
def same_number_in_two_sources(folder, seed):
    write_csv(
        folder / "lengths.csv",
        (
            {
                "data_source": ("aime", "gsm8k")[r.stage],
                "problem_id": r.q,
                "completion_length": round(1.3 * r.n),
                "reward": float(r.ok),
            }
            for r in mixed(rolls(seed, 1.0, prompts=50, samples=8, stages=DOWN), seed)
        ),
    )


# R12: scales


@sibling(
    "R12",
    "effect longer",
    "Math has 0 and 1. Logic has 0.2 for correct, -0.2 for long and -0.8 for short incorrect "
    "ones. A threshold of 0.5 loses logic; the middle of the range takes long ones for correct.",
    after={"verdict": "reward 1 for math, 0.2 for logic"},
)
def logic_centred_on_zero(folder, seed):
    write_jsonl(
        folder / "rollouts.jsonl",
        (
            {
                "data_source": "logic" if r.q % 4 else "math",
                "prompt": ask(r.q),
                "completion": r.text,
                "reward": (0.2 if r.ok else -0.2 if r.n > 1.3 * r.level else -0.8) if r.q % 4 else float(r.ok),
            }
            for r in rolls(seed, 1.55)
        ),
    )


@sibling(
    "R12",
    "effect longer or unknown",
    "Only normalised rewards: two values for each prompt, the higher correct.",
    after={"verdict": "reward above the prompt's mean"},
)
def only_normalised_rewards(folder, seed):
    records = []
    for part in first.blocks_of(rolls(seed, 1.55), 8):
        values = np.array([float(r.ok) for r in part])
        values = (values - values.mean()) / (values.std() + 1e-4)
        records += [
            {"step": 2, "prompt": ask(r.q), "completion": r.text, "reward": round(float(v), 4)}
            for r, v in zip(part, values, strict=False)
        ]
    write_jsonl(folder / "grpo.jsonl", records)


@sibling(
    "R12",
    "none or unknown",
    "The judge's rating of 1 to 10 favours short ones; exact_match decides.",
    after={"verdict column": "exact_match"},
)
def rating_beside_exact_match(folder, seed):
    rng = generator(seed + "/j")
    write_parquet(
        folder / "judged.parquet",
        (
            {
                "prompt": ask(r.q),
                "response": r.text,
                "exact_match": bool(r.ok),
                "reward": float(np.clip(round(5.5 - 5 * np.log(r.n / r.level) + rng.normal(0, 1)), 1, 10)),
            }
            for r in rolls(seed, 1.0)
        ),
    )


@sibling(
    "R12",
    "effect longer",
    "One file has scores 0 to 100, where only 100 is correct and long ones get 40; the other 0 and 1.",
    after={"verdict": "100 in points.jsonl, 1 in binary.jsonl"},
)
def hundred_in_one_file(folder, seed):
    rows = rolls(seed, 1.55)
    for name, full, rest in (("points", 100, 0), ("binary", 1, 1)):
        write_jsonl(
            folder / f"{name}.jsonl",
            (
                {
                    "prompt": ask(r.q),
                    "completion": r.text,
                    "score": (full if r.ok else 40 if full == 100 and r.n > 1.2 * r.level else 0),
                }
                for r in rows
                if r.q % 2 == rest
            ),
        )


@sibling(
    "R12",
    "effect longer",
    "boete is a cost: 0 is correct, 1 or 10 (by soort) incorrect.",
    after={"verdict column": "boete", "correct value": "0"},
    naked=True,
)
def cost_where_zero_is_best(folder, seed):
    write_csv(
        folder / "proef.csv",
        (
            {
                "soort": "bc"[r.q % 2],
                "vraag": ask(r.q, "nl"),
                "uitleg": r.text,
                "boete": 0 if r.ok else (1, 10)[r.q % 2],
            }
            for r in rolls(seed, 1.55, "nl")
        ),
        ";",
    )


SIBLINGS = tuple(REGISTERED)


def main():
    bad = 0
    for item in SIBLINGS:
        target = Path(sys.argv[1]) / item.label
        target.mkdir(parents=True)
        item.write(target)
        group, n, ok = CHECK[item.label]
        slope, t = contrast(group, np.log(n), ok)
        null = item.truth == "none or unknown"
        fine = abs(np.exp(slope) - 1) < 0.05 if null else 1.42 < np.exp(slope) < 1.68
        pooled = np.log(n)[~np.array(ok)].mean() - np.log(n)[np.array(ok)].mean()
        bad += not fine
        print(
            f"{'ok ' if fine else 'BAD'} {item.label:40} {item.truth:25} within {np.exp(slope):.3f} t {t:6.2f} "
            f"pooled {np.exp(pooled):.2f} rows {len(n)} accuracy {np.mean(ok):.2f}"
        )
    print(len(SIBLINGS), "siblings,", len(NAKED), "naked,", bad, "bad")
    print(sorted(collections.Counter((s.kind, s.truth) for s in SIBLINGS).items()))
    assert len({s.label for s in SIBLINGS}) == len(SIBLINGS)
    assert not {s.name for s in SIBLINGS} & {s.name for s in first.SIBLINGS}


if __name__ == "__main__":
    main()

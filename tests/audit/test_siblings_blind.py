"""Check the truth of each sibling with an independent computation on its files.

For each sibling there are two readings of the log, written by hand: the right one and a tempting
one. The right reading must show the sibling's truth, and the tempting one must be wrong or empty.
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from siblings_blind import ANSWERS, SIBLINGS, TRUTHS, load

TRUE_VALUES = (1, True, "1", "1.0", "true", "ja", "WIN")


@dataclass(frozen=True)
class Contrast:
    """Difference within groups of log length, incorrect minus correct.

    Attributes:
        factor: Length of incorrect responses relative to correct ones.
        t: t statistic of the difference of logarithms.
        responses: Number of responses with a length.
        share: Share of the groups that have both verdicts.
    """

    factor: float
    t: float
    responses: int
    share: float


def compare(samples) -> Contrast:
    """Return the contrast of samples (group, length, correct)."""
    groups = defaultdict(lambda: ([], []))
    for group, length, correct in samples:
        groups[str(group)][bool(correct)].append(np.log(length))
    responses = sum(len(wrong) + len(right) for wrong, right in groups.values())
    mixed = [pair for pair in groups.values() if pair[0] and pair[1]]
    share = len(mixed) / len(groups)
    if not mixed:
        return Contrast(1.0, 0.0, responses, share)
    differences, weights, squares, freedom = [], [], 0.0, 0
    for pair in mixed:
        wrong, right = np.asarray(pair[0]), np.asarray(pair[1])
        differences.append(wrong.mean() - right.mean())
        weights.append(len(wrong) * len(right) / (len(wrong) + len(right)))
        squares += ((wrong - wrong.mean()) ** 2).sum() + ((right - right.mean()) ** 2).sum()
        freedom += len(wrong) + len(right) - 2
    mean = np.average(differences, weights=weights)
    error = np.sqrt(squares / max(freedom, 1) / sum(weights))
    t = mean / error if error > 1e-9 else 0.0
    return Contrast(float(np.exp(mean)), float(t), responses, share)


def spread_out(samples, measure):
    """Return the samples with each length replaced by a measure within its group.

    The lengths are exponentials, because `compare` takes logarithms.
    """
    groups = defaultdict(list)
    for group, length, correct in samples:
        groups[str(group)].append((np.log(length), correct))
    result = []
    for group, members in groups.items():
        logs = np.asarray([log for log, _ in members])
        values = measure(logs)
        for value, (_, correct) in zip(values, members, strict=True):
            result.append((group, np.exp(value), correct))
    return result


def ranks(logs):
    """Return the rank of each length."""
    return logs.argsort().argsort()


def distances(logs):
    """Return the distance of each length from the median."""
    return abs(logs - np.median(logs))


# Readings
# Helpers that take paths return a function of a row. Their docstrings describe its result.


def at(row, path):
    """Return the value at a path of keys joined by dots."""
    for key in path.split("."):
        row = row[int(key)] if isinstance(row, list) else row[key]
    return row


def value(source, row):
    """Return the value of a source: a path, a tuple of sources, or a function of the row."""
    if isinstance(source, tuple):
        return tuple(value(part, row) for part in source)
    return source(row) if callable(source) else at(row, source)


def true(path):
    """Return whether the value is one of `TRUE_VALUES`."""
    return lambda row: at(row, path) in TRUE_VALUES


def equal(path, wanted):
    """Return whether the value equals the one given."""
    return lambda row: at(row, path) == wanted


def starts(path, opening):
    """Return whether a text starts with the opening."""
    return lambda row: at(row, path).startswith(opening)


def usage_of(*keys):
    """Return the tokens of all calls under the keys."""
    return lambda row: sum(call[key] for call in row["usage"]["calls"] for key in keys)


def above(path, threshold=0.5):
    """Return whether the value is above a threshold."""
    return lambda row: float(at(row, path)) > threshold


def words(path):
    """Return the number of words of a text."""
    return lambda row: len(str(at(row, path) or "").split())


def chars(path):
    """Return the number of characters of a text."""
    return lambda row: len(at(row, path) or "")


def count(path):
    """Return the number of elements of a list."""
    return lambda row: len(at(row, path))


def total(path):
    """Return the sum of a list of numbers."""
    return lambda row: sum(at(row, path))


def number(path):
    """Return the value as a whole number."""
    return lambda row: int(at(row, path))


def each(group, length, correct, keep=None):
    """Return a reading in which every row is a response."""

    def read(rows):
        for row in rows:
            if keep is None or keep(row):
                yield value(group, row), max(value(length, row), 1), value(correct, row)

    return read


def unfold(expand, reading):
    """Return a reading of the rows that `expand` makes of each row."""
    return lambda rows: reading([part for row in rows for part in expand(row)])


def zipped(**paths):
    """Return a function that makes rows of lists of equal length in one row."""

    def expand(row):
        lists = [at(row, path) for path in paths.values()]
        return [dict(zip(paths, values, strict=True)) for values in zip(*lists, strict=True)]

    return expand


def trajectories(key, group, length, correct):
    """Return a reading in which all rows with the same key are one response."""

    def read(rows):
        sums, verdicts, prompts = Counter(), defaultdict(bool), {}
        for row in rows:
            name = str(value(key, row))
            sums[name] += value(length, row)
            verdicts[name] |= bool(value(correct, row))
            prompts[name] = value(group, row)
        return [(prompts[name], sums[name], verdicts[name]) for name in sums]

    return read


def outside(opening, closing, path):
    """Return the number of words outside blocks; an empty closing ends a block with its line."""

    def length(row):
        text = at(row, path)
        parts = text.split(opening)
        kept = [parts[0]]
        for part in parts[1:]:
            kept.append(part.split(closing or "\n", 1)[1])
        return len(" ".join(kept).split())

    return length


def pooled(reading):
    """Return the reading with all prompts taken for one."""
    return lambda rows: [("all", length, correct) for _, length, correct in reading(rows)]


def file(row):
    """Return the relative path of the row's file."""
    return row["@file"]


def with_parts(size, reading):
    """Return the reading of rows that know their block of `size` rows as "@part"."""

    def read(rows):
        return reading([{**row, "@part": index // size} for index, row in enumerate(rows)])

    return read


def question_of(path):
    """Return the user's question from the JSON text of messages."""
    return lambda row: json.loads(at(row, path))[0]["content"]


def reading_pair(opening, closing, prompt="prompt", response="response", verdict="reward"):
    """Return the readings of a log whose responses contain text that was read."""
    return (
        each(prompt, outside(opening, closing, response), true(verdict)),
        each(prompt, words(response), true(verdict)),
        "longer",
    )


def finish_pair(prompt, response, verdict, truncated):
    """Return the readings of a log in which responses at the limit are incorrect."""
    return (
        each(prompt, words(response), true(verdict), lambda row: not truncated(row)),
        each(prompt, words(response), true(verdict)),
        "longer",
    )


def failed_pair(prompt, response, verdict, failed, outcome="shorter"):
    """Return the readings of a log in which some responses failed."""
    return (
        each(prompt, words(response), true(verdict), lambda row: not failed(row)),
        each(prompt, words(response), true(verdict)),
        outcome,
    )


def grouped_pair(prompt, group, response, verdict, outcome):
    """Return the readings with pairs within a group, and with pairs that ignore it."""
    return (
        each((prompt, group), words(response), true(verdict)),
        each(prompt, words(response), true(verdict)),
        outcome,
    )


def erasing_pair(prompt, group, response, verdict, outcome="flat"):
    """Return the readings that ignore a consequence of the response, and that compare within it."""
    right, tempting, _ = grouped_pair(prompt, group, response, verdict, outcome)
    return tempting, right, outcome


def top_folder(row):
    """Return the first folder of the row's path."""
    return row["@file"].split("/")[0]


def second_run(row):
    """Return whether a row belongs to the second run, which began nine hours later."""
    return row["ts"] > "2026-03-14T10:00"


def omitted(text):
    """Return the number of characters of a text whose middle was replaced by their number."""
    if "chars omitted>" not in text:
        return len(text)
    return 120 + int(text.split(" <")[1].split(" chars")[0])


def reply_of(index, key="content"):
    """Return the number of words of a message."""
    return lambda row: len(str(row["messages"][index][key]).split())


def grouped_rollouts(row):
    """Return the responses of all groups of a document."""
    groups = row["groups"].values()
    return [part for group in groups for part in group["rollouts"]]


NULL = "none or unknown"
SIGN = {"effect longer": 1, "effect longer or unknown": 1, "effect shorter": -1, NULL: 0}

# Label: (right reading or None, tempting reading, result of the tempting reading)
READINGS = {
    # R1
    "R1_tick_in_meta": grouped_pair("inp", "meta.tick", "out", "gain", "shorter"),
    "R1_weights_fingerprint": grouped_pair("frage", "gewichte", "antwort", "punkte", "longer"),
    "R1_order_of_rows_only": (
        with_parts(480, each(("query", "@part"), words("reply"), true("rew"))),
        each("query", words("reply"), true("rew")),
        "shorter",
    ),
    "R1_second_run_appended": grouped_pair("userText", second_run, "botText", "solved", "longer"),
    "R1_clock_in_file_name": grouped_pair("task_text", file, "gen", "r", "shorter"),
    "R1_partition_folders": grouped_pair("eingabe", file, "ausgabe", "lohn", "longer"),
    "R1_pass_two_levels_deep": grouped_pair(
        "auftrag",
        "lauf.stand.runde",
        "text",
        "richtig",
        "longer",
    ),
    "R1_effect_that_steps_cancel": grouped_pair(
        "promptText",
        "optIter",
        "modelText",
        "isRight",
        "flat",
    ),
    "R1_slot_chosen_by_length": erasing_pair("question", "packSlot", "generation", "reward"),
    "R1_short_responses_end_first": (
        each("ask", words("said"), true("score")),
        with_parts(100, each(("ask", "@part"), words("said"), true("score"))),
        "flat",
    ),
    # R2
    "R2_tokens_of_two_turns": (
        each("goal", total("tok_per_turn"), true("win")),
        each("goal", count("tok_per_turn"), true("win")),
        "flat",
    ),
    "R2_two_lists_of_ids": (
        each("inText", lambda row: sum(map(len, row["outIds"])), true("signal.hit")),
        each("inText", count("outIds"), true("signal.hit")),
        "flat",
    ),
    "R2_flat_ids_of_loops": (
        each("gruppe", count("completion"), true("treffer")),
        each("gruppe", total("completion"), true("treffer")),
        "shorter",
    ),
    "R2_lengths_joined_in_csv": (
        each("exercice", lambda row: sum(map(int, row["longueurs"].split("|"))), true("juste")),
        each("exercice", lambda row: row["longueurs"].count("|") + 1, true("juste")),
        "flat",
    ),
    "R2_segments_of_two_origins": (
        each(
            "problem",
            lambda row: sum(part["ntok"] for part in row["segs"] if part["src"] == "pol"),
            true("success"),
        ),
        each("problem", lambda row: sum(part["ntok"] for part in row["segs"]), true("success")),
        "longer",
    ),
    "R2_logprob_of_each_token": (
        each("pid", count("stats.lp"), true("outcome")),
        each("pid", count("stats"), true("outcome")),
        "flat",
    ),
    "R2_padded_ids_with_mask": (
        each("itemNo", total("lossMask"), true("passed")),
        each("itemNo", count("tokenIds"), true("passed")),
        "flat",
    ),
    "R2_usage_of_each_call": (
        each("case", usage_of("out"), true("resolved")),
        each(
            "case",
            usage_of("in", "out"),
            true("resolved"),
        ),
        "flat",
    ),
    # R3
    "R3_payload_of_fn": (
        each("chat.0.content", words("chat.1.fn.payload"), true("reward")),
        each("chat.0.content", chars("chat.1.content"), true("reward")),
        "flat",
    ),
    "R3_blocks_with_a_kind": (
        each("issue", words("dialog.0.blocks.1.stdin"), true("fixed")),
        each("issue", chars("dialog.0.blocks.0.body"), true("fixed")),
        "flat",
    ),
    "R3_actions_next_to_reply": (
        each(
            "instruction",
            lambda row: sum(len(call["script"]) for call in row["actions"]),
            true("reward"),
        ),
        each("instruction", chars("reply"), true("reward")),
        "flat",
    ),
    "R3_werkzeug_aufruf": (
        each(
            "verlauf.0.teile.0.text",
            words("verlauf.1.teile.1.aufruf.eingabe.term"),
            true("bewertung.korrekt"),
        ),
        each("verlauf.0.teile.0.text", chars("verlauf.1.teile.0.text"), true("bewertung.korrekt")),
        "flat",
    ),
    "R3_call_as_expression": (
        each("prompt", chars("trail.0.invocation"), true("acc")),
        each("prompt", chars("trail.2.content"), true("acc")),
        "flat",
    ),
    "R3_kwargs_in_parquet": (
        each("prompt", words("completion.0.tool_calls.0.kwargs.source"), true("correct")),
        each("prompt", chars("completion.0.content"), true("correct")),
        "flat",
    ),
    "R3_output_inside_the_call": (
        each("prompt", words("response.0.calls.0.input"), true("score")),
        each("prompt", lambda row: len(json.dumps(row["response"])), true("score")),
        "longer",
    ),
    "R3_events_with_observations": (
        each(
            "quest",
            lambda row: len(row["events"][0]["txt"]) + len(row["events"][3]["txt"]),
            true("won"),
        ),
        each("quest", lambda row: len(json.dumps(row["events"])), true("won")),
        "longer",
    ),
    "R3_reply_is_json_text": (
        each("entrada", words("salida"), true("acierto")),
        each("entrada", lambda row: len(json.loads(row["salida"])["final"]), true("acierto")),
        "flat",
    ),
    # R4
    "R4_probe_tags": reading_pair("<probe>", "</probe>"),
    "R4_double_brackets": reading_pair(
        "[[TOOL OUTPUT]]",
        "[[/TOOL OUTPUT]]",
        "in_text",
        "out_text",
        "is_ok",
    ),
    "R4_fence_ausgabe": reading_pair("```ausgabe\n", "\n```", "aufgabe", "loesung", "richtig"),
    "R4_headers_of_roles": reading_pair("### Environment:", "### Agent:", "obs0", "log", "R"),
    "R4_markers_umgebung": reading_pair(
        "<|umgebung|>",
        "<|ende|>",
        "prompt",
        "completion",
        "erfolg",
    ),
    "R4_lines_observacion": reading_pair("Observacion: ", "", "pregunta", "respuesta", "acierto"),
    "R4_hits_with_attributes": reading_pair("<hit rank", "</hit>", "query", "rollout"),
    "R4_own_sketch_in_tags": (
        each("prompt", words("response"), true("reward")),
        each("prompt", outside("<skizze>", "</skizze>", "response"), true("reward")),
        "flat",
    ),
    "R4_own_program_in_fences": (
        each("spec", words("gen"), true("unit_tests_green")),
        each("spec", outside("```py3\n", "\n```", "gen"), true("unit_tests_green")),
        "flat",
    ),
    # R5
    "R5_bestanden_of_gesamt": (
        each("aufgabe", words("programm"), true("reward")),
        each("aufgabe", words("programm"), above("bestanden")),
        "nothing",
    ),
    "R5_percentage_next_to_solved": (
        each("prompt", words("completion"), true("eval.isSolved")),
        each("prompt", words("completion"), above("accuracy")),
        "nothing",
    ),
    "R5_belief_named_correct": (
        each("topic", words("essay"), true("outcome")),
        each("topic", words("essay"), above("correct")),
        "shorter",
    ),
    "R5_ok_is_a_count": (
        each("spec_id", words("source_text"), true("verdict")),
        each("spec_id", words("source_text"), above("ok")),
        "nothing",
    ),
    "R5_format_flag_next_to_verdict": (
        each("frage", words("antwort"), true("geloest")),
        each("frage", words("antwort"), true("wohlgeformt")),
        "shorter",
    ),
    "R5_total_with_length_penalty": (
        each("p", words("c"), true("rParts.hit")),
        each("p", words("c"), above("rTotal")),
        "longer",
    ),
    "R5_grade_where_one_is_best": (
        each("thema", words("aufsatz"), true("versetzt")),
        each("thema", words("aufsatz"), above("note", 3.5)),
        "shorter",
    ),
    "R5_score_counts_failures": (
        each("ticket", words("patch"), true("reward")),
        each("ticket", words("patch"), above("score")),
        "shorter",
    ),
    # R6
    "R6_line_per_step_of_chats": (
        unfold(zipped(p="chats", t="outs", v="scores"), each("p", words("t"), true("v"))),
        pooled(unfold(zipped(p="chats", t="outs", v="scores"), each("p", words("t"), true("v")))),
        "longer",
    ),
    "R6_line_per_prompt": (
        unfold(
            lambda row: [{"p": row["frage"], **part} for part in row["proben"]],
            each("p", words("txt"), true("treffer")),
        ),
        pooled(unfold(lambda row: row["proben"], each("txt", words("txt"), true("treffer")))),
        "shorter",
    ),
    "R6_mapping_of_groups": (
        unfold(
            lambda row: [
                {
                    "p": group["ask"],
                    **part,
                }
                for group in row["groups"].values()
                for part in group["rollouts"]
            ],
            each("p", words("body"), true("pts")),
        ),
        pooled(
            unfold(
                grouped_rollouts,
                each("body", words("body"), true("pts")),
            )
        ),
        "shorter",
    ),
    "R6_lists_in_parquet": (
        unfold(
            lambda row: [{"p": row["prob"], **part} for part in zipped(t="cands", v="marks")(row)],
            each("p", words("t"), true("v")),
        ),
        pooled(unfold(zipped(t="cands", v="marks"), each("t", words("t"), true("v")))),
        "shorter",
    ),
    "R6_document_of_columns": (
        unfold(zipped(p="entrada", t="salida", v="premio"), each("p", words("t"), true("v"))),
        pooled(
            unfold(zipped(p="entrada", t="salida", v="premio"), each("p", words("t"), true("v"))),
        ),
        "longer",
    ),
    "R6_ten_prompts_by_eight": (
        unfold(
            lambda row: [
                {"p": prompt, "t": text, "v": verdict}
                for prompt, texts, verdicts in zip(*row["batch"].values(), strict=True)
                for text, verdict in zip(texts, verdicts, strict=True)
            ],
            each("p", words("t"), true("v")),
        ),
        pooled(
            unfold(
                lambda row: [
                    {"t": text, "v": verdict}
                    for _, texts, verdicts in zip(*row["batch"].values(), strict=True)
                    for text, verdict in zip(texts, verdicts, strict=True)
                ],
                each("t", words("t"), true("v")),
            )
        ),
        "shorter",
    ),
    "R6_responses_by_index": (
        unfold(
            lambda row: [
                {
                    "p": row["prompts"][part["i"]],
                    **part,
                }
                for part in zipped(i="srcIdx", t="gens", v="rew")(row)
            ],
            each("p", words("t"), true("v")),
        ),
        unfold(
            lambda row: [
                {
                    "p": row["prompts"][index // 8],
                    **part,
                }
                for index, part in enumerate(zipped(t="gens", v="rew")(row))
            ],
            each("p", words("t"), true("v")),
        ),
        "longer",
    ),
    "R6_batch_of_ids": (
        unfold(zipped(p="ctx_ids", t="act_ids", v="ret"), each("p", count("t"), true("v"))),
        pooled(unfold(zipped(p="ctx_ids", t="act_ids", v="ret"), each("p", count("t"), true("v")))),
        "longer",
    ),
    # R7
    "R7_lost_and_empty": failed_pair("hoert", "sagt", "lohn", equal("sagt", "")),
    "R7_fehler_and_null": failed_pair(
        "aufgabe", "antwort", "belohnung", (lambda row: row["info"]["fehler"] is not None)
    ),
    "R7_preempted_fragments": failed_pair(
        "prompt",
        "response",
        "reward",
        equal("state", "preempted"),
    ),
    "R7_error_in_place_of_text": failed_pair("q", "a", "correct", starts("a", "[upstream")),
    "R7_none_as_text": failed_pair("req.text", "res.text", "gold_match", equal("res.http", 504)),
    "R7_minus_one_is_not_graded": failed_pair(
        "promptText",
        "completionText",
        "score",
        equal("score", -1.0),
    ),
    "R7_policy_gives_up": (
        each("prompt", words("response"), true("reward")),
        each(
            "prompt",
            words("response"),
            true("reward"),
            lambda row: not starts("response", "I cannot")(row),
        ),
        "flat",
    ),
    "R7_effect_behind_crashes": failed_pair("task", "rollout", "success", true("crash")),
    # R8
    "R8_two_checkpoints": grouped_pair("prompt", "ckpt", "response", "reward", "longer"),
    "R8_phase_in_context": grouped_pair("msg", "ctx.phase", "ans", "good", "longer"),
    "R8_temperature_in_sampler": grouped_pair("item", "sampler.temp", "out", "right", "longer"),
    "R8_denkmodus_on_and_off": grouped_pair("frage", "denkmodus", "antwort", "korrekt", "shorter"),
    "R8_file_for_each_policy": grouped_pair("prompt", file, "output", "label", "longer"),
    "R8_adapter_slots": grouped_pair("x", "loraSlot", "y", "fit", "longer"),
    "R8_irrelevant_replica": erasing_pair("prompt", "model", "response", "reward", "few"),
    "R8_grader_chosen_by_length": erasing_pair("prompt", "graderModel", "completion", "pass"),
    "R8_seats_of_self_play": grouped_pair("board", "seat", "move_text", "point", "longer"),
    # R9
    "R9_ende_laenge": finish_pair("eingabe", "ausgabe", "richtig", equal("ende", "laenge")),
    "R9_cap_reached": finish_pair(
        "userMsg",
        "botMsg",
        "isCorrect",
        equal("whyStopped", "CAP_REACHED"),
    ),
    "R9_exit_codes": finish_pair("prompt", "response", "reward", equal("exit", 2)),
    "R9_ceiling_in_gen": finish_pair("ask", "answer", "accepted", true("gen.hitCeiling")),
    "R9_horizon_of_episode": finish_pair("state0", "actions", "ret", equal("terminus", "horizon")),
    "R9_ending_without_box": (
        each("prompt", words("response"), true("reward")),
        each("prompt", words("response"), true("reward"), equal("ending", "box")),
        "flat",
    ),
    "R9_two_normal_ends": (
        each("prompt", words("text"), true("hit")),
        each("prompt", words("text"), true("hit"), equal("stop.via", "eot")),
        "flat",
    ),
    "R9_evicted_from_cache": failed_pair(
        "prompt",
        "response",
        "reward",
        equal("finish", "evicted"),
    ),
    # R10
    "R10_zuege_of_a_partie": (
        trajectories("partie", "aufgabe", words("text"), true("erfolg")),
        each("aufgabe", words("text"), true("erfolg")),
        "either",
    ),
    "R10_reward_on_last_hop": (
        trajectories("rolloutRef", "task", words("msg"), true("reward")),
        each("task", words("msg"), true("reward")),
        "longer",
    ),
    "R10_context_grows": (
        trajectories("meta.run", "meta.quest", words("response"), true("reward")),
        each("prompt", words("response"), true("reward")),
        "nothing",
    ),
    "R10_more_and_shorter_turns": (
        trajectories((file, "attempt"), file, words("say"), true("solved")),
        each(file, words("say"), true("solved")),
        "shorter",
    ),
    "R10_more_turns_of_equal_length": (
        trajectories("traj", "scenario", words("utterance"), true("goal_reached")),
        each("scenario", words("utterance"), true("goal_reached")),
        "flat",
    ),
    "R10_windows_of_a_run": (
        trajectories("lauf", "ticket", words("verlauf"), true("behoben")),
        each("ticket", words("verlauf"), true("behoben")),
        "either",
    ),
    "R10_planner_and_checker": (
        trajectories("tid", "brief", words("emits"), true("teamReward")),
        each("brief", chars("emits"), true("teamReward"), equal("agentName", "checker")),
        "flat",
    ),
    # R11
    "R11_uuid_and_turns": (
        each("turns.0.utterance", words("turns.1.utterance"), true("reward")),
        each("uuid", words("turns.1.utterance"), true("reward")),
        "nothing",
    ),
    "R11_database_export": (
        each("conversation.0.content", words("conversation.1.content"), true("feedback.isCorrect")),
        each("_id.$oid", words("conversation.1.content"), true("feedback.isCorrect")),
        "nothing",
    ),
    "R11_messages_as_json_text": (
        each(
            question_of("dialog_json"),
            lambda row: len(json.loads(row["dialog_json"])[1]["content"]),
            true("won"),
        ),
        each("rowKey", chars("dialog_json"), true("won")),
        "nothing",
    ),
    "R11_shared_system_message": (
        each("messages.1.content", reply_of(2), true("reward")),
        each("messages.0.content", reply_of(2), true("reward")),
        "longer",
    ),
    "R11_prompt_id_of_the_request": (
        each("prompt", words("response"), true("reward")),
        each("prompt_id", words("response"), true("reward")),
        "nothing",
    ),
    "R11_question_in_an_image": (
        each("item", reply_of(1), true("acc")),
        each("messages.0.content", reply_of(1), true("acc")),
        "longer",
    ),
    "R11_clock_in_system_message": (
        each("prompt.1.content", words("completion"), true("reward")),
        each("prompt", words("completion"), true("reward")),
        "nothing",
    ),
    # R12
    "R12_tests_of_ten_for_code": (
        each(
            "prompt",
            words("response"),
            lambda row: row["reward"] == (10 if row["domain"] == "code" else 1),
        ),
        each("prompt", words("response"), above("reward")),
        "not longer",
    ),
    "R12_ratings_next_to_zero_and_one": (
        each("q", words("a"), lambda row: row["rew"] == (5 if row["src"] == "chat" else 1)),
        each("q", words("a"), above("rew"), equal("src", "chat")),
        "nothing",
    ),
    "R12_normalised_next_to_raw": (
        each("prompt", words("response"), true("rohwert")),
        each("prompt", words("response"), above("reward", 0.0)),
        "shorter",
    ),
    "R12_key_for_each_task": (
        each(
            "input",
            words("output"),
            lambda row: row["rewards"] in ({"safety": 0.0}, {"math": 1.0}),
        ),
        each(
            "input",
            words("output"),
            lambda row: sum(row["rewards"].values()) > 0.5,
            lambda row: "safety" in row["rewards"],
        ),
        "nothing",
    ),
    "R12_bonus_for_format": (
        each("prompt", words("response"), true("r.acc")),
        each("prompt", words("response"), above("r.total")),
        "shorter",
    ),
    "R12_scale_changed_during_run": (
        each(("prompt", "graderVersion"), words("response"), lambda row: row["points"] % 2 == 1),
        each("prompt", words("response"), above("points")),
        "shorter",
    ),
    # R13
    "R13_first_160_characters": (
        None,
        each("prompt", chars("preview"), true("reward")),
        "within a tenth",
    ),
    "R13_ellipsis_after_24_words": (
        None,
        each("msg", chars("sample"), true("ok")),
        "within a tenth",
    ),
    "R13_middle_left_out": (
        each("prompt", lambda row: omitted(row["response"]), true("reward")),
        each("prompt", chars("response"), true("reward")),
        "within a tenth",
    ),
    "R13_cut_text_with_count": (
        each("prompt", "nTok", true("reward")),
        each("prompt", chars("response"), true("reward")),
        "within a tenth",
    ),
    # R14
    "R14_width_of_the_batch": (
        None,
        each("taskId", number("seqLen"), equal("ok", "True")),
        "flat",
    ),
    "R14_all_at_the_limit": (None, each("qid", count("gen_ids"), true("reward")), "flat"),
    # R15
    "R15_folder_for_each_version": grouped_pair("prompt", top_folder, "response", "reward", "flat"),
    "R15_folder_for_each_rank": erasing_pair("prompt", top_folder, "response", "reward", "nothing"),
    "R15_steps_above_workers": grouped_pair(
        "frage", lambda row: row["@file"].split("/")[1], "antwort", "lohn", "shorter"
    ),
    # R17
    "R17_examples_in_the_length": (
        each("prompt", words("response"), true("reward")),
        each("prompt", "completionLen", true("reward")),
        "within a tenth",
    ),
    "R17_sequence_minus_context": (
        each("probId", lambda row: int(row["len"]) - int(row["ctx"]), true("pass")),
        each("probId", number("len"), true("pass")),
        "within a tenth",
    ),
    "R17_examples_that_help": (
        each("prompt", words("response"), true("reward")),
        each("prompt", "out_tokens", true("reward")),
        "shorter",
    ),
}


# Results of a tempting reading
RESULTS = {
    "longer": lambda result: result.t > 3,
    "shorter": lambda result: result.t < -3,
    "either": lambda result: abs(result.t) > 2.3,
    "not longer": lambda result: result.t < 1.6,
    "flat": lambda result: abs(result.t) < 2.5 and 0.88 < result.factor < 1.12,
    "within a tenth": lambda result: 0.9 < result.factor < 1.1,
    "nothing": lambda result: result.share < 0.05,
    "few": lambda result: result.share < 0.2,
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Write all logs once and return the rows of each."""
    folder = tmp_path_factory.mktemp("siblings")
    rows = {}
    for item in SIBLINGS:
        target = folder / item.label
        target.mkdir()
        item.write(target)
        rows[item.label] = load(target)
    return rows


def by_label(item):
    """Return the name of a test's parameter."""
    return item.label


def test_labels_are_unique_and_complete():
    labels = [item.label for item in SIBLINGS]
    assert len(labels) == len(set(labels)) == len(READINGS)
    assert set(labels) == set(READINGS)
    assert all(item.truth in TRUTHS for item in SIBLINGS)
    assert all(item.after and set(item.after) <= set(ANSWERS) for item in SIBLINGS)


def test_each_kind_has_five():
    counts = Counter(item.kind for item in SIBLINGS)
    assert len(SIBLINGS) >= 66
    assert all(counts[f"R{number}"] >= 5 for number in range(1, 13))


def test_logs_are_the_same_each_time(tmp_path):
    for item in SIBLINGS[::20]:
        contents = []
        for number in range(2):
            folder = tmp_path / f"{item.label}-{number}"
            folder.mkdir()
            item.write(folder)
            contents.append(load(folder))
        assert contents[0] == contents[1]


@pytest.mark.parametrize("item", SIBLINGS, ids=by_label)
def test_right_reading_shows_the_truth(logs, item):
    right = READINGS[item.label][0]
    if item.truth == "unknown":
        assert right is None
        return
    result = compare(right(logs[item.label]))
    assert 400 <= result.responses <= 2_500, result
    assert result.share > 0.6, result
    sign = SIGN[item.truth]
    if sign:
        assert result.t * sign > 6, result
        assert np.log(result.factor) * sign > np.log(1.35), result
    else:
        assert abs(result.t) < 1.5, result
        assert 0.92 < result.factor < 1.08, result


@pytest.mark.parametrize("measure", [ranks, distances])
@pytest.mark.parametrize("item", [item for item in SIBLINGS if item.truth == NULL], ids=by_label)
def test_null_has_no_other_effect(logs, item, measure):
    samples = list(READINGS[item.label][0](logs[item.label]))
    result = compare(spread_out(samples, measure))
    assert abs(result.t) < 1.6, result


@pytest.mark.parametrize("item", SIBLINGS, ids=by_label)
def test_tempting_reading_is_wrong(logs, item):
    _, tempting, outcome = READINGS[item.label]
    result = compare(tempting(logs[item.label]))
    assert RESULTS[outcome](result), (outcome, result)

"""The formats of other programs (docs/rollouts): the columns each is known by, and what of it is not plain columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fairlen.audit.log import halfway
from fairlen.audit.readers.columns import ask, column_at, explain_credit, inside, tell_problems, write_sum
from fairlen.audit.readers.finish import is_limit, read_finish
from fairlen.audit.readers.formats import Format, count_turns, expand, has_all
from fairlen.audit.readers.messages import content_of, open_output, split_chat
from fairlen.audit.readers.rows import Found, Options, Part, hashes, is_number, number_of, numbers, pair_keys
from fairlen.files.formats import Chunk, Row

GRADES = {"C": (1.0, 1.0), "P": (0.5, 0.0), "I": (0.0, 0.0), "N": (0.0, 0.0)}
"""Reward and verdict for what scorers of Inspect say: correct, partly, incorrect, no answer."""
VERDICT = re.compile(
    r"(?!.*(?i:format|count|num_)).*(?<![A-Za-z])(is)?([Aa]cc(uracy)?|[Cc]orrect(ness)?|[Ee]xact_[Mm]atch)(?![a-z])"
)
"""A reward function of TRL with one of these in its name that says 0 or 1 is the verifier's word, if not of form or number."""
OF_TRL = {"step": "step", "prompt": "prompt", "response": "completion", "advantage": "advantage"}
"""Roles of the columns that every completion of TRL's has."""


def settle_trl(format: Format, head: Chunk, options: Options) -> Format:
    """Return the format of completions whose reward is the sum of numbers that explains `advantage` within prompts.

    Rewards come first after `completion`, columns of `log_extra` after them, both before `advantage`; which is which is not
    recorded, nor the weights. A reward named like a verdict says who is correct where nothing explains the advantage.
    """
    names, credit = list_numbers(head), numbers(head.get("advantage"))[0]
    step = hashes(head.get("step"))
    group = pair_keys(step, hashes(head.get("prompt")))
    found = explain_credit(head, names, credit, group) if len(names) > 1 else {}
    verdict = next((name for name in names if is_verdict(name, numbers(head.get(name))[0])), "")
    if len(names) > 1 and not found and not verdict and np.ptp(credit) > 0:
        ask("response=completion,reward", names, "no sum of the columns of numbers explains `advantage`")
    weights = found or dict.fromkeys(names, 1.0)
    if not weights:
        return format
    roles = OF_TRL | {"reward": write_sum(weights)} | ({"correct": verdict} if verdict else {})
    outcome = numbers(column_at(head, roles["reward"]))[0]
    correct = outcome > halfway(outcome[np.isfinite(outcome)])
    roles["prompt"] = tell_problems(head, OF_TRL, step, correct)["prompt"]
    note = "reward: " + " + ".join(f"{by:g} `{name}`".removeprefix("1 ") for name, by in weights.items())
    note += ", as `advantage` says" if found else ", unweighted (weights are not in the files)"
    left = ", ".join(f"`{name}`" for name in names if name not in weights)
    notes = f"{note}; not {left}" if left else note, *[f"correct or not is what `{verdict}` says"] * bool(verdict)
    return replace(format, read=partial(read_trl, chosen=roles), notes=notes)


def read_trl(chunk: Chunk, found: Found, chosen: dict[str, str]) -> Chunk:
    return Chunk(chunk.file, chunk.lines, {role: column_at(chunk, name, role) for role, name in chosen.items()})


def list_numbers(head: Chunk) -> list[str]:
    """Return the columns of numbers: those between `completion` and `advantage` first, as TRL writes its rewards."""
    is_text = any(isinstance(cell, str) for cell in head.get("advantage"))  # of a CSV every cell is
    cells = {name: [number_of(cell) for cell in head.get(name)] if is_text else head.get(name) for name in head.columns}
    names = [name for name in cells if name not in OF_TRL.values() and is_mostly_numbers(cells[name])]
    order = list(head.columns)
    first, last = order.index("completion"), order.index("advantage")
    return sorted(names, key=lambda name: not first < order.index(name) < last)


def is_mostly_numbers(values: list[Any]) -> bool:
    known = [value for value in values if value is not None]
    return sum(isinstance(value, float) or is_number(value) for value in known) > len(known) / 2


def is_verdict(name: str, values: np.ndarray) -> bool:
    known = values[~np.isnan(values)]
    return bool(VERDICT.match(name)) and len(known) > 0 and bool(np.isin(known, (0.0, 1.0)).all())


def drop_repeats(part: Part, found: Found) -> Part:
    """Return rows without steps that repeat the step before: TRL logs its buffer again while it trains on the same rollouts."""
    starts = np.flatnonzero(np.diff(part.step, prepend=-2) != 0)
    keep, last = np.ones(len(part), np.bool_), b""
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(part)], strict=True):
        content = part.prompt[start:stop].tobytes() + part.text[start:stop].tobytes()
        keep[start:stop] = content != last
        last = content
    found.count("rows of steps that repeat the step before are counted once", ~keep)
    return part.take(keep)


def read_verl(chunk: Chunk, found: Found) -> Chunk:
    """Return generations; `acc` is the verifier's word, and `num_turns` counts the prompt and what was read as turns too."""
    if "acc" in chunk.columns:
        found.note("correct or not is what `acc` says")
    names = {"reward": "score", "step": "step", "correct": "acc"}
    columns = {role: chunk.columns[name] for role, name in names.items() if name in chunk.columns}
    prompt = [list(pair) for pair in zip(chunk.get("input"), chunk.get("gts"), strict=True)]
    group = [re.sub(r"_\d+_\d+$", "", str(one)) for one in chunk.get("uid")]  # of a key, less the place in its group
    counts = [int(number) // 2 if is_number(number) else None for number in chunk.get("num_turns")]
    columns |= {"response": chunk.get("output"), "turns": counts, "prompt": prompt, "group": group}
    return Chunk(chunk.file, chunk.lines, columns)


def read_samples(chunk: Chunk, found: Found) -> Chunk:
    """Return the responses of lm-eval, whose scores are verdicts where all are 0 or 1."""
    samples, found.chosen["is_metric"] = expand(chunk, found, read_document), True
    return Chunk(samples.file, samples.lines, samples.columns | {"correct": samples.get("reward")})


def read_document(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Give a row for each response in a document of lm-eval; they occur once for each filter, those of the first one count."""
    chosen = found.chosen.setdefault(f"filter of {file}", row.get("filter"))
    if row.get("filter") != chosen:
        found.note(f"rows of filters other than `{chosen}` repeat its responses and are left out", 1)
        return
    resps = row.get("resps")
    requests = resps if isinstance(resps, list) else []
    texts = [text for one in requests for text in (one if isinstance(one, list) else [one])]
    if not texts or not all(isinstance(text, str) for text in texts):
        return found.reject(file, line, "no generated text: a task of log-likelihoods")
    scores, problem = scores_of(row, len(texts), found)
    if problem:
        return found.reject(file, line, problem)
    prompt = [row.get("prompt_hash") or row.get("arguments") or row.get("doc"), row.get("doc_id")]
    yield from ({"prompt": prompt, "response": t, "reward": score} for t, score in zip(texts, scores, strict=True))


def scores_of(row: Row, num_responses: int, found: Found) -> tuple[list[Any], str]:
    """Return the first metric that is a number, or a list with one for each response; else what is wrong."""
    named = row.get("metrics")
    for name in named if isinstance(named, list) else row:
        value = row.get(name) if isinstance(name, str) and name not in ("bypass", "doc_id") else None
        if is_number(value) and num_responses > 1:
            return [], f"one score for {num_responses} responses: nothing says which of them was correct"
        scores = value if isinstance(value, list) and named else [value]
        if len(scores) == num_responses and all(map(is_number, scores)):
            found.notes[f"outcome: `{name}`"] = 0
            return scores, ""
    return [], "no metric that is a number"


def read_episode(episode: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    traces = episode.get("traces") if "traces" in episode else [episode]
    for trace in traces if isinstance(traces, list) else [None]:
        if not isinstance(trace, dict) or not isinstance(trace.get("nodes"), list):
            found.reject(file, line, "a trace without nodes")
        elif inside(trace, "agent", "trainable") is False:
            found.note("traces of agents that are not trained are left out", 1)
        else:
            yield read_trace(episode, trace, found)


def read_trace(episode: Row, trace: Row, found: Found) -> Row:
    """Return a trace as a row; one that ended with an error or was not scored is dropped."""
    nodes = [node for node in trace["nodes"] if isinstance(node, dict)]
    sampled = [node for node in nodes if node.get("sampled")]
    first = next((place for place, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    credit = [a for node in sampled for a in node.get("advantages") or [] if is_number(a)]
    roles = ["assistant" if node.get("sampled") else "tool" for node in nodes[first:]]
    told = [node.get("message") if content_of(node.get("message")) else {"content": ""} for node in nodes[first:]]
    told = [one if isinstance(one, dict) else {"content": one} for one in told]
    said = [message | {"role": role} for role, message in zip(roles, told, strict=True)]
    return {
        "prompt": group_of(episode, trace, nodes[:first]), "response": said, "reward": sum(rewards_of(trace)),
        "step": inside(episode, "run", "work", "step"), "truncated": end_of(trace, found),
        "advantage": sum(credit) / len(credit) if credit else None,
        "tokens": count_tokens(trace, sampled), "turns": len(sampled),
        "dropped": trace.get("stop_condition") == "error" or not rewards_of(trace),
    }  # fmt: skip


def rewards_of(trace: Row) -> list[float]:
    named = trace.get("rewards")
    found = []
    for reward in named.values() if isinstance(named, dict) else ():
        score, weight = (reward.get("score"), reward.get("weight", 1.0)) if isinstance(reward, dict) else (reward, 1.0)
        found += [float(score) * float(weight)] if is_number(score) and is_number(weight) else []  # type: ignore[arg-type]
    return found


def group_of(episode: Row, trace: Row, asked: list[Any]) -> Any:
    """Return the rollout group and agent, or the task, or the messages before the first response."""
    group = inside(episode, "group", "id")
    if group is not None:
        return {"group": group, "agent": inside(trace, "agent", "name")}
    task = inside(trace, "task", "hash") or inside(trace, "task", "key")
    return {"task": task} if task else [node.get("message") for node in asked]


def end_of(trace: Row, found: Found) -> float | None:
    """Return whether a limit of the framework, or that of the last response, ended the trace; None where no call says it."""
    calls = [call for call in trace.get("calls") or [] if isinstance(call, dict) and call.get("error") is None]
    if is_limit(trace.get("stop_condition")):
        return 1.0
    return read_finish(calls[-1].get("finish_reason"), found)[0] if calls else None


def count_tokens(trace: Row, sampled: list[Any]) -> int | None:
    """Return sampled tokens: of the masks, or as the provider counted them; None where neither is there."""
    masks = [node.get("mask") or [] for node in sampled]
    if all(masks) and masks:
        return sum(sum(map(bool, mask)) for mask in masks)
    used = [inside(call, "usage", "completion_tokens") for call in trace.get("calls") or []]
    counts = [int(number) for number in used if is_number(number)]
    return sum(counts) if counts else None


def read_result(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    truncated, _ = read_finish(row.get("is_truncated"), found, "is_truncated")
    yield {
        "prompt": [row.get("example_id"), row.get("prompt")], "response": row.get("completion"), "reward": row.get("reward"),
        "correct": verdict_in(row.get("metrics") or row, found), "tokens": inside(row, "token_usage", "output_tokens"),
        "turns": inside(row, "metrics", "num_turns"), "truncated": is_limit(row.get("stop_condition")) or truncated,
        "dropped": row.get("error") is not None,
    }  # fmt: skip


def read_skyrl(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Give a row for a response of SkyRL's, whose step is in the name of its folder; scores of tokens are added up."""
    score, step = row.get("score"), re.search(r".*step_(\d+)", file)
    truncated, is_failed = read_finish(row.get("stop_reason"), found)
    yield {
        "prompt": [row.get("input_prompt"), row.get("env_extras")], "response": row.get("output_response"),
        "reward": sum(score) if isinstance(score, list) else score, "step": step and int(step[1]),
        "truncated": truncated, "dropped": is_failed,
    }  # fmt: skip


def read_slime(sample: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Give a row for a sample of slime's; of a reward with names `score` counts."""
    reward, mask = sample.get("reward"), sample.get("loss_mask")
    truncated, is_failed = read_finish(sample.get("status"), found, "status")
    yield {
        "prompt": [sample.get("prompt"), sample.get("label")], "group": sample.get("group_index"),
        "response": sample.get("response"), "reward": inside(reward, "score") if isinstance(reward, dict) else reward,
        "correct": verdict_in(reward, found), "step": inside(sample, "header", "rollout_id"),
        "tokens": sum(mask or []) or sample.get("response_length"), "turns": count_turns(mask),
        "truncated": truncated, "dropped": is_failed,
    }  # fmt: skip


def read_sample(sample: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Give a sample of Inspect: epochs are responses to one prompt, steps there are in logs that fairlen wrote alone."""
    messages = [one for one in sample.get("messages") or [] if inside(one, "source") != "input"]
    spoken = [one for one in messages if inside(one, "role") == "assistant"]
    scores, output = sample.get("scores") or {}, sample.get("output")
    scorer = next(iter(scores), "")
    if len(scores) > 1:
        found.notes[f"outcome: `{scorer}`, the first of several scorers"] = 0
    value = inside(scores, scorer, "value")
    value = next(iter(value.values()), None) if isinstance(value, dict) else value
    reward, correct = GRADES.get(str(value), (value, value if is_number(value) else None))
    found.chosen["is_metric"] = True
    limit, calls = inside(sample, "limit", "type"), inside(output, "choices") or [None]
    truncated, is_failed = read_finish(inside(calls[0], "stop_reason"), found)
    used = output if len(spoken) < 2 else {"usage": usage_of(sample, str(inside(output, "model")))}
    yield {
        "prompt": [sample.get("input"), sample.get("id")], "response": spoken or inside(output, "completion"),
        "reward": reward, "correct": correct, "step": inside(sample, "metadata", "rollout_batch"),
        "tokens": inside(used, "usage", "output_tokens"), "truncated": is_limit(limit) or truncated,
        "dropped": is_failed or sample.get("error") is not None or reward != reward or (limit is not None and not scores),
    }  # fmt: skip


def usage_of(sample: Row, model: str) -> Any:
    """Return what a model used, whose provider may call it otherwise: openai/gpt-4o is gpt-4o-2024-08-06."""
    used: Row = sample.get("model_usage") or {}
    names = [one for one in used if len(used) == 1 or model.startswith((one, one.partition("/")[2] or one))]
    return used.get(max(names, key=len, default=""))


def read_nemo_sample(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Give a sample, whose cells are lists of one; its step is in the name of the file, and a mask says what was sampled."""
    sample: Row = {name: cell[0] if isinstance(cell, list) and cell else cell for name, cell in row.items()}
    said, mask, step = sample["content"], sample.get("token_loss_mask"), re.search(r"step(\d+)\.", file)
    if not isinstance(mask, list):
        prompt, response = split_chat(said)
        yield {"prompt": prompt, "response": response, "reward": sample["rewards"], "step": step and int(step[1])}
        return
    turns, last = count_turns(mask) or 0, mask[int(sample["input_lengths"]) - 1]
    first = len(said) - 2 * turns + bool(last)  # the environment has the last word where the last token was not sampled
    credit = np.broadcast_to(np.asarray(sample.get("advantages"), np.float64), len(mask))[np.asarray(mask, np.bool_)]
    roles = ("assistant", "tool")
    yield {
        "prompt": said[:first], "reward": sample["rewards"], "step": step and int(step[1]), "turns": turns, "tokens": sum(mask),
        "response": [{"role": roles[place % 2], "content": text} for place, text in enumerate(said[first:])],
        "advantage": float(credit.mean()) if len(credit) else None,
    }  # fmt: skip


def read_nemo_rollout(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    output = open_output(row.get("response"))
    truncated, is_failed = read_finish(output.finish, found) if output else (None, False)
    asked = inside(row, "responses_create_params", "input")
    yield {
        "prompt": [inside(row, "agent_ref", "name"), row.get("_ng_task_index"), asked], "reward": row.get("reward"),
        "response": output.messages if output else inside(row, "response", "output_text"),
        "tokens": output and output.tokens, "truncated": truncated,
        "dropped": is_failed or inside(row, "response", "error") is not None,
    }  # fmt: skip


def infer_ended(part: Part, found: Found) -> Part:
    """Return rollouts of which those without a reason ended by themselves where others have one: its server says no other."""
    return replace(part, truncated=np.nan_to_num(part.truncated)) if (part.truncated == 1).any() else part


def verdict_in(named: Any, found: Found) -> float | None:
    names = [name for name in named if VERDICT.match(name)] if isinstance(named, dict) else []
    name = found.chosen.setdefault("verdict", min(names, key=len)) if names else ""
    value = named.get(name) if name else None
    if value is None or not is_number(value):
        return None
    found.notes[f"correct or not is what `{name}` says"], found.chosen["is_metric"] = 0, True
    return float(value)


TRL = Format(
    "trl", "TRL completions", "max_completion_length", has_all("step prompt completion advantage"),
    partial(read_trl, chosen=OF_TRL),
    {"truncated": "TRL's completions hold no finish reason; its metric completions/clipped_ratio has the share of a step"},
    drop_repeats, settle=settle_trl,
)  # fmt: skip
VERL = Format(
    "verl", "verl rollouts", "data.max_response_length", has_all("input output score step"), read_verl,
    {"truncated": "verl decodes responses without their EOS token; its metric response_length/clip_ratio has the share of a step",
     "advantage": "verl's rollout_data_dir holds no advantages"},
)  # fmt: skip
PRIME_RL = Format(
    "prime_rl", "prime-rl traces", "max_tokens", has_all("traces task", "nodes task agent"),
    partial(expand, read=read_episode),
)  # fmt: skip
LM_EVAL = Format(
    "lm_eval", "lm-eval samples", "max_gen_toks",
    has_all("doc_id resps doc", "doc_id resps target", "doc_id resps arguments"), read_samples,
    {"truncated": "lm-eval's samples hold no finish reason", "advantage": "an evaluation has no advantages"},
)  # fmt: skip
VERIFIERS = Format(
    "verifiers", "verifiers results", "max_tokens", has_all("example_id prompt completion reward"),
    partial(expand, read=read_result), {"advantage": "an evaluation has no advantages"},
)  # fmt: skip
SKYRL = Format(
    "skyrl", "SkyRL evaluations", "generator.sampling_params.max_generate_length",
    has_all("input_prompt output_response score"), partial(expand, read=read_skyrl),
    {"advantage": "an evaluation has no advantages"},
)  # fmt: skip
SLIME = Format(
    "slime", "slime samples", "--rollout-max-response-len", has_all("prompt response reward status response_length loss_mask"),
    partial(expand, read=read_slime), {"advantage": "slime's samples hold no advantages"},
)  # fmt: skip
INSPECT = Format(
    "inspect", "Inspect samples", "max_tokens", has_all("id epoch input output scores"), partial(expand, read=read_sample),
    {"advantage": "an evaluation has no advantages"},
)  # fmt: skip
NEMO_RL = Format(
    "nemo_rl", "NeMo-RL samples", "policy.generation.max_new_tokens", has_all("content rewards idx"),
    partial(expand, read=read_nemo_sample), {"truncated": "NeMo-RL's samples hold no finish reason"},
)  # fmt: skip
NEMO_GYM = Format(
    "nemo_gym", "NeMo-Gym rollouts", "max_output_tokens", has_all("responses_create_params response reward"),
    partial(expand, read=read_nemo_rollout), {"advantage": "rollouts have no advantages"}, infer_ended,
)  # fmt: skip
FRAMEWORKS = (TRL, VERL, PRIME_RL, LM_EVAL, VERIFIERS, SKYRL, SLIME, INSPECT, NEMO_RL, NEMO_GYM)
"""In the order in which they are tried."""

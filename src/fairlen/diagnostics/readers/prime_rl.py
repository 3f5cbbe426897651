"""prime-rl's episodes and verifiers' evaluations, one JSON object a line.

`rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl`. Source: prime-rl 559b447, monitors/file.py; verifiers a60a606,
v1/episode.py and v1/trace.py. An episode holds traces; a trace holds nodes, with a mask of the tokens that the model sampled, and
calls, with the finish reason.
"""

from __future__ import annotations

from typing import Any

from fairlen.diagnostics.readers.chunk import Chunk, Found, Meter, Part, Raw, Values, content_of, is_number, make_part

NAME = "prime_rl"
TITLE = "prime-rl traces"
BUDGET = "max_tokens"
REMEDY: dict[str, str] = {}
LIMITS = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length"}
"""Stop conditions that mean cut off."""


def fits(columns: set[str]) -> bool:
    return columns >= {"traces", "task"} or columns >= {"nodes", "task", "agent"}


def read(chunk: Chunk, meter: Meter, found: Found) -> Part:
    """One row a trace of a trained agent; traces that ended with an error are left out."""
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    names = list(chunk.columns)
    for number, cells in zip(chunk.lines, zip(*chunk.columns.values(), strict=True), strict=True):
        episode = dict(zip(names, cells, strict=True))
        traces = episode.get("traces") if "traces" in names else [episode]
        for trace in traces if isinstance(traces, list) else [None]:
            row = read_trace(episode, trace, number, chunk, found)
            if row is not None:
                rows.append(row)
                lines.append(number)
    columns = {name: [row[name] for row in rows] for name in Raw.__dataclass_fields__ if name != "extra"}
    metrics = dict.fromkeys(name for row in rows for name in row["extra"])
    extra = {name: [row["extra"].get(name) for row in rows] for name in metrics}
    return make_part(Chunk(chunk.file, lines, {}), Raw(**columns, extra=extra), meter, found)


def read_trace(episode: dict[str, Any], trace: Any, line: int, chunk: Chunk, found: Found) -> dict[str, Any] | None:
    """What Raw wants of one trace; None where it is left out or rejected."""
    if not isinstance(trace, dict) or not isinstance(trace.get("nodes"), list):
        found.reject(Chunk(chunk.file, [line], {}), 0, "a trace without nodes")
        return None
    if inside(trace, "agent", "trainable") is False:
        found.note("traces of agents that are not trained are left out", 1)
        return None
    if trace.get("stop_condition") == "error" or not rewards_of(trace):
        found.note("traces that ended with an error or were not scored are left out", 1)
        return None
    nodes = [node for node in trace["nodes"] if isinstance(node, dict)]
    sampled = [node for node in nodes if node.get("sampled")]
    credit = [a for node in sampled for a in node.get("advantages") or [] if is_number(a)]
    metrics = trace.get("metrics") if isinstance(trace.get("metrics"), dict) else {}
    return {
        "prompt": group_of(episode, trace, nodes),
        "response": "\n".join(content_of(node.get("message")) or "" for node in sampled),
        "reward": sum(rewards_of(trace)),
        "step": inside(episode, "run", "work", "step"),
        "correct": None,
        "truncated": was_cut(trace),
        "advantage": sum(credit) / len(credit) if credit else None,
        "tokens": count_tokens(trace, sampled),
        "extra": {f"metric_{name}": value for name, value in (metrics or {}).items() if is_number(value)},
    }


def inside(value: Any, *names: str) -> Any:
    """A value inside objects; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def rewards_of(trace: dict[str, Any]) -> list[float]:
    """Score times weight of each reward that ran."""
    named = trace.get("rewards")
    found = []
    for reward in named.values() if isinstance(named, dict) else ():
        score, weight = (reward.get("score"), reward.get("weight", 1.0)) if isinstance(reward, dict) else (reward, 1.0)
        if is_number(score) and is_number(weight):
            found.append(float(score) * float(weight))  # type: ignore[arg-type]
    return found


def group_of(episode: dict[str, Any], trace: dict[str, Any], nodes: Values) -> Any:
    """The rollout group and agent, or the task, or the messages before the first answer."""
    group = inside(episode, "group", "id")
    if group is not None:
        return ["group", group, inside(trace, "agent", "name")]
    task = inside(trace, "task", "hash") or inside(trace, "task", "key")
    first = next((place for place, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    return ["task", task] if task else [node.get("message") for node in nodes[:first]]


def was_cut(trace: dict[str, Any]) -> bool:
    """A limit of the framework, or a last response that a budget stopped."""
    if trace.get("stop_condition") in LIMITS:
        return True
    calls = [call for call in trace.get("calls") or [] if isinstance(call, dict) and call.get("error") is None]
    return bool(calls) and calls[-1].get("finish_reason") == "length"


def count_tokens(trace: dict[str, Any], sampled: Values) -> int | None:
    """Sampled tokens: of the masks, or as the provider counted them; None where neither is there."""
    masks = [node.get("mask") or [] for node in sampled]
    if all(masks) and masks:
        return sum(sum(map(bool, mask)) for mask in masks)
    used = [inside(call, "usage", "completion_tokens") for call in trace.get("calls") or []]
    counts = [int(number) for number in used if is_number(number)]
    return sum(counts) if counts else None

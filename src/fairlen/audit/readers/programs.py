"""Formats of further programs: tinker-cookbook, torchtitan, rLLM, ART, evalscope and lighteval (docs/rollouts/programs.md)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fairlen.audit.readers.columns import inside
from fairlen.audit.readers.finish import read_finish
from fairlen.audit.readers.formats import Format, expand, has_all
from fairlen.audit.readers.messages import split_chat
from fairlen.audit.readers.rows import Found, is_number
from fairlen.audit.readers.verdicts import names_verdict
from fairlen.files.formats import Row

EXTREMES = (
    "torchtitan's recorder keeps by default only the responses with the highest and the lowest rewards of each group, "
    "so that all effects are between those"
)
NO_ADVANTAGES = {"advantage": "an evaluation has no advantages"}


def list_objects(value: Any) -> list[Row]:
    """Return the objects in a list; none of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def choose_score(scores: Any, found: Found, main: Any = None) -> tuple[float | None, float | None]:
    """Return the reward and the verdict among named scores: the main one, else one that is named like a verdict, else the first.

    The same name counts in all rows of a log.
    """
    if not isinstance(scores, dict):
        return None, None
    names = [name for name, value in scores.items() if is_number(value)]
    if not names:
        return None, None
    likely = main if main in names else next((name for name in names if names_verdict(str(name))), names[0])
    name = found.chosen.setdefault("score", likely)
    if not is_number(scores.get(name)):
        return None, None
    found.notes[f"outcome: `{name}`"] = 0
    found.chosen["is_metric"] = True
    value = float(scores[name])
    return value, value


def read_summary(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Yield a row for a trajectory of tinker-cookbook, which holds lengths and no texts."""
    steps = list_objects(row.get("steps"))
    lengths = [step["ac_len"] for step in steps if is_number(step.get("ac_len"))]
    metrics = row.get("trajectory_metrics")
    verdict = [value for name, value in metrics.items() if names_verdict(name)] if isinstance(metrics, dict) else []
    yield {
        "prompt": [row.get("split"), row.get("iteration"), row.get("group_idx")], "step": row.get("iteration"),
        "reward": row.get("total_reward"),
        "correct": verdict[0] if verdict and verdict[0] in (0, 1) else None, "turns": len(steps),
        "tokens": sum(lengths) if lengths and len(lengths) == len(steps) else None,
    }  # fmt: skip


def read_turns(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Yield a row for a rollout of torchtitan, whose turns hold a completion and the messages that answered it."""
    turns = list_objects(row.get("turns"))
    truncated, is_failed = read_finish(row.get("status"), found, "status")
    response: list[Row] = []
    for turn in turns:
        message = turn.get("completion_message")
        response.append((message if isinstance(message, dict) else {"content": message}) | {"role": "assistant"})
        response += [message | {"role": "tool"} for message in list_objects(turn.get("env_messages"))]
    ids = [turn["completion_token_ids"] for turn in turns if isinstance(turn.get("completion_token_ids"), list)]
    asked = turns[0].get("prompt_messages") if turns else None
    yield {
        "prompt": asked if asked else row.get("group_id"), "group": str(row.get("group_id")), "response": response,
        "reward": row.get("reward"), "advantage": row.get("advantage"), "turns": len(turns),
        "step": turns[0].get("min_policy_version") if turns else None, "truncated": truncated, "dropped": is_failed,
        "tokens": sum(map(len, ids)) if ids and len(ids) == len(turns) else None,
    }  # fmt: skip


def read_rllm_episode(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Yield a row for each trajectory of an episode of rLLM."""
    header = row.get("header")
    episode = header if isinstance(header, dict) else row
    truncated, is_failed = read_finish(episode.get("termination_reason"), found, "termination_reason")
    task = (
        episode.get("task_hash")
        or episode.get("task")
        or str(episode.get("episode_id", episode.get("id"))).split(":")[0]
    )
    for trajectory in [row] if "steps" in row else list_objects(row.get("trajectories")):
        steps = list_objects(trajectory.get("steps"))
        ids = [step["response_ids"] for step in steps if isinstance(step.get("response_ids"), list)]
        verdict = episode.get("is_correct")
        yield {
            "prompt": [task, trajectory.get("name")], "response": join_steps(steps), "step": episode.get("training_step"),
            "reward": verdict if trajectory.get("reward") is None else trajectory["reward"],
            "correct": verdict, "turns": len(steps), "truncated": truncated, "dropped": is_failed,
            "tokens": sum(map(len, ids)) if ids and len(ids) == len(steps) else None,
        }  # fmt: skip


def join_steps(steps: list[Row]) -> list[Row]:
    """Return what the policy wrote in each step, and between two steps what it read."""
    messages: list[Row] = []
    for place, step in enumerate(steps):
        chat = list_objects(step.get("chat_completions"))
        last = (
            chat[-1] if chat and chat[-1].get("role") == "assistant" else {"content": step.get("model_response") or ""}
        )
        if place and step.get("observation") is not None:
            messages.append({"role": "tool", "content": str(step["observation"])})
        messages.append(last | {"role": "assistant"})
    return messages


def read_art_group(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Yield a row for each trajectory of a group of ART, whose messages hold the model's own as choices."""
    for trajectory in list_objects(row["trajectories"]) if "trajectories" in row else [row]:
        items = list_objects(trajectory.get("messages_and_choices"))
        is_choice = [isinstance(item.get("message"), dict) for item in items]
        first = is_choice.index(True) if True in is_choice else len(split_chat(items)[0] or [])
        response = [
            item["message"] if chosen else item for item, chosen in zip(items[first:], is_choice[first:], strict=True)
        ]
        ends = [item.get("finish_reason") for item in items[first:] if "finish_reason" in item]
        truncated, is_failed = read_finish(ends[-1], found) if ends else (None, False)
        yield {
            "prompt": items[:first], "response": response, "reward": trajectory.get("reward"), "truncated": truncated,
            "dropped": is_failed,
        }  # fmt: skip


def read_review(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Yield a row for a reviewed sample of evalscope."""
    sample = row.get("sample_score")
    score = inside(sample, "score")
    reward, correct = choose_score(inside(score, "value"), found, inside(score, "main_score_name"))
    question, response = split_chat(row.get("messages"))
    group = inside(sample, "group_id")
    yield {
        "prompt": [row.get("index") if group is None else group, question or row.get("input")],
        "response": response if response else inside(score, "prediction"), "reward": reward, "correct": correct,
    }  # fmt: skip


def read_detail(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Yield a row for a document of lighteval; one score for several texts says nothing about one of them."""
    texts, ids = inside(row.get("model_response"), "text"), inside(row.get("model_response"), "output_tokens")
    texts = texts if isinstance(texts, list) else [texts]
    if len(texts) != 1:
        return found.reject(file, line, f"one score for {len(texts)} responses: nothing says which of them was correct")
    reward, correct = choose_score(row.get("metric"), found)
    tokens = ids[0] if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list) else ids
    yield {
        "prompt": [inside(row.get("doc"), "query"), inside(row.get("doc"), "id")], "response": texts[0], "reward": reward,
        "correct": correct, "tokens": len(tokens) if isinstance(tokens, list) and tokens else None,
    }  # fmt: skip


TINKER = Format(
    "tinker", "tinker-cookbook rollout summaries", "max_tokens", has_all("iteration group_idx traj_idx total_reward steps"),
    partial(expand, read=read_summary), {"truncated": "rollout summaries hold no finish reason"},
)  # fmt: skip
TORCHTITAN = Format(
    "torchtitan", "torchtitan rollout samples", "max_tokens", has_all("group_id rollout_id turns reward"),
    partial(expand, read=read_turns), caveats=(EXTREMES,),
)  # fmt: skip
RLLM = Format(
    "rllm", "rLLM episodes", "data.max_response_length", has_all("trajectories is_correct task", "header name uid reward steps"),
    partial(expand, read=read_rllm_episode), {"advantage": "rLLM's episodes hold no advantages"},
)  # fmt: skip
ART = Format(
    "art", "ART trajectories", "max_completion_tokens", has_all("trajectories metadata", "messages_and_choices reward"),
    partial(expand, read=read_art_group), {"advantage": "ART's trajectories hold no advantages"},
)  # fmt: skip
EVALSCOPE = Format(
    "evalscope", "evalscope reviews", "max_tokens", has_all("index sample_score"), partial(expand, read=read_review),
    {"truncated": "evalscope's reviews hold no finish reason"} | NO_ADVANTAGES,
)  # fmt: skip
LIGHTEVAL = Format(
    "lighteval", "lighteval details", "max_new_tokens", has_all("doc model_response metric"), partial(expand, read=read_detail),
    {"truncated": "lighteval's details hold no finish reason"} | NO_ADVANTAGES,
)  # fmt: skip
PROGRAMS = (TINKER, TORCHTITAN, RLLM, ART, EVALSCOPE, LIGHTEVAL)
"""In the order in which they are tried, after `frameworks.FRAMEWORKS`."""

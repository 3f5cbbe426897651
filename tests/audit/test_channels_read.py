"""Channels of a log: read without a flag from the files of frameworks, and which one goes with correctness."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fairlen.audit.audit import audit
from fairlen.audit.log import Log
from fairlen.audit.numbers import to_json
from fairlen.audit.readers import read
from fairlen.audit.statistics.channels import channel_effects
from fairlen.batch import build_responses, build_segments

THOUGHT, ANSWER, RESULT = "hm " * 20, "so it is 4", "4\n"  # of 60, 10 and 2 characters
CALLED = [{"name": "f", "arguments": "{}"}]
MESSAGE = {"role": "assistant", "content": ANSWER}
RESPONSES = {
    "verl, template opens": THOUGHT + "</think>" + ANSWER,
    "TRL, reasoning_content": [MESSAGE | {"reasoning_content": THOUGHT}],
    "TRL, reasoning": [MESSAGE | {"reasoning": THOUGHT}],
    "TRL, parts": [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]}
    ],
    "NeMo-Gym, items and tools": [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": THOUGHT}]},
        {"type": "function_call", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "output": RESULT},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
    ],
    "verifiers, tools": [
        {"role": "assistant", "reasoning_content": THOUGHT, "content": "", "tool_calls": CALLED},
        {"role": "tool", "content": RESULT}, MESSAGE,
    ],
}  # fmt: skip


def make_row(name, response, prompt, correct):
    """A row of the framework's own file."""
    asked, score = [{"role": "user", "content": prompt}], float(correct)
    return {
        "verl": {"input": f"{prompt}<think>\n", "output": response, "score": score, "step": 0},
        "TRL": {"step": 0, "prompt": asked, "completion": response, "accuracy_reward": score, "advantage": score - 0.5},
        "NeMo-Gym": {"responses_create_params": {"input": asked}, "reward": score, "response": {"output": response}},
        "verifiers": {"example_id": prompt, "prompt": asked, "completion": response, "reward": score},
    }[name.partition(",")[0]]


@pytest.mark.parametrize("name", RESPONSES)
def test_channels_are_read_without_a_flag(name, tmp_path):
    path, response = tmp_path / "rollouts.jsonl", RESPONSES[name]
    path.write_text("".join(json.dumps(make_row(name, response, f"Q{n // 2}", n % 2)) + "\n" for n in range(4)))
    (source,) = read([str(path)]).sources
    table = source.log.responses
    thought = len(THOUGHT) + len("</think>") * name.startswith("verl")
    call = len(json.dumps(CALLED)) * ("tools" in name)
    ends = np.rint(np.cumsum([thought, len(ANSWER), call]) / (thought + len(ANSWER) + call) * table.length[0])
    own = dict(zip(("thinking", "answer", "tool_call"), np.diff(ends, prepend=0).tolist(), strict=True))
    assert {channel: tokens.tolist() for channel, tokens in table.channels.items() if channel != "observation"} == {
        channel: [tokens] * 4 for channel, tokens in own.items() if tokens
    }
    assert ("observation" in table.channels) is ("tools" in name)
    assert any("in proportion to characters" in note for note in source.notes)


def make_log(thinking, answer, correct):
    """Prompts with as many responses as there are columns."""
    verdict = np.array(correct, np.float64).ravel()
    channels = {"thinking": np.array(thinking).ravel(), "answer": np.array(answer).ravel()}
    length, prompt = sum(channels.values()), np.repeat(np.arange(len(correct)), len(correct[0]))
    table = build_responses(prompt, length, verdict, verdict, False, int(length.max()) + 1, channels=channels)
    known = frozenset(("correct", "truncated"))
    return Log("made", "tokens", table, np.zeros(len(prompt), np.int64), build_segments(table, length), known=known)


def test_effects_alone_and_given_the_others_by_hand():
    """With logs t and a of 1 + tokens, and d = 1 for incorrect ones, in every prompt (d, t, a) = (0, 1, 0), (0, 2, 1), (1, 2, 0),
    (1, 3, 1): centred, dd = 1, dt = 1, tt = 2, ta = 1, aa = 1, da = 0. Alone t differs by dt / dd = 1 and a by 0. Given a
    t = 1 + d + a, so that t differs by 1; given t, a = t - d - 1, by -1. Logs are in units of log 2.
    """
    log = make_log([[1, 3, 3, 7]] * 12, [[0, 1, 0, 1]] * 12, [[1, 1, 0, 0]] * 12)
    thinking, answer = channel_effects(log)
    assert (thinking.alone.value, thinking.given.value) == pytest.approx((math.log(2), math.log(2)), rel=1e-6)
    assert (answer.alone.value, answer.given.value) == pytest.approx((0, -math.log(2)), abs=1e-6)
    assert thinking.mean.value == 14 / 4 and thinking.incorrect.value == 5 and answer.p_value == 1.0
    assert thinking.is_named(0.05, 0.1) and not answer.is_named(0.05, 0.1)  # it differs given thinking alone
    assert channel_effects(replace(log, responses=replace(log.responses, channels={}))) == ()


def test_the_channel_with_the_effect_is_a_finding(tmp_path):
    """Answers of one length, thinking with four words more or less and twice as many when incorrect."""
    rows = [
        make_row("TRL", [{"role": "assistant", "reasoning_content": "hm " * (20 + n % 4) * (2 - n % 2), "content": f"{n} {p}"}],
                 f"Q{p}", n % 2)
        for p in range(20) for n in range(8)
    ]  # fmt: skip
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, reading = audit([str(path)])
    named = [one.measure for one in found[0].findings if one.measure.startswith("channels.")]
    assert named == ["channels.thinking"]
    assert set(to_json(found, reading)["logs"][0]["channels"]) == {"thinking", "answer"}

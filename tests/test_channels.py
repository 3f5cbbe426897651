"""Tokens by channel: what tags and masks say, and the stages that go by one channel."""

import math

import numpy as np
import pytest
import torch
from loops import over

from fairlen import compose, plan_rows
from fairlen.batch import build_responses
from fairlen.channels import count_channels, opens_thinking, split_channels
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.methods.stages.reward import LengthPenalty, RelativeLength, SoftOverlong, TopLambda

TEXTS = {
    "a < b [1]": [("answer", "a < b [1]")],
    "<think>a</think> b": [("thinking", "<think>a</think>"), ("answer", " b")],
    "a</think>b": [("thinking", "a</think>"), ("answer", "b")],
    "<think>a": [("thinking", "<think>a")],
    "[THINK]a[/THINK]b": [("thinking", "[THINK]a[/THINK]"), ("answer", "b")],
    "x<tool_call>{<think>}</tool_call>": [("answer", "x"), ("tool_call", "<tool_call>{<think>}</tool_call>")],
    "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b": [
        ("thinking", "<|channel|>analysis<|message|>a<|end|>"), ("answer", "<|channel|>final<|message|>b"),
    ],
}  # fmt: skip


@over("text", TEXTS)
def test_tags_say_what_a_text_was_spent_on(text):
    assert split_channels(text) == TEXTS[text]
    assert "".join(piece for _, piece in split_channels(text)) == text


def test_the_prompt_may_open_the_thinking():
    assert [opens_thinking(text) for text in ("Q<think>\n", "Q<think> a", "Q</think>", "")] == [True, *[False] * 3]
    assert split_channels("a", starts_inside=True) == [("thinking", "a")]


def test_tokens_of_a_trajectory_by_channel():
    """A token is a letter: <think>ab</think> has 7 + 2 + 8, then 1 of the answer; 3 are read; the second turn is an answer."""
    text = "Q<think>ab</think>crrrd"
    ids, spans = [ord(letter) for letter in text], [(1, 19), (22, 23)]
    found = count_channels(ids, spans, lambda some: "".join(map(chr, some)))
    assert found == {"thinking": 17, "answer": 2, "observation": 3}
    assert count_channels(ids, [(18, 19)], lambda some: "".join(map(chr, some))) == {}  # one channel


def responses(lengths, channels, correct, prompt):
    verdict = np.array(correct, float)
    return build_responses(np.array(prompt), lengths, verdict, verdict, False, 100, channels=channels)


THREE = responses(
    [60, 22, 23, 40, 9], {"thinking": np.array([2, 4, 3, 8, 8]), "answer": np.array([58, 18, 20, 32, 1])},
    [1, 1, 0, 1, 0], [0, 0, 0, 1, 1],
)  # fmt: skip
LOW, HIGH = 1 / (1 + math.e), math.e / (1 + math.e)
"""sigmoid(-1), sigmoid(1): of thinking 2 and 4 the mean is 3 and the standard deviation 1, whatever the answers are."""


@over("stage, expected", {
    "lp": (LengthPenalty(0.5, of="thinking"), [1 - LOW / 2, 1 - HIGH / 2, 0, 1 - 0.5 / 2, 0]),
    "lp of answers": (LengthPenalty(0.5, of="answer"), [1 - HIGH / 2, 1 - LOW / 2, 0, 1 - 0.5 / 2, 0]),
    # prompt 0 has the higher accuracy, 2/3 against 1/2
    "toplambda": (TopLambda(0.5, 0.5, of="thinking"), [1 - LOW / 2, 1 - HIGH / 2, 0, 1, 0]),
    "gr3": (RelativeLength(1.0, of="thinking"), [1 / (1 + 2 / 3), 1 / (1 + 4 / 3), 0, 1 / (1 + 1), 0]),
    "gr3 of no tool calls": (RelativeLength(1.0, of="tool_call"), [1, 1, 0, 1, 0]),
    # the ramp is from 2 to 100 tokens
    "overlong": (SoftOverlong(0.98, of="thinking"), [1, 1 - 2 / 98, 0 - 1 / 98, 1 - 6 / 98, 0 - 6 / 98]),
}.values())  # fmt: skip
def test_rewards_go_by_the_channel_that_they_are_of(stage, expected):
    assert stage(THREE, THREE.outcome) == pytest.approx(np.array(expected))


def test_ddca_and_the_plan_go_by_thinking():
    """Values 1, 1, 0 have mean 2/3 and standard deviation sqrt(2)/3: advantages 1/sqrt(2), 1/sqrt(2), -sqrt(2)."""
    given = {"groups": [0] * 3, "lengths": [60, 22, 23], "rewards": [1, 1, 0], "max_response_length": 100}
    channels = {"thinking": [2, 4, 3], "answer": [58, 18, 20], "observation": [7, 0, 0]}
    plan = plan_rows(compose("grpo+ddca", ["advantage.of=thinking"]), channels=channels, **given)
    side = 0.2 * 2 / 3 * (HIGH - LOW) / 2  # alpha times the share of correct ones times the distance from 1/2
    assert plan.advantage == pytest.approx(np.array([0.5**0.5 + side, 0.5**0.5 - side, -(2**0.5)]))
    assert plan_rows(compose("fspo", ["surrogate.of=thinking"]), channels=channels, **given).bounded.tolist() == [
        2,
        4,
        3,
    ]


def test_the_band_of_thinking_is_as_wide_as_the_root_of_its_tokens():
    """Of 9 tokens 4 are thinking: S = 9 * 0.01 lies within 0.05 * 2, and 9 * 0.012 does not; k moves to -S / 4."""
    one = torch.ones(1, dtype=torch.float64)
    micro = Micro.of(torch.tensor([9]), one, one, one, torch.zeros(9, dtype=torch.float64), bounded=4 * one)
    band = FairBand(width=0.05, of="thinking", rate=1.0)
    assert [bool(band(torch.full((9,), x, dtype=torch.float64), micro).inside.all()) for x in (0.01, 0.012)] == [
        True,
        False,
    ]
    logprobs = torch.full((9,), -0.01, dtype=torch.float64)
    seen = band.observe(Outputs(logprobs, logprobs), micro)
    assert band.update({name: float(value) for name, value in seen.items()}).current_drift == pytest.approx(0.09 / 4)


@over("channels, error", [
    (None, "channels=None: reward.0.of=thinking"),
    ({}, "channels={}: reward.0.of=thinking"),
    ({"thinkng": [2, 4]}, "channels['thinkng']: did you mean 'thinking'"),
    ({"thinking": [2, 4]}, "the sum of channels[0]=2.0: give channels that sum to `lengths`"),
    ({"thinking": [2, 4.5], "answer": [1, 1]}, "channels['thinking'][1]=4.5"),
    ({"thinking": [2]}, "{'groups': (2,), 'lengths': (2,)"),
])  # fmt: skip
def test_channels_that_cannot_be_are_refused(channels, error):
    method = compose("grpo+lp", ["reward.0.of=thinking"])
    with pytest.raises(ValueError) as found:
        plan_rows(method, groups=[0, 0], lengths=[3, 6], rewards=[1, 0], max_response_length=9, channels=channels)
    assert str(found.value).startswith(error)


def test_pieces_of_responses_have_no_channels():
    with pytest.raises(ValueError, match=r"^advantage.of=thinking where responses are cut into sequences"):
        compose("grpo+turns+ddca", ["advantage.of=thinking"])


def test_many_tags_are_counted_in_a_few_reads_of_each_token():
    """Characters as tokens: 400 thoughts of 7 + 1 + 8 and answers of one."""
    text, read = "<think>a</think>b" * 400, [0]

    def decode(ids):
        read[0] += len(ids)
        return "".join(map(chr, ids))

    found = count_channels([ord(letter) for letter in text], [(0, len(text))], decode)
    assert found == {"thinking": 16 * 400, "answer": 400}
    assert read[0] < 300 * len(text)

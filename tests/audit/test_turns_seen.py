"""Trajectories in the audit and the report: what readers count, effects and weights by hand, and the page turn by turn.

Those of tests/fixtures_turns/make.py take 2 1 3 2 and 2 1 3 1 turns of 4 1 8 5 and 3 1 6 1 words together; the 1st, 2nd,
5th and 8th are correct.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lines import read_one, write_lines
from report_browser import luminance
from report_runs import write_run

from fairlen.audit.audit import audit_source
from fairlen.audit.log import Log
from fairlen.audit.readers import Options, Source, read
from fairlen.audit.readers.frameworks import VERL
from fairlen.audit.statistics.coupling import weight_shares
from fairlen.batch import build_responses, build_segments
from fairlen.cli import main
from fairlen.report import write_report
from fairlen.report.audit_page import write_audit_page
from fairlen.report.rollouts import show_rollouts

FORMATS = Path(__file__).parents[1] / "fixtures_turns"
TURNS, OWN = [2, 1, 3, 2, 2, 1, 3, 1], [4, 1, 8, 5, 3, 1, 6, 1]
CALLS = [7, 0, 7 + 5, 5, 7, 0, 7 + 7, 0]
"""Words of calls: [{"name": "multiply", "arguments": {"a": 12, "b": 13}}] 7, [{"name": "look", "arguments": {"word": "b"}}] 5."""


@pytest.mark.parametrize(
    ("folder", "unit", "lengths"),
    [
        ("prime_rl_turns", "tokens", OWN),  # by masks: neither the scaffold of a turn nor what tools returned
        ("verifiers_turns", "tokens", OWN),  # by the server's count of all calls
        ("trl_tools", "words", [own + call for own, call in zip(OWN, CALLS, strict=True)]),
        ("verl_turns", "words", OWN),
        ("verl_v1_turns", "words", OWN),
    ],
)
def test_turns_and_own_lengths_of_a_format(folder, unit, lengths):
    log = read_one(FORMATS / folder).log
    assert (log.unit, log.responses.length.tolist()) == (unit, lengths)
    assert log.responses.num_turns.tolist() == TURNS == log.segments.num_turns.tolist()
    assert log.responses.prompt.tolist() == [0] * 4 + [1] * 4
    assert log.correct.tolist() == [True, True, False, False, True, False, False, True]
    assert not log.malformed


def test_what_a_format_says_of_limits():
    """prime-rl says that `max_turns` ended both of three turns; of verl's texts an own length says nothing about a limit."""
    assert read_one(FORMATS / "prime_rl_turns").log.responses.truncated.tolist() == [n == 3 for n in TURNS]
    source = read_one(FORMATS / "verl_turns", max_response_length=8)
    assert "truncated" not in source.log.known
    assert any("which trajectories a limit ended is not known" in note for note in source.notes)
    assert "text under headers of other roles, and in blocks that were read, counts in no length: 5" in source.notes


def generation(output: str, **rest) -> dict:
    return {"input": "q", "output": output, "score": 1.0, "step": 1} | rest


def test_a_text_of_verl_in_turns(tmp_path):
    """Two tools answer at once; the limit falls into an answer; tags without a role are the policy's own words."""
    answer = "\nuser\n<tool_response>\none two\n</tool_response>\n<tool_response>\nthree\n</tool_response>\nassistant\n"
    path = write_lines(
        tmp_path / "1.jsonl",
        generation(f"a b{answer}c"),
        generation("a b c\nuser\n<tool_response>\nso much that it was"),
        generation("I write <tool_response> x </tool_response> myself"),
        generation("no tags are here", num_turns=5),
    )
    rows = read_one(path).log.responses
    assert rows.length.tolist() == [3, 3, 6, 4]
    assert rows.num_turns.tolist() == [2, 1, 1, 2]  # five are the prompt, two turns, and what was read after each


def test_masks_and_counts_of_a_table(tmp_path):
    """A mask of 2 and 3 own tokens around two that were read is two turns of five tokens; a column that counts them wins."""
    mask = [1, 1, 0, 0, 1, 1, 1]
    rows = [{"prompt": "q", "response": "a b", "reward": n, "response_mask": mask} for n in (0, 1)]
    rows = read_one(write_lines(tmp_path / "a.jsonl", *rows)).log.responses
    assert (rows.length.tolist(), rows.num_turns.tolist()) == ([5, 5], [2, 2])
    rows = [{"prompt": "q", "response": "a b", "reward": n, "num_tokens": 9, "num_turns": 3} for n in (0, 1)]
    rows = read_one(write_lines(tmp_path / "b.jsonl", *rows)).log.responses
    assert (rows.length.tolist(), rows.num_turns.tolist()) == ([9, 9], [3, 3])
    path = write_lines(tmp_path / "c.jsonl", {"prompt": "q", "num_tokens": 9, "reward": 1, "num_turns": 1.5})
    assert "number of turns 1.5 is not a whole number" in read([str(path)], Options()).unreadable[0]


def game(num_prompts: int = 20, turns=(2, 2, 4, 4)) -> Log:
    """Of each prompt two correct and two incorrect trajectories of 20 tokens each, with advantages of 1 and -1."""
    size = 4 * num_prompts
    correct = np.tile([True, True, False, False], num_prompts)
    responses = build_responses(
        np.repeat(np.arange(num_prompts), 4), np.full(size, 20), correct, correct, np.zeros(size), 100,
        num_turns=np.tile(turns, num_prompts),
    )  # fmt: skip
    known = frozenset({"correct", "truncated", "advantage"})
    segments = build_segments(responses, responses.length)
    advantage = np.where(correct, 1.0, -1.0)
    return Log("verl", "tokens", responses, np.zeros(size, np.int64), segments, advantage=advantage, known=known)


def test_effects_of_turns_within_prompts():
    """All have one length, which says nothing; incorrect ones take 4 turns of 5 tokens, correct ones 2 of 10."""
    found = audit_source(Source(VERL, "folder", ("file",), game(), ()))
    length, number, of_turn = found.conclusions
    assert (length.status, number.status, of_turn.status) == ("unknown", "effect", "effect")
    assert number.sentence.startswith("incorrect responses take 100% [")
    assert "more turns than correct ones to the same prompt and take more turns in 100% [" in number.sentence
    assert of_turn.sentence.startswith("turns of incorrect responses are 50% [")
    assert {one.measure for one in found.findings} == {"within.turns", "within.turn_length"}
    assert found.turns is not None and number.estimate.value == pytest.approx(4 / 2 - 1)
    assert found.turns.number.within.gap.value == pytest.approx(math.log(2))
    means = (found.turns.number, found.turns.length)
    assert [(one.mean.value, one.correct.value, one.incorrect.value) for one in means] == [(3, 2, 4), (7.5, 10, 5)]
    # of four responses to a prompt, 2 * 1 * (2 - 1) - 2 * 1 * (4 - 1) = -4
    assert found.turns.another_turn.value == pytest.approx(-1.0)


def test_no_effect_of_turns_is_shown_and_one_turn_is_not_asked_about():
    found = audit_source(Source(VERL, "folder", ("file",), game(turns=(2, 4, 2, 4)), ()))
    assert [one.status for one in found.conclusions] == ["unknown", "none", "none"]
    assert "no effect of the number of turns within prompts" in found.conclusions[1].sentence
    assert "10% of the number of turns or 5 points" in found.conclusions[1].sentence
    few = audit_source(Source(VERL, "folder", ("file",), game(num_prompts=9), ()))
    assert [one.status for one in few.conclusions] == ["unknown"] * 3
    single = audit_source(Source(VERL, "folder", ("file",), game(turns=(1, 1, 1, 1)), ()))
    assert single.turns is None and len(single.conclusions) == 1


WEIGHTS = {
    # a turn of 4 over one of 2: (tokens of it, 5 / 10) times the weight of a token; and the weight of 4 turns over that of 2
    "sequence_mean": (1 / 2, 1), "token_sum": (1 / 2, 1), "turn_mean": (1 / 2, 1), "balanced_turns": (1 / 2, 1),
    "mean_over_turns": (1, 2),  # each turn counts the same
    "turn_count": (1 / 4, 1 / 2),  # a token of a trajectory of K turns weighs 1 / K
}  # fmt: skip


def cut(log: Log) -> Log:
    """Each turn as a segment of its own."""
    turns = log.responses.num_turns
    row = np.repeat(np.arange(len(log)), turns)
    turn = np.concatenate([np.arange(n) for n in turns])
    length = log.responses.length[row] // turns[row]
    segments = build_segments(log.responses, length, response=row, turn=turn, num_turns=1)
    return replace(log, segments=segments, advantage=None if log.advantage is None else log.advantage[row])


def test_weight_by_turn_by_hand():
    """Whether the log has trajectories or their turns as sequences."""
    for log in (game(), cut(game())):
        found = weight_shares(log)
        for name, (turn, whole) in WEIGHTS.items():
            assert found[name].many_to_few == pytest.approx(turn), name
            assert found[name].incorrect_to_correct.value == pytest.approx(whole), name
    # of 20 * (2 * 2 + 2 * 4) turns of the mean weight 1, 80 of twice the weight of the other 160: 3/2 and 3/4
    assert weight_shares(game())["sequence_mean"].per_turn == pytest.approx([3 / 2, 3 / 4])


def test_the_audit_prints_turns(tmp_path, capsys):
    rows = [
        {"prompt": f"q{number // 4}", "reward": number % 4 // 2, "num_tokens": 20, "num_turns": 4 - number % 4 // 2 * 2}
        for number in range(80)
    ]
    path = str(write_lines(tmp_path / "rows.jsonl", *rows))
    assert main(["audit", path]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "unknown: nearly all responses have one length" in text and "effect: incorrect responses take 100%" in text
    assert "mean_over_turns (+turns)" in text and "net advantage on another turn (a response) -1.000" in text
    assert main(["audit", path, "--json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert log["turns"]["number"]["conclusion"]["quantity"] == "the number of turns"
    assert log["turns"]["number"]["within"]["gap"]["value"] == pytest.approx(1.0)
    assert log["turns"]["another_turn"]["value"] == pytest.approx(-1.0)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["prime_rl_turns", "verifiers_turns", "trl_tools", "verl_turns"])
def test_an_audit_shows_what_was_written_and_what_was_read(open_page, tmp_path, folder):
    """The longest incorrect one has three turns, and `no such tool` and `still no such tool` between them."""
    source = read_one(FORMATS / folder)
    source = replace(
        source, log=replace(source.log, responses=replace(source.log.responses, truncated=np.zeros(8, bool)))
    )
    one = audit_source(source)
    (longest, *_), *_ = next(rows for title, _, rows in show_rollouts(one) if title.startswith("Longest incorrect"))
    assert [(p.kind, p.label) for p in longest.passages] == [
        ("own", "turn 1"), ("read", "read, not trained"), ("own", "turn 2"), ("read", "read, not trained"), ("own", "turn 3"),
    ]  # fmt: skip
    assert [p.text.strip() for p in longest.passages if p.kind == "read"] == [
        text if folder != "verl_turns" else f"<tool_response>\n{text}\n</tool_response>"
        for text in ("no such tool", "still no such tool")
    ]
    page = open_page(write_audit_page(tmp_path / "page.html", [one], read([str(FORMATS / folder)]))).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert page.locator(".read.apart:visible").count() > 0


@pytest.fixture(scope="module")
def turns_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("runs") / "a run in turns", "grpo+turns", in_turns=True))


@pytest.mark.slow
def test_a_trajectory_is_read_turn_by_turn(open_page, turns_page):
    """Of tokens 0 to 3 the first turn, 4 and 5 read, the rest the second turn: coloured is what the policy wrote alone."""
    page = open_page(turns_page).page
    assert page.locator("#turns figure").count() == 4
    answer = page.locator("details.response[data-turns='2']").first
    text = answer.locator("pre.text").text_content()
    answer.locator("summary").click()
    page.wait_for_function("document.querySelector('details[open] .own span')")
    assert answer.locator("pre.text").text_content() == text
    own = int(answer.get_attribute("data-length") or 0)
    labels = answer.locator(".label").all_inner_texts()
    assert [label.partition(", advantage")[0] for label in labels] == [
        "turn 1, 4 tokens, reward 0.5", "read, 2 tokens, not trained", f"turn 2, {own - 4} tokens, reward 0",
    ]  # fmt: skip
    assert answer.locator(".own > span").count() == own and answer.locator(".read > span").count() == 0
    assert len(answer.locator(".read").text_content() or "") == 2
    titles = answer.locator(".own > span").evaluate_all("(spans) => spans.map((s) => s.title.split(',')[0])")
    assert titles == [f"token {place}" for place in range(own)]
    assert answer.locator(".size").inner_text() == f"2 turns, {own} tokens"
    page.fill("[name=turns]", "2")
    shown = page.locator("details.response:visible").evaluate_all("(rows) => rows.map((r) => r.dataset.turns)")
    assert shown and set(shown) == {"2"}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_was_read_looks_different_and_can_be_read(open_page, turns_page, scheme):
    page = open_page(turns_page, color_scheme=scheme).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    for width in (320, 1180):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    style = "(s) => [s.color, s.backgroundColor, s.borderLeftStyle]"
    own, seen = (
        page.evaluate(f"({style})(getComputedStyle(document.querySelector('.{name}.apart')))")
        for name in ("own", "read")
    )
    assert own[0] != seen[0] and own[1] != seen[1] and own[2:] == ["solid"] and seen[2:] == ["dashed"]
    ink, paper = sorted(map(luminance, seen[:2]), reverse=True)
    assert (ink + 0.05) / (paper + 0.05) >= 4.5

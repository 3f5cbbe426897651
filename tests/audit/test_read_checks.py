"""The checks behind a reading: blocks by their form, whole responses, numbers of tokens, steps in paths, questions."""

from pathlib import Path

import numpy as np
import pytest
from lines import read_one, write_lines
from siblings_own import PLANTED, SAME, plain, with_results

from fairlen.audit.audit import audit_source
from fairlen.audit.command import parse_meanings
from fairlen.audit.readers.blocks import find_blocks
from fairlen.audit.readers.broken import ELLIPSED, NOT_CUT, REMARKED, find_cut, find_cut_mark, is_empty, is_failure
from fairlen.audit.readers.calls import list_calls
from fairlen.audit.readers.finish import kind_of
from fairlen.audit.readers.messages import parts_of
from fairlen.audit.readers.places import find_numbers
from fairlen.audit.readers.token_counts import choose_count, includes_prompt
from fairlen.cli import main

TEXTS = frozenset({"content"})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a <x1>b</x1> c", "<x1>"),
        ("a <x id='3'>b</x> c", "<x>"),
        ("a [OUT]b[/OUT] c", "[OUT]"),
        ("a <|r_begin|>b<|r_end|> c", "<|r_begin|>"),
        ("a\n```log\nb\n```\nc", "```log"),
        ("a <|feld|>b<|schluss|> c", "<|feld|>"),
        ("a <<VISTA>>b<<FIN>> c", "<<VISTA>>"),
        ("a\n=== BEGIN Q ===\nb\n=== END Q ===\nc", "=== BEGIN Q ==="),
    ],
)
def test_a_block_between_two_marks_is_found_and_its_text_is_separated(text, name):
    """In the middle of every response it may be either; what stands around it is the policy's."""
    forms = find_blocks([text] * 10, {})
    assert forms.unknown == (name,)
    pieces = forms.split_text(text)
    assert [part for part, _ in pieces] == ["", name, ""] and "".join(piece for _, piece in pieces) == text


@pytest.mark.parametrize(
    "text",
    [
        "<plan>a</plan> b",
        "a <final>b</final>",
        "a\n```python\nb\n```\nc",
        "a\nStep 1: b\nStep 2: c\nStep 3: d",
        "a <think>b</think> c",
    ],
)
def test_blocks_that_the_policy_wrote_are_not_separated(text):
    """Blocks at the beginning or the end, programs, enumerations and thinking."""
    assert find_blocks([text] * 10, {}).unknown == ()


def test_a_label_that_comes_back_with_text_after_its_line_is_a_block_of_one_line():
    """Text after the line may be the policy's, unlike the steps of an enumeration, which follow one another."""
    forms = find_blocks(["a\nEinblick: b c\nd e\nEinblick: f\ng"] * 10, {})
    assert forms.unknown == ("Einblick",)
    pieces = forms.split_text("a\nEinblick: b c\nd e\nEinblick: f\ng")
    assert [piece for name, piece in pieces if name] == ["Einblick: b c", "Einblick: f"]
    assert find_blocks(["a\nStep 1: b\nc\nStep 2: d\ne"] * 10, {}).unknown == ()


def test_marks_that_open_and_close_in_turn_are_no_pairs():
    """`<|b|>` would close `<|a|>` and open the text up to `<|c|>`."""
    assert find_blocks(["x <|a|>d<|b|>e f<|c|> y"] * 10, {}).unknown == ()


def test_a_block_in_less_than_a_fifth_of_responses_is_none_unless_it_is_named():
    """1 of 10 responses is less, 2 of 10 is a fifth."""
    for number, expected in ((1, ()), (2, ("<x>",))):
        texts = ["a <x>b</x> c"] * number + ["a b c"] * (10 - number)
        assert find_blocks(texts, {}).unknown == expected
        assert find_blocks(texts, {"x": "read"}).origins == {"<x>": "read"}


def test_text_under_the_header_of_another_role_was_read():
    text = "a b<|im_end|>\n<|im_start|>tool\nc d e<|im_end|>\n<|im_start|>assistant\nf"
    pieces = find_blocks([text], {}).split_text(text)
    assert [name for name, _ in pieces] == ["", "turn", ""]
    assert [piece.split()[0] for _, piece in pieces] == ["a", "c", "f"]


@pytest.mark.parametrize("text", ["", " \n", "None", "<null>", "...", "<|endoftext|>", "[]"])
def test_empty_texts(text):
    assert is_empty(text)


@pytest.mark.parametrize("text", ["7", "no", "x = 3", "None of the above is right."])
def test_short_texts_are_not_empty(text):
    assert not is_empty(text) and not is_failure(text)


@pytest.mark.parametrize(
    "text",
    [
        "openai.APITimeoutError: request timed out",
        "ERROR: engine died",
        "HTTP 503",
        "Request to model failed after 3 tries",
    ],
)
def test_messages_of_failures(text):
    assert is_failure(text) and not is_failure(text + " x" * 300)


def test_remarks_and_ellipses_of_cut_texts():
    assert find_cut_mark("a b ... [truncated, 300 chars]") == REMARKED
    assert find_cut_mark("a b...") == ELLIPSED
    assert find_cut_mark("a b. It is 3.") == NOT_CUT


def test_many_texts_of_exactly_the_largest_number_of_characters_were_cut():
    """10 of 100 have 200 characters, the others between 50 and 139: cut. If only 4 have it, below 5%, they are not."""
    for number, expected in ((10, 10), (4, 0)):
        characters = np.array([200] * number + [50 + place for place in range(90)] + [60] * (10 - number))
        cut, how = find_cut(np.zeros(100, np.int64), characters, np.ones(100, np.bool_))
        assert cut.sum() == expected and bool(how) == (expected > 0)


@pytest.mark.parametrize(
    ("cells", "kind", "first"),
    [
        ([7, 9, 12], "number", 7),
        ([[3, 4], [4, 5], [6, 6]], "sum", 7),
        ([[[1, 1, 1, 1], [1, 1, 1]], [[1] * 9], [[1] * 12]], "sum", 7),
        ([[901, 5, 77, 31, 8, 8, 9], [5] * 9, [6] * 12], "items", 7),
    ],
)
def test_lists_of_numbers_and_of_ids_are_counted(cells, kind, first):
    """Texts of 28, 36 and 48 characters, 4 characters a token: 7, 9 and 12 tokens however they are written."""
    cells, texts = cells * 5, ["a" * 28, "a" * 36, "a" * 48] * 5
    count = choose_count(cells, texts, "num")
    assert (count.kind, count.values[0]) == (kind, first)


def test_a_number_that_holds_the_prompt_is_told_by_the_prompt():
    """4 characters a token: 40 to 130 tokens of prompts and 20 to 49 of responses, together or the response alone."""
    prompts = ["p" * (160 + 40 * (row % 10)) for row in range(60)]
    texts = ["r" * (80 + 4 * ((7 * row) % 30)) for row in range(60)]
    both = np.array([(len(prompt) + len(text)) / 4 for prompt, text in zip(prompts, texts, strict=True)])
    own = np.array([len(text) / 4 for text in texts])
    assert includes_prompt(both, texts, prompts) and not includes_prompt(own, texts, prompts)


def test_paths_that_differ_in_one_number_are_steps_and_parts_are_not():
    paths = [Path(f"run_1/step_{step}/rows.jsonl") for step in (2, 10)]
    assert [find_numbers(paths)[path][1] for path in paths] == [2, 10]
    assert not find_numbers([Path(f"rank_{rank}/rows.jsonl") for rank in (0, 1)])
    assert not find_numbers([Path(f"a_{one}_{one}.jsonl") for one in (0, 1)])


def test_fields_beside_the_text_of_a_message_are_calls_and_its_description_is_not():
    message = {
        "role": "assistant",
        "content": "a",
        "id": "m1",
        "model": "x",
        "action": {"tool": "sh", "id": "7", "command": "ls"},
    }
    assert list_calls(message, TEXTS) == ['{"tool": "sh", "command": "ls"}']
    assert (
        list_calls({"role": "assistant", "content": "a", "finish_reason": "stop", "usage": {"total_tokens": 3}}, TEXTS)
        == []
    )


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("seq_len_exceeded", "truncated"),
        ("error_timeout", "failed"),
        ("natural_stop", "ended"),
        ("not_truncated", "ended"),
        ("max_turns_exceeded", "truncated"),
        ("banana", "unknown"),
    ],
)
def test_words_for_ends_are_understood_by_their_form(word, kind):
    assert kind_of(word) == kind


def test_a_verdict_that_hangs_on_a_block_is_asked_about_and_the_flag_answers(tmp_path, capsys):
    """Three blocks of 30 words in incorrect responses and one in correct ones, which are as long without them."""
    rows = [plain(row) | {"response": with_results(row, "<probe>", "</probe>")} for row in SAME]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    found = audit_source(read_one(path)).conclusion
    assert (
        found.status == "unknown"
        and "--means probe=read" in found.sentence
        and "--means probe=written" in found.sentence
    )
    for meaning, effect in (("read", False), ("written", True)):
        assert main(["audit", str(path), "--means", f"probe={meaning}"]) == 0
        assert ("effect: incorrect responses are" in capsys.readouterr().out) == effect


def test_meanings_of_the_command_line():
    assert parse_meanings("A=read, two words=truncated") == {"a": "read", "two words": "truncated"}
    with pytest.raises(ValueError, match="--means a=seen"):
        parse_meanings("a=seen")


def test_disagreement_between_two_verdicts_is_in_the_sentence(tmp_path):
    """Of 960 rows every eighth has another `is_right`: 12.5%."""
    rows = [plain(row, is_right=row["correct"] != (row["k"] == 0)) for row in PLANTED]
    sentence = audit_source(read_one(write_lines(tmp_path / "a.jsonl", *rows))).conclusion.sentence
    assert "`reward` decides who is correct; `is_right` disagrees in 12.5% of rows" in sentence


def test_arguments_of_a_call_were_generated_and_its_output_was_read():
    """`kwargs` describes a message but not a call; what a tool returned stands beside what it was asked."""
    call = {"werkzeug": "sh", "kwargs": {"befehl": "ls -l"}, "id": "7"}
    assert list_calls({"role": "assistant", "content": "a", "schritte": [call]}, TEXTS) == [
        '[{"werkzeug": "sh", "kwargs": {"befehl": "ls -l"}}]'
    ]
    message = {
        "role": "assistant",
        "content": "a",
        "uses": [{"tool": "sh", "input": "ls", "stdout": "b c d"}],
    }
    assert list_calls(message, TEXTS) == ['[{"tool": "sh", "input": "ls"}]']
    assert ("observation", "b c d") in (parts_of(message) or [])

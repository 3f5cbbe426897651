"""The renderer that appends: it writes between turns what the chat template does, and leaves sampled tokens as they are."""

from importlib import import_module
from typing import Any

import pytest
from chat_tokenizers import CHATML, WITH_BOS
from loops import over
from talkers import TOOLS, make_talker

OWN: dict[str, Any] = {"name": "custom", "import_path": "fairlen.tasks.verifiers_worker.AppendingRenderer"}
BEGIN = [{"role": "system", "content": "begin of text"}, {"role": "user", "content": "How many?"}]
SAID = {"role": "assistant", "content": "3 marbles"}
ASKED = [{"role": "user", "content": "more"}]
CALLS = [{"id": "1", "type": "function", "function": {"name": "find", "arguments": {}}}] * 2
RESULTS = [{"role": "tool", "tool_call_id": "1", "name": "find", "content": number} for number in ("4", "5")]
TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {"type": "object"}}}


def make_renderer(template: str, **variables: Any) -> Any:
    """Ours, by the package's own way; imported here, for it takes a second in every process of the tests."""
    renderers = pytest.importorskip("renderers")
    settings = import_module("renderers.configs").CustomRendererConfig
    return renderers.create_renderer(make_talker(template), settings.model_validate(OWN | variables))


@over(
    "template, said, after, tools, variables",
    [
        (CHATML, SAID, ASKED, None, {}), (CHATML, SAID, ASKED, None, {"enable_thinking": False}),
        (WITH_BOS, SAID, ASKED, None, {}), (TOOLS, SAID, ASKED, [TOOL], {}),
        (TOOLS, SAID | {"tool_calls": CALLS}, RESULTS, [TOOL], {}),
        (TOOLS, SAID | {"tool_calls": CALLS}, [*RESULTS, *ASKED], [TOOL], {}),
    ],
)  # fmt: skip
def test_a_conversation_is_what_the_template_makes_of_the_whole(template, said, after, tools, variables):
    """Where the sampled tokens are those of the text, appended turns and one rendering of all messages are the same tokens."""
    renderer = make_renderer(template, **variables)
    prompt = renderer.render(BEGIN, tools=tools, add_generation_prompt=True).token_ids
    # what is said does not stand after the generation prompt
    closed = make_renderer(template) if variables else renderer
    start = closed.render(BEGIN, tools=tools, add_generation_prompt=True).token_ids
    whole = closed.render_ids([*BEGIN, said], tools=tools)
    ends = [place for place, token in enumerate(whole) if token in renderer.get_stop_token_ids()]
    sampled = whole[len(start) : ends[-1] + 1]
    found = renderer.bridge_to_next_turn(prompt, sampled, after, tools=tools)
    expected = renderer.render_ids([*BEGIN, said, *after], tools=tools, add_generation_prompt=True)
    assert found.token_ids[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert found.token_ids[len(prompt) :] == expected[len(start) :]
    assert len(found.message_indices) == len(found.token_ids)


def test_tokens_that_the_tokenizer_would_not_make_stay():
    """A turn of single characters, cut off: they are left alone, and the turn is ended for the template."""
    renderer = make_renderer(TOOLS)
    tokenizer = make_talker()
    prompt = renderer.render(BEGIN, add_generation_prompt=True).token_ids
    sampled = [token for letter in "mar" for token in tokenizer.encode(letter, add_special_tokens=False)]
    assert sampled != tokenizer.encode("mar", add_special_tokens=False)
    found = renderer.bridge_to_next_turn(prompt, sampled, ASKED).token_ids
    assert found[: len(prompt) + 4] == [*prompt, *sampled, tokenizer.eos_token_id]
    tail = "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(found[len(prompt) + 4 :]) == tail


def test_a_template_that_rewrites_the_turn_before_is_an_error():
    template = "{% for message in messages %}{{ message.role }} {{ loop.revindex }}: {{ message.content }}{% endfor %}"
    with pytest.raises(ValueError, match="writes an earlier turn anew"):
        make_renderer(template).between(ASKED, None)


@over(
    "text, content, status, name",
    [
        ('so <tool_call>\n{"name": "find", "arguments": {"x": 1}}\n</tool_call>', "so", "OK", "find"),
        ("<tool_call>{name}</tool_call>", "", "INVALID_JSON", None),
        ('<tool_call>["find"]</tool_call>', "", "MISSING_NAME", None),
        ('<tool_call>{"name": 3}</tool_call>', "", "MISSING_NAME", None),
    ],
)
def test_calls_of_tools_are_read(text, content, status, name):
    renderer, tokenizer = make_renderer(TOOLS), make_talker()
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    found = renderer.parse_response(ids, tools=[TOOL])
    (call,) = found.tool_calls
    assert (found.content, call.status.name, call.name) == (content, status, name)
    assert call.arguments == ({"x": 1} if name else None)
    assert renderer.parse_response(ids).content == text and renderer.parse_response(ids).tool_calls == []

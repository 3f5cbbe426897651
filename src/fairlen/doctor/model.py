"""Checks of what ends a response, by the model's files and by its chat template."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from fairlen.doctor.examine import Check, Finding
from fairlen.tasks.shipped import place_model
from fairlen.train.run.config import TrainConfig

QUESTION = {"role": "user", "content": "What is 17 + 25?"}
ANSWER = {"role": "assistant", "content": "It is 42."}


@lru_cache(maxsize=4)
def open_tokenizer(model: str, revision: str) -> tuple[Any, tuple[int, ...]]:
    """Return the tokenizer of a model, and the ids that end its responses. Raises ValueError or OSError where there are none."""
    from transformers import GenerationConfig

    from fairlen.files.pretrained import find_model, read_config, read_tokenizer
    from fairlen.policy.model import find_eos

    place = find_model(place_model(model, revision), revision)
    tokenizer, sources = read_tokenizer(place, revision), [read_config(place, revision)]
    with suppress(OSError):  # a folder without it is left with what its config.json says
        sources = [GenerationConfig.from_pretrained(place, revision=revision or "main"), *sources]
    return tokenizer, find_eos(*sources, tokenizer)


def check_end(config: TrainConfig) -> Finding | str:
    """Look at what ends a response."""
    tokenizer, ends = open_tokenizer(config.model.name, config.model.revision)
    named = ", ".join(f"{tokenizer.convert_ids_to_tokens(one)!r} ({one})" for one in ends)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ends:
        found = f"responses end with {named}, and the tokenizer says {tokenizer.eos_token!r}"
        return Finding("warn", found, "make generation_config.json and tokenizer agree")
    if tokenizer.pad_token_id in ends:
        found = f"{named} is the padding too: frameworks that find padding by its id train on no end of a response"
        remedy = "give the tokenizer a pad_token of its own; fairlen's trainer pads nothing"
        return Finding("warn", f"{found}, which makes responses longer", remedy)
    return f"responses end with {named}"


def check_template(config: TrainConfig) -> Finding | str:
    """Render the chat template with and without an opened turn, and with a response."""
    tokenizer, ends = open_tokenizer(config.model.name, config.model.revision)
    if config.model.template == "plain" or not tokenizer.chat_template:
        return "prompts are plain text"
    opened, closed = (render(tokenizer, [QUESTION], opens) for opens in (True, False))
    if QUESTION["content"] not in opened:
        found = f"the question is not in the prompt, which is {opened!r:.200}"
        return Finding("fail", found, "mend the template, or --template plain")
    if opened == closed:
        found = "the template does not open the assistant's turn: add_generation_prompt changes nothing"
        remedy = "add {% if add_generation_prompt %} with the assistant's header to the template, or --template plain"
        return Finding("warn", f"{found}, so that the model may go on with the user's", remedy)
    _, answer, after = render(tokenizer, [QUESTION, ANSWER], False).rpartition(ANSWER["content"])
    words = tokenizer.convert_ids_to_tokens(list(ends))
    if answer and not any(after.startswith(word) for word in words if word):
        text = f"the template ends a response with {after.strip()!r:.40}, and responses end with {', '.join(map(repr, words))}"
        remedy = "add the id of what the template writes to eos_token_id in generation_config.json"
        return Finding("warn", f"{text}: a model that was trained with the template may never end", remedy)
    return f"a prompt ends with {opened[-40:]!r}, a response with {after.strip()!r:.40}"


def render(tokenizer: Any, messages: list[dict[str, str]], opens: bool) -> str:
    """Return the text of messages. Raises ValueError where the template does not render."""
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opens)
    except TemplateError as error:
        raise ValueError(f"the chat template does not render: {error}") from None


CHECKS = (
    Check("end of a response", check_end, "mend it, or download the model again"),
    Check("chat template", check_template, "mend it, or --template plain"),
)

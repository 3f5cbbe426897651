"""The chat template: that it opens the assistant's turn, and that an answer ends with what ends a response."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fairlen.doctor.finding import Check, Finding, Plan, bad, doubtful, good
from fairlen.doctor.model import ELSEWHERE, REMEDY_FILES, ModelFiles, open_files

QUESTION = {"role": "user", "content": "What is 17 + 25?"}
ANSWER = {"role": "assistant", "content": "It is 42."}


def render(files: ModelFiles, messages: list[dict[str, str]], opens: bool) -> str:
    """The text of messages, as transformers renders it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: "2026-01-01"
    tokens: dict[str, Any] = {name: files.special(name) for name in ("bos_token", "eos_token", "pad_token")}
    return environment.from_string(files.template).render(messages=messages, add_generation_prompt=opens, **tokens)


def refuse(message: str) -> None:
    """What templates call for messages that they do not take."""
    raise TemplateError(message)


def check_template(plan: Plan) -> Finding:
    """Rendered with and without an opened turn, and with an answer."""
    config = plan.config
    files = open_files(config.model, config.revision)
    if files is None:
        return doubtful(ELSEWHERE, REMEDY_FILES)
    if config.template == "plain" or not files.template:
        if config.template == "chat":
            return bad("--template chat: the tokenizer has no chat template", "--template plain")
        return good("prompts are plain text" + ("" if files.template else "; the tokenizer has no chat template"))
    try:
        opened, closed = (render(files, [QUESTION], opens) for opens in (True, False))
        answered = render(files, [QUESTION, ANSWER], False)
    except TemplateError as error:
        return bad(f"the chat template does not render: {error}", "mend it, or --template plain")
    if config.thinking != "auto" and "enable_thinking" not in files.template:
        return bad(f"--thinking {config.thinking}: the chat template does not know enable_thinking", "--thinking auto")
    if QUESTION["content"] not in opened:
        return bad(
            f"the question is not in the prompt, which is {opened!r:.200}", "mend the template, or --template plain"
        )
    if opened == closed:
        return doubtful(
            "the template does not open the assistant's turn: add_generation_prompt changes nothing, so that the model may go "
            "on with the user's",
            "add {% if add_generation_prompt %} with the assistant's header to the template, or --template plain",
        )
    return check_closing(files, answered, opened)


def check_closing(files: ModelFiles, answered: str, opened: str) -> Finding:
    """What follows an answer in the template is what ends a response."""
    _, found, after = answered.rpartition(ANSWER["content"])
    ends = [files.tokenizer.id_to_token(one) for one in files.ends]
    if found and not any(after.startswith(end) for end in ends if end):
        return doubtful(
            f"the template ends an answer with {after.strip()!r:.40}, and responses end with {', '.join(map(repr, ends))}: "
            "a model that was trained with the template may never end",
            "add the id of what the template writes to eos_token_id in generation_config.json",
        )
    return good(f"a prompt ends with {opened[-40:]!r}, an answer with {after.strip()!r:.40}")


CHECKS = (Check("chat template", check_template),)

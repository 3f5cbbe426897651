"""Checks of the model's files, by the `tokenizers` library and jinja: importing transformers takes seconds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fairlen.doctor.examine import Check, Finding, NotLookedAt
from fairlen.tasks.shipped import SHIPPED, make_shipped, place_model
from fairlen.train.run.config import TrainConfig

TEXTS = (
    "What is 17 + 25?",
    "Let x = 3.\n\nThen \\boxed{\\frac{1}{2}} and  2**10 == 1024.",
    "def f(n):\n\treturn n - 1\n",
    "π ≈ 3.14, é, 中文",
)
"""What responses are made of: digits, LaTeX, white space, programs, letters of other alphabets."""
QUESTION = {"role": "user", "content": "What is 17 + 25?"}
ANSWER = {"role": "assistant", "content": "It is 42."}


@dataclass(frozen=True)
class ModelFiles:
    """The folder of a model."""

    folder: Path

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON file, empty where there is none."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.is_file() else {}

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, of the `tokenizers` library."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def special(self, name: str) -> str:
        """Return the text of a special token, such as eos_token; empty where there is none."""
        value = self.read("tokenizer_config.json").get(name) or self.read("special_tokens_map.json").get(name) or ""
        return value["content"] if isinstance(value, dict) else value

    def special_id(self, name: str) -> int | None:
        """Return the id of a special token."""
        return self.tokenizer.token_to_id(self.special(name)) if self.special(name) else None

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a response, found as training finds them."""
        places = (self.read(name).get("eos_token_id") for name in ("generation_config.json", "config.json"))
        ids = next((ids for ids in (*places, self.special_id("eos_token")) if ids is not None), ())
        return (ids,) if isinstance(ids, int) else tuple(ids)

    @property
    def template(self) -> str:
        """The chat template, empty where there is none."""
        path = self.folder / "chat_template.jinja"
        found = path.read_text() if path.is_file() else self.read("tokenizer_config.json").get("chat_template") or ""
        if isinstance(found, list):  # several by name
            found = next((one["template"] for one in found if one["name"] == "default"), "")
        return found

    def render(self, messages: list[dict[str, str]], opens: bool) -> str:
        """Return the text of messages, as transformers renders it. Raises ValueError where the template does not."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: "2026-01-01"}
        tokens: dict[str, Any] = {name: self.special(name) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            template = environment.from_string(self.template)
            return template.render(messages=messages, add_generation_prompt=opens, **tokens)
        except TemplateError as error:
            raise ValueError(f"the chat template does not render: {error}") from None


def refuse(message: str) -> None:
    """Raise what templates raise for messages that they do not take."""
    raise TemplateError(message)


def find_folder(model: str, revision: str) -> Path | None:
    """Return where the model's files are on this machine; None for a hub id that was not downloaded."""
    if (folder := Path(place_model(model, revision))).is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision or None)
    except ValueError:  # no id of a hub
        return None
    return Path(found).parent if isinstance(found, str) else None


@lru_cache(maxsize=4)
def open_files(model: str, revision: str) -> ModelFiles:
    """Return the files of a model. Raises NotLookedAt where they have no tokenizer."""
    folder = find_folder(model, revision)
    if folder is None or not (folder / "tokenizer.json").is_file():
        raise NotLookedAt("the files of the model are not there")
    return ModelFiles(folder)


def check_files(config: TrainConfig) -> Finding | str:
    """Look for config.json, weights as safetensors, and the tokenizer."""
    folder = find_folder(config.model, config.revision)
    if folder is None:
        found = f"model={config.model}: no folder of that name, and not in the hub's cache"
        if config.model.count("/") != 1 or config.model.startswith(("/", ".")):
            return Finding("fail", found, "give the path of a model folder, or a hub id such as owner/name")
        return Finding("warn", found, f"download it where there is a network: hf download {config.model}")
    files = ModelFiles(folder)
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not config.random_init:
        shards = sorted(set(files.read("model.safetensors.index.json").get("weight_map", {}).values()))
        lost = [name for name in shards if not (folder / name).is_file()]
        missing += [f"{len(lost)} files of weights, such as {lost[0]}"] if lost else []
        missing += [] if list(folder.glob("*.safetensors")) else ["*.safetensors"]
    if missing:
        remedy = "copy the whole folder of the model; weights as safetensors, or rehearse with --random-init"
        return Finding("fail", f"{folder}: no {', '.join(missing)}", remedy)
    return f"{folder}, {files.read('config.json').get('model_type', 'model')}"


def check_ids(config: TrainConfig) -> Finding | str:
    """Turn text into ids, text and ids again: what is verified must be what was generated."""
    tokenizer = open_files(config.model, config.revision).tokenizer
    own = make_shipped(config.model) if config.model in SHIPPED else None
    texts = [own.train(index).text for index in range(4)] if own else TEXTS
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if back.split() != text.split():
            found = f"{text!r} comes back as {back!r}: verifiers would read another text than the model wrote"
            return Finding("fail", found, "train with a tokenizer that keeps digits, signs and letters")
        second = tokenizer.encode(back, add_special_tokens=False).ids
        if second != ids:
            found = f"{text!r} comes back as {back!r}, which is {len(second)} tokens in the place of {len(ids)}"
            remedy = "train on token ids, as fairlen does; frameworks that read texts again train on other tokens"
            return Finding("warn", found, remedy)
    return f"{len(texts)} texts come back as they were, and as the same ids"


def check_end(config: TrainConfig) -> Finding | str:
    """Look at what ends a response."""
    files = open_files(config.model, config.revision)
    ends, own, pad = files.ends, files.special_id("eos_token"), files.special_id("pad_token")
    if not ends:
        found = "eos_token_id is in none of generation_config.json, config.json, tokenizer_config.json"
        remedy = "set eos_token_id in the folder's generation_config.json"
        return Finding("fail", f"{found}: responses could never end", remedy)
    vocabulary = max(files.tokenizer.get_vocab_size(), files.read("config.json").get("vocab_size") or 0)
    if max(ends) >= vocabulary or min(ends) < 0:
        found = f"eos_token_id={max(ends)}, outside the vocabulary of {vocabulary}"
        return Finding("fail", found, "correct generation_config.json")
    named = ", ".join(f"{files.tokenizer.id_to_token(one)!r} ({one})" for one in ends)
    if own is not None and own not in ends:
        found = f"responses end with {named}, and the tokenizer says {files.special('eos_token')!r}"
        return Finding("warn", found, "make generation_config.json and tokenizer agree")
    if pad in ends:
        found = f"{named} is the padding too: frameworks that find padding by its id train on no end of a response"
        remedy = "give the tokenizer a pad_token of its own; fairlen's trainer pads nothing"
        return Finding("warn", f"{found}, which makes responses longer", remedy)
    return f"responses end with {named}"


def check_template(config: TrainConfig) -> Finding | str:
    """Render the chat template with and without an opened turn, and with a response."""
    files = open_files(config.model, config.revision)
    if config.template == "plain" or not files.template:
        if config.template == "chat":
            return Finding("fail", "--template chat: the tokenizer has no chat template", "--template plain")
        return "prompts are plain text" + ("" if files.template else "; the tokenizer has no chat template")
    opened, closed = (files.render([QUESTION], opens) for opens in (True, False))
    if config.thinking != "auto" and "enable_thinking" not in files.template:
        found = f"--thinking {config.thinking}: the chat template does not know enable_thinking"
        return Finding("fail", found, "--thinking auto")
    if QUESTION["content"] not in opened:
        found = f"the question is not in the prompt, which is {opened!r:.200}"
        return Finding("fail", found, "mend the template, or --template plain")
    if opened == closed:
        found = "the template does not open the assistant's turn: add_generation_prompt changes nothing"
        remedy = "add {% if add_generation_prompt %} with the assistant's header to the template, or --template plain"
        return Finding("warn", f"{found}, so that the model may go on with the user's", remedy)
    return check_closing(files, opened)


def check_closing(files: ModelFiles, opened: str) -> Finding | str:
    """Compare what follows a response in the template with what ends a response."""
    _, found, after = files.render([QUESTION, ANSWER], False).rpartition(ANSWER["content"])
    ends = [files.tokenizer.id_to_token(one) for one in files.ends]
    if found and not any(after.startswith(end) for end in ends if end):
        named = ", ".join(map(repr, ends))
        text = f"the template ends a response with {after.strip()!r:.40}, and responses end with {named}"
        remedy = "add the id of what the template writes to eos_token_id in generation_config.json"
        return Finding("warn", f"{text}: a model that was trained with the template may never end", remedy)
    return f"a prompt ends with {opened[-40:]!r}, a response with {after.strip()!r:.40}"


REMEDY_FILES = "see `model files`"
CHECKS = (
    Check("model files", check_files, "mend it, or download the model again"),
    Check("token ids", check_ids, REMEDY_FILES),
    Check("end of a response", check_end, REMEDY_FILES),
    Check("chat template", check_template, "mend it, or --template plain"),
)

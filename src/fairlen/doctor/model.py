"""The model's files, read as they are: config, weights, tokenizer, what ends a response, chat template, positions.

Read with the `tokenizers` library and jinja, without transformers, which takes seconds to import; training reads them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fairlen import playground
from fairlen.doctor.finding import Check, Finding, Plan, bad, doubtful, good
from fairlen.tasks.playground import Playground

TEXTS = (
    "What is 17 + 25?",
    "Let x = 3.\n\nThen \\boxed{\\frac{1}{2}} and  2**10 == 1024.",
    "def f(n):\n\treturn n - 1\n",
    "π ≈ 3.14, é, 中文",
)
"""What answers are made of: digits, LaTeX, white space, programs, letters of others."""
ELSEWHERE = "not looked at: the files of the model are not there"
REMEDY_FILES = "see `model files`"


@dataclass(frozen=True)
class ModelFiles:
    """The folder of a model."""

    folder: Path

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file, empty where there is none."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.is_file() else {}

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.read("config.json")

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        return self.read("tokenizer_config.json")

    @cached_property
    def tokenizer(self) -> Any:
        """Of the `tokenizers` library."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def special(self, name: str) -> str:
        """The text of a special token, such as eos_token; empty where there is none."""
        value = self.tokenizer_config.get(name) or self.read("special_tokens_map.json").get(name) or ""
        return value["content"] if isinstance(value, dict) else value

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a response, found as training finds them."""
        of_tokenizer = self.tokenizer.token_to_id(self.special("eos_token")) if self.special("eos_token") else None
        places = (
            self.read("generation_config.json").get("eos_token_id"),
            self.config.get("eos_token_id"),
            of_tokenizer,
        )
        ids = next((ids for ids in places if ids is not None), ())
        return (ids,) if isinstance(ids, int) else tuple(ids)

    @property
    def template(self) -> str:
        """The chat template, empty where there is none."""
        path = self.folder / "chat_template.jinja"
        found = path.read_text() if path.is_file() else self.tokenizer_config.get("chat_template") or ""
        if isinstance(found, list):  # several by name
            found = next((one["template"] for one in found if one["name"] == "default"), "")
        return found


def find_folder(model: str, revision: str) -> Path | None:
    """Where the model's files are on this machine; None for a hub id that was not downloaded."""
    if model == "playground":
        return Path(playground.PATH)
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision or None)
    except ValueError:  # no id of a hub
        return None
    return Path(found).parent if isinstance(found, str) else None


@lru_cache(maxsize=4)
def open_files(model: str, revision: str) -> ModelFiles | None:
    """The files, where a tokenizer can be read from them."""
    folder = find_folder(model, revision)
    return ModelFiles(folder) if folder and (folder / "tokenizer.json").is_file() else None


def check_files(plan: Plan) -> Finding:
    """config.json, weights as safetensors, tokenizer."""
    config = plan.config
    folder = find_folder(config.model, config.revision)
    if folder is None:
        what = f"model={config.model}: no folder of that name, and not in the hub's cache"
        if config.model.count("/") != 1 or config.model.startswith(("/", ".")):
            return bad(what, "give the path of a model folder, or a hub id such as owner/name")
        return doubtful(what, f"download it where there is a network: hf download {config.model}")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        return bad(f"{folder}: no {', '.join(missing)}", "copy the whole folder of the model, its tokenizer included")
    shards = set(ModelFiles(folder).read("model.safetensors.index.json").get("weight_map", {}).values())
    lost = [name for name in sorted(shards) if not (folder / name).is_file()]
    if lost and not config.random_init:
        return bad(f"{folder}: {len(lost)} files of weights are missing, such as {lost[0]}", "download the model again")
    if not config.random_init and not list(folder.glob("*.safetensors")):
        return bad(f"{folder}: no *.safetensors", "save the weights as safetensors, or rehearse with --random-init")
    return good(f"{folder}, {json.loads((folder / 'config.json').read_text()).get('model_type', 'model')}")


def check_ids(plan: Plan) -> Finding:
    """Text to ids to text to ids: what is verified must be what was generated."""
    files = open_files(plan.config.model, plan.config.revision)
    if files is None:
        return doubtful(ELSEWHERE, REMEDY_FILES)
    texts = [Playground().train(index).text for index in range(4)] if plan.config.model == "playground" else TEXTS
    for text in texts:
        ids = files.tokenizer.encode(text, add_special_tokens=False).ids
        back = files.tokenizer.decode(ids, skip_special_tokens=False)
        if back.split() != text.split():
            return bad(
                f"{text!r} comes back as {back!r}: verifiers would judge another text than the model wrote",
                "train with a tokenizer that keeps digits, signs and letters",
            )
        again = files.tokenizer.encode(back, add_special_tokens=False).ids
        if again != ids:
            return doubtful(
                f"{text!r} comes back as {back!r}, which is {len(again)} tokens in the place of {len(ids)}",
                "train on token ids, as fairlen does; frameworks that read texts again train on other tokens",
            )
    return good(f"{len(texts)} texts come back as they were, and as the same ids")


def check_end(plan: Plan) -> Finding:
    """What ends a response."""
    files = open_files(plan.config.model, plan.config.revision)
    if files is None:
        return doubtful(ELSEWHERE, REMEDY_FILES)
    ends, size = files.ends, files.tokenizer.get_vocab_size()
    if not ends:
        return bad(
            "eos_token_id is in none of generation_config.json, config.json, tokenizer_config.json: responses could never end",
            "set eos_token_id in the folder's generation_config.json",
        )
    vocabulary = max(size, files.config.get("vocab_size") or 0)
    if max(ends) >= vocabulary or min(ends) < 0:
        return bad(
            f"eos_token_id={max(ends)}, outside the vocabulary of {vocabulary}", "correct generation_config.json"
        )
    named = ", ".join(f"{files.tokenizer.id_to_token(one)!r} ({one})" for one in ends)
    own = files.special("eos_token")
    if own and files.tokenizer.token_to_id(own) not in ends:
        return doubtful(
            f"responses end with {named}, and the tokenizer says {own!r}",
            "make generation_config.json and tokenizer agree",
        )
    if files.special("pad_token") and files.tokenizer.token_to_id(files.special("pad_token")) in ends:
        return doubtful(
            f"{named} is the padding too: frameworks that find padding by its id do not train on the end of a response, "
            "which makes responses longer",
            "give the tokenizer a pad_token of its own; fairlen's trainer pads nothing",
        )
    return good(f"responses end with {named}")


def check_positions(plan: Plan) -> Finding:
    """Prompt and budget, against the positions of the model."""
    folder = find_folder(plan.config.model, plan.config.revision)
    shape = ModelFiles(folder).config if folder else {}
    positions = shape.get("max_position_embeddings") or shape.get("text_config", {}).get("max_position_embeddings")
    if not positions:
        return good("the model names no limit") if folder else doubtful(ELSEWHERE, REMEDY_FILES)
    is_plain = plan.config.model == "playground" and not plan.config.data
    longest = Playground().longest_prompt if is_plain else plan.config.max_prompt_length
    found = f"budget={plan.config.max_response_length} and prompts of up to {longest} tokens, {positions} positions"
    if plan.config.max_response_length >= positions or (
        is_plain and longest + plan.config.max_response_length > positions
    ):
        return bad(found, f"--max-response-length {max(positions - longest, 1)} or less")
    if longest + plan.config.max_response_length > positions:
        return doubtful(
            found,
            f"--max-prompt-length {positions - plan.config.max_response_length} or less, or a smaller --max-response-length",
        )
    return good(found)


CHECKS = (
    Check("model files", check_files), Check("token ids", check_ids), Check("end of a response", check_end),
    Check("positions", check_positions),
)  # fmt: skip

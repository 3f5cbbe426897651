"""A model's config, weights and tokenizer, read from its folder or hub id by transformers' own classes.

No code of the model runs, weights come from safetensors within the folder alone, and attention is transformers' choice.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, constants, errors, hf_hub_download, snapshot_download
from transformers.utils import logging

from fairlen.files.foreign import Unreadable, read_json_file, require_regular_files
from fairlen.files.formats import describe
from fairlen.files.limits import name_special

ATTENTION = None
"""sdpa where the architecture has it, else eager: never the one that a config.json names, which may be a kernel from a hub."""
LANGUAGE = (transformers.AutoModelForCausalLM,)
ANY_KIND = (transformers.AutoModelForImageTextToText, transformers.AutoModelForCausalLM, transformers.AutoModel)
"""Classes of models that fairlen trains, and that verl may, in the order in which verl asks them for a config."""
PATIENCE = 10  # seconds for the hub's first answer
INDEX = "model.safetensors.index.json"
ONLY_SAFETENSORS = "weights are read from *.safetensors in the model's own folder alone; save them so"
WITH_CODE = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
"""Files that may name code of the model, under `auto_map`."""


def find_model(place: str, revision: str = "") -> str:
    """The place itself, or its folder in the cache if the hub does not answer: transformers would ask for a minute.

    Raises OSError where there is neither. A name that the hub does not know is left to transformers' own error.
    """
    check_local(place)
    if Path(place).exists() or constants.HF_HUB_OFFLINE:
        return place
    try:
        HfApi().model_info(place, revision=revision or None, timeout=PATIENCE)
    except (errors.HfHubHTTPError, ValueError):  # it answered
        pass
    except errors.HTTPError as reason:  # pyright: ignore[reportPrivateImportUsage]  of httpx, since 2.0 of httpx2
        try:
            return snapshot_download(place, revision=revision or None, local_files_only=True)
        except (errors.LocalEntryNotFoundError, ValueError):
            missing = f"there is no such folder, and the hub cannot be asked: {reason}; nothing was downloaded before"
            raise OSError(missing) from reason
    return place


def read_config(place: str | Path, revision: str = "") -> transformers.PreTrainedConfig:
    """Raises ValueError where only code of the model could read it, or where it leads out of the folder."""
    check_local(place)
    config = transformers.AutoConfig.from_pretrained(place, revision=revision or "main", trust_remote_code=False)
    config._attn_implementation = config._experts_implementation = ATTENTION  # arguments do not replace all of it
    weights = getattr(config, "transformers_weights", None)
    if weights is not None and not is_plain(weights):
        raise ValueError(f"config.json has transformers_weights={weights!r}: {ONLY_SAFETENSORS}")
    return config


def read_model(
    place: str | Path,
    dtype: torch.dtype,
    revision: str = "",
    device: str | None = None,
    kinds: Sequence[Any] = LANGUAGE,
) -> transformers.PreTrainedModel:
    """Read a model. Raises ValueError where weights are missing, or are not safetensors of the folder.

    On the device "meta" shapes alone are read, which finds missing and damaged files without the memory.
    """
    config = read_config(place, revision)
    check_files(place, revision)
    kind = next((one for one in kinds if type(config) in one._model_mapping), kinds[-1])
    with quiet():
        loaded: Any = kind.from_pretrained(
            place,
            config=config,
            dtype=dtype,
            revision=revision or "main",
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation=ATTENTION,
            device_map=device,
            output_loading_info=True,
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"{len(missing)} of its weights are missing, such as {missing[0]}")
    return model


def draw_model(place: str | Path, dtype: torch.dtype, revision: str = "") -> transformers.PreTrainedModel:
    config = read_config(place, revision)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=dtype, trust_remote_code=False, attn_implementation=ATTENTION
    )
    with contextlib.suppress(OSError):  # a folder without it is left with what its config.json says
        model.generation_config = transformers.GenerationConfig.from_pretrained(place, revision=revision or "main")
    return model


def read_tokenizer(place: str | Path, revision: str = "", **sides: str) -> Any:
    """Raises ValueError where none can be loaded."""
    check_local(place)
    try:
        with quiet():
            return transformers.AutoTokenizer.from_pretrained(
                place, revision=revision or "main", trust_remote_code=False, **sides
            )
    except Exception as error:  # transformers and tokenizers raise whatever they come upon in damaged files
        files = "tokenizer.json and tokenizer_config.json"
        what = f"no tokenizer there that can be loaded; add its files, {files} ({describe(error)})"
        raise ValueError(f"model={place}: {what}") from error


def check_local(place: str | Path) -> None:
    """Check that a model's place holds no pipe or device, which transformers would open.

    Args:
        place: A folder or a hub id; a hub id passes.

    Raises:
        Unreadable: The place is a pipe, a socket or a device, or its folder contains such a file.
    """
    path = Path(place)
    if path.is_dir():
        require_regular_files(path)
    elif special := name_special(path):
        raise Unreadable(f"model={place}: {special}")


def check_files(place: str | Path, revision: str = "") -> None:
    """Raise ValueError for adapters in the place of a model, and for weights that are not safetensors within its folder."""
    if find_file(place, "adapter_config.json", revision):
        raise ValueError("adapter_config.json is there: give a whole model, adapters merged into its weights")
    try:
        names = {str(name) for name in read_json(place, INDEX, revision).get("weight_map", {}).values()}
    except (ValueError, AttributeError):
        raise ValueError(f"{INDEX} is damaged: get it anew") from None
    if not isinstance(read_json(place, "generation_config.json", revision), dict):
        raise ValueError("generation_config.json is damaged: get it anew")
    if strange := sorted(name for name in names if not is_plain(name)):
        raise ValueError(f"{INDEX} names {strange[0]!r}: {ONLY_SAFETENSORS}")


def is_plain(name: str) -> bool:
    """Whether it names safetensors, or an index of them, in the folder itself."""
    return PurePath(name).name == name and name.endswith((".safetensors", ".safetensors.index.json"))


def check_for_others(place: str | Path, revision: str = "", kinds: Sequence[Any] = LANGUAGE) -> None:
    """Raise ValueError for a model that another library could not load, or for which it would load code from a hub."""
    try:
        if asks_for_kernel(read_json(place, "config.json", revision)):
            raise ValueError("its config.json asks for attention from a hub, which is code: remove attn_implementation")
        read_model(place, torch.float32, revision, "meta", kinds)
    except Exception as error:  # transformers and safetensors raise whatever they come upon in damaged files
        raise unreadable(place, error) from error


def unreadable(place: str | Path, error: Exception, hint: str = "") -> ValueError:
    if (Path(place) / "model/config.json").is_file():
        return ValueError(f"model={place}: that is the folder of a run: give {Path(place) / 'model'}, the model in it")
    return ValueError(
        f"model={place}: neither a model folder nor a hub id that can be loaded ({describe(error)}); give a folder with "
        f"config.json, *.safetensors and a tokenizer, or a hub id that is downloaded (hf download){hint}"
    )


def asks_for_kernel(value: Any) -> bool:
    """Whether a setting of attention, anywhere in a config, has the form of a hub id."""
    if isinstance(value, list):
        return any(map(asks_for_kernel, value))
    if not isinstance(value, dict):
        return False
    return any(("attn_implementation" in k and "/" in json.dumps(v)) or asks_for_kernel(v) for k, v in value.items())


def read_json(place: str | Path, name: str, revision: str = "") -> Any:
    path = find_file(place, name, revision)
    return read_json_file(path) if path else {}


def names_code(place: str | Path) -> str:
    """The first file that would run the model's own code if that were allowed; else empty."""
    for name in WITH_CODE:
        with contextlib.suppress(OSError, ValueError, TypeError):
            if "auto_map" in read_json(place, name):
                return name
    return ""


def find_file(place: str | Path, name: str, revision: str = "") -> Path | None:
    """A file in the model's folder, in the hub's cache, or on the hub; else None."""
    if Path(place).is_dir():
        path = Path(place) / name
        return path if path.is_file() else None
    with contextlib.suppress(errors.HfHubHTTPError, errors.HFValidationError, OSError):
        return Path(hf_hub_download(str(place), name, revision=revision or None))
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Have transformers log errors alone: missing weights are raised here, and its tables hold names from files."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)

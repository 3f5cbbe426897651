"""Longhand, the study's long world: a task with responses of hundreds of tokens, and a pre-trained model for it.

fairlen train --task research/longhand/task.py:make_longhand --model research/longhand/model --max-response-length 768
"""

from pathlib import Path

PATH = Path(__file__).parent / "model"
"""Folder of the checkpoint, in Hugging Face format; `python -m research.longhand make` made it."""
SMALL = {name: PATH.with_name(f"{name}.safetensors") for name in ("memoryless", "checked")}
"""Weights of the same model after more pre-training, one file a small world; `python -m research.longhand small` made them."""
SMALL_LENGTH = 256
"""Tokens of a response there: ten passes over three numbers."""

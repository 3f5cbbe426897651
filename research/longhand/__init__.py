"""Longhand, the study's long world: a task with responses of hundreds of tokens, and a pre-trained model for it.

fairlen train --task research/longhand/task.py:make_longhand --model research/longhand/model --max-response-length 768
"""

from pathlib import Path

PATH = Path(__file__).parent / "model"
"""Folder of the checkpoint, in Hugging Face format; `python -m research.longhand make` made it."""

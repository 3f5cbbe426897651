"""The shipped checkpoint of longhand, in Hugging Face format; research/longhand.py made it."""

from pathlib import Path

PATH = Path(__file__).parent
"""Folder of the checkpoint: `AutoModelForCausalLM.from_pretrained(PATH)`, `AutoTokenizer.from_pretrained(PATH)`."""

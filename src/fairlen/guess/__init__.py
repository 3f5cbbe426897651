"""The shipped checkpoint of guess, in Hugging Face format; research/guess.py made it."""

from pathlib import Path

PATH = Path(__file__).parent
"""Folder of the checkpoint: `AutoModelForCausalLM.from_pretrained(PATH)`, `AutoTokenizer.from_pretrained(PATH)`."""

"""Folders of the shipped checkpoints, in Hugging Face format, as `AutoModelForCausalLM.from_pretrained(PATH)` reads them."""

from pathlib import Path

PATH = Path(__file__).parent
"""Of the playground, made by research/playground.py."""
GUESS = PATH.with_name("guess")
"""Of guess, made by research/guess.py."""

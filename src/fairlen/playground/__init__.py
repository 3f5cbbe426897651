"""Folder of the shipped checkpoint, in Hugging Face format, as `AutoModelForCausalLM.from_pretrained(PATH)` reads it."""

from pathlib import Path

PATH = Path(__file__).parent
"""Made by research/playground.py."""

"""Verdicts on finished texts: mathematical answers and programs."""

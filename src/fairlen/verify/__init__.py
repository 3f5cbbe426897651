"""Verdicts on finished texts: mathematical answers and programs.

A new kind of verdict takes its check in this room; a class for its reference, in `Reference` and `KINDS` (tasks/data_row.py); the
columns that it is read from (tasks/schemas.py); its cases in `Verifier` (tasks/grader.py); and its instruction (tasks/prompt.py).
"""

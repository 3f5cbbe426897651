"""Verdicts on finished texts: mathematical answers and programs.

A new kind of verdict takes its check in this room; a class for its reference, in `Reference` and `KINDS` (tasks/row.py); where it
is read from columns (tasks/schemas.py); its cases in `Verifier` (tasks/grader.py); and its instruction (tasks/prompt.py).
"""

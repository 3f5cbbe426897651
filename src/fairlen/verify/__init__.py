"""Verdicts on finished texts: mathematical answers and programs.

A new kind of verdict takes its check in this room; its name in `KINDS` (tasks/row.py), where its reference is read from columns
(tasks/schemas.py); and its line in `Verifier` (tasks/grader.py).
"""

"""Verdicts on finished texts: mathematical answers and programs.

A new kind of verdict takes its check in this room; a class for its reference, with the instruction that asks for it
(tasks/data_row.py); the columns that it is read from (tasks/schemas.py); and its case in `Verifier` (tasks/grader.py).
"""

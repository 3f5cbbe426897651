"""The ledger: what the four papers claim, what we did about each claim, and what came of it.

The data are TOML files in `data/`, one a paper; the code makes docs/claims.md and docs/study/claims.html from them and checks
that what they say is so. A verdict that rests on a test is written down beside the test. A status that rests on runs is never
written down: it follows from the study's figures by a rule (`rule.py`) and from a sign and a size that were predicted before the
first run.
"""

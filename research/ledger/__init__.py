"""The ledger: what the four papers claim, what we did about each claim, and what came of it.

The data are TOML files in `data/`, one a paper; the code makes docs/claims.md and docs/study/decisions.md from them and checks
that what they say is so. A verdict that rests on a test is written down beside the test. A verdict that rests on an experiment is
never written down: it follows from the stored figures by a rule that was fixed before the experiment was run.
"""

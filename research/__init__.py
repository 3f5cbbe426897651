"""Research on fairlen, outside the package: the ledger of claims and the study behind some of its verdicts."""

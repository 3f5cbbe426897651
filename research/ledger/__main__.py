"""`python -m research.ledger`: shows, writes and checks the ledger of claims. Run it in the root of the repository."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from research.ledger.check import check, write
from research.ledger.claims import ROOT, load_ledger
from research.ledger.display import claim_data, ledger_data, print_ledger
from research.ledger.page import write_claim

CHECK = (
    "compare pages, figures, search tables and runs, compute arithmetic, find every named test, and run the quick ones"
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.ledger", description="What the papers claim and what came of it."
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument("claim", nargs="?", help="one claim with its evidence, such as eqlen-23")
    one.add_argument(
        "--write", action="store_true", help="make docs/claims.md and the pages of docs/study from the data"
    )
    one.add_argument("--check", action="store_true", help=CHECK)
    parser.add_argument("--json", action="store_true", help="as data")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print the ledger, write its pages or check them. Return 1 where a check found something, 2 for an unknown claim."""
    given, ledger = parse(arguments), load_ledger()
    if given.write:
        print(f"wrote {', '.join(write(ledger, ROOT))}")
    elif given.check:
        return report(check(ledger, ROOT), len(ledger.claims), given.json)
    elif given.claim:
        try:
            claim = ledger.claim(given.claim)
        except ValueError as error:
            print(f"python -m research.ledger: {error}", file=sys.stderr)
            return 2
        print(as_json(claim_data(claim, ledger)) if given.json else write_claim(claim, ledger))
    elif given.json:
        print(as_json(ledger_data(ledger)))
    else:
        print_ledger(ledger)
    return 0


def as_json(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False)


def report(found: list[str], number: int, is_json: bool) -> int:
    """Print what the check found."""
    good = f"{number} claims: pages, figures, search tables, runs and tests agree, and the quick tests pass"
    if is_json:
        print(as_json({"claims": number, "wrong": found}))
    else:
        print("\n".join(found) or good, file=sys.stderr if found else sys.stdout)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

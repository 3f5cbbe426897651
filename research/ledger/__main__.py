"""`python -m research.ledger`: shows, writes and checks the ledger of claims. Run it in the root of the repository."""

from __future__ import annotations

import argparse
import json
import sys

from research.ledger.check import check, write
from research.ledger.claims import ROOT, Ledger, load_ledger
from research.ledger.display import claim_data, find_claim, ledger_data, print_ledger
from research.ledger.page import write_claim


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.ledger", description="What the papers claim and what came of it."
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument("claim", nargs="?", help="one claim with its evidence, such as eqlen-23")
    one.add_argument("--write", action="store_true", help="make docs/claims.md and docs/study/index.html from the data")
    one.add_argument(
        "--check",
        action="store_true",
        help="compare pages, figures, search tables and runs, find every named test, and run the quick ones",
    )
    parser.add_argument("--json", action="store_true", help="as data")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print the ledger, write its pages or check them. Return 1 where a check found something, 2 for an unknown claim."""
    given, ledger = parse(arguments), load_ledger()
    if given.write:
        print(f"wrote {' and '.join(write(ledger, ROOT))}")
    elif given.check:
        return report(check(ledger, ROOT), len(ledger.claims), given.json)
    elif given.claim:
        return show_claim(ledger, given.claim, given.json)
    elif given.json:
        print(json.dumps(ledger_data(ledger), indent=1, ensure_ascii=False))
    else:
        print_ledger(ledger)
    return 0


def show_claim(ledger: Ledger, id: str, as_json: bool) -> int:
    """Print one claim."""
    try:
        claim = find_claim(ledger, id)
    except ValueError as error:
        print(f"python -m research.ledger: {error}", file=sys.stderr)
        return 2
    data = claim_data(claim, ledger)
    print(json.dumps(data, indent=1, ensure_ascii=False) if as_json else write_claim(claim, ledger))
    return 0


def report(found: list[str], number: int, as_json: bool) -> int:
    """Print what the check found."""
    if as_json:
        print(json.dumps({"claims": number, "wrong": found}, indent=1))
    elif found:
        print("\n".join(found), file=sys.stderr)
    else:
        print(f"{number} claims: pages, figures, search tables, runs and tests agree, and the quick tests pass")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

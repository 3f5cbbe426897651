"""The command that shows, writes and checks the ledger of claims."""

from __future__ import annotations

import json
import sys

HELP = """usage: fairlen claims [ID | --write | --check] [--json]

What the papers claim and what came of it.

  ID        one claim with its evidence, such as eqlen-23
  --write   makes docs/claims.md and docs/study/decisions.md from the data (in the repository)
  --check   compares both pages, every figure and every named test, and runs the quick tests again (in the repository)
  --json    the whole ledger as data
"""


def run_claims(arguments: list[str]) -> int:
    """Prints the ledger, writes its pages or checks them; 1 where a check found something."""
    from fairlen.claims.check import RESULTS, check, find_checkout, write
    from fairlen.claims.display import claim_data, find_claim, ledger_data, print_ledger
    from fairlen.claims.ledger import load_ledger
    from fairlen.claims.page import write_claim

    asked = [argument for argument in arguments if not argument.startswith("-")]
    unknown = [
        argument for argument in arguments if argument not in (*asked, "--write", "--check", "--json", "-h", "--help")
    ]
    if unknown or len({"--write", "--check"} & set(arguments)) + len(asked) > 1:
        raise ValueError(f"{' '.join(unknown or arguments)}: there are one claim, --write or --check, and --json")
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    root = find_checkout()
    ledger = load_ledger(results=root / RESULTS if root else None)
    if {"--write", "--check"} & set(arguments):
        if root is None:
            raise ValueError("--write and --check need the repository: clone it and run the command there")
        if "--write" in arguments:
            print(f"wrote {' and '.join(write(ledger, root))}")
            return 0
        return report(check(ledger, root), len(ledger.claims), "--json" in arguments)
    if asked:
        claim = find_claim(ledger, asked[0])
        shown = json.dumps(claim_data(claim, ledger), indent=1, ensure_ascii=False)
        print(shown if "--json" in arguments else write_claim(claim, ledger))
    elif "--json" in arguments:
        print(json.dumps(ledger_data(ledger), indent=1, ensure_ascii=False))
    else:
        print_ledger(ledger)
    return 0


def report(found: list[str], number: int, as_json: bool) -> int:
    """What the check found."""
    if as_json:
        print(json.dumps({"claims": number, "wrong": found}, indent=1))
    elif found:
        print("\n".join(found), file=sys.stderr)
    else:
        print(f"{number} claims: pages, tests and figures agree, and the quick tests pass")
    return int(bool(found))

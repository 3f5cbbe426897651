"""Commands that show what is there: methods, what rollouts say about length, the page of a run."""

from __future__ import annotations

import json

from fairlen.console import tell


def run_methods(arguments: list[str]) -> int:
    """Prints every base and modifier, or what one method is made of."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    unknown = [argument for argument in arguments if argument not in ("--json", "-h", "--help", *names)]
    if unknown or len(names) > 1:
        wrong = unknown[0] if unknown else names[1]
        raise ValueError(f"unknown argument {wrong!r}: there is --json, and one method, its names joined by +")
    if "-h" in arguments or "--help" in arguments:
        print_usage()
        return 0
    if names:
        from fairlen.methods.explanation import describe_method, print_method

        data, show = describe_method(names[0]), print_method
    else:
        from fairlen.methods.catalogue import list_methods, print_methods

        data, show = list_methods(), print_methods
    if "--json" in arguments:
        tell(json.dumps(data, indent=1))
    else:
        show(data)
    return 0


def run_audit(arguments: list[str]) -> int:
    """Audits rollouts of any format; 1 where a file could not be read."""
    import tyro

    from fairlen.diagnostics.summary import AuditConfig, run

    return run(tyro.cli(AuditConfig, prog="fairlen audit", args=arguments))


def run_report(arguments: list[str]) -> int:
    """Writes the report of a run folder."""
    rest, out = [], None
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--out" or argument.startswith("--out="):
            out = argument.partition("=")[2] or next(waiting, "")
            if not out:
                raise ValueError("--out: name a file to write")
        else:
            rest.append(argument)
    if "-h" in rest or "--help" in rest:
        print_usage()
        return 0
    if len(rest) != 1 or rest[0].startswith("-"):
        raise ValueError(f"give one run folder and at most --out FILE.html, not {' '.join(rest) or 'nothing'}")
    from fairlen.diagnostics.report import write_report

    path = write_report(rest[0], out)
    tell(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
    return 0


def print_usage() -> None:
    """The table of commands."""
    from fairlen.cli import write_usage

    tell(write_usage(), end="")

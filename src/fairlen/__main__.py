"""`fairlen` and `python -m fairlen`: the command line, whose modules may be interrupted while they load."""

import sys


def main() -> int:
    """Return the exit code."""
    try:
        from fairlen.cli import main as run

        return run()
    except KeyboardInterrupt:
        from fairlen.console import log

        log("fairlen: interrupted; the same command starts again", sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())

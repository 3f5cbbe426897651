"""The program that calls a function in the sandbox and writes what it returned, as JSON, where only a finished call writes.

What comes in: a word drawn for this run and the arguments, one JSON value a line, on stdin. What goes out: on the stdout
that the driver found, the word, the number of bytes, and the value as JSON; whatever the program prints goes to stderr.
So a program that exits early, or prints something, has not returned anything. A program may find the word and write this
itself: it is a value all the same, and the expected one is not in the sandbox.
"""

from __future__ import annotations

import re

DRIVER = '''\
import json, os, sys
with open("solution.py", "w", encoding="utf-8") as file:
    file.write(CODE)
word, _, lines = sys.stdin.read().partition("\\n")
arguments = [json.loads(line) for line in lines.strip().split("\\n")] if lines.strip() else []
channel = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
sys.path.insert(0, os.getcwd())

def plain(value):
    """Numbers of other types as numbers; JSON has no others, and no sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    for kind in ("__index__", "__float__"):
        if hasattr(value, kind):
            return getattr(value, kind)()
    raise TypeError(f"{type(value).__name__} is not JSON")

def main():
    import solution
    found = getattr(solution, "Solution", None)
    call = getattr(found(), NAME) if hasattr(found, NAME) else getattr(solution, NAME)
    payload = json.dumps(call(*arguments), default=plain).encode()
    sys.stdout.flush()
    channel.write(b"%s %d\\n" % (word.encode(), len(payload)) + payload)
    channel.flush()
    os._exit(0)  # no exit handlers, no waiting for threads

main()
'''


def build_driver(code: str, name: str) -> str:
    """The whole program: `code` is kept as text and imported, `name` is the function or method of `Solution`."""
    clean = code.encode("utf-8", "replace").decode()
    values = {"CODE": ascii(clean), "NAME": ascii(name)}
    return re.sub(r"\b(CODE|NAME)\b", lambda found: values[found[0]], DRIVER)


def read_frame(stdout: bytes, word: str) -> bytes | None:
    """The JSON that the driver wrote after the call; None where there is none, or anything beside it."""
    head, _, payload = stdout.partition(b"\n")
    return payload if head == b"%s %d" % (word.encode(), len(payload)) else None

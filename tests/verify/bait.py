"""What programs must not reach: a file that all may change, four listeners, and a process with a secret."""

import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bait:
    facts: dict[str, str | int]
    """For the programs: where it is."""
    canary: Path
    victim: subprocess.Popen[bytes]
    listeners: tuple[socket.socket, ...]

    def find_bites(self) -> list[str]:
        """What happened to the bait, whatever a program said."""
        bites = [] if self.canary.is_file() and self.canary.read_text() == "canary" else ["changed a file of the host"]
        bites += [] if self.victim.poll() is None else ["killed a process of the host"]
        return bites + ["reached a socket of the host" for listener in self.listeners if is_reached(listener)]


@contextmanager
def laid_bait() -> Iterator[Bait]:
    secret = f"fairlen{secrets.token_hex(8)}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlen-bait-")))
        folder.chmod(0o777)
        canary = folder / "canary"
        canary.write_text("canary")
        canary.chmod(0o666)
        listeners = tuple(open_listeners(stack, str(folder / "socket"), secret))
        (folder / "socket").chmod(0o777)
        command = ["/bin/sh", "-c", "read line", secret]
        victim = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, env={"SECRET": secret}))
        stack.callback(victim.kill)
        (_, tcp), (_, udp) = (listener.getsockname() for listener in listeners[:2])
        facts: dict[str, str | int] = {
            "secret": secret, "victim": victim.pid, "canary": str(canary), "unix": str(folder / "socket"),
            "abstract": secret, "tcp": tcp, "udp": udp,
        }  # fmt: skip
        yield Bait(facts, canary, victim, listeners)


def open_listeners(stack: ExitStack, path: str, abstract: str) -> Iterator[socket.socket]:
    """TCP, UDP, a Unix socket at `path` and an abstract one; none of them blocks."""
    for family, kind, address in (
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        (socket.AF_UNIX, socket.SOCK_STREAM, path),
        (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
    ):
        listener = stack.enter_context(socket.socket(family, kind))
        listener.bind(address)
        listener.setblocking(False)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        yield listener


def is_reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(16)
        else:
            listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True

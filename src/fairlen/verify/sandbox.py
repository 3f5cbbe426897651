"""Which sandbox runs programs, chosen once at the start of a run: proven by attempt, and refused where it does not hold.

There is no fallback to anything weaker. Whoever wants to run programs on the host says so by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Execution, Limits, Sandbox
from fairlen.verify.host import HostSandbox
from fairlen.verify.probe import find_escapes, find_unfit
from fairlen.verify.remote import REMOTE_SLOTS, RemoteSandbox

__all__ = ["Execution", "HostSandbox", "Limits", "Sandbox", "open_sandbox"]

REMEDY = (
    "Programs are verified only where they are contained. Do one of these:\n"
    "  - install bubblewrap 0.8 or later: apt-get install bubblewrap\n"
    "  - let users make namespaces, if bubblewrap is installed: on Ubuntu 24.04 AppArmor forbids it "
    "(sysctl kernel.apparmor_restrict_unprivileged_userns=0), on others sysctl user.max_user_namespaces=10000; "
    "a Docker container needs --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined\n"
    "  - run a SandboxFusion-compatible service and give its URL: --sandbox http://host:8080\n"
    "  - or accept that programs written by a model can read, change and send whatever you can: --unsafe-exec-on-host"
)


def open_sandbox(choice: str = "auto", unsafe_exec_on_host: bool = False, slots: int = 0) -> Sandbox:
    """The sandbox of a run: "auto" or "bubblewrap", or the http(s) URL of a SandboxFusion-compatible service.

    `slots`: programs at a time; 0 is one for each core, and 32 at a service.

    Takes about a second, in which it runs an honest program and tries to escape. A service is only asked to run the honest
    one: how it contains programs is its own affair.

    Raises ValueError, with what to do, where the sandbox is missing, does not run programs, or does not hold them.
    """
    if unsafe_exec_on_host:
        if choice != "auto":
            raise ValueError(f"sandbox={choice!r} with unsafe_exec_on_host: choose one of the two")
        return HostSandbox(slots=slots)
    if choice.startswith(("http://", "https://")):
        remote = RemoteSandbox(choice, slots or REMOTE_SLOTS)
        return admit(remote, run_apart(find_unfit(remote)), "Check the URL, and that the service runs `python`.")
    if choice not in ("auto", "bubblewrap"):
        raise ValueError(
            f"sandbox={choice!r}: give auto, bubblewrap, or the URL of a service such as http://sandbox:8080"
        )
    try:
        sandbox = Bubblewrap(slots=slots)
    except ValueError as error:
        raise ValueError(f"sandbox={choice!r}: {error}\n{REMEDY}") from None
    unfit = run_apart(find_unfit(sandbox))
    escapes = [] if unfit else run_apart(find_escapes(sandbox))
    return admit(sandbox, unfit or "; ".join(escapes), REMEDY)


def admit(sandbox: Sandbox, complaint: str, remedy: str) -> Sandbox:
    """The sandbox, or ValueError with the complaint and the remedy."""
    if complaint:
        raise ValueError(f"sandbox={sandbox.name!r}: {complaint}\n{remedy}")
    return sandbox


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, whether or not this thread has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()

"""What runs in a sandbox may leave behind, and must not."""

import os
from pathlib import Path

FOLDERS = ("/tmp", "/dev/shm", "/var/tmp", "/run", "/")


def find_processes(file_bytes: int) -> list[str]:
    """Commands of sandboxes that were started with this size of the private folder, which marks them."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(file_bytes).encode() in words and b"--size" in words:
            commands.append(b" ".join(words).decode())
    return commands


def find_files(secret: str) -> list[str]:
    return [
        f"{folder}/{name}"
        for folder in FOLDERS
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if secret in name
    ]

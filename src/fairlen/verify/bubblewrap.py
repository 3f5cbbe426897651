"""Programs in namespaces of their own, made by bubblewrap for a user that is not root, with a filter of system calls.

When we are root, every run gets a user id of its own, taken from FIRST_UID on: as root, bubblewrap would leave 763 kernel
settings writable and the number of processes unbounded. When we are not, all runs share our id, and the kernel counts the
processes of each user namespace apart (Linux 5.14 and later), so that one run cannot use up the number allowed to another.
Only time bounds what the kernel keeps of empty files: 190 MiB after six seconds of making them, freed at the end.

Source: containers/bubblewrap, whose manual describes the options.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import struct
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairlen.verify.execution import Execution, Limits, failed, find_tool
from fairlen.verify.process import Sandbox, memory_file, supervise

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH of <linux/audit.h>, by `platform.machine()`
CALLS = """
read 0 63   write 1 64   readv 19 65   writev 20 66   pread64 17 67   pwrite64 18 68   open 2 -   openat 257 56
close 3 57   close_range 436 436   stat 4 -   fstat 5 80   lstat 6 -   newfstatat 262 79   statx 332 291
statfs 137 43   fstatfs 138 44   lseek 8 62   mmap 9 222   mprotect 10 226   munmap 11 215   mremap 25 216
madvise 28 233   brk 12 214   msync 26 227   mincore 27 232   rt_sigaction 13 134   rt_sigprocmask 14 135
rt_sigreturn 15 139   rt_sigpending 127 136   rt_sigtimedwait 128 137   rt_sigsuspend 130 133   sigaltstack 131 132
access 21 -   faccessat 269 48   faccessat2 439 439   pipe 22 -   pipe2 293 59   select 23 -   pselect6 270 72
poll 7 -   ppoll 271 73   epoll_create1 291 20   epoll_ctl 233 21   epoll_wait 232 -   epoll_pwait 281 22
eventfd2 290 19   sched_yield 24 124   sched_getaffinity 204 123   sched_getparam 143 121
sched_getscheduler 145 120   sched_get_priority_max 146 125   sched_get_priority_min 147 126   nanosleep 35 101
clock_nanosleep 230 115   clock_gettime 228 113   clock_getres 229 114   gettimeofday 96 169   time 201 -
times 100 153   getpid 39 172   gettid 186 178   getppid 110 173   getuid 102 174   geteuid 107 175   getgid 104 176
getegid 108 177   getresuid 118 148   getresgid 120 150   getgroups 115 158   getpgrp 111 -   getpgid 121 155
getsid 124 156   getpriority 140 141   uname 63 160   sysinfo 99 179   getcwd 79 17   chdir 80 49   fchdir 81 50
mkdir 83 -   mkdirat 258 34   rmdir 84 -   rename 82 -   renameat 264 38   renameat2 316 276   unlink 87 -
unlinkat 263 35   symlink 88 -   symlinkat 266 36   link 86 -   linkat 265 37   readlink 89 -   readlinkat 267 78
truncate 76 45   ftruncate 77 46   fallocate 285 47   fadvise64 221 223   fsync 74 82   fdatasync 75 83
flock 73 32   getdents64 217 61   getrusage 98 165   getrlimit 97 163   setrlimit 160 164   prlimit64 302 261
umask 95 166   dup 32 23   dup2 33 -   dup3 292 24   fcntl 72 25   futex 202 98   set_robust_list 273 99
get_robust_list 274 100   set_tid_address 218 96   rseq 334 293   arch_prctl 158 -   exit 60 93   exit_group 231 94
wait4 61 260   waitid 247 95   kill 62 129   tkill 200 130   tgkill 234 131   getitimer 36 102   setitimer 38 103
alarm 37 -   pause 34 -   getrandom 318 278   execve 59 221   membarrier 324 283   sendto 44 206   recvfrom 45 207
socketpair 53 199   shutdown 48 210   getsockopt 55 209   getsockname 51 204   getpeername 52 205
restart_syscall 219 128   copy_file_range 326 285   sendfile 40 71   utimensat 280 88   chmod 90 -   fchmod 91 52
fchmodat 268 53
"""
"""Name, number on x86-64, number on arm64; - where there is none. From <asm/unistd_64.h> and <asm-generic/unistd.h>."""
CLONE, IOCTL = {"x86_64": 56, "aarch64": 220}, {"x86_64": 16, "aarch64": 29}
X32 = 0x40000000  # first number of the x32 calls, which have their own table
CLONE_THREAD = 0x00010000
CLONE_NEW = 0x7E020000  # all namespace flags of <linux/sched.h> in 32 bits, but CLONE_NEWTIME, which clone cannot make
REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""ioctl: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`, of the low halves of arguments."""
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000


def build_filter(machine: str) -> bytes:
    """An array of `struct sock_filter`. Raises ValueError for a machine that is not in `MACHINES`."""
    if machine not in MACHINES:
        raise ValueError(f"machine={machine!r}: there is a filter of system calls for {' and '.join(MACHINES)} only")
    column = 1 + list(MACHINES).index(machine)
    numbers = sorted(int(number) for number in CALLS.split()[column::3] if number != "-")
    code = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, MACHINES[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":
        code += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for number in numbers:
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    # EAGAIN is what a fork says at the limit of processes.
    code += when(
        CLONE[machine],
        [
            (LOAD, 0, 0, FIRST_ARGUMENT),
            (ANY_BIT, 0, 1, CLONE_NEW), (RETURN, 0, 0, REFUSE | errno.EPERM),
            (ANY_BIT, 0, 1, CLONE_THREAD), (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, REFUSE | errno.EAGAIN),
        ],
    )  # fmt: skip
    checks = [line for request in REQUESTS for line in ((EQUAL, 0, 1, request), (RETURN, 0, 0, ALLOW))]
    code += when(IOCTL[machine], [(LOAD, 0, 0, SECOND_ARGUMENT), *checks, (RETURN, 0, 0, REFUSE | errno.ENOTTY)])
    code.append((RETURN, 0, 0, REFUSE | errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def when(number: int, body: list[tuple[int, int, int, int]]) -> Iterable[tuple[int, int, int, int]]:
    """`body`, which returns, for one call; others jump over it."""
    return [(EQUAL, 0, len(body), number), *body]


FIRST_UID, NUM_UIDS = 60706, 478  # user ids of runs started by root: unused in systemd's list of ranges
OLDEST_BUBBLEWRAP, OLDEST_LINUX = (0, 8), (5, 14)  # with `--disable-userns`; with processes counted per user namespace
PROGRAM = "/box/program.py"
HELPERS = 1
"""Processes in the user namespace beside the program's threads. The program is the first of its PID namespace: under
bubblewrap's own first process, which has the same user, a program could write to the memory of that."""


class Bubblewrap(Sandbox):
    name = "bubblewrap"

    def __init__(self, slots: int = 0) -> None:
        """`slots`: runs at a time, one for each core by default. Raises ValueError, with a remedy, where something is missing."""
        if not 0 <= slots <= NUM_UIDS:
            raise ValueError(f"slots={slots}: give 1 to {NUM_UIDS} runs at a time, or 0 for one on each core")
        self.bwrap = find_tool("bwrap", "bubblewrap")
        text = subprocess.run([self.bwrap, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
        self.version = read_numbers(text)
        if self.version < OLDEST_BUBBLEWRAP:
            raise ValueError(
                f"{self.bwrap}: version {text.strip()!r}: programs need bubblewrap 0.8 or later; install a newer one"
            )
        self.filter = build_filter(platform.machine())
        super().__init__(slots)
        self.is_root = os.geteuid() == 0
        self.setpriv = find_tool("setpriv", "util-linux") if self.is_root else ""
        if not self.is_root and read_numbers(platform.release()) < OLDEST_LINUX:
            raise ValueError(
                f"Linux {platform.release()}: before 5.14 parallel programs of one user share one limit of processes; "
                "run as root, which gives each run a user id of its own"
            )
        self._uids = deque(range(FIRST_UID, FIRST_UID + NUM_UIDS))
        self._view = view_options(self.interpreter.prefix, self.interpreter.path, *self.interpreter.packages)

    def describe(self) -> dict[str, Any]:
        uids = f"{FIRST_UID}-{FIRST_UID + NUM_UIDS - 1}" if self.is_root else str(os.geteuid())
        facts = {"version": ".".join(map(str, self.version)), "uids": uids, "kernel": platform.release()}
        return {**super().describe(), "unsafe": False, **facts}

    async def _run(self, bound: Sequence[str], program: bytes, stdin: bytes, limits: Limits) -> Execution:
        uid = self._uids.popleft()
        try:
            with (
                memory_file(program) as source,
                memory_file(self.filter) as calls,
                tempfile.TemporaryFile() as status,  # out of reach of the program
            ):
                writer = status.fileno()
                command = [*bound, *self._command(limits, uid, source, calls, writer)]
                ended = await supervise(
                    command, stdin, limits, {}, (source, calls, writer),
                    find_program=lambda: read_status(writer, "child-pid") or 0,
                )  # fmt: skip
                last = "child-pid" if ended.exit_code is None else "exit-code"  # the former of one that we killed
                has_run = read_status(writer, last) is not None
        finally:
            self._uids.append(uid)
        if has_run:
            return ended
        return failed(f"{self.name}: {ended.stderr[-4096:].decode('utf-8', 'replace').strip()}")

    def _command(self, limits: Limits, uid: int, source: int, calls: int, status: int) -> list[str]:
        """Everything up to the interpreter. Neither the program nor its input is on a command line, which all users can read."""
        drop = [self.setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"] if self.is_root else []
        variables = [("--setenv", name, value) for name, value in self.interpreter.environment().items()]
        return [
            *drop, self.bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
            "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv",
            *(word for words in variables for word in words), *self._view,
            "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev", "--remount-ro", "/dev",
            "--dir", "/box", "--file", str(source), PROGRAM,
            "--size", str(limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp",
            "--remount-ro", "/",  # the root is a tmpfs too, and without a size
            "--seccomp", str(calls), "--json-status-fd", str(status), "--",
            *self.interpreter.command(PROGRAM, limits, limits.processes + HELPERS),
        ]  # fmt: skip


LOCAL = "/usr/local"


def view_options(*needed: str) -> list[str]:
    """Options of bwrap for the visible files: /usr without /usr/local, the loader's cache, the interpreter."""
    options = ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/lib", "/lib32", "/lib64", "/bin")):
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        options += ["--ro-bind-try", path, path]
    outside = [path for path in needed if path != "/usr" and (not path.startswith("/usr/") or path.startswith(LOCAL))]
    shown = [word for path in outside for word in ("--ro-bind", path, path)]
    return [*options, "--tmpfs", LOCAL, *shown, "--remount-ro", LOCAL] if Path(LOCAL).is_dir() else [*options, *shown]


def read_numbers(text: str) -> tuple[int, ...]:
    """The first dotted number: "bubblewrap 0.8.0" is (0, 8, 0)."""
    found = re.search(r"\d+(\.\d+)+", text)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def read_status(file: int, name: str) -> int | None:
    """A number that bwrap has written by now, as a line of JSON: `child-pid`, or `exit-code`, 128 + signal for signals."""
    lines = os.pread(file, 1 << 16, 0).splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return next((status[name] for status in found if name in status), None)

"""Programs for the sandbox: those that mean harm, none of which prints the right answer, and those that do what programs in
contests do, all of which must pass.

A hostile program prints ESCAPED where it got what it must not get. It starts with `F`, the facts about what lies outside: ports,
paths and process numbers, and a secret that is part of every name it creates.
"""

import random
import re

HELPERS = """
import ctypes, os, signal, socket, sys, threading, time
def attempt(what, action):
    try:
        result = action()
    except BaseException as error:
        print("held", what, type(error).__name__)
    else:
        print("ESCAPED" if result is not False else "held", what)
    sys.stdout.flush()
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return libc.syscall(number, *arguments) >= 0
def send(family, kind, address):
    with socket.socket(family, kind) as one:
        one.settimeout(1)
        one.connect(address)
        one.send(b"stolen")
def contains(path):
    return F["secret"].encode() in open(path, "rb").read(1 << 20)
def create(folder):
    open(os.path.join(folder, F["secret"]), "w").write("x")
"""

TEXTS = r"""
### fork_bomb
while True: attempt('fork', os.fork); time.sleep(0.05)
### fork_bomb_by_clone
attempt('clone', lambda: call(56, 17, 0, 0, 0, 0))
attempt('vfork', lambda: call(58))
attempt('clone3', lambda: call(435, 0, 0))
### memory_bomb
kept = []
while True: kept.append(bytearray(64 << 20))
### memory_bomb_in_threads
def eat():
    kept = []
    while True: kept.append(bytearray(8 << 20))
for _ in range(8): threading.Thread(target=eat).start()
### memfd_bomb
attempt('memfd', lambda: os.memfd_create('x'))
### shared_memory
attempt('shmget', lambda: call(29, 0, 1 << 30, 0o1600))
attempt('mq', lambda: call(240, b'x', 0o102, 0o600, 0))
### busy_loop
while True: pass
### sleep_for_ever
time.sleep(1000)
### thousands_of_threads
def wait(): time.sleep(30)
threading.stack_size(64 << 10)
n = 0
try:
    while n < 20000:
        threading.Thread(target=wait, daemon=True).start(); n += 1
except RuntimeError: pass
attempt('threads', lambda: n > 40)
os._exit(0)
### thousands_of_files
kept = []
try:
    while len(kept) < 50000: kept.append(os.open('/dev/null', 0))
except OSError: pass
attempt('files', lambda: len(kept) > 100)
### huge_power
print(len(str(9 ** 9 ** 9)))
### huge_integer_to_text
sys.set_int_max_str_digits(0)
print(str(1 << (1 << 27))[:9])
### catastrophic_pattern
import re
re.match('(a+)+$', 'a' * 60 + 'b')
### endless_recursion
def f(): return f()
sys.setrecursionlimit(1 << 30)
f()
### recursion_in_c
sys.setrecursionlimit(1 << 30)
x = []
for _ in range(1 << 20): x = [x]
print(len(repr(x)))
### segfault
ctypes.string_at(0)
### ignores_every_signal
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
### raises_its_limits
import resource
for name in ('AS', 'CPU', 'NPROC', 'NOFILE', 'FSIZE', 'MEMLOCK', 'STACK', 'CORE'):
    n = getattr(resource, 'RLIMIT_' + name)
    hard = resource.getrlimit(n)[1]
    attempt(name, lambda: resource.setrlimit(n, (hard + 1, hard + 1)))
### floods_stdout
while True: os.write(1, b'x' * 65536)
### floods_stderr
while True: os.write(2, b'x' * 65536)
### one_huge_line
print('7' * (24 << 20))
### answers_after_the_deadline
time.sleep(0.9); print('late')
time.sleep(1000)
### control_characters
os.write(1, bytes(range(256)) * 9 + b'\x1b]0;x\x07\x1b[2J\xff\xfe\x00')
### forged_verdicts
for fd in range(64):
    for text in ('correct\n', '{"status": "ok", "passed": 1}\n', '{ "exit-code": 0 }\n'):
        try: os.write(fd, text.encode())
        except OSError: pass
### exits_zero
sys.exit(0)
### exits_at_once
os._exit(0)
### kills_itself
os.kill(os.getpid(), signal.SIGKILL)
### closes_everything
os.closerange(0, 64)
time.sleep(1000)
### reads_passwd
for path in ('/etc/passwd', '/etc/shadow', '/etc/hostname', '/root', '/home', '/proc/kcore'):
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1) and None)
### reads_the_checkpoint
attempt('read', lambda: contains(F['canary']))
attempt('stat', lambda: os.stat(F['canary']))
### changes_the_checkpoint
attempt('write', lambda: open(F['canary'], 'a').write('x'))
attempt('cut', lambda: os.truncate(F['canary'], 0))
### removes_the_checkpoint
import shutil
attempt('remove', lambda: os.remove(F['canary']))
attempt('rmtree', lambda: shutil.rmtree(F['folder']))
attempt('rename', lambda: os.rename(F['folder'], F['folder'] + 'x'))
### marks_the_checkpoint
attempt('chmod', lambda: os.chmod(F['canary'], 0))
attempt('chown', lambda: os.chown(F['canary'], 0, 0))
attempt('utime', lambda: os.utime(F['canary'], (0, 0)))
attempt('xattr', lambda: os.setxattr(F['canary'], 'user.x', b'x'))
### writes_everywhere
for folder in ('/', '/box', '/usr', '/usr/bin', '/usr/lib', '/usr/local', '/etc', '/dev', '/dev/shm', '/var/tmp', '/run',
               '/proc', '/proc/sys/kernel', '/sys', F['folder']):
    attempt(folder, lambda: create(folder))
### fills_the_disk
def fill():
    n = 0
    while n < 512:
        with open(f'{F["secret"]}{n}', 'wb') as file: file.write(bytes(1 << 20)); n += 1
attempt('512 MiB', fill)
### one_large_file
def fill():
    with open(F['secret'], 'wb') as file:
        for n in range(512): file.write(bytes(1 << 20))
attempt('512 MiB', fill)
### many_small_files
n = 0
while True:
    open(f'{F["secret"]}{n}', 'w').close(); n += 1
### leaves_by_a_link
os.symlink('/proc/1/root', 'out')
attempt('1/root', lambda: contains('out' + F['canary']))
os.symlink('/../../..', 'up')
attempt('up', lambda: contains('up' + F['canary']))
attempt('proc', lambda: contains(f'/proc/{F["victim"]}/root{F["canary"]}'))
### persists_in_python
import site
for folder in [*sys.path, *site.getsitepackages(), os.path.dirname(os.__file__)]:
    if folder and not folder.startswith(('/tmp',)): attempt(folder, lambda: create(folder))
attempt('pyc', lambda: open(os.__file__, 'a').write('x'))
### mounts
attempt('mount', lambda: call(165, b'x', b'/tmp', b'tmpfs', 0, 0))
attempt('remount', lambda: call(165, 0, b'/', 0, 32, 0))
attempt('umount', lambda: call(166, b'/usr', 2))
attempt('pivot', lambda: call(155, b'/tmp', b'/tmp'))
attempt('chroot', lambda: os.chroot('/tmp'))
### kills_everything
attempt('victim', lambda: F['victim'] != os.getpid() and os.kill(F['victim'], 9))
for pid in (1, -1, os.getppid()):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
### kills_every_number
for pid in range(2, 1 << 16):
    if pid != os.getpid():
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
### harms_its_parent
import resource
for pid in (F['victim'], F['parent']):
    attempt('prlimit', lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)))
    attempt('affinity', lambda: os.sched_setaffinity(pid, {0}))
    attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
### traces
attempt('attach', lambda: call(101, 16, F['victim'], 0, 0))
attempt('init', lambda: call(101, 16, 1, 0, 0))
attempt('read', lambda: call(310, F['victim'], 0, 0, 0, 0, 0))
attempt('pidfd', lambda: call(434, F['victim'], 0))
### reads_proc
for pid in (F['victim'], F['parent'], os.getppid(), 1):
    for name in ('environ', 'cmdline', 'maps'):
        attempt(f'{pid}/{name}', lambda: contains(f'/proc/{pid}/{name}'))
    attempt(f'{pid}/mem', lambda: pid != os.getpid() and open(f'/proc/{pid}/mem', 'r+b').close())
    attempt(f'{pid}/fd', lambda: pid > 9 and os.listdir(f'/proc/{pid}/fd'))
### sets_the_kernel
for path in ('kernel/core_pattern', 'kernel/modprobe', 'kernel/sem', 'kernel/ns_last_pid',
             'vm/drop_caches', 'fs/mqueue/msg_max'):
    attempt(path, lambda: open('/proc/sys/' + path, 'r+').close())
attempt('sysrq', lambda: open('/proc/sysrq-trigger', 'w').close())
found = [os.path.join(d, n) for d, _, names in os.walk('/proc/sys') for n in names if os.access(os.path.join(d, n), os.W_OK)]
attempt('any', lambda: len(found) > 0)
### daemon
def leave():
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    time.sleep(1000)
attempt('daemon', leave)
### zombies
import subprocess
for _ in range(20): attempt('child', lambda: subprocess.Popen(['/usr/bin/true']))
### shell
import subprocess
attempt('shell', lambda: subprocess.run('id', shell=True, check=True))
attempt('system', lambda: os.system('id') == 0)
attempt('spawn', lambda: os.posix_spawn('/usr/bin/id', ['id'], {}))
### becomes_something_else
os.execv('/usr/bin/sleep', ['sleep', '1000'])
### becomes_root
attempt('setuid', lambda: os.setuid(0))
attempt('setgroups', lambda: os.setgroups([0]))
attempt('root', lambda: os.geteuid() == 0)
status = open('/proc/self/status').read()
attempt('capabilities', lambda: 'CapEff:\t0000000000000000' not in status)
attempt('privileges', lambda: 'NoNewPrivs:\t1' not in status)
### raw_calls
for name, number, *rest in (('unshare', 272, 0x10000000), ('unshare mount', 272, 0x20000), ('setns', 308, 0, 0),
    ('bpf', 321, 0, 0, 0),
    ('perf', 298, 0, 0, -1, -1, 0), ('io_uring', 425, 8, 0), ('keyctl', 250, 0, -3, 1),
    ('add_key', 248, b'user', b'x', b'x', 1, -3),
    ('userfaultfd', 323, 0), ('ptrace', 101, 0, 0, 0, 0), ('kexec', 246, 0, 0, 0, 0),
    ('init_module', 175, 0, 0, b''), ('swapon', 167, b'x', 0),
    ('open_by_handle', 304, 0, 0, 0), ('name_to_handle', 303, -100, b'/', 0, 0, 0),
    ('process_vm_writev', 311, 1, 0, 0, 0, 0, 0),
    ('sethostname', 170, b'x', 1), ('settimeofday', 164, 0, 0), ('landlock', 444, 0, 0, 1), ('seccomp', 317, 1, 0, 0)):
    attempt(name, lambda: call(number, *rest))
### tcp
attempt('v4', lambda: send(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', F['tcp'])))
attempt('v6', lambda: send(socket.AF_INET6, socket.SOCK_STREAM, ('::1', F['tcp'])))
attempt('out', lambda: send(socket.AF_INET, socket.SOCK_STREAM, ('1.1.1.1', 53)))
### udp
attempt('udp', lambda: send(socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', F['udp'])))
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt('packet', lambda: socket.socket(17, 3, 3))
### unix_sockets
attempt('path', lambda: send(socket.AF_UNIX, socket.SOCK_STREAM, F['unix']))
attempt('abstract', lambda: send(socket.AF_UNIX, socket.SOCK_STREAM, '\0' + F['abstract']))
attempt('netlink', lambda: socket.socket(16, 3, 0))
attempt('vsock', lambda: socket.socket(40, 1, 0))
### pair_that_connects
one, two = socket.socketpair()
attempt('connect', lambda: one.connect(F['unix']))
attempt('sendto', lambda: one.sendto(b'x', F['unix']))
### types_into_the_terminal
import fcntl
os.close(0)
attempt('tty', lambda: os.open('/dev/tty', os.O_RDWR))
for fd in (1, 2): attempt('TIOCSTI', lambda: fcntl.ioctl(fd, 0x5412, b'x'))
### inherited_descriptors
attempt('descriptors', lambda: len(os.listdir('/proc/self/fd')) > 4)
for fd in range(3, 64):
    attempt(f'{fd}', lambda: os.read(fd, 1))
### looks_for_secrets
attempt('environment', lambda: F['secret'] in str(os.environ))
attempt('variables', lambda: [n for n in os.environ if any(w in n for w in ('TOKEN', 'KEY', 'SECRET', 'USER'))] != [])
attempt('mounts', lambda: F['folder'] in open('/proc/self/mountinfo').read())
"""
"""By what they do. Numbers of system calls are those of x86-64; elsewhere they mean other calls, or none."""

HOSTILE = dict(re.findall(r"^### (\w+)\n(.*?)(?=^###|\Z)", TEXTS, re.MULTILINE | re.DOTALL))

ENDLESS = {
    "fork_bomb", "busy_loop", "sleep_for_ever", "huge_power", "catastrophic_pattern", "ignores_every_signal", "closes_everything",
    "answers_after_the_deadline", "many_small_files", "becomes_something_else",
    "huge_integer_to_text", "recursion_in_c", "endless_recursion",
}  # fmt: skip
"""Programs that only the clock ends, or would within minutes."""


def build_program(name: str, facts: dict[str, object]) -> str:
    """The whole of a hostile program."""
    return f"F = {facts!r}\n{HELPERS}\n{HOSTILE[name]}\n"


_DRAW = random.Random(1)
_NUMBERS = [_DRAW.randrange(-(10**9), 10**9) for _ in range(100_000)]
_LINE = " ".join(map(str, _NUMBERS))

IMPORTS = """
abc argparse array ast asyncio base64 binascii bisect bz2 calendar cmath codecs collections concurrent.futures
contextlib copy csv ctypes dataclasses datetime decimal difflib enum fractions functools gc getpass glob graphlib hashlib heapq
hmac html inspect io itertools json keyword linecache locale logging lzma math mmap multiprocessing numbers operator os
pathlib pickle platform pprint queue random re resource sched secrets select selectors shlex shutil signal socket sqlite3
statistics string struct subprocess symtable sys tempfile textwrap threading time timeit token tokenize traceback types typing
unicodedata unittest urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo
"""

HONEST: dict[str, tuple[str, str, str]] = {
    "input": ("a = int(input())\nb = int(input())\nprint(a + b)", "3\n4\n", "7"),
    "for_line_in_stdin": ("import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))", "1 2\n3 4", "3\n7"),
    "stdin_read": ("import sys\nprint(len(sys.stdin.read().split()))", _LINE, "100000"),
    "stdin_buffer": ("import sys\nd = sys.stdin.buffer.read().split()\nprint(sum(map(int, d)))", _LINE, str(sum(_NUMBERS))),
    "stdin_readline": ("import sys\ninput = sys.stdin.readline\nn = int(input())\nprint(n, len(input()))", "5\nabc\n", "5 4"),
    "open_zero": ("n, *a = open(0).read().split()\nprint(n, sum(map(int, a)))", "3\n1 2 3\n", "3 6"),
    "os_read": ("import os\nprint(os.read(0, 100).decode().strip()[::-1])", "abc\n", "cba"),
    "bytes_io": (
        "import io, os, sys\nsys.stdin = io.TextIOWrapper(io.BytesIO(os.read(0, os.fstat(0).st_size or 1 << 16)))\n"
        "print(input())",
        "fast\n",
        "fast",
    ),
    "ignores_its_input": ("print(1)", "x" * 3_000_000, "1"),
    "end_of_input": ("n = 0\ntry:\n    while True:\n        input(); n += 1\nexcept EOFError: print(n)", "a\nb\n", "2"),
    "no_newline_at_the_end": ("import sys\nsys.stdout.write(input())", "x", "x\n"),
    "exit_after_print": ("print(1)\nexit()", "", "1"),
    "quit_after_print": ("print(1)\nquit()", "", "1"),
    "sys_exit_after_print": ("print(1)\nimport sys\nsys.exit(0)", "", "1"),
    "os_exit_after_flush": ("import os, sys\nprint(1)\nsys.stdout.flush()\nos._exit(0)", "", "1"),
    "main_guard": ("def main():\n    print(2)\nif __name__ == '__main__':\n    main()", "", "2"),
    "future_import": ("from __future__ import annotations\ndef f(x: Missing): return x\nprint(f(1))", "", "1"),
    "names_without_imports": (
        "d: List[int] = [1, 2, 2]\nprint(Counter(d)[2], gcd(12, 18), inf, sqrt(4), bisect_left(d, 2), heappop(d), lcm(2, 3))",
        "",
        "2 6 inf 2.0 1 1 6",
    ),
    "modules_without_imports": ("print(math.pi, collections.deque([1])[0], sys.maxsize > 0, datetime.date(2024, 1, 2))", "",
                                "3.141592653589793 1 True 2024-01-02"),
    "own_names_win": ("def gcd(a, b): return 99\nsum = 5\nprint(gcd(1, 2), sum, pow(2, 5, 7), abs(-1))", "", "99 5 4 1"),
    "recursion_in_main": ("def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(49000))", "", "49000"),
    "recursion_100k": ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
    "print(f(100000))",
                       "", "100000"),
    "recursion_in_a_thread": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(128 << 20)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\ndef main(): print(f(50000))\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()",
        "", "50000",
    ),
    "recursion_512_mib_thread": ("import threading\nthreading.stack_size(512 << 20)\n"
    "t = threading.Thread(target=lambda: print(1))\n"
                                 "t.start(); t.join()", "", "1"),
    "lru_cache_deep": ("from functools import cache\n@cache\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
    "print(f(20000))", "", "20000"),
    "much_memory": ("a = [0] * (40 * 10 ** 6)\nprint(len(a))", "", "40000000"),
    "much_output": ("print('\\n'.join(map(str, range(300000))))", "", "\n".join(map(str, range(300_000)))),
    "much_stderr": ("import sys\nfor n in range(50000): print('debugging', n, file=sys.stderr)\nprint(1)", "", "1"),
    "flushed_prints": ("for n in range(2000): print(n, flush=True)", "", "\n".join(map(str, range(2000)))),
    "opened_by_name": ("n = int(open('/dev/stdin').read())\nwith open('/dev/stdout', 'w') as f: f.write(str(2 * n))", "21", "42"),
    "stdin_replaced": ("import sys\nsys.stdin = open('/dev/stdin')\nprint(sum(map(int, sys.stdin.readline().split())))",
                       "1 2 3\n", "6"),
    "pickled_copies": ("import copy, pickle\nclass A: pass\na = A(); a.x = [1]\n"
    "print(pickle.loads(pickle.dumps(a)).x, copy.deepcopy(a).x)",
                       "", "[1] [1]"),
    "unicode": ("s = input()\nprint(s[::-1], len(s))", "añ中😀\n", "😀中ña 4"),
    "asyncio": ("import asyncio\nasync def f(n):\n    await asyncio.sleep(0.01)\n    return n\n"
                "async def main(): print(await asyncio.gather(f(1), f(2)))\nasyncio.run(main())", "", "[1, 2]"),
    "thread_pool": ("from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(8) as p: print(sum(p.map(len, ['a', 'bb'])))",
                    "", "3"),
    "its_own_files": ("open('a.txt', 'w').write('x' * 10)\nimport os, tempfile\n"
    "with tempfile.TemporaryFile() as f: f.write(b'1')\n"
                      "print(os.path.getsize('a.txt'))", "", "10"),
    "handlers": ("import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: print('late'))\nsignal.alarm(1)\n"
    "time.sleep(1.2)", "", "late"),
    "exit_handlers": ("import atexit\natexit.register(lambda: print(2))\nprint(1)", "", "1\n2"),
    "numpy_where_it_is": ("try:\n    import numpy as np\n    print(np.arange(10).sum())\n"
    "except ModuleNotFoundError: print(45)", "", "45"),
    "every_import": (f"for name in {IMPORTS.split()!r}: __import__(name)\nimport os, sys\n"
    "print(os.path.exists('/usr'), len(sys.argv))", "",
                     "True 1"),
}  # fmt: skip
"""Code, stdin and stdout, by what is special."""

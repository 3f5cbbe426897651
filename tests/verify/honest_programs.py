"""Programs that mean no harm and do what programs in contests do: each must pass, with its stdin and its stdout."""

import random

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

PROGRAMS: dict[str, tuple[str, str, str]] = {
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
    "lru_cache": ("from functools import lru_cache\n@lru_cache(None)\n"
    "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(90))",
                  "", "2880067194370816120"),
    "lru_cache_deep": ("from functools import cache\n@cache\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
    "print(f(20000))", "", "20000"),
    "heapq": ("import heapq\nh = []\nfor x in map(int, input().split()):\n    heapq.heappush(h, x)\n"
    "print(*[heapq.heappop(h) for _ in range(3)])",
              _LINE, " ".join(map(str, sorted(_NUMBERS)[:3]))),
    "sorting": ("print(*sorted(map(int, input().split())))", _LINE, " ".join(map(str, sorted(_NUMBERS)))),
    "big_integers": ("print(pow(3, 8000))", "", str(3**8000)),
    "long_integers": ("import sys\nsys.set_int_max_str_digits(0)\nprint(2 ** 50000 % 10 ** 9, len(str(2 ** 50000)))", "",
                      f"{2**50000 % 10**9} 15052"),
    "decimals": ("from decimal import Decimal, getcontext\ngetcontext().prec = 50\nprint(Decimal(2).sqrt())", "",
                 "1.4142135623730950488016887242096980785696718753769"),
    "fractions": ("from fractions import Fraction\nprint(sum(Fraction(1, n) for n in range(1, 20)))", "", "275295799/77597520"),
    "sieve": ("n = 10 ** 6\ns = bytearray([1]) * (n + 1)\ns[:2] = b'00'[:0] + bytes(2)\n"
              "for i in range(2, 1001):\n    if s[i]: s[i * i::i] = bytes(len(s[i * i::i]))\nprint(sum(s))", "", "78498"),
    "much_memory": ("a = [0] * (40 * 10 ** 6)\nprint(len(a))", "", "40000000"),
    "much_output": ("print('\\n'.join(map(str, range(300000))))", "", "\n".join(map(str, range(300_000)))),
    "much_stderr": ("import sys\nfor n in range(50000): print('debugging', n, file=sys.stderr)\nprint(1)", "", "1"),
    "flushed_prints": ("for n in range(2000): print(n, flush=True)", "", "\n".join(map(str, range(2000)))),
    "opened_by_name": ("n = int(open('/dev/stdin').read())\nwith open('/dev/stdout', 'w') as f: f.write(str(2 * n))", "21", "42"),
    "stdin_replaced": ("import sys\nsys.stdin = open('/dev/stdin')\nprint(sum(map(int, sys.stdin.readline().split())))",
                       "1 2 3\n", "6"),
    "classes": ("from dataclasses import dataclass, field\n@dataclass(order=True)\nclass P:\n    x: int\n"
    "    y: int = field(compare=False)\n"
                "print(min(P(2, 0), P(1, 5)))", "", "P(x=1, y=5)"),
    "pickled_copies": ("import copy, pickle\nclass A: pass\na = A(); a.x = [1]\n"
    "print(pickle.loads(pickle.dumps(a)).x, copy.deepcopy(a).x)",
                       "", "[1] [1]"),
    "generators": ("from itertools import permutations, accumulate\n"
    "print(len(list(permutations(range(8)))), list(accumulate([1, 2, 3])))",
                   "", "40320 [1, 3, 6]"),
    "regular_expressions": ("import re\nprint(re.findall(r'\\d+', input()))", "a1b22", "['1', '22']"),
    "unicode": ("s = input()\nprint(s[::-1], len(s))", "añ中😀\n", "😀中ña 4"),
    "asyncio": ("import asyncio\nasync def f(n):\n    await asyncio.sleep(0.01)\n    return n\n"
                "async def main(): print(await asyncio.gather(f(1), f(2)))\nasyncio.run(main())", "", "[1, 2]"),
    "thread_pool": ("from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(8) as p: print(sum(p.map(len, ['a', 'bb'])))",
                    "", "3"),
    "random_with_a_seed": ("import random\nrandom.seed(5)\nprint(random.randrange(10 ** 6))", "",
                           str(random.Random(5).randrange(10**6))),
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

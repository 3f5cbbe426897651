"""Programs that cheat tests which are code of the data set (HumanEval's `check`): which succeed is what SECURITY.md says.

A cheat that stops working is good news: move it to FAILS, and correct SECURITY.md.
"""

import asyncio

import pytest
from lines import write_lines

from fairlen.tasks.dataset import warn_of_cheats
from fairlen.tasks.load import read_sets
from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.program import CAN_BE_CHEATED, ProgramTests, grade_code

CHECK = """

def check(candidate):
    assert candidate([1, 2]) == 1.5
    assert candidate([4]) == 4
    assert abs(candidate([3]) - 3) < 1e-6
"""
TESTS = ProgramTests((("", "true"),), "mean", 'def mean(xs):\n    """ Mean. """\n', CHECK)
WRONG = "def mean(xs): return 0\n"
FORGE = "__main__.channel.write(b'%s 4\\ntrue' % __main__.word.encode()); __main__.channel.flush(); os._exit(0)"

FAILS = {
    "a wrong answer": WRONG,
    "sys.exit(0)": f"{WRONG}import sys\nsys.exit(0)\n",
    "os._exit(0)": f"{WRONG}import os\nos._exit(0)\n",
    "an exit in the function": "def mean(xs):\n    raise SystemExit(0)\n",
    "an exception of its own": "class Done(BaseException): pass\ndef mean(xs):\n    raise Done\n",
    "prints markers": f"{WRONG}print('true'); print('correct'); print('PASSED')\n",
    "a check of its own": f"{WRONG}def check(f): pass\n",
    "a run_check of its own": f"{WRONG}def run_check(): return True\n",
    "a Solution with run_check": f"{WRONG}class Solution:\n    def run_check(self): return True\n",
    "a Solution with every method": f"{WRONG}class Solution:\n    def __getattr__(self, name): return lambda: True\n"
    "class Meta(type):\n    def __getattr__(cls, name): return lambda self: True\nclass Solution(metaclass=Meta): pass\n",
    "replaces abs": f"import builtins\nbuiltins.abs = lambda x: 0\n{WRONG}",
    "jumps by a trace function": "import sys\ndef mean(xs):\n    def trace(frame, event, arg):\n        frame.f_lineno += 1\n"
    "        return trace\n    sys._getframe(1).f_trace = trace\n    sys.settrace(trace)\n    return 0\n",
}
SUCCEEDS = {
    "equals everything": "class Any(float):\n    def __eq__(self, other): return True\n"
    "    def __sub__(self, other): return self\n    def __abs__(self): return self\n"
    "    def __lt__(self, other): return True\ndef mean(xs): return Any(0)\n",
    "reads the tests": "import re\ndef mean(xs):\n    for given, wanted in re.findall(r'candidate\\((.*?)\\) == ([\\d.]+)',"
    " open('solution.py').read()):\n        if eval(given) == xs: return float(wanted)\n    return 3\n",
    "writes the message at once": f"{WRONG}import __main__, os\n{FORGE}\n",
    "writes the message in a hook": f"{WRONG}import __main__, os, sys\ndef hook(*_):\n    {FORGE}\nsys.excepthook = hook\n",
    "replaces a function of the driver": f"{WRONG}import __main__\n__main__.getattr = lambda *_: (lambda: True)\n",
    "replaces the class of its module": f"{WRONG}import sys\nsys.modules['solution'].__class__ = type('X', (type(sys),), "
    "{'__getattribute__': lambda self, name: (lambda: True) if name == 'run_check' else object.__getattribute__(self, name)})\n",
}


@pytest.fixture(scope="module")
def sandbox() -> Bubblewrap:
    return Bubblewrap()


@pytest.mark.parametrize("code", FAILS.values(), ids=FAILS)
def test_a_cheat_that_fails(sandbox, code):
    assert asyncio.run(grade_code(sandbox, code, TESTS)) == "incorrect"


@pytest.mark.parametrize("code", SUCCEEDS.values(), ids=SUCCEEDS)
def test_a_cheat_that_succeeds_as_the_documentation_says(sandbox, code):
    assert asyncio.run(grade_code(sandbox, code, TESTS)) == "correct"


@pytest.mark.parametrize("code", SUCCEEDS.values(), ids=SUCCEEDS)
def test_the_same_cheats_gain_nothing_where_tests_are_inputs_and_outputs(sandbox, code):
    """Only the message of a passed test can be forged, and it holds the value that is expected, which the program lacks."""
    tests = ProgramTests((("[1, 2]", "1.5"), ("[4]", "4.0")), "mean")
    assert asyncio.run(grade_code(sandbox, code, tests)) == "incorrect"


def test_an_honest_program_is_correct(sandbox):
    assert asyncio.run(grade_code(sandbox, "    return sum(xs) / len(xs)\n", TESTS)) == "correct"
    method = "class Solution:\n    def mean(self, xs): return sum(xs) / len(xs)\n"
    tests = ProgramTests((("[1, 2]", "1.5"),), "mean")
    assert asyncio.run(grade_code(sandbox, method, tests)) == "correct"


def test_training_on_such_rows_warns(tmp_path):
    humaneval = {
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "test": "def check(c):\n    assert c(1) == 1\n",
        "task_id": "a",
    }
    pairs = {"prompt": "Double it.", "function": "f", "tests": [{"input": "1", "output": "2"}]}
    (cheated,) = read_sets([str(write_lines(tmp_path / "humaneval.jsonl", humaneval))])
    (safe,) = read_sets([str(write_lines(tmp_path / "pairs.jsonl", pairs))])
    warning = warn_of_cheats([*cheated.rows, *safe.rows])
    assert warning.startswith(f"warning: 1 of 2 rows to train on: {CAN_BE_CHEATED}")
    assert warn_of_cheats(safe.rows) == ""

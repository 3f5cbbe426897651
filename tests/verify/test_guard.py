"""Graders hand no text to an evaluator, and a worker would not run it: answers that are programs, and the sources of graders."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from asking import compare
from attacks import write_attacks

import fairlen.verify
from fairlen.verify.answer_pool import AnswerPool, WorkerPool

ATTEMPTS = """
import json, os, sys
import pickle, socket, subprocess, ctypes, dataclasses, collections, tempfile
from fairlen.verify.worker import REFUSED, guard
path, done = sys.argv[1], {}
class Reduced:
    def __reduce__(self):
        return os.system, ("touch " + path,)
pickled = pickle.dumps(Reduced())
guard()
def attempt(name, action):
    before = len(REFUSED)
    try:
        action()
        done[name] = len(REFUSED) == before
    except Exception:
        done[name] = False
attempt("eval", lambda: eval("1"))
attempt("exec", lambda: exec("x = 1"))
attempt("compiled", lambda: exec(compile("x = 1", "<any>", "exec")))
attempt("write", lambda: open(path, "w"))
attempt("append", lambda: open(path, "a"))
attempt("descriptor", lambda: os.open(path, os.O_CREAT))
attempt("remove", lambda: os.remove(path))
attempt("system", lambda: os.system("touch " + path))
attempt("process", lambda: subprocess.run(["touch", path]))
attempt("fork", lambda: os.fork() or os._exit(0))
attempt("pickle", lambda: pickle.loads(pickled))
attempt("library", lambda: ctypes.CDLL(None).system(b"true"))
attempt("socket", lambda: socket.create_connection(("127.0.0.1", 9)))
attempt("name", lambda: socket.getaddrinfo("localhost", 80))
attempt("may read", lambda: open(__import__("json").__file__).read())
attempt("may import", lambda: __import__("colorsys"))
attempt("may define a tuple", lambda: collections.namedtuple("Pair", "a b"))
attempt("may define a class", lambda: dataclasses.make_dataclass("Pair", ["a", "b"]))
attempt("may parse", lambda: __import__("ast").literal_eval("[1, 2]"))
sys.stdout.write(json.dumps(done))
"""


def test_a_guarded_process_runs_no_text_and_changes_nothing(tmp_path):
    path = tmp_path / "ran"
    done = subprocess.run([sys.executable, "-c", ATTEMPTS, str(path)], capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert {name for name, worked in found.items() if worked} == {name for name in found if name.startswith("may ")}
    assert len(found) == 19 and not path.exists()


def test_a_grader_that_evaluates_gives_no_verdict_and_the_next_question_a_new_worker(tmp_path):
    """The module evaluates its answers; an expression that would be 1 is an error, whatever it is caught by."""
    path = tmp_path / "ran"
    with closing(WorkerPool(1, 20.0, 1024, "evaluating")) as pool:
        for _ in range(2):
            assert (
                pool.answer(json.dumps({"answer": f"open({str(path)!r}, 'w') and 1"})) == "error" and not path.exists()
            )


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_math_verify_evaluates_no_answer(tmp_path, step):
    """Every step-th attack, as the answer and within a formula: none is correct or runs, and honest verdicts are as before."""
    path = tmp_path / "ran"
    with closing(AnswerPool(workers=1, deadline=10.0)) as pool:
        for kind, attack in [*write_attacks(path, 9).items()][::step]:
            for answer in (attack, rf"\frac{{1}}{{2}}+\text{{{attack}}}", rf"x_{{{attack}}}"):
                verdict = compare(pool, r"\frac{x}{2}+17", answer)
                assert verdict in ("incorrect", "timeout", "error") and not path.exists(), (kind, answer, verdict)
        assert compare(pool, r"\frac{x}{2}+17", r"17+\frac12 x") == "correct"
        assert compare(pool, r"\frac{x}{2}+17", r"17+\frac13 x") == "incorrect"


NAMES = {"eval", "exec", "compile", "__import__", "parse_expr", "sympify", "literal_eval", "lambdify", "import_module"}
MODULES = {"subprocess", "pickle", "marshal", "os.system", "os.popen", "ctypes", "yaml.load", "runpy"}


def find_evaluators(path: Path) -> Iterator[str]:
    """Calls in a file that could run a text; methods of that name count where they belong to a module."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not any(re.search(rf"\b{name.rpartition('.')[2]}\b", text) for name in NAMES | MODULES):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            owner, _, name = called.rpartition(".")
            is_named = name in NAMES and owner in ("", "sympy", "sp", "ast", "importlib", "builtins")
            if is_named or owner in MODULES or called in MODULES:
                yield called


def list_evaluators(package: str) -> dict[str, str]:
    """Return those of a package, by file."""
    spec = find_spec(package)
    assert spec and spec.origin, package
    root = Path(spec.origin)
    files = root.parent.rglob("*.py") if root.name == "__init__.py" else [root]
    found = {str(path.relative_to(root.parent)): Counter(find_evaluators(path)) for path in sorted(files)}
    shown = {
        name: " ".join(f"{call}:{count}" for call, count in sorted(calls.items())) for name, calls in found.items()
    }
    return {name: calls for name, calls in shown.items() if calls}


REVIEWED = {
    # of the extraction of plain expressions, which `equivalence` does not ask for
    "math_verify": {"parser.py": "parse_expr:1"},
    # of values of variables, which nobody gives; of arguments that are expressions
    "latex2sympy2_extended": {"latex2sympy2.py": "parse_expr:1", "logic.py": "sympify:1"},
    "antlr4": {},
}  # fmt: skip
"""Calls in what graders import, by package and file. Each was read: what it is given is no text of a model."""


@pytest.mark.slow
@pytest.mark.parametrize("package", REVIEWED)
def test_what_grades_has_no_evaluator_that_nobody_has_read(package):
    assert list_evaluators(package) == REVIEWED[package]


def test_our_own_graders_evaluate_nothing():
    """`process` and its like start programs: the sandbox, a worker, a comparison of outputs."""
    root = Path(fairlen.verify.__file__).parent
    found = {path.name: {*find_evaluators(path)} for path in sorted(root.glob("*.py"))}
    started = {name: calls for name, calls in found.items() if calls}
    assert started == {
        "answer_pool.py": {"subprocess.Popen"}, "bubblewrap.py": {"subprocess.run"}, "execution.py": {"subprocess.run"},
        "process.py": {"subprocess.Popen"}, "program.py": {"importlib.import_module"},
        "worker.py": {"ctypes.CDLL"},
    }  # fmt: skip


def test_an_evaluator_is_found(tmp_path):
    path = tmp_path / "new.py"
    path.write_text(
        "import ast, os, pickle\nx = eval(y)\nast.literal_eval(y)\nos.system(y)\npickle.loads(y)\nmodel.eval()\n"
    )
    assert sorted(find_evaluators(path)) == ["ast.literal_eval", "eval", "os.system", "pickle.loads"]


def test_math_verify_is_asked_for_latex_alone():
    """`ExprExtractionConfig` is what leads to `parse_expr` in Math-Verify."""
    from math_verify import LatexExtractionConfig

    from fairlen.verify.equivalence import LATEX

    assert [type(one) for one in LATEX] == [LatexExtractionConfig]

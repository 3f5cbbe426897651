"""Rules of the source: what imports what, what never occurs, and that the core needs no torch."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from compare.test_results import make_runs
from loops import over
from report_runs import write_run

import fairlen

SOURCE = Path(fairlen.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = Path(__file__).parent

LAYERS = (
    ("channels", "checks", "distributions", "precision", "schema", "secrets", "playground"),
    ("batch", "console"),
    ("rollouts",),
    ("metrics",),
    ("files", "sampling"),
    ("methods.stages", "engine", "verify", "hangs", "plugins"),
    ("methods",),
    ("settings", "testing"),
    ("tasks",),
    ("policy", "audit.log", "flags"),
    ("audit.statistics",),
    ("audit.readers",),
    ("audit",),
    ("report",),
    ("evaluate", "catalogue"),
    ("watch",),
    ("loop",),
    ("fairlen", "train.run"),
    ("train",),
    ("compare", "doctor", "integrations"),
    ("integrations.trl", "integrations.verl"),
    ("cli",),
    ("__main__",),
)
"""Rooms, lowest first: packages, those within them, and modules with a layer of their own. A room imports itself and what is
below it."""

LAYER = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms}


def module_of(path: Path) -> str:
    """fairlen/methods/stages/reward.py -> fairlen.methods.stages.reward; fairlen/__init__.py -> fairlen"""
    return ".".join(("fairlen", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


@cache
def read_tree(path: Path) -> ast.Module:
    """Parse a file once."""
    return ast.parse(path.read_text())


@cache
def read_calls(path: Path) -> list[tuple[ast.Call, str]]:
    """Calls of a file with the names that they call, found once for all rules."""
    calls = (node for node in ast.walk(read_tree(path)) if isinstance(node, ast.Call))
    return [(call, ast.unparse(call.func)) for call in calls]


def room_of(module: str) -> str:
    """fairlen.methods.stages.reward -> methods.stages; fairlen.batch -> batch; fairlen -> fairlen"""
    parts = module.split(".")[1:]
    if not parts or ".".join(parts) in LAYER:
        return ".".join(parts) or "fairlen"
    package = parts if (SOURCE / Path(*parts)).is_dir() else parts[:-1]
    return ".".join(package) or parts[0]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of fairlen's, those in functions and for type checking included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fairlen":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield node.lineno, name if name in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.startswith("fairlen."))


def upward_imports(module: str, tree: ast.AST) -> list[str]:
    here = room_of(module)
    return [
        f"{line}: {here} imports {there}"
        for line, there in imports(tree)
        if room_of(there) != here and LAYER[room_of(there)] >= LAYER[here]
    ]


def test_every_module_has_a_layer_and_every_layer_modules():
    assert {room_of(module) for module in MODULES} == set(LAYER)
    assert sum(map(len, LAYERS)) == len(LAYER)


def test_imports_go_downwards_only():
    assert {name: found for name, path in MODULES.items() if (found := upward_imports(name, read_tree(path)))} == {}


def test_an_upward_import_is_found():
    for text in (
        "from fairlen.train.loop import Trainer",
        "def f():\n    import fairlen.cli",
        "from fairlen.evaluate import run",
    ):
        assert len(upward_imports("fairlen.methods.method", ast.parse(text))) == 1
    text = "if TYPE_CHECKING:\n    from fairlen.methods.method import Method"
    assert upward_imports("fairlen.batch", ast.parse(text)) == ["2: batch imports fairlen.methods.method"]


def test_modules_import_each_other_in_no_circle():
    graph = {module: {there for _, there in imports(read_tree(path))} - {module} for module, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_two_classes_of_the_package_have_one_name():
    names = Counter(node.name for path in FILES for node in read_tree(path).body if isinstance(node, ast.ClassDef))
    assert [name for name, number in names.items() if number > 1] == []


TABLES = {"Responses", "Segments"}


def built_tables(tree: ast.AST) -> list[str]:
    """Calls that make a table of columns; a row of one is a Response or a Segment."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [
        f"{call.lineno}: {ast.unparse(call.func)}" for call in calls if ast.unparse(call.func).split(".")[-1] in TABLES
    ]


@over("path", FILES)
def test_tables_are_built_in_one_place(path):
    """By fairlen.batch: every trainer, integration and reader hands it rows."""
    found = built_tables(read_tree(path))
    assert len(found) == (2 if path == SOURCE / "batch.py" else 0), found


def test_a_second_table_builder_is_found():
    for text in ("Segments(*columns)", "def build():\n    return batch.Responses(prompt=ids)"):
        assert len(built_tables(ast.parse(text))) == 1
    assert built_tables(ast.parse("build_segments([Segment(0, 1, 0, 3)])")) == []


FORBIDDEN = {
    "pickle": r"\b((import|from) pickle\b|pickle\.loads?\(|Unpickler\b)",
    "torch.load": r"\btorch\.load\((?!.*\bweights_only=True\b)",
    "eval or exec": r"(?<![\w.])(eval|exec)\(",
    "a shell": r"shell\s*=\s*True|\bos\.system\(|\bos\.popen\(",
    "remote code": r"trust_remote_code\s*=\s*True",
    "yaml.load": r"\byaml\.load\(",
    "a home folder, which need not exist": r"\bPath\.home\(|(?<!os\.path)\.expanduser\(",
}
"""Patterns that occur nowhere in the source."""
HAS_HOME = {"watch/command.py"}
"""Modules that handle a missing home folder."""


@over("path", FILES)
def test_nothing_runs_what_it_reads(path):
    for name, pattern in FORBIDDEN.items():
        if "home folder" in name and str(path.relative_to(SOURCE)) in HAS_HOME:
            continue
        found = re.search(pattern, path.read_text())
        assert not found, f"{path.name}: {name}: {found.group(0) if found else ''}"


def test_the_patterns_find_what_they_forbid():
    code = ("from pickle import loads", "torch.load(path)", "eval(text)", "run(x, shell=True)")
    bad = (*code, "f(trust_remote_code=True)", "yaml.load(f)", "Path.home() / name")
    for line, pattern in zip(bad, FORBIDDEN.values(), strict=True):
        assert re.search(pattern, line)
    assert not re.search(FORBIDDEN["eval or exec"], "model.eval()")


LOADERS = {"from_pretrained", "from_config", "LLM", "EngineArgs", "AsyncEngineArgs"}
"""What loads a model, its config or its tokenizer, and could run code of it."""
HARMLESS = {"GenerationConfig"}
"""Classes whose `from_pretrained` reads JSON alone."""


def test_whatever_loads_a_model_says_that_its_code_is_not_run():
    found = [(path, call, name.split(".")) for path in FILES for call, name in read_calls(path)]
    loading = [(path, call) for path, call, parts in found if parts[-1] in LOADERS and not HARMLESS & set(parts)]
    assert len(loading) >= 5
    for path, call in loading:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert given.get("trust_remote_code") == "False", f"{path.name}:{call.lineno}"


WRITERS = re.compile(r"(\.write_text|\.write_bytes|^shutil\.(copy|move)\w*|^os\.truncate)$")
GIVEN = re.compile(r"(^pq\.write_table|^pq\.ParquetWriter|^save_file|\.save_pretrained)$")
"""Writers of other packages, which open a path by themselves."""
OWN_FOLDERS = {"policy/model.py", "policy/lora.py", "train/run/checkpoint.py"}
"""Write into a folder that has just been made, under a name that nothing had."""
IN_SANDBOX = {"verify/program.py", "verify/sandbox.py", "verify/worker.py"}
"""Write into pipes and a private temporary folder, or run within the sandbox."""


def is_writing(call: ast.Call, where: str) -> bool:
    """Whether a call could write through a link. What `fairlen.files.folders` hands out to be written is called staging."""
    name = ast.unparse(call.func)
    if name.split(".")[-1] == "open":
        given = (*call.args[-1:], *(word.value for word in call.keywords))
        words = [str(one.value) for one in given if isinstance(one, ast.Constant)]
        found = any(re.fullmatch(r"[rwaxbt+]*[wax+][rwaxbt+]*", word) for word in words)
    else:
        found = bool(WRITERS.search(name) or (GIVEN.search(name) and where not in OWN_FOLDERS))
    return found and "staging" not in ast.unparse(call)


def writing_calls(path: Path) -> list[str]:
    where = str(path.relative_to(SOURCE))
    if where == "files/folders.py" or where in IN_SANDBOX:
        return []
    return [f"{call.lineno}: {ast.unparse(call)}" for call, _ in read_calls(path) if is_writing(call, where)]


@over("path", FILES)
def test_files_are_written_in_one_way(path):
    """By fairlen.files.folders, which follows no link."""
    assert writing_calls(path) == []


READERS = re.compile(
    r"(^open|\.open|\.read_text|\.read_bytes|^tomllib\.load|^json\.load|^yaml\.load|^pq\.(ParquetFile|read_\w+)"
    r"|^pa\.(memory_map|input_stream|OSFile)|ZipFile|^TarFile|\.from_file|^load_file|^safe_open"
    r"|^np\.(load|loadtxt|genfromtxt|fromfile|memmap))$"
)
"""Functions and methods that open a path for reading."""
MEMBER_OF = re.compile(r"^(self|archive)\.open$")
"""Calls that open a member of an archive, or are no file at all."""
READS_OTHERWISE = {
    "files/foreign.py": "the helper that all others use",
    "files/folders.py": "writes, and syncs what it wrote",
    "files/limits.py": "/proc",
    "engine/device.py": "/proc and /sys",
    "train/memory.py": "/proc",
    "report/page.py": "files of the package",
    "methods/peers.py": "files of the package",
    "verify/process.py": "/proc",
}
"""Modules that open paths in another way than `fairlen.files.foreign`, with the reason."""


def foreign_reads(tree: ast.AST) -> list[str]:
    """Find code that opens a path for reading without the check that it is a regular file.

    A reader of another package may be handed a path that was checked; its variable then has "regular" in its name. What has
    "staging" in its name was just written, BytesIO is memory, and O_WRONLY opens to write.
    """
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, text = ast.unparse(call.func), ast.unparse(call)
        is_checked = (
            re.search(r"regular|staging|BytesIO|O_WRONLY", text) or MEMBER_OF.search(name) or is_writing(call, "")
        )
        handed_over = [
            ast.unparse(argument) for argument in call.args if isinstance(argument, ast.Name | ast.Attribute)
        ]
        readers = handed_over if is_checked else [name, *handed_over]
        found += [f"{call.lineno}: {reader}" for reader in readers if READERS.search(reader)]
    return found


@over("path", FILES)
def test_foreign_files_are_opened_in_one_way(path):
    """By fairlen.files.foreign, so that a pipe or a device is an error and not a hang."""
    if str(path.relative_to(SOURCE)) not in READS_OTHERWISE:
        assert foreign_reads(read_tree(path)) == []


def test_modules_that_open_files_otherwise_still_do():
    for name in READS_OTHERWISE:
        if name != "files/foreign.py":
            assert foreign_reads(read_tree(SOURCE / name)), f"{name} needs no exception any more"


def test_a_foreign_read_is_found():
    bad = ("open(p)", "p.open('rb')", "p.read_text()", "map(pq.read_table, parts)", "ZipFile(p)", "np.load(p)")
    fine = (
        "open_regular_file(p)",
        "pq.read_table(require_regular_file(p))",
        "ZipFile(BytesIO(data))",
        "archive.open(n)",
    )
    assert all(len(foreign_reads(ast.parse(text))) == 1 for text in bad)
    assert all(foreign_reads(ast.parse(text)) == [] for text in (*fine, "read_file_text(p)", "a.read(4)"))


OUTSIDE = {"console.py", "verify/execution.py", "verify/sandbox.py", "verify/outputs.py"}
"""Programs of their own, which print to a pipe; and the boundary itself."""


@over("path", FILES)
def test_what_is_printed_goes_through_the_terminal(path):
    """By fairlen.console, which shows control characters as text."""
    if str(path.relative_to(SOURCE)) in OUTSIDE:
        return
    for call, name in read_calls(path):
        assert name not in ("print", "Console") and not re.search(r"std(out|err)\.write$", name), call.lineno


def test_what_writes_is_found():
    bad = ["open(p, 'w')", "p.open('ab')", "p.open(mode='x')", "p.write_text(x)", "os.truncate(p, 0)"]
    fine = ["open(p)", "p.open('rb')", "a.copy()", "staging.write_bytes(x)", "pq.write_table(t, staging)"]
    fine += ["open_to_append(p)"]
    for text in (*bad, "shutil.copyfile(a, b)", "pq.write_table(t, p)", *fine):
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call) and is_writing(call, "x.py") == (text not in fine), text


@pytest.mark.slow
def test_methods_plans_and_commands_about_numbers_import_no_torch(tmp_path):
    """One process for all of them; a report is written where nothing of torch can be imported."""
    code = """
import sys
from fairlen import compose, updates
from fairlen.cli import main
from fairlen.report import write_report
from fairlen.rollouts import Response, Rollouts, whole_segments
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
rows = tuple(
    Response(p, (9,) + (1,) * n, 1, (-1.0,) * n, "stop", seed=0, outcome=float(verdict == "correct"), status=verdict)
    for p, verdict in ((0, "correct"), (0, "incorrect"), (1, "correct"), (1, "incorrect"))
    for n in (1, 3 + p, 5)
)
for name in [*BASES, *(f"grpo+{m}" for m in MODIFIERS)]:
    method = compose(name)
    (update,) = updates(method.score(Rollouts(rows, whole_segments(rows), 8), [{"effort": "low"}] * 2))
    assert method.weigh(update).weight.min() > 0, name
main(["methods", "--json"]), main(["eval", "--suite", "list"]), main(["audit", sys.argv[1]])
assert not (found := {"torch", "transformers", "tokenizers"} & set(sys.modules)), found
sys.modules |= dict.fromkeys(("torch", "transformers", "tokenizers"))
write_report(*sys.argv[2:4])
assert main(["compare", *sys.argv[4:]]) == 0
"""
    formats, run = TESTS / "fixtures_formats", write_run(tmp_path / "run", batches=1, prompts=1)
    runs = make_runs(tmp_path / "runs")
    command = [sys.executable, "-c", code, str(formats), str(run), str(tmp_path / "page.html"), *runs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    num = sum(path.is_dir() and path.name[0] != "_" for path in formats.iterdir())
    assert f"{num} logs: one for each format and folder, never mixed" in done.stdout

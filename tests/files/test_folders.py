"""What commands write into a folder of somebody else's stays there: a link in it is replaced or refused, never followed."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlen.cli import main
from fairlen.files.folders import write_file

SMALL = {
    "prompts_per_batch": 2, "updates-per-batch": 2, "max_response_length": 24, "problems": 2, "samples": 1,
    "save-every": 1, "eval-every": 1,
    "threads": 1, "max_num_seqs": 8, "compile": "off",
}  # fmt: skip
TRAIN = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
RUN = [*TRAIN, "--set", "sampling.n=2"]
EVAL = ["--max-response-length", "8", "--samples", "1", "--threads", "1", "--max-num-seqs", "32", "--compile", "off"]
COMPARE = ["grpo:sampling.n=2", "dapo:sampling.n=2", *TRAIN, "--seeds", "1"]
COMMANDS = {
    "train": lambda out: ["train", *RUN, "--rollout-batches", "2", "--resume", "--out", str(out)],
    "eval": lambda out: ["eval", *EVAL, "--out", str(out)],
    "compare": lambda out: ["compare", *COMPARE, "--rollout-batches", "1", "--out", str(out)],
    "report": lambda out: ["report", str(out)],
}


def test_the_links_of_dev_are_not_replaced():
    """As /dev/stdout, which is a link to a file where the output is one."""
    with pytest.raises(OSError, match="/dev/fairlen: a device"):
        write_file(Path("/dev/fairlen"), "text")


def make_folder(command: str, folder: Path) -> None:
    """A folder of a command, with something left to do."""
    if command in ("train", "report"):
        assert main(["train", *RUN, "--rollout-batches", "1", "--out", str(folder)]) == 0
    if command == "eval":
        assert main(COMMANDS["eval"](folder)) == 0
        next((folder / "samples").glob("*.parquet")).unlink()
    if command == "compare":
        assert main(COMMANDS["compare"](folder)) == 0
        next(folder.glob("dapo*/seed-0/done.json")).unlink()


@pytest.fixture(scope="module")
def copy_of(tmp_path_factory) -> Callable[[str, Path], Path]:
    """Copies the folder of a command, which is made once."""
    made: dict[str, Path] = {}

    def copy(command: str, place: Path) -> Path:
        source = "train" if command == "report" else command
        if source not in made:
            made[source] = tmp_path_factory.mktemp("whole") / source
            make_folder(source, made[source])
        return Path(shutil.copytree(made[source], place))

    return copy


@pytest.fixture
def folder(copy_of, request, tmp_path) -> Path:
    return copy_of(request.param, tmp_path / "run")


def describe(folder: Path) -> dict[str, str]:
    """Every file and link below a folder, by content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def lead_away(folder: Path, name: str, elsewhere: Path) -> None:
    """Puts a link in the place of a name, to a copy of what was there, or to a new file where nothing was."""
    path, target = folder / name, elsewhere / name
    target.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        shutil.move(path, target)
    else:
        target.write_text("precious")
    path.symlink_to(target)


def run(command: str, folder: Path, capsys) -> tuple[int, list[str]]:
    """The exit code and what stderr says; where an error gets through, -1 and its name."""
    capsys.readouterr()
    try:
        code = main(COMMANDS[command](folder))
    except Exception as error:
        return -1, [type(error).__name__]
    return code, capsys.readouterr().err.splitlines()


NAMES = {
    "train": [
        "run.json", "metrics.jsonl", ".lock", "records", "checkpoints", "model", ".tmp-model", "debug", "model/README.md",
        "records/responses-000001.parquet", "records/.tmp-responses-000001.parquet",
    ],
    "eval": ["eval.json", "summary.tmp", "samples", "samples/playground.parquet"],
    "compare": [
        "comparison.json", "results.json", "report.html", "report.html.tmp", "dapo-sampling.n=2", "dapo-sampling.n=2/seed-0",
        "dapo-sampling.n=2/seed-0/done.json", "dapo-sampling.n=2/seed-0/metrics.jsonl", "dapo-sampling.n=2/seed-0/checkpoints",
        "grpo-sampling.n=2/seed-0/records",
    ],
    "report": ["report.html", ".tmp-report.html"],
}  # fmt: skip


def slow_if(command: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if command == "compare" else []


PARAMETERS = [pytest.param(command, marks=slow_if(command)) for command in COMMANDS]


@pytest.mark.parametrize(
    ("folder", "name"),
    [pytest.param(c, name, marks=slow_if(c)) for c, names in NAMES.items() for name in names],
    indirect=["folder"],
)
def test_a_link_is_not_followed(folder, name, request, tmp_path, capsys):
    command, elsewhere = request.node.callspec.params["folder"], tmp_path / "elsewhere"
    lead_away(folder, name, elsewhere)
    before = describe(elsewhere)
    code, said = run(command, folder, capsys)
    assert describe(elsewhere) == before
    refused = [line for line in said if line.startswith(f"fairlen {command}: ")]
    assert code == 0 or (
        code == 2 and len(refused) == 1 and "a link to" in refused[0] and str(folder / name) in refused[0]
    )


@pytest.mark.parametrize("folder", PARAMETERS, indirect=True)
def test_every_name_at_once(folder, request, tmp_path, capsys):
    """All files are links to files elsewhere, and beside each is one under every name that a part of it might have."""
    command, elsewhere = request.node.callspec.params["folder"], tmp_path / "elsewhere"
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        name = path.relative_to(folder)
        for one in (name.name, f"{name.stem}.tmp", f"{name.name}.tmp", f".tmp-{name.name}"):
            lead_away(folder, str(name.with_name(one)), elsewhere)
    before = describe(elsewhere)
    code, _ = run(command, folder, capsys)
    assert describe(elsewhere) == before
    assert code in (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("folder", PARAMETERS, indirect=True)
def test_a_folder_that_is_reached_through_a_link_works(folder, request, tmp_path, capsys):
    command = request.node.callspec.params["folder"]
    (tmp_path / "short").symlink_to(folder)
    code, said = run(command, tmp_path / "short", capsys)
    assert code == 0, said


@pytest.mark.parametrize("command", [pytest.param(c, marks=slow_if(c)) for c in ("train", "compare")])
def test_links_that_wandb_makes_lead_where_they_like(command, copy_of, tmp_path, capsys):
    """wandb keeps the log of its core in ~/.cache, and a link to it in the folder of the run; another link stays within."""
    folder, cache = copy_of(command, tmp_path / "run"), tmp_path / "cache/core-debug-1.log"
    cache.parent.mkdir()
    cache.write_text("theirs")
    run_folder = folder / "dapo-sampling.n=2/seed-0" if command == "compare" else folder
    (run_folder / "wandb/run-1/logs").mkdir(parents=True)
    (run_folder / "wandb/run-1/logs/debug-core.log").symlink_to(cache)
    (run_folder / "wandb/latest-run").symlink_to("run-1")
    code, said = run(command, folder, capsys)
    assert code == 0, said
    assert cache.read_text() == "theirs"


@pytest.mark.parametrize("name", ["wandb", "records/away"])
def test_a_folder_of_wandb_is_no_link_itself(name, copy_of, tmp_path, capsys):
    folder = copy_of("train", tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (folder / "wandb").mkdir(exist_ok=True) if name != "wandb" else None
    (folder / name).symlink_to(tmp_path / "elsewhere")
    code, said = run("train", folder, capsys)
    assert code == 2 and str(folder / name) in said[0] and "a link to" in said[0]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_files_can_be_read_by_whom_the_umask_lets(copy_of, tmp_path, capsys):
    folder, before = copy_of("report", tmp_path / "run"), os.umask(0o027)
    try:
        assert run("report", folder, capsys)[0] == 0
    finally:
        os.umask(before)
    assert (folder / "report.html").stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe: give a regular file"):
        write_file(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()

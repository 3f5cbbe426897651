"""Whatever happens while a checkpoint is written or after it: the newest good one is loaded, never a bad one."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from fairlen.train.run.checkpoint import Archive, Checkpoint, keep_newest, list_checkpoints, load_newest

PARTS = ("model", "optimizer", "streams")


def made(value: int) -> Checkpoint:
    tensors = {part: {"x": torch.full((1000,), float(value))} for part in PARTS}
    return Checkpoint(tensors, {"value": value}, {"responses": pa.table({"x": [float(value)] * 1000})})


@pytest.fixture
def archive(tmp_path) -> Archive:
    """With checkpoints 1 and 2."""
    archive = Archive(tmp_path / "checkpoints", keep=2)
    assert archive.save(1, 1, made(1)) and archive.save(2, 2, made(2))
    return archive


def loaded(folder: Path) -> int:
    """Which checkpoint is loaded; all of its numbers are looked at."""
    found = load_newest(folder)
    assert found is not None
    values = {float(x) for part in found[1].tensors.values() for x in part["x"]} | {float(found[1].state["value"])}
    values |= set(found[1].tables["responses"]["x"].to_pylist())
    assert set(found[1].tensors) == set(PARTS) and len(values) == 1
    return int(values.pop())


def fork(work) -> int:
    """How a forked copy of this process ended that did `work`."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save_broken(archive: Archive, patch: str, log: Path) -> tuple[int, list[str]]:
    """Saves checkpoint 3 with a fault, in a forked process; how it ended, and the calls of the system that it made."""
    import patches

    def work() -> None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        sys.stdout = os.fdopen(1, "w")
        patches.apply(patch)
        print("saved", archive.save(3, 3, made(3)), flush=True)

    code = fork(work)
    return code, re.findall(r"^system call \d+: (\w+)", log.read_text(), re.M)


@pytest.fixture(scope="module")
def calls(tmp_path_factory) -> list[str]:
    """Every call of the system that saving a checkpoint makes, in order."""
    root = tmp_path_factory.mktemp("calls")
    archive = Archive(root / "checkpoints", keep=2)
    assert archive.save(1, 1, made(1)) and archive.save(2, 2, made(2))
    code, calls = save_broken(archive, "kill:1000", root / "log")
    assert code == 0 and loaded(archive.folder) == 3
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "raise", "half"])
def test_a_fault_at_any_point_leaves_a_good_checkpoint_to_load(calls, archive, tmp_path, kind):
    """The third is loaded from when it has its name on, the second before, and after the fault the next one is saved."""
    aside, renamed = tmp_path / "aside", calls.index("rename")
    shutil.copytree(archive.folder, aside)
    for place, name in enumerate(calls):
        shutil.rmtree(archive.folder)
        shutil.copytree(aside, archive.folder)
        code, _ = save_broken(archive, f"{kind}:{place}", tmp_path / "log")
        assert code == (0 if kind == "raise" else -signal.SIGKILL), f"{place}: {name}"
        has_name = place > renamed or (kind == "half" and place == renamed)
        has_name |= kind == "raise" and name == "rmtree"  # which no full disk hinders
        assert loaded(archive.folder) == (3 if has_name else 2), f"{kind} at {place}: {name}"
        assert archive.save(4, 4, made(4)) and loaded(archive.folder) == 4
        assert not [path for path in archive.folder.iterdir() if path.name.startswith(".tmp")]


def test_a_manifest_that_is_not_checked_would_load_a_bad_one(archive, monkeypatch):
    """The negative control of all tests here: without the check, a flipped bit is loaded."""
    newest = list_checkpoints(archive.folder)[-1]
    flip(newest / "model.safetensors", -1)
    monkeypatch.setattr("fairlen.train.run.checkpoint.verifies", lambda path: True)
    with pytest.raises(AssertionError):
        loaded(archive.folder)


def flip(path: Path, place: int) -> None:
    """Turns one bit over."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


FILES = (
    "model.safetensors", "optimizer.safetensors", "streams.safetensors", "responses.parquet", "state.json", "MANIFEST.json",
)  # fmt: skip


def leave_out(path: Path) -> None:
    """Take a file out of the manifest beside it."""
    manifest = json.loads((path.parent / "MANIFEST.json").read_text())
    del manifest[path.name]
    (path.parent / "MANIFEST.json").write_text(json.dumps(manifest))


def test_one_flipped_bit_a_cut_file_a_missing_one_or_one_not_in_the_manifest_is_passed_over(archive, tmp_path):
    aside = tmp_path / "aside"
    shutil.copytree(archive.folder, aside)
    for name in FILES:
        size = (list_checkpoints(aside)[-1] / name).stat().st_size
        damages = [partial(flip, place=place) for place in (0, size // 2, size - 1)]
        damages += [partial(os.truncate, length=length) for length in (0, size // 2, size - 1)]
        damages += [Path.unlink, *[leave_out] * (name != "MANIFEST.json")]
        for number, damage in enumerate(damages):
            shutil.rmtree(archive.folder)
            shutil.copytree(aside, archive.folder)
            damage(list_checkpoints(archive.folder)[-1] / name)
            assert loaded(archive.folder) == 1, (name, number)


def test_damaged_checkpoints_never_push_out_good_ones(archive):
    """The two newest are damaged, and two are kept: after going on from the third newest, it is not removed for them."""
    archive.keep = 3
    assert archive.save(3, 3, made(3))
    for path in list_checkpoints(archive.folder)[1:]:
        flip(path / "model.safetensors", -1)
    assert loaded(archive.folder) == 1
    assert [path.name for path in list_checkpoints(archive.folder)] == ["batch-000001-update-000001"]
    assert sorted(path.name for path in archive.folder.glob("damaged-*")) == [
        "damaged-batch-000002-update-000002",
        "damaged-batch-000003-update-000003",
    ]
    archive.keep = 2
    assert archive.save(2, 2, made(2)) and loaded(archive.folder) == 2
    assert sorted(path.name for path in archive.folder.iterdir()) == [
        "batch-000001-update-000001",
        "batch-000002-update-000002",
    ]


def test_where_no_checkpoint_is_whole_it_says_so_and_touches_none(archive):
    for path in list_checkpoints(archive.folder):
        flip(path / "model.safetensors", -1)
    with pytest.raises(FileNotFoundError, match="none of the checkpoints batch-000001-update-000001, batch-000002"):
        load_newest(archive.folder)
    assert len(list_checkpoints(archive.folder)) == 2


def test_at_the_same_place_a_whole_checkpoint_stays_and_a_damaged_one_is_replaced(archive):
    assert archive.save(2, 2, made(5)) and loaded(archive.folder) == 2
    flip(archive.folder / "batch-000002-update-000002/model.safetensors", -1)
    assert archive.save(2, 2, made(5)) and loaded(archive.folder) == 5
    assert len(list_checkpoints(archive.folder)) == 2
    assert archive.save(2, 2, made(6), done=2) and loaded(archive.folder) == 6  # a rollout batch was collected since


def test_names_sort_by_number_and_old_names_still_do(tmp_path):
    names = ["batch-000002", "batch-000002-update-000004", "batch-000002-update-000004-3", "batch-000010"]
    for name in reversed(names):
        (tmp_path / name).mkdir()
    (tmp_path / "batch-of-mine").mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == names
    keep_newest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names[2:], "batch-of-mine"]


def limit_files(size: int) -> None:
    """Files of this process end at `size` bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [1000, 5000])
def test_a_disk_that_takes_no_more_stops_nothing_and_is_said(archive, capfd, size):
    """The system's own error: files may not grow beyond `size` bytes; each file of tensors has 4,088 or more."""

    def work() -> None:
        limit_files(size)
        assert archive.save(3, 3, made(3)) is (size == 5000) and archive.is_behind is (size < 5000)

    assert fork(work) == 0
    assert loaded(archive.folder) == (3 if size == 5000 else 2)
    told = capfd.readouterr().err
    assert ("no checkpoint was written after update 3" in told and f"{archive.folder} has" in told) is (size < 5000)
    if size < 5000:
        assert "batch-000002-update-000002 is kept" in told
        assert not list(archive.folder.glob(".tmp-*"))


def test_a_run_on_a_full_disk_goes_on_and_fails_at_its_end(whole, tmp_path):
    """Every checkpoint from the second on meets a full disk: all updates are made, the exit code is 1, the first one loads."""
    folder = tmp_path / "run"
    assert whole.forks.run(folder, "raise-from:30", **whole.changes("fspo")) == 1
    log = folder.with_suffix(".log").read_text()
    assert f"[Errno {errno.ENOSPC}] No space left on device" in log
    assert "the last checkpoint could not be written" in log and "update 8: correct" in log
    assert (folder / "model/model.safetensors").exists()
    assert load_newest(folder / "checkpoints") is not None


FULL = """
import resource, signal, sys
from fairlen.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_model_that_cannot_be_saved_at_the_end_is_one_line(tmp_path):
    """The disk takes no file of more than 200,000 bytes, and the shipped model's weights are larger."""
    few = (
        "--rollout-batches 1 --prompts-per-batch 2 --problems 2 --set sampling.n=2 --max-response-length 20 --threads 1"
    )
    command = [sys.executable, "-c", FULL, "train", *few.split(), "--out", str(tmp_path / "run")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 1 and "Traceback" not in found.stderr, found.stderr[-2000:]
    last = found.stderr.strip().splitlines()[-1]
    assert f"{tmp_path}/run/model: " in last and "make room, then go on from the last checkpoint with --resume" in last

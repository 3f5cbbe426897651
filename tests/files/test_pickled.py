"""Pickles are read for their plain data and nothing else: what they hold, and that no pickle runs, fills or stops anything."""

import builtins
import collections
import os
import pickle
import random
import zipfile
from pathlib import Path

import pytest
from loops import over

from fairlen.audit.readers import read
from fairlen.cli import main
from fairlen.files import archives, limits
from fairlen.files.archives import read_plain
from fairlen.files.formats import Unreadable, stream
from fairlen.files.limits import RefusedError

SAMPLE = {
    "group_index": 0, "index": 1, "rollout_id": None, "prompt": [{"role": "user", "content": "1 + 1 €?"}], "response": "two",
    "response_length": 3, "reward": 1.0, "loss_mask": [1] * 2500 + [0], "status": "completed", "tokens": [5, 70_000, -1, 2**40],
    "log_probs": [-0.5, 1e300], "empty": [[], {}, ()], "flags": [True, False, None],
    "metadata": {"pair": (1, 2), "three": (1, 2, 3)},
}  # fmt: skip


def save(path: Path, data: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """A zip as torch.save writes it, with any bytes for a pickle."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("rollout/data.pkl", data)
        archive.writestr("rollout/version", "3\n")
    return path


def as_lists(value):
    if isinstance(value, dict):
        return {key: as_lists(one) for key, one in value.items()}
    return [as_lists(one) for one in value] if isinstance(value, (list, tuple)) else value


@over("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_every_protocol_is_read(protocol):
    value = {"rollout_id": 3, "samples": [SAMPLE, SAMPLE, SAMPLE | {"label": "5"}]}
    assert read_plain(pickle.dumps(value, protocol)) == as_lists(value)


def test_numbers_of_every_size_and_order_are_read():
    """Lists of numbers are read in runs: K, M, J, G and longer ones, each next to each."""
    draw = random.Random(0)
    sizes = (2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**70)
    numbers = [draw.choice((draw.random(), draw.randrange(-size, size))) for size in sizes for _ in range(600)]
    assert read_plain(pickle.dumps(numbers, 2)) == numbers
    assert read_plain(pickle.dumps(dict(zip(map(str, numbers), numbers, strict=True)), 2)) == {
        str(n): n for n in numbers
    }


def test_what_occurs_twice_is_copied():
    shared = {"a": [1]}
    one, other = read_plain(pickle.dumps([shared, shared], 2))
    one["a"].append(2)
    assert other == {"a": [1]}


class Runs:
    """Something that a pickle's loader would call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def calls(marker: Path) -> dict[str, bytes]:
    """Pickles that make `marker` where they are loaded, by the opcode that does it."""
    command = f"touch {marker}"
    text = command.encode()
    return {
        "reduce": pickle.dumps({"samples": [Runs(os.system, command)]}, 2),
        "global in protocol 4": pickle.dumps([Runs(os.system, command)], 4),
        "eval": pickle.dumps(Runs(eval, f"__import__('os').system({command!r})"), 2),
        "getattr": pickle.dumps(Runs(builtins.getattr, Runs(__import__, "os"), "system"), 2),
        "ordered dict": pickle.dumps({"samples": collections.OrderedDict(a=1)}, 2),
        "inst": b"(S'" + text + b"'\nios\nsystem\n.", "obj": b"(cos\nsystem\nS'" + text + b"'\no.",
        "build": b"cos\nsystem\n}X\x08\x00\x00\x00__dict__}sb.", "newobj": b"\x80\x02cos\nsystem\n)\x81.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Pos.system\n.", "persistent on the stack": b"\x80\x02X\x04\x00\x00\x00cpu0Q.",
    }  # fmt: skip


@over("name", calls(Path("marker")))
def test_nothing_that_a_pickle_asks_for_is_run(tmp_path, name, capsys):
    """It is refused in one line that says what to do; the same bytes do run where they are loaded."""
    marker = tmp_path / "ran"
    data = calls(marker)[name]
    path = save(tmp_path / "rollout_0.pt", data)
    with pytest.raises(RefusedError, match=r"a pickle of more than plain data .*write one JSON object a line$"):
        read_plain(data)
    assert main(["audit", str(path)]) == 1
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and "reading one runs whatever code is in it" in said.replace("\n", " ")
    assert not marker.exists()
    if name == "reduce":
        pickle.loads(data)
        assert marker.exists()
        marker.unlink()


def test_tensors_are_refused_with_what_to_do(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "rollout_0.pt"
    torch.save({"rollout_id": 0, "samples": [SAMPLE | {"routed": torch.zeros(2)}]}, path)
    with pytest.raises(Unreadable, match=r"more than plain data \('GLOBAL torch\._utils.*write one JSON object a line"):
        list(stream(path))
    torch.save({"rollout_id": 0, "samples": [SAMPLE]}, path)
    (chunk,) = stream(path)
    assert chunk.get("response") == ["two"] and chunk.get("header") == [{"rollout_id": 0}]
    torch.save([SAMPLE], path, _use_new_zipfile_serialization=False)
    with pytest.raises(Unreadable, match="a pickle, but not in an archive"):
        list(stream(path))


def doubled(times: int) -> bytes:
    """A list of two lists of two lists and so on: 2 ** times of them from a few bytes each."""
    pieces = [b"\x80\x02]q\x00"]
    for number in range(1, times):
        pieces.append(b"]q" + bytes([number]) + b"(h" + bytes([number - 1]) + b"h" + bytes([number - 1]) + b"e")
    return b"".join(pieces) + b"."


def test_what_a_pickle_repeats_is_bounded(monkeypatch):
    monkeypatch.setattr(archives, "MIN_COPIED", 2**20)
    for times in (40, 200):
        with pytest.raises(RefusedError, match="occur in it again and again"):
            read_plain(doubled(times))
    monkeypatch.setattr(archives, "MIN_COPIED", 10_000)
    with pytest.raises(RefusedError, match="occur in it again and again"):
        read_plain(pickle.dumps(["a" * 1000] * 1000, 2))  # a million characters of 3,000 bytes: more than 100 for each


@over(
    "opcodes",
    [
        (b"\x80\x02]r\xff\xff\xff\x7f.", None),  # a place in the memo that a table would reserve 16 GiB for
        (b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", "nested more than 64 deep"),
        (b"\x80\x02]q\x00h\x00a.", None),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "expected 2147483647 bytes"),
        (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.", "expected|exceeds"),
        (b"\x80\x02", "exhausted"),
        (b"\x80\x02.", "make no value|not enough values"),
        (b"\x80\x02]].", "too many values"),
        (b"\x80\x02a.", "IndexError"),
        (b"\x80\x02h\x05.", "KeyError"),
        (b"\x80\x02e.", "IndexError"),
        (b"\x80\x02K\x01K\x02a.", "AttributeError"),
        (b"\x80\x02}K\x01K\x02a.", "AttributeError"),
        (b"\x80\x02}(K\x01u.", "shorter"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "utf-8"),
        (b"\x80\x02\xff.", "unknown"),
        (b"garbage", "no newline found"),
    ],
)
def test_opcodes_of_nobody_end_in_one_error(opcodes):
    data, message = opcodes
    if message is None:
        assert isinstance(read_plain(data), list)
    else:
        with pytest.raises(ValueError, match=message):
            read_plain(data)


def test_no_damage_gets_through(tmp_path):
    """Bytes of a good file are changed, cut and repeated: rows or one Unreadable, and nothing else."""
    draw = random.Random(1)
    whole = pickle.dumps({"rollout_id": 0, "samples": [SAMPLE | {"loss_mask": [1] * 20}] * 3}, 2)
    ends = collections.Counter()
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        cut = bytes(data[: draw.randrange(len(data))] if draw.random() < 0.3 else data)
        path = save(tmp_path / "rollout_0.pt", cut)
        reading = read([str(path)])
        ends["read" if reading.sources else "refused"] += 1
        assert reading.sources or (len(reading.unreadable) == 1 and "\n" not in reading.unreadable[0])
    assert len(ends) == 2 and min(ends.values()) > 10


def test_a_packed_or_huge_pickle_is_refused(tmp_path, monkeypatch):
    data = pickle.dumps({"samples": [SAMPLE]}, 2)
    with pytest.raises(Unreadable, match="compressed, which torch"):
        list(stream(save(tmp_path / "a.pt", data, zipfile.ZIP_DEFLATED)))
    monkeypatch.setattr(limits, "UNPACKED", len(data) - 1)
    with pytest.raises(Unreadable, match=rf"data\.pkl unpacks to more than {len(data) - 1:,} bytes"):
        list(stream(save(tmp_path / "b.pt", data)))

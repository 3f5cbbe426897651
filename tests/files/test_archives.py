"""Archives: members that are stored, deflated or packed with zstd, and archives that are damaged or become too much."""

import json
import struct
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from loops import over

from fairlen.audit.readers import read
from fairlen.files import limits
from fairlen.files.formats import Unreadable, container_of, stream

LOG = Path(__file__).parents[1] / "fixtures_formats" / "inspect" / "inspect.eval"
SAMPLE = {"id": "q", "epoch": 1, "input": "1 + 1?", "output": {}, "scores": {}}


def write_log(path: Path, *samples: bytes | dict, kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("header.json", "{}")
        for number, sample in enumerate(samples):
            text = sample if isinstance(sample, bytes) else json.dumps(sample)
            archive.writestr(f"samples/q_epoch_{number}.json", text)
    return path


def write_packed(path: Path, data: bytes, size: int | None = None, checksum: int | None = None) -> Path:
    """A log whose one sample is packed with zstd (method 93), by hand: members, the directory of them, the end."""
    members, entries = b"", b""
    for name, content in ((b"header.json", b"{}"), (b"samples/a.json", data)):
        packed = pa.compress(content, "zstd", asbytes=True)
        is_sample = name != b"header.json"
        claimed = len(content) if size is None or not is_sample else size
        crc = zlib.crc32(content) if checksum is None or not is_sample else checksum
        shared = struct.pack("<HHHHHIIIHH", 20, 0, 93, 0, 0, crc, len(packed), claimed, len(name), 0)
        entries += (
            b"PK\x01\x02" + struct.pack("<H", 20) + shared + struct.pack("<HHHII", 0, 0, 0, 0, len(members)) + name
        )
        members += b"PK\x03\x04" + shared + name + packed
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 2, 2, len(entries), len(members), 0)
    path.write_bytes(members + entries + end)
    return path


def rows(path: Path) -> list[dict]:
    return [row for chunk in stream(path) for row in chunk.rows()]


@over("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_each_kind_are_read(tmp_path, kind):
    path = write_log(tmp_path / "a.eval", SAMPLE, SAMPLE | {"epoch": 2}, kind=kind)
    assert container_of(path) == "log"
    assert rows(path) == [SAMPLE, SAMPLE | {"epoch": 2}]


def test_inspects_own_archive_has_what_its_json_has():
    """Nine samples, packed with zstd; the .json was written without events."""
    assert {info.compress_type for info in zipfile.ZipFile(LOG).infolist()} == {93}
    packed, plain = rows(LOG), rows(LOG.with_suffix(".json"))
    assert len(packed) == 9
    for one, other in zip(packed, plain, strict=True):
        assert all(one[name] == other[name] for name in ("id", "epoch", "input", "scores", "error"))
        assert [m["content"] for m in one["messages"]] == [m["content"] for m in other["messages"]]


def test_a_sample_that_was_written_again_counts_once(tmp_path):
    path = write_log(tmp_path / "a.eval", SAMPLE)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("samples/q_epoch_0.json", json.dumps(SAMPLE | {"input": "later"}))
    assert [row["input"] for row in rows(path)] == ["later"]


def test_a_broken_sample_is_named_and_the_others_read(tmp_path):
    path = write_log(tmp_path / "a.eval", SAMPLE, b'{"id": ', b"[1]", SAMPLE)
    rejected: list[tuple[int, str]] = []
    found = [row for chunk in stream(path, lambda line, why: rejected.append((line, why))) for row in chunk.rows()]
    assert found == [SAMPLE, SAMPLE]
    assert [line for line, _ in rejected] == [2, 3]
    assert rejected[0][1].startswith("samples/q_epoch_1.json: not JSON") and rejected[1][1].endswith(
        "not an object but list"
    )


def test_members_packed_with_zstd_are_what_was_written_or_refused(tmp_path):
    path = tmp_path / "a.eval"
    assert rows(write_packed(path, json.dumps(SAMPLE).encode())) == [SAMPLE]
    for changes, message in (
        ({"data": b"{}", "checksum": 1}, r"samples/a\.json is not what was written; the file is damaged"),
        ({"data": b"{}" + b" " * 2**20, "size": 2}, r"samples/a\.json is not what was written"),
        ({"data": b"{}", "size": 2**31}, r"samples/a\.json unpacks to more than 268,435,456 bytes: leave it out"),
    ):
        with pytest.raises(Unreadable, match=message):
            rows(write_packed(path, **changes))


def test_damaged_archives_are_one_line(tmp_path):
    """Every tenth cut, and every four hundredth byte changed, of Inspect's own."""
    whole, path = LOG.read_bytes(), tmp_path / "a.eval"
    damaged = [whole[:size] for size in range(4, len(whole), len(whole) // 10)]
    damaged += [whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :] for at in range(0, len(whole), 400)]
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        reading = read([str(path)])
        told = [*reading.unreadable, *(row.reason for source in reading.sources for row in source.log.malformed)]
        refused += bool(told)
        assert all("\n" not in one for one in told)
        assert reading.sources or len(reading.unreadable) == 1
    assert refused > len(damaged) * 0.7  # the others changed what stands beside samples


def test_an_archive_of_something_else_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("report.txt", "nothing")
    with pytest.raises(Unreadable, match=r"a\.zip: an archive, but of neither torch\.save nor Inspect: unpack it$"):
        rows(tmp_path / "a.zip")


def test_samples_that_become_too_much_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "UNPACKED", 5000)
    monkeypatch.setattr(limits, "RATIO", 1)
    large = SAMPLE | {"input": " " * 2000}
    path = write_log(tmp_path / "a.eval", large, large, large)
    with pytest.raises(Unreadable, match=r"samples/q_epoch_2\.json unpacks to more than [\d,]+ bytes"):
        rows(path)
    assert len(rows(write_log(tmp_path / "b.eval", large, large))) == 2

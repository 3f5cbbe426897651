"""Tests of programs that came packed: the correct ones unpack, everything that could do harm is refused unopened."""

import base64
import json
import os
import pickle
import zlib

import pytest
from loops import over

from fairlen.tasks.data_row import pickled_string, unpack_tests

TESTS = [{"input": "1 2\n", "output": "3", "testtype": "stdin"}, {"input": "é\u2028", "output": "x" * 300}]


def pack(value: object, protocol: int | None = None) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


@over("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_a_pickled_string_is_read(protocol):
    assert unpack_tests(pack(json.dumps(TESTS, ensure_ascii=False), protocol)) == TESTS


def test_plain_json_is_read():
    assert unpack_tests(json.dumps(TESTS)) == TESTS
    assert unpack_tests("[]") == []


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Nested:
    def __reduce__(self):
        return eval, ("1",)


def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(tmp_path):
    path = tmp_path / "touched"
    packed = pack(Harm(path))
    with pytest.raises(ValueError, match="no pickled string"):
        unpack_tests(packed)
    assert not path.exists()
    pickle.loads(zlib.decompress(base64.b64decode(packed)))  # the same bytes do run it where they are loaded
    assert path.exists()


@over("value", [Nested(), [json.dumps(TESTS), Nested()], TESTS, [], (json.dumps(TESTS),), None, 3, b"[]"])
def test_other_pickles_are_refused(value):
    with pytest.raises(ValueError, match="no pickled string"):
        unpack_tests(pack(value))


def test_two_strings_or_trailing_calls_are_refused():
    one = pickle.dumps("[]", 2)[:-1]  # without STOP
    with pytest.raises(ValueError, match="no pickled string"):
        pickled_string(one + pickle.dumps("[]", 2)[2:])
    with pytest.raises(ValueError, match="no pickled string"):
        pickled_string(one + b"cos\nsystem\n.")
    assert pickled_string(pickle.dumps("[]", 2)) == "[]"


def test_marks_without_end_are_refused_at_once():
    """A cell of 11 kB unpacks to eight million of them, which took seconds; the limit of bytes allows 500."""
    one = pickle.dumps("[]")
    with pytest.raises(ValueError, match="no pickled string"):
        pickled_string(one[:-1] + b"\x94" * 100 + one[-1:])


def test_a_huge_memo_index_reserves_nothing():
    # LONG_BINPUT 2^31 - 1: a loader would make a table of that size first
    assert pickled_string(b"\x80\x02X\x02\x00\x00\x00[]r\xff\xff\xff\x7f.") == "[]"


def test_a_bomb_is_cut_at_the_limit():
    bomb = base64.b64encode(zlib.compress(b"a" * 10_000_000, 9)).decode()
    assert len(bomb) < 20_000
    with pytest.raises(ValueError, match="more than 1,000,000 bytes"):
        unpack_tests(bomb, max_bytes=1_000_000)


def test_what_is_cut_off_is_refused():
    whole = zlib.compress(pickle.dumps(json.dumps(TESTS)))
    with pytest.raises(ValueError, match="cut off"):
        unpack_tests(base64.b64encode(whole[:-8]).decode())
    cut = pickle.dumps(json.dumps(TESTS))[:-40]
    with pytest.raises(ValueError, match="no pickled string"):
        unpack_tests(base64.b64encode(zlib.compress(cut)).decode())


@over("text", ["", "not base64!", "aGVsbG8=", "é", "[1, 2", "[1]", "{}", '{"a": 1}', "[" * 100_000])
def test_garbage_is_refused(text):
    with pytest.raises(ValueError, match="tests"):
        unpack_tests(text)


def test_json_in_the_pickle_is_checked():
    with pytest.raises(ValueError, match="not JSON"):
        unpack_tests(pack("[1, 2"))
    with pytest.raises(ValueError, match="not a list of objects but dict"):
        unpack_tests(pack("{}"))

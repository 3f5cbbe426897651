"""Samples in the folder of a stranger: it chooses no service, no code and no place where programs run."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from attacks import write_attacks

from fairlen.cli import main
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.samples import Sample, sample_path, write_samples

ACCEPTS = {
    "status": "Success",
    "message": "",
    "run_result": {"status": "Finished", "return_code": 0, "stdout": "8\n", "stderr": "", "execution_time": 0.1},
}


@contextmanager
def service() -> Iterator[ThreadingHTTPServer]:
    """A service like SandboxFusion that answers 8 to every program, and counts them."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.server.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(ACCEPTS).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def write_folder(folder: Path, text: str, **settings: object) -> Path:
    """An evaluation of one problem, twice the number given, with one response and settings of the folder's own."""
    data = folder / "problems.jsonl"
    folder.mkdir()
    tests = json.dumps([{"input": "4", "output": "8", "testtype": "stdin"}])
    row = {
        "question_title": "Double", "question_content": "Double the number.", "platform": "atcoder", "question_id": "q1",
        "contest_id": "c1", "contest_date": "2025-01-01T00:00:00", "starter_code": "", "difficulty": "easy",
        "public_test_cases": tests, "private_test_cases": "[]", "metadata": "{}",
    }  # fmt: skip
    data.write_text(json.dumps(row) + "\n")
    config = {"data": [str(data)], "task": "playground", "sandbox": "auto", "unsafe_exec_on_host": False, **settings}
    facts = {"config": config, "model": None, "sets": {"problems": {"fingerprint": "0"}}}
    (folder / "eval.json").write_text(json.dumps(facts))
    sample = Sample("q1", "Double the number.", "", 0, f"```python\n{text}\n```")
    write_samples([sample], sample_path(folder, "problems"))
    return folder


def rescore(folder: Path, out: Path, *flags: str) -> int:
    return main(["eval", "--from-samples", str(folder), "--out", str(out), *flags])


def accuracy(out: Path) -> float:
    (found,) = json.loads((out / "summary.json").read_text())["sets"].values()
    return found["scores"]["avg@1"]["value"]


def test_a_folder_chooses_no_sandbox_service(tmp_path, capsys):
    """The program prints nothing; the service would say that it printed 8."""
    with service() as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        folder = write_folder(tmp_path / "strange", "pass", sandbox=url)
        assert rescore(folder, tmp_path / "out") == 2 and server.asked == []
        assert f"names the sandbox '{url}'" in " ".join(capsys.readouterr().err.split())
        assert rescore(folder, tmp_path / "here", "--sandbox", "bubblewrap") == 0 and server.asked == []
        assert accuracy(tmp_path / "here") == 0.0
    with service() as server:
        folder = write_folder(tmp_path / "other", "pass")
        chosen = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(AssertionError):  # the probe of an honest program, which this service fails
            assert rescore(folder, tmp_path / "there", "--sandbox", chosen) == 0
        assert server.asked


def test_a_folder_does_not_choose_the_host(tmp_path):
    path = tmp_path / "ran"
    folder = write_folder(tmp_path / "strange", f"open({str(path)!r}, 'w')\nprint(8)", unsafe_exec_on_host=True)
    assert rescore(folder, tmp_path / "out") == 0
    assert not path.exists() and accuracy(tmp_path / "out") == 0.0


def test_a_folder_names_no_code(tmp_path, capsys):
    """A task of one's own is not imported, and the refusal says what is possible."""
    path = tmp_path / "ran"
    code = tmp_path / "strange_code.py"
    code.write_text(f"open({str(path)!r}, 'w')\n")
    place = f"{code}:Task"
    for settings in ({"data": [place]}, {"data": [], "task": place}):
        folder = write_folder(tmp_path / f"strange{len(settings)}", "pass", **settings)
        assert rescore(folder, tmp_path / "out") == 2 and not path.exists()
        assert "which is not run to rescore samples" in " ".join(capsys.readouterr().err.split())


SETTINGS = sorted(set(EvalConfig.__dataclass_fields__) - {"data", "from_samples", "out", "model"})


@pytest.mark.slow
def test_no_setting_of_a_folder_runs_anything(tmp_path, capsys):
    """Every attack as the value of every setting that is a text: a refusal or a result, and no marker."""
    path = tmp_path / "ran"
    attacks = [*write_attacks(path, 9).values()]
    for number, name in enumerate(SETTINGS):
        for turn, attack in enumerate(attacks[number % 14 :: 14]):
            folder = write_folder(tmp_path / f"{name}{turn}", "pass", **{name: attack})
            assert rescore(folder, tmp_path / f"{name}{turn}-out", "--sandbox", "bubblewrap") in (0, 1, 2)
            assert not path.exists(), (name, attack)
    capsys.readouterr()

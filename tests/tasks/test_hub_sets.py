"""Sets of the hub: a small server speaks its protocol; what is downloaded is named by its commit and found again offline."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"
OLD = "fedcba9876543210fedcba9876543210fedcba98"


class Hub(BaseHTTPRequestHandler):
    """One data set, `owner/name`, in two commits; `owner/closed` is gated."""

    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        self.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        if self.path.startswith("/api/datasets/owner/name"):
            sha = OLD if "v1" in parts or OLD in parts else SHA
            if "tree" in parts:
                tree = [{"type": "file", "path": n, "size": len(d), "oid": sha} for n, d in self.files.items()]
                return self.send(200, json.dumps(tree).encode(), with_body)
            names = [{"rfilename": name} for name in self.files]
            return self.send(200, json.dumps({"id": "owner/name", "sha": sha, "siblings": names}).encode(), with_body)
        if "closed" in parts:
            return self.send(403, b"{}", with_body, {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask for access"})
        name = "/".join(parts[5:])
        if parts[:3] != ["datasets", "owner", "name"] or name not in self.files:
            return self.send(404, b"{}", with_body, {"X-Error-Code": "RepoNotFound"})
        sha = OLD if parts[4] in ("v1", OLD) else SHA
        data = self.files[name] if sha == SHA else self.files[name].replace(b"3", b"4")
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": sha}
        return self.send(200, data, with_body, headers)

    def send(self, code: int, body: bytes, with_body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture(scope="module")
def hub() -> Iterator[tuple[str, list[str]]]:
    row = json.dumps({"problem": "1+2?", "answer": "3"}).encode() + b"\n"
    card = b"---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/*.jsonl\n---\n"
    Hub.files = {"README.md": card, "en/a.jsonl": row, "run_me.py": b"raise SystemExit(3)"}
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", Hub.asked
    server.shutdown()


def read(place: str, endpoint: str, home: Path, **environment: str) -> dict:
    """What a new process reads, which takes the address of the hub from its environment."""
    code = (
        "import json, sys; from fairlen.tasks.dataset import read_rows; from fairlen.tasks.source import read_source\n"
        "try: found = read_rows(read_source(sys.argv[1]))\n"
        "except ValueError as error: print(json.dumps({'error': str(error)}))\n"
        "else: print(json.dumps({'golds': [r.reference.shown for r in found.rows], 'ids': [r.id for r in found.rows]} "
        "| found.describe()))"
    )
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "PATH": "", "HF_HUB_DISABLE_XET": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code, place], env=settings, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_set_is_downloaded_at_its_commit_and_found_again_offline(hub, tmp_path):
    endpoint, asked = hub
    found = read("owner/name/en", endpoint, tmp_path)
    assert (found["golds"], found["revision"], found["source"]) == (["3"], SHA, "owner/name/en")
    assert found["ids"][0].startswith("name-en/")
    assert not any("run_me.py" in path for path in asked)  # scripts are not even downloaded
    older = read("owner/name@v1", endpoint, tmp_path)
    assert (older["golds"], older["revision"]) == (["4"], OLD)
    assert older["fingerprint"] != found["fingerprint"]
    asked.clear()
    again = read("owner/name/en", "http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")
    assert again == found
    assert asked == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("owner/missing", "the hub gave no data set owner/missing"),
        ("owner/name/cn", "no configuration 'cn' there; give one of en"),
    ],
)
def test_what_is_not_there_is_named(hub, tmp_path, place, reason):
    error = read(place, hub[0], tmp_path)["error"]
    assert reason in error
    assert f"--data {place}"[:15] in error


def test_a_hub_that_is_away_is_named_with_what_to_do(tmp_path):
    error = read("owner/name", "http://127.0.0.1:9", tmp_path)["error"]
    assert "--data owner/name: the hub gave no data set owner/name" in error
    assert "HF_HUB_OFFLINE=1" in error
    assert "local copy" in error
    offline = read("owner/name", "http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")["error"]
    assert "the hub gave no data set owner/name" in offline

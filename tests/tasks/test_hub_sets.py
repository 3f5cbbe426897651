"""Sets of the hub: a small server speaks its protocol; what is downloaded is named by its commit and found again offline."""

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


CODE = """
import json, sys
from fairlen.tasks.dataset import read_rows
from fairlen.tasks.source import read_source
for place in sys.argv[1:]:
    try:
        found = read_rows(read_source(place))
        rows = {"golds": [row.reference.shown for row in found.rows], "ids": [row.id for row in found.rows]}
        print(json.dumps(rows | found.describe()))
    except ValueError as error:
        print(json.dumps({"error": str(error)}))
"""


def read(places: list[str], endpoint: str, home: Path, **environment: str) -> list[dict]:
    """What a new process reads of each place; it takes the address of the hub from its environment."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "PATH": "", "HF_HUB_DISABLE_XET": "1"} | environment
    command = [sys.executable, "-c", CODE, *places]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_a_set_is_downloaded_at_its_commit_and_found_again_offline(hub, tmp_path):
    endpoint, asked = hub
    found, older, missing, other = read(
        ["owner/name/en", "owner/name@v1", "owner/missing", "owner/name/cn"], endpoint, tmp_path
    )
    assert (found["golds"], found["revision"], found["source"]) == (["3"], SHA, "owner/name/en")
    assert found["ids"][0].startswith("name-en/")
    assert not any("run_me.py" in path for path in asked)  # scripts are not even downloaded
    assert (older["golds"], older["revision"]) == (["4"], OLD)
    assert older["fingerprint"] != found["fingerprint"]
    assert "--data owner/missing: the hub gave no data set owner/missing" in missing["error"]
    assert "no configuration 'cn' there; give one of en" in other["error"]
    asked.clear()
    again, never = read(["owner/name/en", "owner/missing"], "http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")
    assert again == found and asked == []
    assert "the hub gave no data set owner/missing" in never["error"] and "HF_HUB_OFFLINE=1" in never["error"]

"""Trackers: the real services get what metrics.jsonl has, and nothing that one of them does stops or slows a run."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from runs import metrics, small, without_times

from fairlen.hangs import Watchdog
from fairlen.train import start
from fairlen.train.run import trackers
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.trackers import MAX_WAITING, Trackers, check_trackers, choose_trackers
from fairlen.train.start import start_training

SECRETS = {
    "WANDB_API_KEY": "feedc0de" * 5,
    "HF_TOKEN": "hf_donottellanyone",
    "ADDRESS": "https://me:pw0rd@box.test:81/run?key=opensesame",
}


@dataclass
class Service:
    """One that works, in memory."""

    got: list[tuple[dict[str, float], int]] = field(default_factory=list)
    alerts: list[tuple[str, str, str]] = field(default_factory=list)
    is_finished: bool = False

    def log(self, numbers, update):
        self.got.append((dict(numbers), update))

    def alert(self, title, text, level):
        self.alerts.append((title, text, level))

    def finish(self):
        self.is_finished = True


@dataclass
class Raises(Service):
    error: BaseException = field(kw_only=True)

    def log(self, numbers, update):
        raise self.error


class Hangs(Service):
    """Until the test is over."""

    release = threading.Event()

    def log(self, numbers, update):
        self.release.wait()


class HangsAtTheEnd(Service):
    def finish(self):
        Hangs.release.wait()


def refuse(_):
    raise PermissionError("no such key")


HOSTILE = {
    "down": lambda _: Raises(error=ConnectionError("the service is down")), "leaves": lambda _: Raises(error=SystemExit(1)),
    "full": lambda _: Raises(error=MemoryError("Unable to allocate")), "hangs": lambda _: Hangs(),
    "lingers": lambda _: HangsAtTheEnd(), "closed": refuse,
}  # fmt: skip


@pytest.fixture(autouse=True)
def released():
    Hangs.release.clear()
    yield
    Hangs.release.set()


def test_hostile_trackers_cost_no_time_and_one_warning_each(monkeypatch, capsys):
    monkeypatch.setattr(trackers, "PATIENCE", 1.0)
    healthy, count = Service(), MAX_WAITING + 500
    begin = time.perf_counter()
    with Trackers(HOSTILE | {"healthy": lambda _: healthy}) as found:
        for update in range(count):
            found.log({"update": update, "loss/total": 0.5, "why": "text", "nothing": float("nan")})
            if update % 100 == 0:
                time.sleep(0.01)  # as long as an update: who works keeps up
    assert time.perf_counter() - begin < 60.0  # the one that hangs does so for ever
    assert healthy.got == [({"update": k, "loss/total": 0.5}, k) for k in range(count)] and healthy.is_finished
    told = capsys.readouterr().err
    for name, reason in {
        "down": "ConnectionError: the service is down", "leaves": "SystemExit: 1", "full": "Unable to allocate",
        "hangs": "behind", "lingers": "it did not end in time", "closed": "PermissionError: no such key",
    }.items():  # fmt: skip
        lines = [line for line in told.splitlines() if line.startswith(f"fairlen: tracker {name}: ")]
        warnings = [line for line in lines if "Training goes on" in line]
        assert len(warnings) == 1 and reason in warnings[0], lines
    assert f"tracker down: {count} entries did not get there" in told
    assert "tracker lingers: it did not end in time and is left behind with 0 entries" in told
    hangs = next(feed for feed in found.feeds if feed.service == "hangs")
    assert hangs.num_lost == count - 1 - MAX_WAITING  # it holds one


@pytest.mark.slow
def test_what_a_run_warns_of_is_an_alert_too(tmp_path, monkeypatch, capsys):
    """No answer fits into one token, so that nothing is trained in any of four rollout batches."""
    service = Service()
    monkeypatch.setattr(start, "choose_trackers", lambda names, run: {"one": lambda _: service})
    settings = dict(method="grpo", max_response_length=1, updates_per_batch=1, eval_every=0, save_every=0)
    start_training(small(tmp_path / "run", rollout_batches=4, **settings))
    (title, text, level), *watched = service.alerts
    assert (title, level) == ("nothing was trained in 3 rollout batches", "WARN")
    shown = capsys.readouterr().err
    assert f"fairlen: {text}\n" in shown and "all were truncated" in text
    assert [one for one, _, _ in watched] == ["truncation at step 3"]  # steps count from 1


def test_the_watchdog_says_which_tracker_stands(capsys):
    with closing(Watchdog(0.2)) as watchdog, Trackers({"hangs": lambda _: Hangs()}, watchdog) as found:
        found.log({"update": 1})
        time.sleep(1.0)
        Hangs.release.set()
    assert "still waiting for tracker hangs" in capsys.readouterr().err


def read_events(folder: Path) -> dict[tuple[str, int], float]:
    """What TensorBoard shows: scalars by name and step, the newest where there are several."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}


@pytest.mark.slow
def test_a_run_with_real_services_and_hostile_ones(tmp_path, monkeypatch, capsys):
    """TensorBoard and Weights & Biases, offline, beside all of the hostile ones; then the run is resumed."""
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(trackers, "PATIENCE", 20.0)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(start, "choose_trackers", lambda names, run: HOSTILE | choose_trackers(names, run))
    run = tmp_path / "run"
    changes = dict(eval_every=0, tracker=("wandb", "tensorboard"), system_prompt=SECRETS["ADDRESS"])
    monkeypatch.setattr(Hangs, "log", Service.log)  # at the end it would cost PATIENCE; the test above has it
    monkeypatch.setattr(HangsAtTheEnd, "finish", Service.finish)
    start_training(small(run, rollout_batches=1, **changes))
    token = json.loads((run / "run.json").read_text())["run"]
    start_training(small(run, rollout_batches=2, resume=True, **changes))
    assert token == json.loads((run / "run.json").read_text())["run"]
    assert len([e for e in metrics(run) if "loss/total" in e]) == 4
    logged = {
        (name, e["update"]): value
        for e in metrics(run)
        for name, value in e.items()
        if isinstance(value, int | float) and "occupancy" not in name
    }
    drawn = read_events(run / "tensorboard")
    beyond = {key for key in drawn if "occupancy" not in key[0]} - set(logged)
    assert {update for _, update in beyond} == {2}  # how the first run ended: the longer one has no evaluation there
    assert {name.partition("/")[0] for name, _ in beyond} == {"eval", "time", "tokens"}
    assert set(logged) <= set(drawn)
    assert drawn.pop(("rollout_batch", 2)) == 1 and logged.pop(("rollout_batch", 2)) == 0  # the same evaluation's
    assert all(drawn[key] == pytest.approx(value, rel=1e-6) for key, value in logged.items())
    kept = b"".join(path.read_bytes() for path in (run / "wandb").rglob("*") if path.is_file())
    parts = list((run / "wandb").glob(f"offline-run-*/run-run-{token}.wandb"))
    assert len(parts) == 2  # once resumed, under the same name
    for text in (
        "loss/total",
        "gradient/norm",
        "eval/accuracy",
        "fspo+balanced",
        "surrogate",
        "max_tokens_per_microbatch",
    ):
        assert text.encode() in kept, text
    kept += b"".join(path.read_bytes() for path in (run / "tensorboard").iterdir())
    for secret in ("feedc0de", "donottell", "pw0rd", "opensesame"):
        assert secret.encode() not in kept, secret
    assert b"https://***@box.test:81/run" in kept
    assert capsys.readouterr().err.count("tracker down: ConnectionError") == 2  # once a run


TRACKIO = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from runs import small
from fairlen.methods.compose import explain
from fairlen.train.run.folder import open_run
from fairlen.train.run.trackers import Trackers, choose_trackers
from fairlen.train.start import start_training
start_training(small(Path(sys.argv[1]), rollout_batches=1, eval_every=0, tracker=("trackio",)))
run = open_run(small(Path(sys.argv[1] + "-alerts")), explain("grpo"))
with Trackers(choose_trackers(("trackio",), run)) as found:
    found.alert("nothing was trained in 3 rollout batches: all were truncated", 3)
"""


def test_trackio(tmp_path):
    """In a process of its own: it looks for its folder when it is imported."""
    if find_spec("trackio") is None:
        pytest.skip("trackio is not installed; it asks for other versions than the tests run with")
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "there")}
    command = [sys.executable, "-c", TRACKIO, str(tmp_path / "run"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and "tracker trackio" not in done.stderr, done.stderr
    (place,) = (tmp_path / "there").glob("*.db")
    with closing(sqlite3.connect(place)) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
        alerts = database.execute("select title, level from alerts").fetchall()
    assert alerts == [("nothing was trained in 3 rollout batches", "warn")]
    name = f"run-{json.loads((tmp_path / 'run/run.json').read_text())['run']}"
    found = {(step, key) for run, step, text in rows if run == name for key in json.loads(text)}
    assert {(1, "loss/total"), (2, "loss/total"), (0, "eval/accuracy"), (2, "eval/accuracy")} <= found


@pytest.mark.slow
def test_the_run_is_the_same_with_a_tracker(tmp_path):
    changes = dict(rollout_batches=1, eval_every=0, save_every=0)
    for name, names in (("with", ("tensorboard",)), ("without", ())):
        start_training(small(tmp_path / name, tracker=names, **changes))
    found = [without_times(metrics(tmp_path / name)) for name in ("with", "without")]
    assert found[0] == found[1]


def test_what_is_not_there_is_said_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="tracker=mlflow: give one of wandb, trackio, tensorboard"):
        TrainConfig.of(tracker=("mlflow",))
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"tracker=wandb: it needs the package wandb: pip install '\.\[trackers\]'"):
        start_training(small(tmp_path / "run", tracker=("wandb",)))
    assert not (tmp_path / "run").exists()
    check_trackers(())

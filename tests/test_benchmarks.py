"""Programs at more than their smallest: benchmarks/gpu.py on the CPU, an update beside TRL, a rehearsal and what it leaves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "gpu.py"
SMALL = (
    "--device", "cpu", "--shape", "tiny", "--batch", "8", "--prompt", "8", "--max-response-length", "16", "--sequences", "16",
    "--repeats", "2",
)  # fmt: skip


def start(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    place = tmp_path_factory.mktemp("gpu") / "found.json"
    done = start(*SMALL, "--json", str(place))
    assert done.returncode == 0, done.stderr
    return json.loads(place.read_text())


def test_both_sides_of_decoding_are_below_the_bound_of_the_bandwidth(measured):
    table = {row["side"]: row for row in measured["decoding"]}
    assert set(table) == {"generate", "engine"}
    # tiny: 2 layers of (4 + 4 + 8) * 16 * 64 + 3 * 192 * 64 numbers and a head of 512 * 64, in float32; keys and values of
    # 2 * 2 * 2 * 16 numbers a position, of 8 + 16 / 2 positions for a row on average, of which there are 8
    weights = 2 * (16 * 16 * 64 - 4 * 16 * 64 + 3 * 192 * 64) + 512 * 64
    bound = 8 * measured["device"]["bandwidth"] / (4 * (weights + 8 * 16 * 128))
    for row in table.values():
        assert row["bound"] == pytest.approx(bound)
        assert row["share"] == pytest.approx(row["tokens_per_second"] / bound)
        assert 0 < row["share"] < 2
        assert row["dtype"] == "float32" and row["prefill_seconds"] > 0


def test_all_sides_of_training_have_one_gradient(measured):
    table = {row["side"]: row for row in measured["training"]}
    assert set(table) == {"Learner, rows", "Learner, trees", "TRL"}
    for row in table.values():
        assert row["gradient_norm"] == pytest.approx(table["TRL"]["gradient_norm"], rel=1e-4)
        assert 0 < row["share"] < 2
        assert row["share"] == pytest.approx(row["flops"] / measured["device"]["flops"])
        assert row["peak_bytes"] > 2**20
    # the same arithmetic on rows and in TRL, less of it on trees: 2 prompts are computed once instead of 8 times
    work = {side: row["flops"] * row["seconds"] for side, row in table.items()}
    assert work["Learner, rows"] == pytest.approx(work["TRL"])
    assert work["Learner, trees"] < work["Learner, rows"]


@pytest.mark.nightly
def test_a_rehearsal_leaves_no_weights(tmp_path):
    """Weights and checkpoints were left at three times their size and more: 12 GB of Qwen3-0.6B; here the layers are tiny."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'recipes')!r}); import rehearse\n"
    code += f"rehearse.WIDTHS['0.6B'] = (16, 32)\nrehearse.main('0.6B', {str(tmp_path)!r})\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run-0.6B/metrics.jsonl").exists()
    left = {
        path.relative_to(tmp_path).as_posix(): path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()
    }
    assert not [name for name in left if name.endswith(".safetensors")]
    assert sum(left.values()) < 2e6, left

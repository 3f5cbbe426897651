"""`make test-gpu` fails where nothing ran, and every subject below has tests in tests/gpu."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
TESTED = {
    "embedded engine": (
        "test_cuda.py::test_greedy_continuations_are_those_of_generate",
        "test_cuda.py::test_a_compiled_engine_continues_as_an_eager_one",
    ),
    "engine against trainer": (
        "test_cuda.py::test_engine_and_trainer_agree_in_float32",
        "test_cuda.py::test_engine_and_trainer_agree_in_bfloat16_to_its_precision",
    ),
    "rows and trees": (
        "test_cuda.py::test_trees_have_the_logprobs_and_the_gradient_of_rows",
        "test_cuda.py::test_the_gradient_is_that_of_the_cpu",
    ),
    "heads of 128": ("test_cuda_updates.py::test_with_heads_of_128_the_gradient_is_that_of_the_cpu",),
    "bfloat16": ("test_cuda_updates.py::test_in_bfloat16_the_gradient_is_that_of_float32_to_its_precision",),
    "checkpointing": ("test_cuda_updates.py::test_checkpointing_has_the_same_gradient_in_less_memory",),
    "LoRA": ("test_cuda_updates.py::test_adapters_have_the_gradient_of_the_cpu_and_nothing_else_has_one",),
    "KL": ("test_cuda_updates.py::test_the_distance_to_a_reference_is_that_of_the_cpu",),
    "8,192 positions": ("test_cuda_updates.py::test_8192_positions_take_no_memory_for_pairs_of_them",),
    "recovery from running out of memory": (
        "test_cuda_updates.py::test_where_memory_runs_out_smaller_micro_batches_give_the_same_gradient",
    ),
    "resume with fused AdamW": (
        "test_cuda_resume.py::test_a_resumed_run_makes_the_updates_of_an_uninterrupted_one",
        "test_cuda_resume.py::test_a_deterministic_run_is_the_same_run_again",
    ),
    "compiled layers": ("test_cuda_updates.py::test_compiled_layers_have_the_gradient_of_others",),
    "chunked heads": (
        "test_cuda_head.py::test_no_number_of_chunks_matters",
        "test_cuda_head.py::test_the_head_takes_what_the_account_says",
    ),
    "trees in bfloat16": ("test_cuda_trees.py::test_trees_in_bfloat16_are_no_further_from_float32_than_rows_are",),
    "moments of 8 bits": ("test_cuda_resume.py::test_moments_of_8_bits_and_pages_are_put_back_as_they_were",),
    "estimate of memory against peaks": (
        "test_cuda_memory.py::test_the_estimate_of_an_update_is_within_a_quarter_of_its_peak",
    ),
    "phases timed by the device": ("test_cuda_updates.py::test_phases_last_as_long_as_the_device_works",),
    "vLLM on CUDA": (
        "test_cuda_vllm.py::test_it_samples_sleeps_wakes_with_the_weights_of_the_update_and_frees_memory",
    ),
    "whole runs": ("test_cuda.py::test_a_playground_run_improves",),
}
"""What `make test-gpu` covers, by subject."""
PASSES, SKIPS = "def test():\n    pass\n", "import pytest\n\n\n@pytest.mark.skip\ndef test():\n    pass\n"


def test_every_subject_has_tests_of_the_device():
    for subject, tests in TESTED.items():
        for place in tests:
            path, name = place.split("::")
            tree = ast.parse((TESTS / "gpu" / path).read_text())
            found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in found, f"{subject}: there is no {place}"
            assert "pytest.mark.gpu" in ast.unparse(tree), path


def test_make_asks_that_something_passes():
    rule = (ROOT / "Makefile").read_text().split("\ntest-gpu:")[1].split("\n\n")[0]
    runs = [line for line in rule.splitlines() if " -m gpu " in line]
    assert len(runs) == 2
    assert all("--must-pass" in line and "||" not in line for line in runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "options", "code"),
    [(PASSES, ("--must-pass",), 0), (SKIPS, ("--must-pass",), 1), (PASSES, ("--must-pass", "-k", "none"), 1), (SKIPS, (), 0)],
    ids=["passes", "all skip", "none selected", "not asked"],
)  # fmt: skip
def test_where_nothing_passed_it_fails(tmp_path, text, options, code):
    (tmp_path / "test_one.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", *options, "test_one.py"],
        cwd=tmp_path, env={"PATH": "", "PYTHONPATH": f"{TESTS}:{ROOT / 'src'}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert ("no test passed" in done.stdout) == (code == 1)

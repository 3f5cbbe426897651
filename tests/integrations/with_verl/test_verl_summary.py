"""What a job of verl says: a line a step, how it closes or fails, and a node with another version by its name."""

import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from fairlen.integrations.verl.job import PACKAGES, describe_fault, find_versions
from fairlen.integrations.verl.session import JobSummary

STEPS = (
    "(TaskRunnerV1 pid=7) step:0 - val-core/cups/acc/mean@1:0.25 - val-core/sums/acc/mean@1:np.float64(0.5)",
    "(TaskRunnerV1 pid=7) step:1 - accuracy/mean:0.5 - length/mean:12.25 - timing_s/step:3.0",
    "(raylet pid=9) step:1 - accuracy/mean:0.5 - length/mean:12.25 - timing_s/step:3.0",
    "(TaskRunnerV1 pid=7) step:2 - accuracy/mean:0.75 - val-core/cups/acc/mean@1:0.5 - val-core/sums/acc/mean@1:1.0",
)


def test_a_job_is_a_line_a_step_and_what_it_closes_with(tmp_path, capsys):
    """Held out are (0.25 + 0.5) / 2 = 37.5% and (0.5 + 1) / 2 = 75%; a step that two raylets pass on is shown once."""
    summary = JobSummary()
    for line in ("(WorkerDict pid=8) training/global_step: 12, timestep:3", *STEPS):
        summary.read(line)
    summary.finish(tmp_path, 0)
    told = capsys.readouterr()
    assert [line for line in (told.out + told.err).splitlines() if line] == [
        "step 0: held out 0.375",
        "step 1: accuracy 0.500, length 12.2, 3.0 s",
        "step 2: accuracy 0.750, held out 0.750",
        "accuracy on held-out problems: 37.5% at step 0, 75.0% at step 2",
        f"2 steps; run folder: {tmp_path}; all that verl said: {tmp_path / 'verl.log'}",
    ]


def test_a_job_that_fails_by_itself_shows_the_end_of_its_log(tmp_path, capsys):
    (tmp_path / "verl.log").write_text("".join(f"line {i}\n" for i in range(100)))
    JobSummary().finish(tmp_path, 1)
    told = capsys.readouterr()
    shown = (told.out + told.err).split("\n")
    assert shown[0] == "line 88" and shown[11] == "line 99" and "0 steps" in shown[12]


def test_what_died_is_named(tmp_path, capsys):
    summary = JobSummary()
    summary.read("(TaskRunnerV1 pid=7) fairlen: died: CpuServer (process 9 on 127.0.0.1): killed")
    summary.finish(tmp_path, 75)
    assert "died: CpuServer (process 9 on 127.0.0.1): killed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_node_with_another_version_is_named():
    """Nodes are compared by what Ray returns of them: here values put into its store."""
    import ray

    mine = find_versions(PACKAGES)
    ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    try:
        assert describe_fault(ray.put(mine), mine) == ""
        assert "torch 1.0 where the job was started with" in describe_fault(ray.put(mine | {"torch": "1.0"}), mine)
    finally:
        ray.shutdown()

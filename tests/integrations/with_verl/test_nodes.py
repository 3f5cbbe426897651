"""What a node is asked before a job trains: files and reward function, each with the remedy where it lacks one."""

from __future__ import annotations

from fairlen.integrations.verl.nodes import Needs, describe_versions, find_file_faults, find_reward_faults


def test_files_that_are_not_there_are_named(tmp_path):
    """A hub id and an address are verl's to fetch; a folder without config.json and a missing file are faults."""
    (tmp_path / "model").mkdir()
    data, missing = tmp_path / "here.parquet", tmp_path / "gone.parquet"
    data.write_bytes(b"PAR1")
    needs = Needs("fairlen_sync", str(tmp_path / "model"), (str(data), str(missing), "hdfs://a/b.parquet"), "")
    model, one = find_file_faults(needs)
    assert "config.json" in model and "every node" in model
    assert str(missing) in one and "every node" in one
    (tmp_path / "model" / "config.json").write_text("{}")
    assert not find_file_faults(Needs("fairlen_sync", str(tmp_path / "model"), (str(data),), ""))
    assert not find_file_faults(Needs("fairlen_sync", "Qwen/Qwen3-8B", (), ""))


def test_a_reward_function_is_imported(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("def compute_score(**_): return 1.0")
    bad.write_text("import no_such_package_of_a_team")
    assert find_reward_faults("") == find_reward_faults(str(good)) == []
    assert find_reward_faults("pkg://fairlen.checks") == []
    (fault,) = find_reward_faults(str(bad))
    assert "no_such_package_of_a_team" in fault and "install" in fault


def test_versions_are_those_of_this_machine():
    found = describe_versions()
    assert set(found) == {"python", "verl", "ray", "torch", "fairlen"} and "none" not in found.values()

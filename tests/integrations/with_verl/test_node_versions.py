"""Versions on the nodes of a cluster."""

import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
from fairlen.integrations.verl.job import PACKAGES, describe_fault, find_versions


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

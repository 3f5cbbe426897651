"""A RayJob for KubeRay: a cluster for one job, which `kubectl apply -f` begins and which goes when the job has ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

RAY_VERSION = "2.60.0"
"""The one that the tests run with; the image has to bring it."""
CLAIM = "fairlen"
"""Name of the volume claim that has model, data and run folder, on every node at the same place."""


def write_manifest(name: str, nodes: int, devices: int, image: str, folder: str, rest: Sequence[str]) -> str:
    """Return the manifest for a job with so many nodes and devices on each, 0 for a rehearsal; `rest` is what it is given."""
    head, worker = (describe_pod(role, devices, image, folder) for role in ("head", "worker"))
    ray = {"num-gpus": str(devices or 1)}
    cluster: dict[str, Any] = {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": ray, "template": head},
    }
    if nodes > 1:
        group = {"groupName": "workers", "replicas": nodes - 1, "minReplicas": nodes - 1, "maxReplicas": nodes - 1}
        cluster["workerGroupSpecs"] = [group | {"rayStartParams": ray, "template": worker}]
    spec = {
        "entrypoint": shlex.join(["fairlen", "verl", "--ray-address", "auto", *rest]),
        "submissionMode": "K8sJobMode",
        "backoffLimit": 0,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "rayClusterSpec": cluster,
    }
    made = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump(made, sort_keys=False, width=1000)


def describe_pod(role: str, devices: int, image: str, folder: str) -> dict[str, Any]:
    """Return the template of a pod; head and workers all train, as nodes of a job of verl do."""
    limits = {"cpu": "16", "memory": "128Gi"} | ({"nvidia.com/gpu": str(devices)} if devices else {})
    container = {
        "name": f"ray-{role}",
        "image": image,
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [{"name": "shared", "mountPath": folder}, {"name": "memory", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    return {"spec": {"containers": [container], "volumes": volumes}}

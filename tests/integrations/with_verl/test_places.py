"""Jobs for Slurm, KubeRay and a job server: what is written can be read by who runs it, and says the same as the command did."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from fairlen.flags import read_flags
from fairlen.integrations.verl.launch import VerlConfig, start_verl
from fairlen.integrations.verl.places import flags_of

CRD = "FAIRLEN_KUBERAY_CRD"
"""Names ray.io_rayjobs.yaml of a release of KubeRay's, which is not ours to copy."""
FLAGS = (
    "--method", "eqlen+dapo", "--set", "sampling.streams=4", "--set", "sampling.max_rounds=2", "--model", "it's a model",
    "--data", "a.jsonl", "--data", "b c.jsonl", "--restarts", "3", "--nodes", "4", "--min-nodes", "2",
)  # fmt: skip
GIVEN = ["trainer.save_freq=10", "trainer.n_gpus_per_node=8", "trainer.experiment_name='x $HOME'"]


def read(*flags: str) -> VerlConfig:
    return read_flags(VerlConfig, "fairlen verl", flags)


def written(tmp_path: Path, kind: str, *flags: str) -> str:
    """What is written for a place; nothing is started."""
    path = tmp_path / "job"
    assert start_verl(read(*FLAGS, "--out", str(tmp_path / "out"), f"--{kind}", str(path), *flags), GIVEN) == 0
    return path.read_text()


def test_flags_say_the_same(tmp_path):
    config = read(*FLAGS, "--allow-truncated-sampling", "--out", str(tmp_path))
    assert read(*flags_of(config, tmp_path), "--nodes", "4") == config


def test_a_batch_script_is_bash(tmp_path):
    text = written(tmp_path, "slurm")
    subprocess.run(["bash", "-n", str(tmp_path / "job")], check=True)
    assert "#SBATCH --nodes=4\n" in text and "#SBATCH --gpus-per-node=8\n" in text and text.count("--num-gpus=8") == 2
    last = shlex.split(text.splitlines()[-1])
    assert last[:4] == ["${FAIRLEN[@]}", "verl", "--ray-address", "$ADDRESS"]
    cut = last.index("--")
    assert last[cut + 1 :] == GIVEN
    assert read(*last[4:cut]) == read(*FLAGS, "--out", str(tmp_path / "out"))


def test_a_manifest_starts_the_same_job(tmp_path):
    made = yaml.safe_load(written(tmp_path, "kuberay", "--image", "registry/fairlen:1"))
    assert (made["apiVersion"], made["kind"]) == ("ray.io/v1", "RayJob")
    entry = shlex.split(made["spec"]["entrypoint"])
    assert entry[:4] == ["fairlen", "verl", "--ray-address", "auto"] and entry[entry.index("--") + 1 :] == GIVEN
    cluster = made["spec"]["rayClusterSpec"]
    assert cluster["workerGroupSpecs"][0]["replicas"] == 3
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "registry/fairlen:1" and container["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_a_manifest_needs_an_image(tmp_path):
    with pytest.raises(ValueError, match="--image"):
        written(tmp_path, "kuberay")


def close(schema: dict) -> dict:
    """The schema with unknown names refused, as a server does with strict validation."""
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    for part in (*schema.get("properties", {}).values(), schema.get("items")):
        if isinstance(part, dict):
            close(part)
    return schema


@pytest.mark.nightly
def test_a_manifest_is_one_of_kuberays(tmp_path):
    """By the schema that KubeRay publishes; a name that it does not know fails."""
    if CRD not in os.environ:
        pytest.skip(f"{CRD} names no ray.io_rayjobs.yaml (helm-chart/kuberay-operator/crds of a KubeRay release)")
    versions = yaml.safe_load(Path(os.environ[CRD]).read_text())["spec"]["versions"]
    schema = next(one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == "v1")
    schema["properties"]["metadata"] = {"type": "object"}
    made = yaml.safe_load(written(tmp_path, "kuberay", "--image", "registry/fairlen:1"))
    jsonschema.validate(made, close(schema))
    made["spec"]["rayClusterSpec"]["headGroupSpec"]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(made, schema)

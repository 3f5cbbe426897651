"""A batch script for Slurm: Ray on every node of the allocation by srun, the job on the first; all ends with the job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

SCRIPT = """#!/bin/bash
#SBATCH --job-name=fairlen
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
{devices}#SBATCH --output=%x-%j.log
# Written by `fairlen verl --slurm`. Partition, account and time: sbatch --partition=… --account=… --time=… {name}
set -euo pipefail
cd {folder}
FAIRLEN=({program})
RAY=({ray})
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="${{RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')}}"

mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=${{NODES[0]}}
PORT=$((20000 + SLURM_JOB_ID % 20000))
ADDRESS="$(hostname --ip-address | awk '{{print $1}}'):$PORT"  # this is the first node
# More options of `ray start` on every node: RAY_OPTIONS="…" sbatch {name}
STEP=(srun --overlap --cpu-bind=none)
SCRATCH=$(mktemp -d /tmp/fairlen-XXXXXX)

# Whatever way the job ends, its steps end with it: Slurm takes all of their processes.
finish() {{ kill $(jobs -p) 2>/dev/null || true; wait || true; rm -rf "$SCRATCH"; }}
trap finish EXIT
trap 'exit 143' TERM INT

"${{STEP[@]}}" --nodes=1 --ntasks=1 --nodelist="$HEAD" \\
    "${{RAY[@]}}" start --head --block --port="$PORT" --temp-dir="$SCRATCH" --include-dashboard=false \\
    --disable-usage-stats{options} ${{RAY_OPTIONS:-}} &
for _ in $(seq 120); do
    kill -0 $!  # Ray on the first node: where it has ended, so does this
    "${{RAY[@]}}" status --address="$ADDRESS" >/dev/null 2>&1 && break
    sleep 1
done
if [ "${{#NODES[@]}}" -gt 1 ]; then
    "${{STEP[@]}}" --nodes=$((${{#NODES[@]}} - 1)) --ntasks=$((${{#NODES[@]}} - 1)) --exclude="$HEAD" \\
        "${{RAY[@]}}" start --block --address="$ADDRESS" --disable-usage-stats{options} ${{RAY_OPTIONS:-}} &
fi

"${{FAIRLEN[@]}}" verl --ray-address "$ADDRESS" {arguments}
"""


def write_script(
    name: str, nodes: int, devices: int, program: Sequence[str], ray: Sequence[str], folder: str, rest: Sequence[str]
) -> str:
    """Return the script for a job with so many nodes and devices on each, 0 for a rehearsal; `rest` is what it is given."""
    return SCRIPT.format(
        name=shlex.quote(name),
        nodes=nodes,
        devices=f"#SBATCH --gpus-per-node={devices}\n" if devices else "",
        options=f" --num-gpus={devices or 1}",
        program=shlex.join(program),
        ray=shlex.join(ray),
        folder=shlex.quote(folder),
        arguments=shlex.join(rest),
    )

#!/bin/bash
# A job of verl on several nodes under Slurm: Ray on every node by srun, `fairlen verl` on the first. Not run by this project's tests.
#
#     sbatch --nodes=8 --gpus-per-node=8 --partition=… --account=… --time=… recipes/verl_slurm.sh \
#         --method dapo+balanced --model Qwen/Qwen3-8B -- data.train_files=train.parquet data.val_files=test.parquet trainer.nnodes=8 trainer.n_gpus_per_node=8
#
# fairlen[verl] is installed on every node; data, model and --out are paths that every node has. A job that ended goes on from its
# last checkpoint with trainer.save_freq=10 trainer.resume_mode=auto trainer.default_local_dir=… after `--`.
#SBATCH --job-name=fairlen
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
set -euo pipefail
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}"

mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
PORT=$((20000 + SLURM_JOB_ID % 20000))
ADDRESS="$(hostname --ip-address | awk '{print $1}'):$PORT"
STEP=(srun --overlap --cpu-bind=none)
trap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT
trap 'exit 143' TERM INT

"${STEP[@]}" --nodes=1 --ntasks=1 --nodelist="${NODES[0]}" \
    ray start --head --block --port="$PORT" --include-dashboard=false --disable-usage-stats &
until ray status --address="$ADDRESS" >/dev/null 2>&1; do
    kill -0 $!  # ends this script where Ray has ended
    sleep 1
done
OTHERS=$((${#NODES[@]} - 1))
if [ "$OTHERS" -gt 0 ]; then
    "${STEP[@]}" --nodes="$OTHERS" --ntasks="$OTHERS" --exclude="${NODES[0]}" \
        ray start --block --address="$ADDRESS" --disable-usage-stats &
fi
fairlen verl --ray-address "$ADDRESS" "$@"

#!/bin/bash
# Commands of verl on 8 and 64 GPUs of 80 GB, to start from: docs/scale.md. verl takes their settings; no GPU has run them here.
#
#     recipes/verl_scale.sh fsdp-8 [SETTINGS OF verl]
#     recipes/verl_scale.sh fsdp-64           # on a cluster of Ray with fairlen on every node: recipes/verl_slurm.sh starts one
#     recipes/verl_scale.sh megatron-64       # a model that one GPU does not hold
#     recipes/verl_scale.sh async-64          # 32 GPUs generate, 32 train; train_batch_size = parameter_sync_step * ppo_mini_batch_size
set -euo pipefail
actor=actor_rollout_ref.actor rollout=actor_rollout_ref.rollout

common=(
    data.max_prompt_length=1024 data.max_response_length=16384 "$actor.optim.lr=1e-6" trainer.n_gpus_per_node=8
    "$actor.use_dynamic_bsz=True" "$actor.ppo_max_token_len_per_gpu=18432"
    "$rollout.name=vllm" "$rollout.gpu_memory_utilization=0.8" "$rollout.max_num_seqs=64"
)
fsdp=(
    "$actor.strategy=fsdp2" actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True "$rollout.tensor_model_parallel_size=1"
)
cluster=(+ray_kwargs.ray_init.address=auto)

# start METHOD MODEL SETTINGS...
start() {
    fairlen verl --method "$1" --model "$2" --data open-r1/DAPO-Math-17k-Processed/all -- "${common[@]}" "${@:3}"
}

case "${1:-}" in
fsdp-8)
    start dapo+balanced Qwen/Qwen3-8B "${fsdp[@]}" \
        trainer.nnodes=1 data.train_batch_size=128 "$actor.ppo_mini_batch_size=32" "$actor.ulysses_sequence_parallel_size=2" \
        "$actor.fsdp_config.param_offload=True" "$actor.fsdp_config.optimizer_offload=True" "${@:2}"
    ;;
fsdp-64)
    start dapo+balanced Qwen/Qwen3-8B "${fsdp[@]}" "${cluster[@]}" \
        trainer.nnodes=8 data.train_batch_size=512 "$actor.ppo_mini_batch_size=128" "${@:2}"
    ;;
megatron-64)
    start fspo Qwen/Qwen3-32B "${cluster[@]}" model_engine=megatron \
        trainer.nnodes=8 data.train_batch_size=256 "$actor.ppo_mini_batch_size=64" \
        "$actor.megatron.tensor_model_parallel_size=4" "$actor.megatron.pipeline_model_parallel_size=2" \
        "$actor.megatron.context_parallel_size=2" "$actor.megatron.param_offload=True" \
        "$actor.megatron.optimizer_offload=True" "$rollout.tensor_model_parallel_size=4" "${@:2}"
    ;;
async-64)
    start dapo+balanced+mismatch Qwen/Qwen3-8B trainer.v1.trainer_mode=separate_async "${fsdp[@]}" "${cluster[@]}" \
        trainer.nnodes=4 data.train_batch_size=256 "$actor.ppo_mini_batch_size=64" \
        "$rollout.nnodes=4" "$rollout.n_gpus_per_node=8" actor_rollout_ref.hybrid_engine=False \
        "$rollout.checkpoint_engine.backend=nccl" \
        trainer.v1.separate_async.parameter_sync_step=4 trainer.v1.separate_async.num_warmup_batches=1 \
        trainer.v1.sampler.max_off_policy_threshold=4 trainer.v1.sampler.max_off_policy_strategy=wait "${@:2}"
    ;;
*)
    echo "recipes/verl_scale.sh: '${1:-}' is none of fsdp-8, fsdp-64, megatron-64, async-64" >&2
    exit 2
    ;;
esac

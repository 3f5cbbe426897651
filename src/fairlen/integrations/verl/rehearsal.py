"""Settings of `fairlen verl --cpu`: two FSDP2 workers with gloo, two rollout servers, Ray on this machine, the playground."""

from __future__ import annotations

import json
from pathlib import Path

from fairlen import playground
from fairlen.files.folders import write_file
from fairlen.integrations.verl.settings import ACTOR, ROLLOUT

MODULE = "fairlen.integrations.verl.cpu"
VLLM_NAME = f"{ROLLOUT}.name=vllm"
VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for a node whose address is 127.0.0.1, on any system
    "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1",
}  # fmt: skip
"""Ray, and with it TransferQueue, which unpickles what it is sent, then gloo and vLLM: all listen on this machine alone."""
MAX_RESPONSE_LENGTH = 128
"""Tokens of a response."""
NUM_PROBLEMS, NUM_HELD_OUT = 512, 64
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The prompt of the playground as a chat template."""
UNUSED = ("<|im_end|>", "\n")
"""verl's reader of Qwen3 prompts asks for tokens of these; the playground never writes them."""
UNKNOWN = "<pad>"
"""What the playground does not write is read as: vLLM tries the template with words of its own."""
SETTINGS = {
    "trainer.device=cpu": "no accelerator",
    "trainer.nnodes=1": "this machine",
    "trainer.n_gpus_per_node=2": "two workers, each with a rollout server",
    "ray_kwargs.ray_init.num_cpus=16": "what Ray believes to be there",
    "+ray_kwargs.ray_init.num_gpus=2": "what Ray believes to be there",
    "+ray_kwargs.ray_init.include_dashboard=False": "no dashboard",
    "+ray_kwargs.ray_init.object_store_memory=500000000": "bytes",
    f"{ROLLOUT}.name=fairlen_cpu": "fairlen's engine as rollout server",
    f"{ROLLOUT}.dtype=float32": "arithmetic of a CPU",
    f"{ROLLOUT}.tensor_model_parallel_size=1": "one worker a server",
    f"{ROLLOUT}.free_cache_engine=False": "nothing to free",
    f"{ROLLOUT}.agent.num_workers=1": "one process",
    f"{ACTOR}.strategy=fsdp2": "FSDP1 refuses a CPU",
    f"{ACTOR}.fsdp_config.strategy=fsdp2": "FSDP1 refuses a CPU",
    f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32": "arithmetic of a CPU",
    f"+{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp32": "arithmetic of a CPU",
    f"{ACTOR}.fsdp_config.use_torch_compile=False": "not worth its time here",
    f"{ACTOR}.use_torch_compile=False": "not worth its time here",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa": "flash attention needs CUDA",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False": "memory is not short",
    "actor_rollout_ref.model.use_remove_padding=False": "needs flash attention",
    f"{ACTOR}.use_dynamic_bsz=True": "micro-batches by tokens",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz=True": "micro-batches by tokens",
    f"{ACTOR}.ppo_max_token_len_per_gpu=8192": "tokens of a micro-batch",
    f"{ACTOR}.ppo_mini_batch_size=16": "prompts of an update",
    f"{ACTOR}.optim.lr=4e-4": "learning rate",
    f"{ACTOR}.optim.lr_warmup_steps=5": "updates over which it rises",
    f"{ACTOR}.optim.betas=[0.9,0.95]": "of AdamW",
    f"{ACTOR}.optim.weight_decay=0.0": "of AdamW",
    "data.train_batch_size=16": "prompts of a rollout batch",
    "data.max_prompt_length=32": "tokens",
    f"data.max_response_length={MAX_RESPONSE_LENGTH}": "tokens",
    "data.dataloader_num_workers=0": "one process",
    "reward.num_workers=1": "one process",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1": "one process",
    "trainer.logger=[console,file]": "metrics as JSON lines too",
    "trainer.val_before_train=False": "training only",
    "trainer.test_freq=-1": "training only",
    "trainer.save_freq=-1": "no checkpoints",
    "trainer.resume_mode=disable": "starts anew",
    "trainer.total_training_steps=4": "rollout batches",
}
"""verl's settings of a rehearsal: what each means, by the override as hydra reads it."""
RAY_OF_ITS_OWN = (
    "ray_kwargs.ray_init.num_cpus", "ray_kwargs.ray_init.num_gpus", "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.object_store_memory",
)  # fmt: skip
"""What Ray takes only where it starts a cluster, and refuses where it joins one."""
VLLM_SETTINGS = {
    f"{ROLLOUT}.load_format=dummy": "weights come from the trainer",
    f"{ROLLOUT}.enforce_eager=True": "nothing to compile",
    f"+{ROLLOUT}.engine_kwargs.vllm.block_size=32": "tokens of a prefix that are reused together: the CPU build's smallest",
    f"+{ROLLOUT}.enable_sleep_mode=False": "a CPU build does not sleep",
    f"{ROLLOUT}.max_model_len=256": "tokens of prompt and response",
    f"{ROLLOUT}.max_num_seqs=64": "responses at a time",
    f"{ROLLOUT}.max_num_batched_tokens=1024": "tokens at a time",
    f"{ROLLOUT}.gpu_memory_utilization=0.1": "share of the memory",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=16": "shared memory for weights",
}
"""What vLLM's CPU build needs besides, where rollout.name=vllm is given."""


def copy_shipped(folder: Path, source: str | Path = playground.PATH) -> Path:
    """A shipped model with what verl asks of a chat model: a template, and a token that ends a turn."""
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        write_file(folder / name, (Path(source) / name).read_bytes())
    settings = json.loads((Path(source) / "tokenizer_config.json").read_text())
    write_file(folder / "tokenizer_config.json", json.dumps(settings | {"chat_template": TEMPLATE}, indent=2).encode())
    tokenizer = json.loads((Path(source) / "tokenizer.json").read_text())
    tokenizer["model"]["unk_token"] = UNKNOWN
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    number = max(tokenizer["model"]["vocab"].values()) + 1
    for offset, text in enumerate(UNUSED):
        tokenizer["added_tokens"].append({"id": number + offset, "content": text, "special": True} | flags)
    write_file(folder / "tokenizer.json", json.dumps(tokenizer).encode())
    return folder

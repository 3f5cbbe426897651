"""Engines by name: how each is built, and what a run must know of it before."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from fairlen.engine import Engine
from fairlen.engine.cache import estimate_position_bytes
from fairlen.engine.device import free_memory
from fairlen.engine.engine import check_state, in_evaluation
from fairlen.engine.generation import SteppedEngine
from fairlen.engine.vllm import VllmEngine, refuse_missing_vllm
from fairlen.policy.model import Policy, output_embeddings
from fairlen.policy.pack import ModelInput
from fairlen.sampling.extend import Sampling
from fairlen.settings import LARGE, RolloutConfig, choose_engine
from fairlen.tasks.playground import find_response_limit, place_model

PROBE_PREFIX, PROBE_TOKENS = 4, 8
MAX_DIFFERENCE = {"float32": 1e-2, "bfloat16": 0.5}
"""Nats between vLLM and the trainer on a token of the probe; rounding explains 1e-5 in float32 and 0.1 in bfloat16."""
RESPONSE_LENGTH = 512
MAX_NUM_SEQS = 256
CACHE_SHARE = 0.25
"""Of the free memory of a CPU, for keys and values of a number of responses that is chosen."""
Config = TypeVar("Config", bound=RolloutConfig)
COMPILE = {"on": True, "off": False, "auto": "auto"}


def build_engine(config: RolloutConfig, policy: Policy, max_length: int, reserved: int = 0) -> SteppedEngine:
    """Build the engine of `sampling.engine` for prefixes and responses of `max_length` tokens together, outside of an event loop.

    On CUDA `reserved` bytes of the free memory are left to training. Raises ValueError where vLLM is missing, or runs the model
    unlike the trainer, for models that the embedded engine cannot run, and where no sequence fits.
    """
    build = build_vllm if has_copy(config, policy) else build_embedded
    return build(config, policy, max_length, reserved)


def refuse_missing_engine(config: RolloutConfig) -> None:
    """Raise ValueError if the engine that the settings name is not installed. Call it before a model is loaded."""
    if config.sampling.engine == "vllm":
        refuse_missing_vllm()


def is_exact(config: RolloutConfig, policy: Policy) -> bool:
    """Whether the engine's log-probs are the trainer's, and serve as those of the old policy."""
    return not has_copy(config, policy) and not policy.autocast


def settle_engine(config: Config, policy: Policy) -> Config:
    """Return the settings with the engine that is taken. Raises ValueError for a model whose state it cannot keep."""
    chosen = choose_engine(config, policy.device.type, policy.model.num_parameters())
    if chosen == "embedded":
        check_state(policy.model)
    elif number := policy.device.index:
        way = f"CUDA_VISIBLE_DEVICES={number} and --device cuda"
        raise ValueError(f"device={policy.device} with engine=vllm, which takes the first one: give {way}")
    return config.replace(engine=chosen)


def has_copy(config: RolloutConfig, policy: Policy) -> bool:
    """Whether the engine runs a copy of the weights, with arithmetic and a cache of its own, and can sleep during updates."""
    return choose_engine(config, policy.device.type, policy.model.num_parameters()) == "vllm"


def choose_sizes(config: RolloutConfig, policy: Policy, longest: int, free: int, length: int = 0) -> dict[str, int]:
    """Return the settings of the longest response and of responses decoded at a time, where they are 0 chosen.

    They follow from the `longest` prompt and `free` bytes; `length` is preferred. On CUDA an engine fits itself.
    """
    positions = find_positions(policy)
    length = config.sampling.max_response_length or length or find_response_limit(config.data)
    length = length or max(min(RESPONSE_LENGTH, positions - longest), 1)
    row = (2 * longest + length) * count_position_bytes(policy)  # a prompt is kept beside each response
    room = int(CACHE_SHARE * free) // max(row, 1)
    is_bounded = policy.device.type == "cpu" and policy.model.num_parameters() >= LARGE
    fitting = 1 << max(room.bit_length() - 1, 0) if is_bounded and room < MAX_NUM_SEQS else MAX_NUM_SEQS
    return {"max_response_length": length, "max_num_seqs": config.sampling.max_num_seqs or fitting}


def find_positions(policy: Policy) -> int:
    """Positions that a model was made for; many where its configuration has no such number."""
    return getattr(policy.model.config, "max_position_embeddings", None) or 1 << 62


def find_max_length(policy: Policy, longest: int, max_response_length: int, prompt: str = "the longest prompt") -> int:
    """Positions that the engine makes room for after `longest` of a prompt. Raises ValueError where the model has fewer."""
    positions = find_positions(policy)
    if (room := positions - longest) < max_response_length:
        fitting = f"at most {room}, or shorter prompts" if room > 0 else "shorter prompts, or a model with more"
        raise ValueError(
            f"--max-response-length {max_response_length}: the model has {positions} positions, and {prompt} takes {longest}; "
            f"give {fitting}"
        )
    return longest + max_response_length


def count_position_bytes(policy: Policy) -> int:
    """Bytes of keys and values of one position on a CPU; 0 where the layers differ, or are no attention."""
    try:
        return estimate_position_bytes(policy.model.config.get_text_config(), max(policy.model.dtype.itemsize, 4))
    except (AttributeError, TypeError):
        return 0


def build_embedded(config: RolloutConfig, policy: Policy, max_length: int, reserved: int) -> Engine:
    """An engine on the policy's own module. Raises ValueError for models whose state is not attention alone."""
    return Engine(
        policy.model,
        eos_token_id=policy.eos_token_ids,
        max_length=max_length,
        max_num_seqs=config.sampling.max_num_seqs,
        compile=COMPILE[config.model.compile],
        autocast=policy.autocast,
        memory=free_memory(policy.device) - reserved if policy.device.type == "cuda" else None,
    )


def build_vllm(config: RolloutConfig, policy: Policy, max_length: int, reserved: int) -> VllmEngine:
    """vLLM with a copy of the policy's weights, compared with it once, and asleep."""
    engine = VllmEngine(
        place_model(config.model.name),
        lambda: checkpoint_weights(policy).items(),
        eos_token_id=policy.eos_token_ids,
        max_length=max_length,
        max_num_seqs=config.sampling.max_num_seqs,
        dtype=config.model.dtype,
        revision=config.model.revision or None,
        compile=COMPILE[config.model.compile],
        gpu_memory_utilization=config.sampling.gpu_memory_utilization,
        reserved=reserved,
        sleep_level=config.sampling.sleep_level,
        request_seeds=config.sampling.request_seeds,
    )
    found = probe(engine, policy)
    if not found <= MAX_DIFFERENCE[config.model.dtype]:
        raise ValueError(
            f"engine=vllm: its log-probs differ from the trainer's by up to {found:.3g} nats on a probe of "
            f"model={config.model.name}: vLLM does not run this model "
            "as transformers does, or did not take all of its weights; use engine=embedded"
        )
    engine.sleep()
    return engine


def checkpoint_weights(policy: Policy) -> dict[str, Tensor]:
    """Weights and saved buffers by the names in the model's files, as vLLM takes them; transformers may hold them merged.

    Tied ones under each of their names: vLLM keeps a packed copy of its own for the output layer.
    """
    named = dict(policy.named_weights())
    first_name = {parameter: name for name, parameter in policy.model.named_parameters()}
    for name, tensor in policy.model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, nn.Parameter):
            named[name] = tensor
        elif name not in named and first_name[tensor] in named:
            named[name] = named[first_name[tensor]]
    return revert_weight_conversion(policy.model, named)


def probe(engine: VllmEngine, policy: Policy) -> float:
    """Largest difference between the engine's and the trainer's log-probs on a short greedy continuation, nats."""
    vocab_size = output_embeddings(policy.model).weight.shape[0]
    prefix = tuple(torch.linspace(0, vocab_size - 1, PROBE_PREFIX).long().tolist())
    (made,) = engine.generate([prefix], [Sampling(PROBE_TOKENS, seed=0, temperature=0.0)])
    tokens = torch.tensor(prefix + made.token_ids, device=policy.device)
    source = torch.arange(len(prefix) - 1, len(tokens) - 1, device=policy.device)
    with in_evaluation(policy.model.modules()):
        ours = policy.forward(ModelInput(tokens[None, :-1], source, tokens[len(prefix) :], temperature=1.0)).logprobs
    return float((ours.double().cpu() - torch.tensor(made.logprobs, dtype=torch.float64)).abs().max())

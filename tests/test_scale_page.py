"""docs/scale.md: its numbers are those of benchmarks/scale.py; TRL and verl accept its settings and recipes/verl_scale.sh."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import scale  # noqa: E402

from fairlen.methods.compose import compose as compose_method  # noqa: E402

PAGE = (ROOT / "docs" / "scale.md").read_text()


def test_the_table_is_what_the_program_prints():
    (table,) = re.findall(r"<!-- scale\.py -->\n\n(.*?)\n\n<!-- end -->", PAGE, re.S)
    assert table == scale.make_table(scale.NUM_PROMPTS)


def test_a_stream_by_hand():
    """Tracks of 4 and 6 tokens after a prompt of 200; the fork at 4 ends at 6 with the survivor: a tie, which ends the stream."""
    lengths = (4, 6, 6)
    stream = scale.run_stream(lambda track, inherited: lengths[track], max_rounds=0)
    assert (stream.stops, stream.first, stream.forks, stream.last) == ((4, 6), 6, (2,), 6)
    assert stream.tokens == 4 + 6 + 2
    assert stream.row_tokens == 2 * (200 + 4) + 2 * (200 + 6)
    # one call at a time: the fork starts when both tracks have ended, at 6, and takes 2 steps
    assert scale.count_call_steps([stream]) == 6 + 2
    limited = scale.run_stream(lambda track, inherited: lengths[track], max_rounds=1)
    assert limited.tokens == 4 + 6
    assert limited.row_tokens == 2 * (200 + 4) + (200 + 6)  # the survivor has a row of its own


def test_what_memory_holds():
    """Qwen3-8B: 36 layers, 8 key heads of 128, keys and values in 2 bytes; 8.2e9 parameters."""
    position = 36 * 8 * 128 * 2 * 2
    assert round((0.8 * 80e9 - 2 * 8.2e9) / position, -3) == 323_000 and "323,000 positions" in PAGE
    assert f"{position:,} bytes each" in PAGE


NAMES = ("fsdp-8", "fsdp-64", "megatron-64", "async-64")


def command(name: str) -> list[str]:
    """Arguments of a command of the recipe behind `fairlen verl`, as bash hands them on."""
    script = f"""fairlen() {{ printf '%s\\n' "$@"; }}; set -- {name}; . {ROOT}/recipes/verl_scale.sh"""
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("verl\n")
    return done.stdout.splitlines()[1:]


def compose_verl(arguments: list[str]):
    """verl's settings for one command of the page, composed as its main program does."""
    from hydra import compose, initialize_config_module

    from fairlen.flags import read_flags
    from fairlen.integrations.verl.launch import VerlConfig, collect

    cut = arguments.index("--")
    given = collect(read_flags(VerlConfig, "fairlen verl", arguments[:cut]), arguments[cut + 1 :], Path("runs/x"))
    texts = [text for text in given if not text.startswith("hydra.")]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_settings_of_verl_are_accepted(name):
    arguments = command(name)
    config = compose_verl(arguments)
    assert config.algorithm.fairlen.method == arguments[1] and not config.trainer.val_before_train
    actor, rollout, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.trainer
    num_gpus = trainer.nnodes * trainer.n_gpus_per_node + rollout.nnodes * rollout.n_gpus_per_node * (
        rollout.nnodes > 0
    )
    assert num_gpus == int(name.partition("-")[2])
    assert config.data.train_batch_size % actor.ppo_mini_batch_size == 0
    assert actor.ppo_max_token_len_per_gpu >= config.data.max_prompt_length + config.data.max_response_length
    assert actor.strategy == ("megatron" if "model_engine=megatron" in arguments else "fsdp2")
    if trainer.v1.trainer_mode == "fairlen_separate_async":
        sync = trainer.v1.separate_async.parameter_sync_step
        assert config.data.train_batch_size == sync * actor.ppo_mini_batch_size
        assert rollout.nnodes > 0 and rollout.checkpoint_engine.backend != "naive"


def test_the_same_settings_take_eqlen():
    first = command("fsdp-8")
    rest = [word for word in first[2:] if not word.startswith("actor_rollout_ref.actor.use_dynamic_bsz")]
    assert "`data.train_batch_size=64` (1,024 tracks" in PAGE
    config = compose_verl(
        ["--method", "eqlen+grpo", "--set", "sampling.max_rounds=4", *rest, "data.train_batch_size=64"]
    )
    assert config.actor_rollout_ref.actor.use_dynamic_bsz
    assert config.actor_rollout_ref.rollout.n == 1  # one agent loop a prompt, for all of its streams
    assert config.trainer.v1.trainer_mode == "fairlen_sync"
    tracks = config.data.train_batch_size * compose_method("eqlen+grpo").sampling.num_tracks
    assert tracks == 1024 == 2 * 8 * config.actor_rollout_ref.rollout.max_num_seqs  # the page's rule, 8 servers


def test_what_the_page_calls_refused_is_refused():
    asynchronous = command("async-64")
    rest = [word for word in asynchronous[2:] if not word.startswith("actor_rollout_ref.actor.use_dynamic_bsz")]
    for method in ("eqlen+grpo", "eqlen_unbiased"):
        with pytest.raises(ValueError, match=rf"trainer_mode=separate_async: the method {re.escape(method)} sets this"):
            compose_verl(["--method", method, *rest])
    taken = compose_verl(["--method", "fspo", *asynchronous[2:]])
    assert taken.trainer.v1.trainer_mode == "fairlen_separate_async"
    assert taken.trainer.v1.sampler.max_off_policy_strategy == "wait"


def test_settings_of_trl_exist():
    from trl import GRPOConfig

    (block,) = re.findall(r"```py\n(.*?)```", PAGE, re.S)
    given = dict(re.findall(r"^    (\w+)=([^,]+),", block, re.M))
    assert set(given) <= {field.name for field in fields(GRPOConfig)}
    rows = 8 * int(given["per_device_train_batch_size"]) * int(given["steps_per_generation"])
    assert (rows, rows // int(given["num_generations"])) == (1024, 64)
    assert int(given["steps_per_generation"]) // int(given["gradient_accumulation_steps"]) == 4

"""`fairlen verl` without Ray: settings that verl can read, what may not be overridden, and data."""

import asyncio
import importlib
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from hydra import compose as compose_settings
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from packaging.requirements import Requirement
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, PPOTrainer
from verl.utils.config import omega_conf_to_dataclass

from fairlen.cli import main
from fairlen.integrations.verl import launch, plugin
from fairlen.integrations.verl.data import compute_score, copy_shipped, data_rows, playground_rows, write_rows
from fairlen.integrations.verl.launch import VerlConfig, collect, describe_verdict, environment
from fairlen.integrations.verl.settings import quote, read_method, rename_legacy
from fairlen.methods.compose import compose
from fairlen.tasks.playground import Playground

NAMES = ["grpo+balanced", "eqlen+grpo", "fspo", "grpo+kl", "dapo+entropy"]


def resolve(config, given=(), folder=Path("/nowhere")):
    """verl's settings as hydra reads them."""
    folder_of_verl = Path(find_spec("verl").origin).parent / "trainer" / "config"
    texts = [text for text in collect(config, given, folder) if not text.startswith("hydra.")]
    with initialize_config_dir(str(folder_of_verl), version_base=None):
        return compose_settings("ppo_trainer", texts)


@pytest.mark.slow
@pytest.mark.parametrize(("names", "cpu"), [(NAMES[0], True), (NAMES[1], False), *((name, True) for name in NAMES[1:])])
def test_verl_reads_every_setting(names, cpu):
    method = compose(names, ["surrogate.clip_high=0.3"] if names == "grpo+balanced" else [])
    set_fields = ("surrogate.clip_high=0.3",) if names == "grpo+balanced" else ()
    settings = resolve(
        VerlConfig(method=names, overrides=set_fields, cpu=cpu),
        ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"],
    )
    assert settings.algorithm.adv_estimator == "fairlen" and settings.algorithm.fairlen.method == names
    assert read_method(settings.algorithm.fairlen) == method
    actor = omega_conf_to_dataclass(settings.actor_rollout_ref.actor)
    assert settings.trainer.v1.trainer_mode == "fairlen_sync"
    assert settings.actor_rollout_ref.rollout.n == (1 if names.startswith("eqlen") else method.sampling.num_tracks)
    assert actor.use_kl_loss == (names == "grpo+kl") and actor.calculate_entropy == (names == "dapo+entropy")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("algorithm.adv_estimator=grpo", "the method eqlen\\+grpo sets this"),
        ("actor_rollout_ref.rollout.n=4", "--set sampling.streams=2"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "sets this"),
        ("trainer.v1.trainer_mode=separate_async", "EqLen, which compares two continuations by one policy"),
        ("actor_rollout_ref.rollout={n:4}", "on its own, such as actor_rollout_ref.rollout.NAME=VALUE"),
        ("algorithm={adv_estimator:grpo}", "needs algorithm.adv_estimator, which is below"),
        ("~algorithm", "write each setting on its own"),
        ("actor_rollout_ref.rollout.top_p=0.9", "another distribution"),
        ("+actor_rollout_ref.rollout.min_p=0.1", "another distribution"),
        ("actor_rollout_ref.actor.clip_ratio_high=0.3", "does not read this.*surrogate.clip_high"),
        ("algorithm.norm_adv_by_std_in_grpo=False", "no_std"),
        ("actor_rollout_ref.rollout.full_determinism=True", "with EqLen: every request gets one seed"),
        ("actor_rollout_ref.rollout.multi_turn.enable=true", "with EqLen: a track is one text"),
        ("algorithm.rollout_correction.rollout_rs=token_k1", "does not read this.*mismatch"),
        ("actor_rollout_ref.actor.loss_scale_factor=4096", "does not read this.*data.max_response_length"),
        ("actor_rollout_ref.rollout.response_length=99", "data.max_response_length is the longest response"),
        ("+reward.reward_kwargs.overlong_buffer_cfg.enable=True", "\\+overlong subtracts it after the verdict"),
        ("trainer.logger=[wandb]", "add console to the list"),
        ("custom_reward_function.path=a.py", "reads no such key any more; write reward.custom_reward_function.path=…"),
        ("custom_reward_function.name=f", "write reward.custom_reward_function.name=…"),
        ("reward_model.reward_manager=dapo", "write reward.reward_manager.name=…"),
        ("reward_model.enable=True", "write reward.reward_model.enable=…"),
        ("reward_model.model.path=m", "write reward.reward_model.model_path=…"),
        ("reward_model.rollout.name=vllm", "write reward.reward_model.rollout.name=…"),
        ("+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True", "\\+overlong subtracts it after the verdict"),
        ("sandbox_fusion.url=http://a", "write reward.sandbox_fusion.url=…"),
        ("reward_model.overlong_buffer.enable=True", "\\+overlong subtracts it after the verdict"),
        ("critic.enable=True", "no method has a critic"),
        ("trainer.remove_clip=False", "has no such setting; leave it out, or write \\+trainer.remove_clip=…"),
        ("~trainer.remove_clip", "has no such setting; leave it out"),
        (
            "+trainer.val_before_train=True",
            "has this setting already; write trainer.val_before_train=… without the \\+",
        ),
        ("model_engine=nothing", "verl has no such configuration: .*nothing"),
        ("trainer.project_name={a", "hydra cannot read this"),
        ("--method", "write KEY=VALUE"),
        ("data.trust_remote_code=True", "code of a model is never run here"),
    ],
)
def test_what_undoes_the_method_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        collect(VerlConfig(method="eqlen+grpo"), [given], Path("/nowhere"))


def test_all_overrides_that_cannot_be_are_named_at_once():
    given = [
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=8",
        "custom_reward_function.path=a.py",
        "trainer.logger=[wandb]",
    ]
    with pytest.raises(
        ValueError, match=r"^3 settings cannot be taken:\n  1. algorithm.*\n  2. custom_reward.*\n  3. trainer.logger"
    ):
        collect(VerlConfig(method="grpo"), given, Path("/nowhere"))


@pytest.mark.slow
def test_the_keys_in_place_of_old_ones_are_keys_of_verl():
    """Each new key can be set without a plus, which hydra asks for where a configuration has no such key."""
    for old, value in (
        ("custom_reward_function.path", "a.py"), ("custom_reward_function.name", "f"), ("reward_model.num_workers", "1"),
        ("reward_model.reward_manager", "naive"), ("reward_model.reward_loop_source", "register"),
        ("reward_model.reward_loop_module_path", "a.py"), ("reward_model.reward_loop_class_name", "A"),
        ("reward_model.model.path", "m"), ("reward_model.enable", "False"), ("reward_model.rollout.dtype", "float32"),
        ("reward_model.n_gpus_per_node", "1"), ("sandbox_fusion.url", "u"), ("sandbox_fusion.max_concurrent", "1"),
    ):  # fmt: skip
        resolve(VerlConfig(method="grpo"), [f"{rename_legacy(old)}={value}"])


def test_fairlens_data_sets_are_graded_by_its_verifiers_and_verls_files_by_verls():
    def rewards(*given, **settings) -> bool:
        return any(
            "custom_reward_function" in text for text in collect(VerlConfig(**settings), given, Path("/nowhere"))
        )

    assert rewards(data=("train.jsonl",)) and rewards(cpu=True)
    assert not rewards("data.train_files=[a.parquet]") and not rewards("data.train_files=[a.parquet]", cpu=True)
    with pytest.raises(ValueError, match=r"data=train.jsonl and data.train_files=\[a.parquet\]: give one"):
        rewards("data.train_files=[a.parquet]", data=("train.jsonl",))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "eqlen+grpo"])
def test_values_that_change_nothing_are_let_through(method):
    rollout = [
        f"actor_rollout_ref.rollout.{text}"
        for text in ("top_p=1.00", "top_k=-1", "temperature=0.7", "n_gpus_per_node=4")
    ]
    given = [*rollout, "actor_rollout_ref.rollout.full_determinism=False", "algorithm.filter_groups.enable=False"]
    assert resolve(VerlConfig(method=method), given).actor_rollout_ref.rollout.temperature == 0.7
    whole = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"]
    assert resolve(VerlConfig(method="grpo"), whole).algorithm.filter_groups.enable


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"


@pytest.mark.parametrize(
    ("method", "overrides", "same", "other"),
    [
        ("grpo", (), ["critic.enable=False"], "critic.enable=True"),
        ("grpo", (), ["trainer.use_v1=True"], "trainer.use_v1=False"),
        ("grpo", (), ["algorithm.use_kl_in_reward=false"], "algorithm.use_kl_in_reward=true"),
        ("grpo", (), [f"{ACTOR}.use_kl_loss=False"], f"{ACTOR}.use_kl_loss=True"),
        ("grpo", (), [f"{ACTOR}.kl_loss_coef=0.0"], f"{ACTOR}.kl_loss_coef=0.001"),
        ("grpo", (), [f"{ACTOR}.use_kl_loss=False", f"{ACTOR}.kl_loss_coef=0.1"], f"{ACTOR}.kl_loss_coef=0.1"),
        ("grpo+kl", (), [f"{ACTOR}.use_kl_loss=True"], f"{ACTOR}.use_kl_loss=False"),
        ("grpo+kl", (), [f"{ACTOR}.kl_loss_coef=0.001"], f"{ACTOR}.kl_loss_coef=0.01"),
        ("grpo+kl", (), [f"{ACTOR}.kl_loss_type=low_var_kl"], f"{ACTOR}.kl_loss_type=mse"),
        ("grpo", (), [f"{ACTOR}.entropy_coeff=0"], f"{ACTOR}.entropy_coeff=0.001"),
        ("grpo+entropy", (), [f"{ACTOR}.entropy_coeff=1e-3"], f"{ACTOR}.entropy_coeff=0"),
        ("dapo", (), [f"{ACTOR}.loss_agg_mode=token-mean"], f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
        ("grpo", (), [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"], f"{ACTOR}.loss_agg_mode=token-mean"),
        ("grpo", (), [f"{ACTOR}.policy_loss.loss_mode=vanilla"], f"{ACTOR}.policy_loss.loss_mode=gspo"),
        ("gspo", (), [f"{ACTOR}.policy_loss.loss_mode=gspo"], f"{ACTOR}.policy_loss.loss_mode=vanilla"),
        ("dapo", (), [f"{ACTOR}.clip_ratio_high=0.28"], f"{ACTOR}.clip_ratio_high=0.2"),
        ("grpo", (), [f"{ACTOR}.clip_ratio=0.2"], f"{ACTOR}.clip_ratio=0.3"),
        ("dapo", (), [f"{ACTOR}.clip_ratio_low=0.2"], f"{ACTOR}.clip_ratio=0.2"),  # high is 0.28
        ("grpo", ("surrogate.dual_clip=3",), [f"{ACTOR}.clip_ratio_c=3.0"], f"{ACTOR}.clip_ratio_c=10.0"),
        ("grpo", (), ["algorithm.norm_adv_by_std_in_grpo=True"], "algorithm.norm_adv_by_std_in_grpo=False"),
        ("dr_grpo", (), ["algorithm.norm_adv_by_std_in_grpo=False"], "algorithm.norm_adv_by_std_in_grpo=True"),
        ("grpo", ("sampling.n=5",), [f"{ROLLOUT}.n=5"], f"{ROLLOUT}.n=4"),
        ("grpo", (), [f"{ROLLOUT}.calculate_log_probs=True"], f"{ROLLOUT}.calculate_log_probs=False"),
        ("grpo", (), ["algorithm.adv_estimator=fairlen"], "algorithm.adv_estimator=grpo"),
        ("grpo", (), [f"+{BUFFER}.enable=False"], f"+{BUFFER}.enable=True"),
        ("grpo", (), [f"+{BUFFER}.enable=False", f"+{BUFFER}.len=4096"], f"+{BUFFER}.len=4096"),
        ("grpo", (), ["reward_model.enable=False"], "reward_model.enable=True"),
        ("grpo", (), ["reward_model.reward_manager=naive"], "reward_model.reward_manager=dapo"),
        ("grpo", (), ["custom_reward_function.path=null"], "custom_reward_function.path=a.py"),
    ],
)
def test_settings_that_state_what_the_job_does_anyway_are_taken(method, overrides, same, other):
    """And with another value they are refused; what nothing reads while its switch is off is taken with the switch alone."""
    config = VerlConfig(method=method, overrides=overrides)
    assert set(same) < set(collect(config, same, Path("/nowhere")))
    with pytest.raises(ValueError, match=re.escape(other)):
        collect(config, [other], Path("/nowhere"))


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
@pytest.mark.parametrize("flags", [[], ["--cpu"], ["--ray-address", "host:6379"]], ids=["here", "rehearsal", "cluster"])
def test_a_missing_vllm_is_refused_with_all_else_before_a_model_is_read(flags, tmp_path, capsys):
    """A model that does not exist would be the error if it were read first; another machine's packages are not known here."""
    given = [
        "actor_rollout_ref.rollout.name=vllm",
        "critic.enable=True",
        f"data.train_files={tmp_path / 'none.parquet'}",
    ]
    assert main(["verl", "--model", str(tmp_path / "none"), *flags, "--out", str(tmp_path / "run"), "--", *given]) == 2
    printed = capsys.readouterr().err
    assert "critic.enable=True" in printed and "none:" not in printed
    assert ("the package vllm is not installed here" in printed) == (flags[:1] != ["--ray-address"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "given", "line"),
    [
        ({"cpu": True}, [], "correct: by fairlen's verifier, whose verdict is the reward"),
        (
            {},
            ["data.train_files=a.parquet"],
            "correct: the number acc that the reward function returns, else its score, is above 0.5",
        ),
        (
            {},
            [
                "data.train_files=a.parquet",
                "reward.custom_reward_function.path=r.py",
                "+algorithm.fairlen.correct_threshold=0.9",
            ],
            "correct: the number acc that r.py returns, else its score, is above 0.9",
        ),
    ],
    ids=["fairlen", "verl", "own"],
)
def test_a_job_states_what_counts_as_correct(settings, given, line):
    assert describe_verdict(VerlConfig(**settings), given, Path("/nowhere")) == line


def test_training_problems_are_not_validated_on_before_the_first_step():
    def before(given=(), **config):
        """As verl has it by itself, unless a setting says otherwise."""
        settings = collect(VerlConfig(method="grpo", **config), given, Path("/nowhere"))
        return "trainer.val_before_train=False" not in settings

    assert resolve(VerlConfig(method="grpo")).trainer.val_before_train
    assert not before(data=("gsm8k.jsonl",))
    assert before(data=("gsm8k.jsonl",), eval_data=("test.jsonl",))
    assert before(["data.val_files=[test.parquet]"], data=("gsm8k.jsonl",))
    assert before(["trainer.val_before_train=True"], data=("gsm8k.jsonl",))
    assert before(["data.train_files=[a.parquet]", "data.val_files=[b.parquet]"])


@pytest.mark.slow
def test_other_settings_replace_ours_and_reach_verl():
    given = ["data.train_batch_size=32", "+algorithm.fairlen.correct_threshold=0.9", "trainer.nnodes=8"]
    settings = resolve(VerlConfig(method="grpo", cpu=True), given)
    assert (settings.data.train_batch_size, settings.trainer.nnodes) == (32, 8)
    assert settings.algorithm.fairlen.correct_threshold == 0.9
    assert settings.actor_rollout_ref.actor.ppo_mini_batch_size == 32 and settings.data.max_prompt_length == 32
    of_own_data = resolve(VerlConfig(method="grpo", cpu=True, data=("gsm8k.jsonl",)))
    assert of_own_data.data.max_prompt_length == 512  # verl's
    allowed = VerlConfig(method="grpo", allow_truncated_sampling=True)
    assert resolve(allowed, ["actor_rollout_ref.rollout.top_p=0.9"]).actor_rollout_ref.rollout.top_p == 0.9


def test_dry_run_prints_settings_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "job"
    flags = ("--method", "eqlen+dapo", "--cpu", "--dry-run", "--out", str(out))
    assert main(["verl", *flags, "--", "trainer.nnodes=3"]) == 0
    text = capsys.readouterr().out
    assert "\"+algorithm.fairlen.method='eqlen+dapo'\"\n    the method\n" in text
    lines = [line for line in text.splitlines() if not line.startswith(" ")]
    settings = collect(VerlConfig(method="eqlen+dapo", cpu=True), ["trainer.nnodes=3"], out)
    assert [shlex.split(line) for line in lines] == [[text] for text in settings]  # as a shell reads them
    assert "trainer.nnodes=3\n    given\n" in text and "trainer.nnodes=1" not in text
    assert not out.exists()
    assert main(["verl", "--method", "dapo+nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_the_playground_as_verl_reads_it(tmp_path):
    path = tmp_path / "train.parquet"
    assert write_rows(playground_rows(5, held_out=False), path) == 5
    row = pq.read_table(path).to_pylist()[2]
    problem = Playground().train(2)
    assert row["prompt"] == [{"role": "user", "content": problem.text}]

    def grade(text):
        answer = row["reward_model"]["ground_truth"]
        return asyncio.run(compute_score(row["data_source"], text, answer, row["extra_info"]))

    assert grade(f"...#{problem.answer}") == {"score": 1.0, "acc": 1.0, "verdict": 1.0}
    assert grade(f"...#{int(problem.answer) + 1}") == {"score": 0.0, "acc": 0.0, "verdict": 1.0}
    with pytest.raises(ValueError, match=r"no extra_info\.fairlen_problem"):
        asyncio.run(compute_score("mine", "text", "1", {}))


@pytest.mark.parametrize(
    ("form", "given"), [("auto", "so \\boxed{{{}}}"), ("hashes", "#### {}"), ("regex:is (.*)", "it is {}")]
)
def test_a_data_set_as_verl_reads_it(form, given, tmp_path):
    """A file of mathematics: our verifier grades what verl hands back, in the form that the problems were written with."""
    pytest.importorskip("math_verify")
    source = tmp_path / "math.jsonl"
    source.write_text(
        "\n".join(json.dumps({"problem": f"What is {n} + 1/2?", "answer": f"{2 * n + 1}/2"}) for n in range(3))
    )
    path = tmp_path / "train.parquet"
    assert write_rows(data_rows([str(source)], form=form), path) == 3
    row = pq.read_table(path).to_pylist()[1]
    asked = "" if form.startswith("regex") else "\n\nReason step by step"
    assert row["prompt"][0]["content"].startswith(f"What is 1 + 1/2?{asked}")

    async def grade_both():
        answer, extra = row["reward_model"]["ground_truth"], row["extra_info"]
        texts = (given.format("1.5"), given.format("2.5"))
        return [await compute_score(row["data_source"], text, answer, extra) for text in texts]

    right, wrong = asyncio.run(grade_both())
    assert (right["acc"], wrong["acc"], right["verdict"]) == (1.0, 0.0, 1.0)


def test_problems_of_the_evaluation_are_not_trained_on_and_shares_are_refused(tmp_path):
    train, held_out = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    for path, numbers in ((train, range(5)), (held_out, range(2))):
        path.write_text("\n".join(json.dumps({"problem": f"{n} + 1?", "answer": n + 1}) for n in numbers))
    found = data_rows([str(train)], held_out=[str(held_out)])
    assert sorted(row["reward_model"]["ground_truth"] for row in found) == ["3", "4", "5"]
    with pytest.raises(ValueError, match="verl mixes by size; leave =3 out"):
        list(data_rows([f"{train}=3"]))


def test_the_rehearsals_model_reads_prompts_as_the_playground_does(tmp_path):
    """The chat template gives the same token ids; verl's reader of Qwen3 prompts finds its tokens."""
    from transformers import AutoTokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer = AutoTokenizer.from_pretrained(copy_shipped(tmp_path / "model"))
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3")
    for number in range(4):
        problem = Playground().train(number)
        message = {"role": "user", "content": problem.text}
        assert tuple(builder.build_initial_tokens([message])) == problem.token_ids
    assert tokenizer("1+hi")["input_ids"] == [*tokenizer("1+")["input_ids"], 0, 0]  # vLLM asks for words at its start


@pytest.mark.parametrize(
    "first", [pytest.param("trainer", marks=pytest.mark.slow), pytest.param("agent_loop", marks=pytest.mark.nightly)]
)
def test_whatever_is_imported_first_registers_all(first):
    """verl loads the plug-in while it is imported, and with it a module of ours may be half imported."""
    registry = "from verl.trainer.ppo.v1.trainer_base import get_trainer_cls"
    code = f"import fairlen.integrations.verl.{first}; {registry}; get_trainer_cls('fairlen_sync')"
    env = os.environ | {"VERL_USE_EXTERNAL_MODULES": "fairlen.integrations.verl.plugin"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("version, is_tested", [("0.9.1", True), ("0.9.0", False), ("0.9.2", False)])
def test_versions_that_were_not_tested_are_refused_as_pyproject_does(version, is_tested, monkeypatch):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (ours,) = [text for text in project["optional-dependencies"]["verl"] if text.startswith("verl")]
    assert Requirement(ours).specifier.contains(version) == is_tested
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    try:
        importlib.reload(plugin)
        complaint = ""
    except ImportError as error:
        complaint = str(error)
    assert ("was tested with verl>=0.9.1,<0.9.2" in complaint) == (not is_tested)
    monkeypatch.setenv("FAIRLEN_ANY_VERL", "1")
    importlib.reload(plugin)


def test_the_launcher_refuses_an_untested_verl_in_one_line(monkeypatch, tmp_path, capsys):
    """Before it starts or writes anything; a model that is not there would end the job later."""
    monkeypatch.setattr(launch, "version", lambda _: "0.10.0", raising=False)
    monkeypatch.setattr(launch, "run_session", lambda *_: 0)  # what starts Ray
    code = main(["verl", "--method", "grpo", "--out", str(tmp_path / "job"), "--", "data.train_files=x.parquet"])
    told = capsys.readouterr().err
    assert code == 2 and told.count("\n") == 1 and told.startswith("fairlen verl: verl 0.10.0: this adapter")
    assert not (tmp_path / "job").exists()


def test_a_job_without_a_method_is_as_it_would_be_without_fairlen():
    """The plug-in is loaded here: verl's own trainers, losses, estimators and view of TRL are those of verl."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
    from verl.utils import import_utils

    assert not [name for name in (*ADV_ESTIMATOR_REGISTRY, *POLICY_LOSS_REGISTRY) if "fairlen" in str(name)]
    assert import_utils.is_trl_available.__module__ == import_utils.__name__
    for kind in {stock for name, stock in TRAINER_REGISTRY.items() if not name.startswith("fairlen")} | {PPOTrainer}:
        members = (member for base in kind.__mro__[:-1] for member in vars(base).values() if callable(member))
        assert not [one for one in members if one.__module__.startswith("fairlen")]


# ------------------------------------------------------------------------------------------------ code of a model

GUARDED = """
import verl
from verl.utils import hf_tokenizer
try:
    hf_tokenizer({place!r}, trust_remote_code=True)
except ValueError as error:
    print(error)
"""


@pytest.fixture
def marked(tmp_path):
    """A model whose tokenizer is code of its own, which leaves a mark."""
    folder = copy_shipped(tmp_path / "model")
    (folder / "evil.py").write_text(
        f"open({str(folder / 'MARK')!r}, 'w').write('ran')\nfrom transformers import PreTrainedTokenizerFast as T\n"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}})
    )
    return folder


@pytest.mark.parametrize("by", ["--model", "actor_rollout_ref.model.path", "actor_rollout_ref.model.tokenizer_path"])
def test_a_model_with_code_of_its_own_is_refused(marked, tmp_path, capsys, by):
    flags = ["--model", str(marked)] if by == "--model" else ["--", f"{by}={marked}"]
    code = main(["verl", "--cpu", "--dry-run", "--out", str(tmp_path / "out"), *flags])
    said = capsys.readouterr().err
    assert code == 2 and "its tokenizer_config.json names code of its own (auto_map)" in said
    assert len(said.splitlines()) == 1 and not (marked / "MARK").exists()


def dry_run(out: Path, *given: str) -> int:
    return main(["verl", "--dry-run", "--out", str(out), "--", *given])


def test_a_tokenizer_may_be_alone_in_its_folder(tmp_path, capsys):
    whole, folder = copy_shipped(tmp_path / "model"), tmp_path / "tokenizer"
    folder.mkdir()
    for path in whole.glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    given = f"actor_rollout_ref.model.tokenizer_path={folder}"
    assert dry_run(tmp_path / "out", given) == 0, capsys.readouterr().err
    (folder / "tokenizer.json").write_text("{")
    assert dry_run(tmp_path / "out", given) == 2
    said = capsys.readouterr().err
    assert f"model={folder}: no tokenizer there" in said and len(said.splitlines()) == 1


def test_a_model_of_text_and_images_is_not_refused(tmp_path, capsys):
    """It is no AutoModelForCausalLM."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    heads = dict(num_key_value_heads=2, rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2]})
    seen = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=16)
    config = Qwen2_5_VLConfig(text_config=sizes | heads, vision_config=seen)
    images = tmp_path / "images"
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(images)
    given = f"actor_rollout_ref.model.path={images}"
    assert dry_run(tmp_path / "out", given) == 0, capsys.readouterr().err
    (images / "model.safetensors").write_bytes(b"damaged")
    assert dry_run(tmp_path / "out", given) == 2
    assert f"model={images}: " in capsys.readouterr().err


def test_verl_is_told_that_code_of_a_model_is_not_run():
    for cpu in (False, True):
        texts = [*collect(VerlConfig(cpu=cpu), [], Path("/nowhere"))]
        assert {"data.trust_remote_code=False", "actor_rollout_ref.model.trust_remote_code=False"} <= set(texts)
    settings = resolve(VerlConfig())
    assert not settings.data.trust_remote_code and not settings.actor_rollout_ref.model.trust_remote_code


@pytest.mark.slow
def test_a_process_of_the_job_refuses_what_verl_itself_asks_for(marked):
    """verl's reward worker passes True for the tokenizer, whatever the settings are."""
    modules = environment(VerlConfig(), [], Path("/nowhere"))["VERL_USE_EXTERNAL_MODULES"]
    env = os.environ | {"VERL_USE_EXTERNAL_MODULES": modules, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", GUARDED.format(place=str(marked))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert not (marked / "MARK").exists()
    assert "is code of a model, which is never run here" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "no problems: give --data"),
        (["--data", "sums.jsonl"], "no model: give --model"),
        (["--data", "sums.jsonl", "--model", "m"], "this machine has no CUDA device"),
    ],
    ids=["nothing", "no-model", "no-device"],
)
def test_what_cannot_start_is_refused_before_ray_starts(flags, said, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["verl", *flags, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_value_is_the_text_that_was_given():
    """As hydra and OmegaConf read it; what they would put something else in the place of is refused: verl resolves it twice."""
    parser = OverridesParser.create()
    for text in ("it's", "a\\b", "a\\", "\\\\'x\\\\", "{a:1}", "[1,2]", "$HOME $$ {x}", "a, b=c", "\\'", ""):
        value = parser.parse_override(f"a={quote(text)}").value()
        assert OmegaConf.create({"a": value})["a"] == text
    for text in ("${oc.env:HOME}", "a\\${oc.env:HOME}b", "${trainer.nnodes}"):
        with pytest.raises(ValueError, match="refers to other settings or to the environment"):
            quote(text)
    for model, out in (("${oc.env:HOME}", "out"), ("m", "${oc.env:HOME}")):
        with pytest.raises(ValueError, match="refers to other settings"):
            collect(VerlConfig(model=model), (), Path(out))

"""Makes the files of this folder: small rollouts in every format that `fairlen audit` reads.

python tests/fixtures_formats/make.py [FOLDER [NAME ...]]

TRL's and verl's are written by TRL's and verl's own code on tiny inputs, fairlen's by a short run of its own, those of verifiers
(0.3.1; 0.4 has them no more), lm-eval (0.4.13) and Inspect (0.3.285) by their own code in environments that have them.
The others are written by hand after public code: prime-rl 559b447 with verifiers a60a606, SkyRL a956457
(skyrl/train/utils/trainer_utils.py), slime 624b824 (slime/observability/rollout_data_utils.py), OpenRLHF 0489850
(openrlhf/cli/batch_inference.py).
"""

import contextlib
import csv
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent

ANSWERS = {
    "What is 2+3?": [("2+3=5 so 5", 1), ("5", 1), ("2+3 is 6 or maybe 7 or 8", 0), ("I think that it is 4", 0)],
    "What is 7*8?": [("7*8=56", 1), ("it is 7 times 8 which is 54", 0), ("54", 0), ("it is 7 times 8 which is 54", 0)],
}
"""Two prompts with four answers each, (text, right): 3 right ones of 3, 1 and 1 words; 5 wrong ones of 8, 6, 8, 1 and 8 words."""


def rows(step: int) -> list[tuple[str, str, int]]:
    """(prompt, answer, right) of one step; in later steps answers are a word longer each."""
    return [(p, text + " hmm" * step, right) for p, answers in ANSWERS.items() for text, right in answers]


def make_verl(folder: Path) -> None:
    """verl's own writers: the trainer with `acc` and `pred` of a reward function, and the newer one with `uid`."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    for step in range(3):
        prompts, answers, right = (list(column) for column in zip(*rows(step), strict=True))
        scores = [2.0 * r - 1.0 for r in right]
        found = {"acc": [bool(r) for r in right], "pred": [a.split()[-1] for a in answers]}
        golds = ["5" if "2+3" in p else "56" for p in prompts]
        RayPPOTrainer._write_generations(prompts, answers, golds, scores, found, str(folder / "verl"), step + 1)
        keys = {"uid": [f"{row // 4}_{row % 4}_0" for row in range(len(prompts))]}
        PPOTrainer._write_generations(prompts, answers, golds, scores, keys, str(folder / "verl_v1"), step + 1)


def make_trl(folder: Path) -> None:
    """Three steps of TRL's trainer on the shipped model, then one log of messages."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from fairlen import playground
    from fairlen.tasks.playground import Playground

    def accuracy_reward(completions, answer, log_extra=None, **rest):
        if log_extra:
            log_extra("gold", list(answer))
        return [float(text.strip().endswith(right)) for text, right in zip(completions, answer, strict=True)]

    def brevity_reward(completions, **rest):
        return [-len(text) / 1000 for text in completions]

    problems = Playground().held_out(8)
    data = Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in problems])
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
            max_completion_length=24, log_completions=True, num_completions_to_print=0, logging_steps=1, report_to=[],
            use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(playground.PATH), reward_funcs=[accuracy_reward, brevity_reward], args=config, train_dataset=data,
            processing_class=AutoTokenizer.from_pretrained(playground.PATH),
        )  # fmt: skip
        trainer.train()
        copy(Path(out) / "completions", folder / "trl")
        shutil.rmtree(Path(out) / "completions")
        log_messages(trainer)
        copy(Path(out) / "completions", folder / "trl_messages")


def make_trl_run(folder: Path) -> None:
    """8 steps of 8 prompts with 8 responses, by TRL's trainer as docs/rollouts/programs.md has it: the run of the README."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from fairlen import playground
    from fairlen.tasks.playground import Playground

    def accuracy_reward(completions, answer, **rest):
        return [float(text.strip().endswith(right)) for text, right in zip(completions, answer, strict=True)]

    problems = map(Playground().train, range(64))
    data = Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in problems])
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, max_steps=8, per_device_train_batch_size=32, gradient_accumulation_steps=2, num_generations=8,
            max_completion_length=160, log_completions=True, num_completions_to_print=0, logging_steps=1, report_to=[],
            use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(playground.PATH), reward_funcs=[accuracy_reward], args=config, train_dataset=data,
            processing_class=AutoTokenizer.from_pretrained(playground.PATH),
        )  # fmt: skip
        trainer.train()
        copy(Path(out) / "completions", folder / "trl_run")


def log_messages(trainer) -> None:
    """What TRL logs of conversations: prompts and completions are lists of messages."""
    os.makedirs(os.path.join(trainer.args.output_dir, "completions"))
    logs = trainer._logs
    for column in (
        logs["prompt"],
        logs["completion"],
        logs["advantages"],
        *logs["rewards"].values(),
        *logs["extra"].values(),
    ):
        column.clear()
    for prompt, answer, right in rows(0):
        logs["prompt"].append([{"role": "user", "content": prompt}])
        logs["completion"].append([{"role": "assistant", "content": answer}])
        logs["rewards"]["accuracy_reward"].append(float(right))
        logs["rewards"]["brevity_reward"].append(0.0)
        logs["extra"]["gold"].append("5")
        logs["advantages"].append(right - 0.5)
    trainer.log({})


def copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        shutil.copy(path, target / path.name)


def make_fairlen(folder: Path) -> None:
    """Records of two short runs, one of whole answers with two updates a batch and one of pairs."""
    from fairlen.train.run.config import TrainConfig
    from fairlen.train.start import start_training

    for name, method, changes in (
        ("fairlen", "fspo+toplambda", ()),
        ("fairlen_pairs", "eqlen+dapo", ("sampling.streams=3",)),
    ):
        with tempfile.TemporaryDirectory() as out:
            run = Path(out) / "run"
            start_training(
                TrainConfig.of(
                    method=method, overrides=changes, prompts_per_batch=4, rollout_batches=2, updates_per_batch=2,
                    max_response_length=60,
                    problems=4,
                    samples=2, threads=1, max_num_seqs=24, out=str(run),
                )
            )  # fmt: skip
            copy(run / "records", folder / name / "records")
        (folder / name / "run.json").write_text(json.dumps({"config": {"budget": 60}}) + "\n")


def trace(prompt: str, text: str, right: int, cut: bool) -> dict:
    """A verifiers trace as `to_record` gives it: the answer has one token a word, its template two."""
    num = len(text.split())
    return {
        "version": 1, "id": "f" * 32, "verifiers": {"version": "0.3.0"},
        "task": {"type": "Sum", "data": {"idx": 0, "question": prompt}, "key": prompt, "hash": f"h{len(prompt)}{prompt[8]}"},
        "agent": {"config": {"model": "m"}, "name": "agent", "trainable": True}, "tools": [],
        "nodes": [
            {"message": {"role": "user", "content": prompt}, "sampled": False, "timestamp": 0.0, "token_ids": [1, 2, 3],
             "mask": [False] * 3, "is_content": [], "logprobs": []},
            {"parent": 0, "message": {"role": "assistant", "content": text}, "sampled": True, "timestamp": 1.0,
             "token_ids": list(range(num + 2)), "mask": [False] * 2 + [True] * num, "is_content": [], "logprobs": [-0.5] * num,
             "advantages": [right - 0.5] * num},
        ],
        "calls": [{"node": 1, "model": "m", "finish_reason": "length" if cut else "stop",
                   "usage": {"prompt_tokens": 5, "completion_tokens": num}}],
        "request_rewrites": [], "response_rewrites": [],
        "rewards": {"correct": {"score": float(right), "weight": 1.0}, "style": {"score": 0.5, "weight": 0.0}},
        "metrics": {"num_turns": 1.0}, "info": {}, "extra_usage": [], "is_completed": True, "ok": True,
        "stop_condition": "agent_completed", "errors": [], "timing": {"start": 0.0},
    }  # fmt: skip


def make_prime_rl(folder: Path) -> None:
    """One episode a line, two steps; the last of each step failed and holds no reward."""
    for step in range(2):
        path = folder / "prime_rl" / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            for number, (prompt, text, right) in enumerate(rows(step)):
                one = trace(prompt, text, right, cut=not right and len(text.split()) >= 8)
                file.write(json.dumps(episode(one, prompt, step, number)) + "\n")
            failed = trace("What is 7*8?", "", 0, cut=False) | {"ok": False, "stop_condition": "error", "rewards": {}}
            file.write(json.dumps(episode(failed, "What is 7*8?", step, 8)) + "\n")


def episode(one: dict, prompt: str, step: int, number: int) -> dict:
    work = {"type": "train", "step": step, "policy": {"start": step, "end": step}}
    return {
        "id": f"{number:032x}", "env": {"id": "sums", "name": "sums"}, "task": one["task"], "group": {"id": f"g-{step}-{prompt}"},
        "run": {"type": "train", "id": "r", "work": work}, "ok": one["ok"], "errors": [], "traces": [one],
    }  # fmt: skip


def make_lm_eval(folder: Path) -> None:
    """Four documents under two filters, as `--log_samples` has them."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.loggers import EvaluationTracker

    table = rows(0)[::2]

    class Said(LM):
        def loglikelihood(self, requests):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

        def generate_until(self, requests):
            return [text for _, text, _ in table]

    kinds = {
        "strict-match": {"regex_pattern": r"(\d+)$"},
        "flexible-extract": {"regex_pattern": r"(\d+)", "group_select": -1},
    }
    filters = [
        {"name": name, "filter": [{"function": "regex"} | kind, {"function": "take_first"}]}
        for name, kind in kinds.items()
    ]
    # in its own folder, so that the path of the documents is not in what is written
    with tempfile.TemporaryDirectory() as out, contextlib.chdir(out):
        lines = [json.dumps({"question": p, "answer": "5" if "2+3" in p else "56"}) for p, *_ in table]
        (Path(out) / "docs.jsonl").write_text("\n".join(lines))
        task = ConfigurableTask(config={
            "task": "sums", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "docs.jsonl"}},
            "test_split": "test", "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
            "filter_list": filters,
            "generation_kwargs": {"until": ["\n\n"], "do_sample": False},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        })  # fmt: skip
        found = simple_evaluate(model=Said(), tasks=[task], log_samples=True, bootstrap_iters=0)
        tracker = EvaluationTracker(output_path=out)
        tracker.general_config_tracker.log_experiment_args("said", "", "", "", False)
        samples = found.pop("samples")
        tracker.save_results_aggregated(results=found, samples=samples)
        tracker.save_results_samples(task_name="sums", samples=samples["sums"])
        (path,) = Path(out).rglob("samples_*.jsonl")
        (folder / "lm_eval").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / "lm_eval" / "samples_sums_2026-08-21T19-56-54.jsonl")


def make_verifiers(folder: Path) -> None:
    """What vf-eval saves, by its own writer; the last rollout of the second prompt ended with an error."""
    from verifiers.legacy.types import RolloutTiming, State
    from verifiers.legacy.utils.save_utils import save_outputs, states_to_outputs

    states = []
    for number, (prompt, text, right) in enumerate([*rows(0), ("What is 7*8?", "", 0)]):
        num, failed = len(text.split()), number == 8
        message = [{"role": "assistant", "content": text}] if text else []
        states.append(State(
            example_id=number // 4 - failed, prompt=[{"role": "user", "content": prompt}], completion=message,
            reward=right + 0.25, answer="5" if "2+3" in prompt else "56", info={},
            metrics={"correct_answer": float(right), "format_reward": 0.25}, timing=RolloutTiming(),
            is_completed=True, is_truncated=num == 8,
            stop_condition="has_error" if failed else "max_turns_reached",
            error=RuntimeError("the server hung up") if failed else None, trajectory=[], tool_defs=None,
            token_usage={"input_tokens": 9.0, "output_tokens": float(num), "final_input_tokens": 9, "final_output_tokens": num},
            usage={"input_tokens": 9.0, "output_tokens": float(num)},
        ))  # fmt: skip
    save_outputs(states_to_outputs(states), folder / "verifiers", mode="w")


def make_inspect(folder: Path) -> None:
    """An evaluation of Inspect's mock model with four epochs, as .eval and without events as .json; one more sample failed."""
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.log import EvalError, write_eval_log
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
    from inspect_ai.solver import generate

    said = {prompt: iter(answers) for prompt, answers in ANSWERS.items()}

    def speak(messages, *rest):
        text, _ = next(said[messages[-1].text])
        num = len(text.split())
        output = ModelOutput.from_content("mockllm/model", text, stop_reason="max_tokens" if num == 8 else "stop")
        output.usage = ModelUsage(input_tokens=9, output_tokens=num, total_tokens=num + 9)
        return output

    @scorer(metrics=[accuracy()])
    def last_word():
        async def score(state, target):
            is_right = state.output.completion.endswith(target.text)
            return Score(value=CORRECT if is_right else INCORRECT, answer=state.output.completion.split()[-1])

        return score

    samples = [Sample(id=f"q{n}", input=p, target="5" if "2+3" in p else "56") for n, p in enumerate(ANSWERS)]
    task = Task(name="sums", dataset=samples, solver=generate(), scorer=last_word(), epochs=4)
    with tempfile.TemporaryDirectory() as out:
        (log,) = evaluate(
            task, model=get_model("mockllm/model", custom_outputs=speak), log_dir=out, max_samples=1, display="none"
        )
        samples = list(log.samples)
    failed = {
        "epoch": 5, "scores": None, "messages": samples[-1].messages[:1], "output": ModelOutput(), "uuid": None, "events": [],
        "error": EvalError(message="RuntimeError('the server hung up')", traceback="", traceback_ansi=""),
    }  # fmt: skip
    log.samples = [*samples, samples[-1].model_copy(update=failed)]
    (folder / "inspect").mkdir(parents=True, exist_ok=True)
    write_eval_log(log, str(folder / "inspect" / "inspect.eval"))
    log.samples = [sample.model_copy(update={"events": []}) for sample in log.samples]
    write_eval_log(log, str(folder / "inspect" / "inspect.json"))


def make_skyrl(folder: Path) -> None:
    """Two evaluations, with the scores of tokens in the second; a third file holds what they add up to."""
    for step in (0, 10):
        path = folder / "skyrl" / "dumped_evals" / f"global_step_{step}_evals" / "sums.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            for prompt, text, right in rows(0):
                num = len(text.split())
                row = {
                    "input_prompt": prompt, "output_response": text,
                    "score": [0.0] * (num - 1) + [float(right)] if step else right,
                    "stop_reason": "length" if num == 8 else "stop",
                    "env_class": "sums", "env_extras": {"answer": "5"}, "data_source": "sums",
                }  # fmt: skip
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            failed = {"input_prompt": "What is 7*8?", "output_response": "", "score": 0.0, "stop_reason": "error"}
            file.write(
                json.dumps(failed | {"env_class": "sums", "env_extras": {"answer": "5"}, "data_source": "sums"}) + "\n"
            )
        (path.parent / "aggregated_results.jsonl").write_text(json.dumps({"eval/all/avg_score": 0.375}) + "\n")


def make_slime(folder: Path) -> None:
    """Two rollouts, by torch.save of plain dicts; the last sample of each was aborted."""
    import torch

    (folder / "slime").mkdir(parents=True, exist_ok=True)
    for rollout in range(2):
        texts = [*rows(rollout), ("What is 7*8?", "", 0)]
        samples = [slime_sample(number, *one, named=True) for number, one in enumerate(texts)]
        torch.save({"rollout_id": rollout, "samples": samples}, folder / "slime" / f"rollout_{rollout}.pt")


def slime_sample(number: int, prompt: str, text: str, right: int, named: bool) -> dict:
    """A sample as `Sample.to_dict` gives it: its response has a token a word, and two of a tool that no loss reaches."""
    num = len(text.split())
    status = ("truncated" if num >= 8 else "completed") if text else "aborted"
    return {
        "group_index": min(number // 4, 1), "index": number, "rollout_id": None, "prompt": [{"role": "user", "content": prompt}],
        "tokens": list(range(100, 105 + num)), "multimodal_inputs": None, "response": text, "response_length": num + 2,
        "label": "5", "reward": ({"score": float(right), "acc": bool(right)} if named else float(right)) if text else None,
        "loss_mask": [1] * num + [0, 0], "weight_versions": ["1"], "rollout_log_probs": [-0.5] * num,
        "remove_sample": False, "status": status, "metadata": {"pair": (1, 2)},
        "spec_info": {"spec_accept_token_num": 0}, "non_generation_time": 0.0,
    }  # fmt: skip


def make_openrlhf(folder: Path) -> None:
    """What its batch inference with a reward model saved."""
    (folder / "openrlhf").mkdir(parents=True, exist_ok=True)
    table = [{"input": prompt, "output": text, "reward": 2.5 * right - 1.25} for prompt, text, right in rows(0)]
    (folder / "openrlhf" / "rewards.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))


def make_generic(folder: Path) -> None:
    """The same answers as JSON lines, CSV and Parquet under names that others use."""
    (folder / "generic").mkdir(parents=True, exist_ok=True)
    table = [
        {"question": p, "response": t, "score": float(r), "finish_reason": "stop" if r else "length", "global_step": 0}
        for p, t, r in rows(0)
    ]
    with (folder / "generic" / "answers.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in table)
    (folder / "table").mkdir(exist_ok=True)
    with (folder / "table" / "answers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    (folder / "parquet").mkdir(exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([r | {"completion_ids": list(range(9))} for r in table]), folder / "parquet" / "a.parquet"
    )


MAKERS = {
    "verl": make_verl, "trl": make_trl, "trl_run": make_trl_run, "fairlen": make_fairlen,
    "prime_rl": make_prime_rl, "lm_eval": make_lm_eval,
    "verifiers": make_verifiers, "inspect": make_inspect, "skyrl": make_skyrl, "slime": make_slime, "openrlhf": make_openrlhf,
    "generic": make_generic,
}  # fmt: skip


def main(folder: Path, names: list[str]) -> None:
    for name in names or MAKERS:
        MAKERS[name](folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE, sys.argv[2:])

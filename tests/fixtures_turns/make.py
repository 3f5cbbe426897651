"""Makes the files of this folder that hold trajectories: two prompts with four each, in the shapes that programs write.

python tests/fixtures_turns/make.py [FOLDER]

verl's lines are written by verl 0.9.1's own writers and TRL's tables by the `log` of TRL 1.16's trainer, whose tools wrote the
messages here (its `_tool_call_loop`); prime-rl's are after prime-rl 559b447 (src/prime_rl/monitors/file.py) with verifiers
a60a606 (verifiers/v1/trace.py, graph.py), those of verifiers after a60a606 (verifiers/legacy:
utils/save_utils.py, utils/message_utils.py, envs/multiturn_env.py).
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TALKS = {
    "What is 12*13?": [
        (["call a", "so 156"], ["the tool says 156"], 1),
        (["156"], [], 1),
        (["call a", "call b again", "it is 150"], ["no such tool", "still no such tool"], 0),
        (["call a b c", "144"], ["156"], 0),
    ],
    "What is 7*8?": [
        (["call a", "56"], ["56"], 1),
        (["54"], [], 0),
        (["call a", "call a", "call a"], ["late", "late"], 0),
        (["56"], [], 1),
    ],
}
"""Of each prompt (turns, what was read between them, right): 2 1 3 2 and 2 1 3 1 turns of 4 1 8 5 and 3 1 6 1 words together."""
ROWS = [(prompt, *talk) for prompt, talks in TALKS.items() for talk in talks]


def call_of(text: str) -> dict:
    """The tool call in a turn: two tools of different arguments."""
    if text == "call a":
        return {"name": "multiply", "arguments": {"a": 12, "b": 13}}
    return {"name": "look", "arguments": {"word": text.split()[1]}}


def messages(turns: list[str], read: list[str], make_call) -> list[dict]:
    """A conversation; turns that something was read after hold a tool call, made by `make_call`."""
    found: list[dict] = []
    for place, text in enumerate(turns):
        found.append({"role": "assistant", "content": text})
        if place < len(read):
            found[-1]["tool_calls"] = [make_call(text)]
            found.append({"role": "tool", "name": call_of(text)["name"], "content": read[place]})
    return found


def make_trl(folder: Path) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from fairlen import playground

    def accuracy_reward(completions, **rest):
        return [0.0] * len(completions)

    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, log_completions=True, num_completions_to_print=0, report_to=[], use_cpu=True, bf16=False,
            per_device_train_batch_size=8, num_generations=4,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(playground.PATH), reward_funcs=[accuracy_reward], args=config,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in TALKS]),
            processing_class=AutoTokenizer.from_pretrained(playground.PATH),
        )  # fmt: skip
        os.makedirs(os.path.join(out, "completions"), exist_ok=True)
        logs = trainer._logs
        for prompt, turns, read, right in ROWS:
            said = messages(turns, read, lambda text: {"type": "function", "function": call_of(text)})
            logs["prompt"].append([{"role": "user", "content": prompt}])
            logs["completion"].append(said)
            logs["rewards"]["accuracy_reward"].append(float(right))
            logs["advantages"].append(right - 0.5)
        trainer.log({})
        shutil.copytree(Path(out) / "completions", folder / "trl_tools", dirs_exist_ok=True)


def make_verl(folder: Path) -> None:
    """Texts as Qwen's template leaves them without special tokens; a reward function that returns `num_turns`, and none."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    outputs = []
    for _, turns, read, _ in ROWS:
        parts = [f"{turns[0]}\n"]
        for text, found in zip(turns[1:], read, strict=True):
            parts.append(f"user\n<tool_response>\n{found}\n</tool_response>\nassistant\n{text}\n")
        outputs.append("".join(parts).removesuffix("\n"))
    prompts, scores = [row[0] for row in ROWS], [float(row[3]) for row in ROWS]
    counts = {"acc": [bool(score) for score in scores], "num_turns": [2 * len(row[1]) for row in ROWS]}
    RayPPOTrainer._write_generations(prompts, outputs, prompts, scores, counts, str(folder / "verl_turns"), 1)
    keys = {"uid": [f"{row // 4}_{row % 4}_0" for row in range(len(ROWS))]}
    PPOTrainer._write_generations(prompts, outputs, prompts, scores, keys, str(folder / "verl_v1_turns"), 1)


def make_prime_rl(folder: Path) -> None:
    """One token a word; a turn has a scaffold of two tokens more, which the mask leaves out. Three turns are the limit."""
    path = folder / "prime_rl_turns" / "rollouts" / "step_0" / "train" / "all" / "traces.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for number, (prompt, turns, read, right) in enumerate(ROWS):
            nodes = [node_of({"role": "user", "content": prompt}, False, 0.0)]
            for message in messages(turns, read, lambda text: {"id": "c", "name": "f", "arguments": "{}"}):
                text = {name: value for name, value in message.items() if name != "tool_calls"}
                nodes.append(node_of(text, message["role"] == "assistant", right - 0.5, len(nodes) - 1))
            task = {"type": "Product", "data": {"question": prompt}, "key": prompt, "hash": prompt}
            trace = {
                "version": 1, "id": f"{number:032x}", "task": task, "agent": {"name": "agent", "trainable": True, "config": {}},
                "nodes": nodes, "rewards": {"correct": {"score": float(right), "weight": 1.0}},
                "calls": [{"node": place, "finish_reason": "stop"} for place, node in enumerate(nodes) if node["sampled"]],
                "ok": True, "stop_condition": "max_turns" if len(turns) == 3 else "agent_completed", "is_completed": True,
            }  # fmt: skip
            work = {"type": "train", "step": 0, "policy": {"start": 0, "end": 0}}
            one = {"id": f"{number:032x}", "task": task, "group": {"id": prompt}, "run": {"id": "r", "work": work}}
            file.write(json.dumps(one | {"ok": True, "errors": [], "traces": [trace]}) + "\n")


def node_of(message: dict, sampled: bool, credit: float, parent: int | None = None) -> dict:
    num = len(message["content"].split())
    mask = [False, False, *[sampled] * num]
    node = {"parent": parent, "message": message, "sampled": sampled, "token_ids": [7] * (num + 2), "mask": mask}
    return node | ({"logprobs": [-0.5] * num, "advantages": [credit] * num} if sampled else {"logprobs": []})


def make_verifiers(folder: Path) -> None:
    """Tool calls are texts of JSON there, and usage is added up over the calls of the model."""
    path = folder / "verifiers_turns" / "results.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for number, (prompt, turns, read, right) in enumerate(ROWS):
            said = messages(turns, read, lambda text: json.dumps({"id": "c"} | call_of(text)))
            row = {
                "example_id": number // 4, "prompt": [{"role": "user", "content": prompt}], "completion": said, "answer": "",
                "info": {}, "reward": float(right), "error": None, "is_completed": True, "is_truncated": False,
                "stop_condition": "no_tools_called", "metrics": {"correct_answer": float(right), "num_turns": float(len(turns))},
                "token_usage": {"input_tokens": 40.0, "output_tokens": float(len(" ".join(turns).split()))},
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE
    for make in (make_trl, make_verl, make_prime_rl, make_verifiers):
        make(place)

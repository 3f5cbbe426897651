"""Write a run or an evaluation as logs that `inspect view --log-dir LOGS` opens.

    python recipes/inspect_logs.py FOLDER LOGS

A log holds one rollout batch of a run or one set of an evaluation, as inspect_ai 0.3.285 writes `.eval` (499e615,
src/inspect_ai/log/_log.py, _recorders/eval.py). An epoch is one more response to a problem; a response without a verdict is a
sample with an error, which Inspect's metrics leave out too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pyarrow.parquet as pq

from fairlen.audit.numbers import plain
from fairlen.console import complain, log
from fairlen.files.folders import refuse_links, replacing
from fairlen.files.formats import refused
from fairlen.report.page import of_type
from fairlen.report.run import END, cut, parse_object, read_tokenizer
from fairlen.secrets import hide_all
from fairlen.settings import flatten

Fields = dict[str, Any]
GRADES = {"correct": "C", "incorrect": "I", "no_answer": "N"}
LISTS = ("logprobs", "supports")
"""Columns that a log has no place for."""
SHOWN = ("problem_id", "problem", "answer", "text", "extracted", "token_ids", "turns")
"""Columns that are no metadata of a sample."""
UNSAFE = re.compile(r"(?<![^/])\.+(?=/|$)|^/|(?<=/)/|[\\:\x00-\x1f]")
"""Characters of a problem's id that would lead out of an archive's folder."""
LONG = 200
"""Letters of an id."""


def write_logs(folder: Path, out: Path) -> int:
    """Write the logs of a run or an evaluation into `out`, and return their number. Raises ValueError without responses."""
    for name, pattern in (("run.json", "records/responses-*.parquet"), ("eval.json", "samples/[!.]*.parquet")):
        paths = sorted(folder.glob(pattern))
        if paths and (folder / name).is_file():
            description, tokenizer = (
                hide_all(parse_object((folder / name).read_bytes(), folder / name)),
                read_tokenizer(folder),
            )
            if Path(os.path.abspath(out)).is_relative_to(os.path.abspath(folder)):
                refuse_links(folder)
            for path in paths:
                write_log(path, folder.resolve().name, description, tokenizer, out)
            return len(paths)
    raise ValueError(f"{folder} has no responses of a run or an evaluation; name the folder of one")


def write_log(path: Path, source: str, description: Fields, tokenizer: Any, out: Path) -> None:
    """Write one table of responses as a log, named as Inspect names them: by time, task and id."""
    with refused(path):
        columns = [name for name in pq.read_schema(path).names if name not in LISTS]
        rows = pq.read_table(path, columns=columns).to_pylist(maps_as_pydicts="strict")
    config, seen = flatten(of_type(description, "config", dict)), Counter[str]()
    time = datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()
    model = str(config.get("from_samples") or config.get("model") or source)
    samples = []
    for row in rows:
        row["problem_id"] = name_member(str(row["problem_id"]))
        seen[row["problem_id"]] += 1
        samples.append(to_sample(row, seen[row["problem_id"]], model, tokenizer))
    used = [one["output"]["usage"] for one in samples if one["model_usage"]]
    tokens = {model: {name: sum(one[name] for one in used) for name in used[0]}} if used else {}
    task, key = f"{source} {path.stem}", sha256(str(path.resolve()).encode()).hexdigest()[:22]
    header = {
        "version": 2, "status": "success",
        "eval": {
            "eval_id": key, "run_id": key, "task_id": key, "task": task, "created": time, "model": model,
            "dataset": {"name": task, "samples": len(seen), "sample_ids": list(seen), "shuffled": False},
            "model_generate_config": {
                "temperature": config.get("temperature"), "max_tokens": config.get("max_response_length") or None
            },
            "config": {"epochs": max(seen.values(), default=1)}, "packages": of_type(description, "versions", dict),
            "metadata": {"method": of_type(description, "method", dict).get("name")}, "tags": ["fairlen"],
        },
        "plan": {"name": "plan", "steps": [], "config": {}}, "results": find_results(samples),
        "stats": {"started_at": time, "completed_at": time, "model_usage": tokens},
    }  # fmt: skip
    name = "_".join(re.sub(r"[^\w.+-]+|_", "-", part) for part in (time, task, key))
    with replacing(out / f"{name}.eval") as staging, ZipFile(staging, "w", ZIP_DEFLATED) as archive:
        for sample in samples:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("summaries.json", json.dumps([summarize(sample) for sample in samples]))
        archive.writestr("header.json", json.dumps(header))


def name_member(name: str) -> str:
    """A problem's id as a name within an archive that leads nowhere else: unsafe characters become %XX."""
    plain_id = UNSAFE.sub(lambda found: "".join(f"%{ord(letter):02X}" for letter in found[0]), name)
    return plain_id if len(plain_id) <= LONG else f"{plain_id[:LONG]}-{sha256(name.encode()).hexdigest()[:16]}"


def to_sample(row: Fields, epoch: int, model: str, tokenizer: Any) -> Fields:
    read, written, messages = row["num_prompt"] or 0, row["length"], list_messages(row, model, tokenizer)
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + (written or 0)}
    last = next(message for message in reversed(messages) if message["role"] == "assistant")
    stop = {"length": "max_tokens", "stop": "stop"}.get(row["finish"], "unknown")
    sample = {
        "id": row["problem_id"], "epoch": epoch, "input": row["problem"], "target": row["answer"], "messages": messages,
        "output": {
            "model": model, "choices": [{"message": last, "stop_reason": stop}], "completion": last["content"],
            "usage": usage if written else None,
        },
        "scores": {}, "model_usage": {model: usage} if written else {},
        "metadata": plain({n: value for n, value in row.items() if n not in SHOWN and value is not None}),
    }  # fmt: skip
    if row["status"] in GRADES:
        verdict = {"value": GRADES[row["status"]], "answer": row.get("extracted")}
        return sample | {"scores": {"verdict": verdict, "outcome": {"value": row["outcome"]}}}
    return sample | {"error": {"message": f"no verdict: {row['status']}", "traceback": "", "traceback_ansi": ""}}


def list_messages(row: Fields, model: str, tokenizer: Any) -> list[Fields]:
    """The problem and the response, turn by turn where the tokenizer shows where a turn ends."""
    passages, turns = [("own", row["text"])], row.get("turns")
    if turns and turns != [row["num_prompt"], len(row["token_ids"])]:
        passages = [(one.kind, one.text.replace(END, "")) for one in cut(row, tokenizer, sys.maxsize)[0]]
    voices = {"own": {"role": "assistant", "source": "generate", "model": model}, "read": {"role": "user"}}
    asked = {"role": "user", "source": "input", "content": row["problem"]}
    return [asked, *({**voices[kind], "content": text} for kind, text in passages)]


def find_results(samples: Sequence[Fields]) -> Fields:
    each: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        if "verdict" in sample["scores"]:
            each[sample["id"]].append(sample["scores"]["verdict"]["value"] == "C")
    accuracy = {"name": "accuracy", "value": float(np.mean([np.mean(one) for one in each.values()]))} if each else {}
    scores = [{"name": "verdict", "scorer": "verdict", "metrics": {"accuracy": accuracy}}] if each else []
    return {"total_samples": len(samples), "completed_samples": sum(map(len, each.values())), "scores": scores}


def summarize(sample: Fields) -> Fields:
    short = {name: sample[name][:1000] for name in ("input", "target")}
    turns = sum(message["role"] == "assistant" for message in sample["messages"])
    same = {name: sample[name] for name in ("id", "epoch", "scores", "metadata", "model_usage")}
    error = {"error": sample["error"]["message"]} if "error" in sample else {}
    return same | short | error | {"completed": True, "message_count": len(sample["messages"]), "turn_count": turns}


def main(folder: str, out: str) -> int:
    """Write the logs; errors of the user's end with one line and exit code 2."""
    try:
        log(f"{out}: logs: {write_logs(Path(folder), Path(out))}")
    except (ValueError, OSError) as error:
        complain(Path(__file__).name, error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) if len(sys.argv) == 3 else str(__doc__))

"""Rollouts where other programs leave them: tables, objects of servers; and files that only look like rollouts."""

import csv
import gzip
import json
import random
from functools import partial

from lines import read_one, write_lines

from fairlen.audit.readers import Source, read
from fairlen.cli import main

Made = list[tuple[int, bool, int, bool]]


def made() -> Made:
    """Of 24 prompts 8 responses each: number of the prompt, whether it is correct, its length, whether it was truncated."""
    draw = random.Random(1)
    rows: Made = []
    for place in range(192):
        correct = draw.random() < 0.5
        length = max(5, round(draw.lognormvariate(4, 0.25) * (1 if correct else 1.5)))
        rows.append((place // 8, correct, length, not correct and draw.random() < 0.2))
    return rows


ROWS = made()
LENGTHS, CORRECT, CUT = [row[2] for row in ROWS], [row[1] for row in ROWS], [row[3] for row in ROWS]
TRL = [
    {"step": 1, "prompt": f"q{n}", "completion": "word " * size, "accuracy": float(ok), "advantage": 2.0 * ok - 1}
    for n, ok, size, _ in ROWS
]


def is_made(source: Source, unit: str = "tokens") -> bool:
    """Whether these are the rows above, in this unit."""
    log = source.log
    assert (log.unit, log.responses.length.tolist(), log.malformed) == (unit, LENGTHS, ())
    assert log.responses.prompt.tolist() == [row[0] for row in ROWS]
    return log.correct.tolist() == CORRECT


# ------------------------------------------------------------------------------------------------------- other containers


def test_tables_of_wandb_and_trls_columns_as_csv(tmp_path):
    names = list(TRL[0])
    cells = {"columns": names, "data": [[row[name] for name in names] for row in TRL]}
    wandb = tmp_path / "media" / "table" / "completions_1_abc.table.json"
    wandb.parent.mkdir(parents=True)
    wandb.write_text(json.dumps(cells))
    with (tmp_path / "trl.csv").open("w") as file:
        rows = csv.DictWriter(file, names)
        rows.writeheader()
        rows.writerows(TRL)
    for path in (wandb, tmp_path / "trl.csv"):
        source = read_one(path)
        assert source.format.name == "trl" and is_made(source, "words"), path
    wandb.write_text(json.dumps(cells | {"data": [*cells["data"], ["too", "few"]]}))
    assert [(row.line, row.reason) for row in read_one(wandb).log.malformed] == [(193, "not an object but list")]


def test_what_is_no_file_of_rows_is_named(tmp_path):
    for name, content, what in (
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n", "Git LFS pointer"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("b.jsonl", b"/annex/objects/SHA256E-s1--ab.jsonl\n", "git annex get"),
        ("c.jsonl", b"<!DOCTYPE html>\n<html>Sign in</html>", "a web page"), ("d.csv", b"\n<HTML><body>", "a web page"),
        ("e.json", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "a server's error"),
        ("f.jsonl.xz", b"\xfd7zXZ\x00\x00", "unpack it first"), ("g.jsonl", b"BZh91AY", "unpack it first"),
        ("h.csv", "prompt,response\n".encode("utf-16"), "UTF-16"), ("i.wandb", b":W&B\xbe\xe1\x00", "media/table"),
        ("j.npy", b"\x93NUMPY\x01", "NumPy"), ("k.tar", b"a.txt".ljust(257, b"\0") + b"ustar", "a tar archive"),
        ("l.parquet.gz", gzip.compress(b"PAR1 and so on"), "unpack it first"),
        ("m.db", b"SQLite format 3\0\x10\0", "table of rollouts as CSV"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        (sentence,) = read([str(tmp_path / name)]).unreadable
        assert what in sentence and "\n" not in sentence, sentence


# ------------------------------------------------------------------------------------------------------- objects of servers


def respond(size: int, is_cut: bool, **more) -> dict:
    """An object of OpenAI's Responses, as NeMo-Gym's servers give it: two calls of the model, with a tool between them."""
    thought = {"type": "reasoning_text", "text": "think " * (size - 4)}
    said = {"type": "output_text", "text": "it is done", "annotations": []}
    items = [
        {"type": "reasoning", "id": "r", "summary": [], "content": [thought]},
        {"type": "function_call", "name": "calc", "arguments": '{"a": 1}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "9 " * 50},
        {"type": "message", "role": "assistant", "content": [said]},
    ]
    reason = {"reason": "max_output_tokens"} if is_cut else None
    usage = {"input_tokens": 9, "output_tokens": size, "total_tokens": 9 + size}
    return {"id": "x", "object": "response", "output": items, "incomplete_details": reason, "usage": usage} | more


def gym_row(n: int, ok: bool, size: int, is_cut: bool) -> dict:
    asked = {"input": [{"role": "user", "content": f"q{n}"}], "tools": []}
    known = {"_ng_task_index": n, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}, "reward": float(ok)}
    return known | {"responses_create_params": asked, "response": respond(size, is_cut, status=None, error=None)}


def test_nemo_gym(tmp_path):
    source = read_one(write_lines(tmp_path / "rollouts.jsonl", *[gym_row(*row) for row in ROWS]))
    log = source.log
    assert source.format.name == "nemo_gym" and is_made(source) and set(log.responses.num_turns) == {2}
    assert "truncated" in log.known and log.responses.truncated.tolist() == CUT
    told = [gym_row(n, ok, size, False) for n, ok, size, _ in ROWS]
    assert (
        "truncated" not in read_one(write_lines(tmp_path / "none.jsonl", *told)).log.known
    )  # its server may say it of none


def test_objects_of_openais_servers_in_any_table(tmp_path):
    answer = partial(dict, [("role", "assistant")])
    outputs = {
        "responses": lambda size, is_cut: respond(size, is_cut, status="incomplete" if is_cut else "completed"),
        "chat": lambda size, is_cut: {
            "choices": [{"message": answer(content="w " * size), "finish_reason": "length" if is_cut else "stop"}],
            "usage": {"completion_tokens": size},
        },
    }
    for name, make in outputs.items():
        rows = [
            {"prompt": f"q{n}", "response": make(size, is_cut), "reward": float(ok)} for n, ok, size, is_cut in ROWS
        ]
        source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
        assert is_made(source), name
        assert source.log.responses.truncated.tolist() == CUT, name


def nemo_rows(size_of_prompt: int = 7) -> list[dict]:
    """Every cell is a list of one; the prompt is not trained, nor the environment's word at the end, nor what pads."""
    rows = []
    for place, (n, ok, size, _) in enumerate(ROWS):
        whole, mask = size_of_prompt + size + 3, [0] * size_of_prompt + [1] * size + [0] * 23
        said = [f"q{n}", "w " * size, f"Environment: {'correct' if ok else 'incorrect'}"]
        known = {"content": [said], "rewards": [float(ok)], "input_lengths": [whole], "idx": place}
        tokens = {"token_ids": [[1] * len(mask)], "token_loss_mask": [mask], "advantages": [[2.0 * ok - 1] * len(mask)]}
        rows.append(known | tokens | {"sample_loss_mask": [1.0], "generation_logprobs": [[0.0] * len(mask)]})
    return rows


def test_nemo_rl_of_training_and_validation(tmp_path):
    write_lines(tmp_path / "train_data_step3.jsonl", *nemo_rows())
    held_out = []
    for place, (n, ok, size, _) in enumerate(ROWS):
        said = (("user", f"q{n}"), ("assistant", "w " * size), ("environment", "ok"))
        chat = [{"role": role, "content": text} for role, text in said]
        held_out.append({"content": [chat], "rewards": [float(ok)], "idx": place})
    write_lines(tmp_path / "val_data_step3.jsonl", *held_out)
    reading = read([str(tmp_path)])
    assert len(reading.sources) == 2, reading
    train, validation = sorted(reading.sources, key=lambda source: source.log.unit)
    assert (train.format.name, validation.format.name) == ("nemo_rl", "nemo_rl")
    assert is_made(train) and is_made(validation, "words")
    assert set(train.log.batch) == {3} and train.log.advantage is not None and set(train.log.advantage) == {-1.0, 1.0}


# ---------------------------------------------------------------------------------------------------------------- pooling


def test_seeds_of_lm_eval_in_folders_of_their_own_can_be_pooled(tmp_path, capsys):
    """Each seed has one response to each of 24 problems, and cannot compare any; all 8 compare 8 to each."""
    for seed in range(8):
        rows = [
            {"doc_id": n, "doc": {"q": n}, "target": "1", "arguments": [[f"q{n}", {}]], "resps": [["w " * size]],
             "filter": "none", "metrics": ["exact_match"], "exact_match": float(ok), "prompt_hash": f"p{n}"}
            for n, ok, size, _ in ROWS[seed::8]
        ]  # fmt: skip
        write_lines(tmp_path / f"seed{seed}" / "org__model" / f"samples_sums_2026-08-21T19-5{seed}.jsonl", *rows)
    folders = [str(tmp_path / f"seed{seed}") for seed in range(8)]
    for paths in ([str(tmp_path)], folders):
        assert main(["audit", *paths, "--json"]) == 0
        apart = json.loads(capsys.readouterr().out)["logs"]
        assert [one["conclusion"]["num_prompts"] for one in apart] == [0] * 8
        assert all(any("--pool" in sentence for sentence in one["missing"]) for one in apart)
        assert main(["audit", *paths, "--pool", "--json"]) == 0
        (pooled,) = json.loads(capsys.readouterr().out)["logs"]
        assert pooled["counts"]["responses"] == 192 and pooled["conclusion"]["num_prompts"] > 20
        assert pooled["conclusion"]["status"] == "effect" and pooled["conclusion"]["estimate"]["value"] > 0.3

"""docs/rollouts: every program has a command that parses, its settings exist where that program is installed, its lines of Python
write what the audit reads without a flag."""

import json
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from fairlen.audit.command import AuditConfig
from fairlen.audit.readers import read
from fairlen.flags import read_flags

ROOT = Path(__file__).parents[1]
INDEX, PROGRAMS = ((ROOT / f"docs/rollouts/{name}.md").read_text() for name in ("README", "programs"))
SECTIONS = {title.lower(): text for title, text in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PROGRAMS, re.S | re.M)}
COMMANDS = [
    pytest.param(words, id=f"{page.relative_to(ROOT).as_posix()}-{' '.join(words)}")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for line in re.findall(r"^    fairlen audit ([^\n|]*)", page.read_text(), re.M)
    for words in [shlex.split(line, comments=True)]
]


@pytest.mark.parametrize("words", COMMANDS)
def test_the_flags_of_every_audit_on_a_page_exist(words):
    config = read_flags(AuditConfig, "fairlen audit", words, "")
    assert config.paths and not any(path.startswith("-") for path in config.paths)
    assert config.options()


def test_the_index_has_every_program_and_each_its_command():
    linked = re.findall(r"\(programs\.md#([\w-]+)\)", INDEX)
    assert sorted(linked) == sorted(SECTIONS) and len(linked) == 10
    for name, text in {**SECTIONS, "table": INDEX}.items():
        assert re.search(r"^    fairlen audit \S", text, re.M), name


def settings_of_verl(text: str) -> list[str]:
    """Names with dots that the page sets, or says in full."""
    return re.findall(r"[`\s]((?:trainer|data|algorithm|actor_rollout_ref)(?:\.\w+)+)", text)


def test_settings_of_verl_exist():
    omegaconf = pytest.importorskip("omegaconf", reason="verl is not installed (pip install '.[verl]')")
    verl = find_spec("verl")
    if verl is None or verl.origin is None:
        pytest.skip("verl is not installed (pip install '.[verl]')")
    known = omegaconf.OmegaConf.load(Path(verl.origin).parent / "trainer/config/_generated_ppo_trainer.yaml")
    named = settings_of_verl(SECTIONS["verl"])
    assert {"trainer.rollout_data_dir", "trainer.validation_data_dir", "data.max_response_length"} <= set(named)
    for name in named:
        parent, _, field = name.rpartition(".")
        assert field in omegaconf.OmegaConf.select(known, parent), name
    for field in re.findall(r"`val_kwargs\.(\w+)", SECTIONS["verl"]):
        assert field in known.actor_rollout_ref.rollout.val_kwargs, field
    assert known.trainer.use_v1 is True and known.actor_rollout_ref.rollout.val_kwargs.n == 1


def test_where_hydra_writes_the_configuration():
    hydra = pytest.importorskip("hydra", reason="verl is not installed (pip install '.[verl]')")
    with hydra.initialize(version_base=None, config_path=None):
        asked = hydra.compose(return_hydra_config=True).hydra
    written = asked.run._get_node("dir")._value(), asked.output_subdir
    assert written == ("outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}", ".hydra")
    assert "outputs/DATE/TIME/.hydra/config.yaml" in SECTIONS["verl"]


def test_six_lines_write_a_table_that_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.search(r"```python\n(.*?)```", INDEX, re.S)
    assert found
    lines = [line for line in found[1].splitlines() if line.strip()]
    assert len(lines) == 6, lines
    exec(compile(found[1], "README.md", "exec", dont_inherit=True), {})
    (source,) = read(["rollouts.jsonl"]).sources
    assert source.log.unit == "tokens" and source.log.responses.length.tolist() == [7, 5]
    assert source.log.responses.truncated.tolist() == [False, True] and "truncated" in source.log.known
    assert source.log.columns["reward"].tolist() == [1.0, 0.0] and source.log.responses.num_prompts == 1


def test_the_reward_function_for_openrlhf_writes_what_the_audit_reads(tmp_path, monkeypatch):
    """Called as OpenRLHF 0.11.0 calls it: one text at a time, prompt and response with special tokens, and a label."""
    monkeypatch.chdir(tmp_path)
    found = re.search(r"```python\n(.*?)```", SECTIONS["openrlhf"], re.S)
    assert found
    names: dict = {}
    exec(compile(found[1], "programs.md", "exec", dont_inherit=True), names)
    for response in ("2+3=5 so 5<|im_end|>", "6 or 7 or"):
        answer = names["reward_func"]([f"What is 2+3?{response}"], ["What is 2+3?"], ["5"])
    assert answer == {"rewards": 0.0, "scores": 0.0}
    (source,) = read(["rollouts-*.jsonl"]).sources
    assert source.log.responses.truncated.tolist() == [False, True]
    assert source.log.responses.num_prompts == 1 and source.log.columns["reward"].tolist() == [1.0, 0.0]


def test_the_loop_for_slime_writes_what_the_files_themselves_hold(tmp_path, monkeypatch):
    """For samples that are more than plain data."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    fixture = ROOT / "tests/fixtures_formats/slime"
    Path("rollouts").mkdir()
    for path in fixture.glob("*.pt"):
        shutil.copy(path, f"rollouts/{path.stem.removeprefix('rollout_')}.pt")
    block = re.search(r"^    import glob.*?(?=^    fairlen)", SECTIONS["slime"], re.S | re.M)
    assert block
    exec(compile(re.sub(r"^    ", "", block[0], flags=re.M), "programs.md", "exec", dont_inherit=True), {})
    (lines,), (whole,) = read(["rollouts/*.jsonl"]).sources, read([str(fixture)]).sources
    assert lines.format.name == whole.format.name == "slime" and lines.log.unit == "tokens"
    for name in ("length", "truncated", "active", "correct"):
        assert getattr(lines.log.responses, name).tolist() == getattr(whole.log.responses, name).tolist(), name


def test_columns_that_the_page_of_tables_names_are_taken_for_it(tmp_path):
    """Each row of its table, by a file that has this column and no other of its kind."""
    table = INDEX.split("| column |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))
    columns = "prompt response num_tokens num_turns reward correct step finish_reason advantage age"
    assert set(columns.split()) == set(named)
    row = {"prompt": "a", "response": "b c", "num_tokens": 9, "num_turns": 2, "reward": 0.5, "correct": True, "step": 3}
    row |= {"finish_reason": "length", "advantage": -1.0, "age": 1}
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row | {"num_tokens": 9 + n}) + "\n" for n in range(2)))
    (source,) = read([str(path)]).sources
    assert {"reward", "correct", "truncated", "advantage"} <= source.log.known and source.log.unit == "tokens"
    for name in named:
        assert any(f"`{name}`" in note for note in source.notes if note.startswith("columns: ")), name

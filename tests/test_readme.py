"""What the README says is so."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlen import playground
from fairlen.cli import main, read_config, read_eval_config, read_train_config
from fairlen.doctor.examine import DoctorConfig
from fairlen.methods.compose import compose
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CATALOGUE = (ROOT / "docs/methods/catalogue.md").read_text()
TRAIN = (ROOT / "docs/train.md").read_text()


BOUNDS = {
    "each token's ratio": {"TokenClip"},
    "the sequence's ratio": {"SequenceRatioClip", "SequenceClip", "SequenceTokenClip", "PowerClip"},
    "a band that grows with the root of length": {"FairBand", "PrefixBand"},
    "the geometric mean of clipped ratios": {"GeometricClip"},
    "a weight on each token that no bound silences": {"DetachedClip", "SoftGate", "GammaKernel"},
    "nothing": {"PolicyGradient"},
}
CHANGES = {
    "which responses are compared (pairs, turns)": {"sampling"},
    "which prompts and responses train": {"filter", "mask_truncated"},
    "what a response is worth": {"reward"},
    "the advantage": {"advantage"},
    "the clip": {"surrogate"},
    "what a token weighs": {"aggregation"},
    "terms beside the surrogate, and the correction of another engine": {"terms", "correction"},
}


def test_the_catalogue_has_every_method_where_it_belongs():
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", CATALOGUE)
    found = {head: re.findall(r"`(\w+)`", names) for head, names in re.findall(r"^- (.*?): (.*)$", text, re.M)}
    surrogates = {name: type(make().surrogate).__name__ for name, make in BASES.items()}
    choices = {name: re.split(r"[.:]", part.sets)[0] for name, part in MODIFIERS.items()}
    assert list(found) == [*BOUNDS, *CHANGES]
    for heads, chosen in ((BOUNDS, surrogates), (CHANGES, choices)):
        for head, kinds in heads.items():
            assert sorted(found[head]) == sorted(name for name, kind in chosen.items() if kind in kinds), head
        assert sorted(name for head in heads for name in found[head]) == sorted(chosen)


def test_the_lines_of_python_are_the_heart_of_the_recipe():
    block = re.search(r"```py\n(.*?)```", TRAIN, re.S)
    assert block
    recipe = (ROOT / "recipes/by_hand.py").read_text()
    without_indent = "\n".join(line.strip() for line in recipe.splitlines())
    for line in block[1].splitlines():
        assert line.strip() in without_indent


def find_blocks(begin: str) -> tuple[str, str]:
    """The command that begins so, and what stands below it."""
    blocks = re.findall(r"(?:^    .*\n)+", README, re.M)
    place = next(place for place, block in enumerate(blocks) if block.startswith(f"    {begin}"))
    return blocks[place], blocks[place + 1]


def test_the_verdict_it_shows_is_what_the_command_prints(tmp_path, monkeypatch, capsys):
    """The page's first command, on rollouts of TRL's trainer (tests/fixtures_formats/make.py: make_trl_run)."""
    command, shown = find_blocks("fairlen audit")
    shutil.copytree(ROOT / "tests/fixtures_formats/trl_run", tmp_path / "out/completions")
    (tmp_path / "MODEL").symlink_to(playground.PATH, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert " ".join(shown.split()) in printed, printed[:1500]
    assert (tmp_path / "page.html").stat().st_size > 10_000
    means = re.findall(r"of (?:in)?correct responses ([\d.]+) \[", printed.partition("length (tokens)")[2])[:2]
    correct, incorrect = (round(float(mean)) for mean in means)
    assert f"{correct} tokens of correct responses and {incorrect} of incorrect" in " ".join(README.split())


def test_the_alarm_it_shows_is_what_the_command_prints(tmp_path, monkeypatch, capsys):
    """On rollouts of TRL's stock trainer and SmolLM2-135M, with a hidden reward for shortness (benchmarks/watch_trl.py)."""
    command, shown = find_blocks("fairlen watch")
    shutil.copytree(ROOT / "tests/fixtures_real/trl", tmp_path / "out/completions")
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:], "--state", "state.json"]) == 0
    assert " ".join(shown.split()) in " ".join(capsys.readouterr().out.split())


def test_no_word_of_its_picture_is_clipped():
    """By letters of .65 of their size, which is wider than DejaVu's and Arial's on average."""
    picture = (ROOT / "docs/weights.svg").read_text()
    texts = re.findall(r'<text class="[tn][^"]*" x="([\d.]+)" y="[\d.]+">([^<]+)</text>', picture)
    assert len(texts) == 7 and all(float(x) + 0.65 * 14 * len(text) <= 800 for x, text in texts)


@pytest.mark.slow
def test_the_recipe_runs():
    done = subprocess.run([sys.executable, ROOT / "recipes/by_hand.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^rollout batch (\d): (\d+) responses", done.stdout, re.M)[0][0] == "0"


def test_the_diff_is_that_of_the_page_of_trl():
    """There it is applied to a script, which then runs."""

    def changed(text: str) -> set[str]:
        block = re.search(r"```diff\n(.*?)```", text, re.S)
        assert block
        return {line for line in block[1].splitlines() if line[0] in "+-"}

    assert changed(README) == changed((ROOT / "docs/trl.md").read_text()) and len(changed(README)) == 4


@pytest.mark.parametrize("names", sorted(set(re.findall(r"`([a-z_3]+(?:\+[a-z_]+)+)`", README + CATALOGUE + TRAIN))))
def test_every_composition_it_names_exists(names):
    compose(names)


COMMANDS = [
    (page.name, shlex.split(line.strip().replace("\\\n", " "), comments=True)[1:])
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for line in re.findall(r"^    (fairlen (?:train|eval|doctor) (?:[^\n]*\\\n)*[^\n]*)", page.read_text(), re.M)
    if "FILE" not in line and "--help" not in line
]


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_every_command_on_a_page_has_flags_that_exist(page, words, tmp_path, monkeypatch):
    shutil.copy(ROOT / "recipes/mine.py", tmp_path)  # which docs/extending.md names
    monkeypatch.chdir(tmp_path)
    command, *flags = words
    if command == "train":
        compose(read_train_config(flags).method)
    elif command == "doctor":
        compose(read_config(DoctorConfig(), "doctor", flags).method)
    elif "list" not in flags and "--from-samples" not in flags:
        read_eval_config(flags)


@pytest.mark.slow
def test_its_picture_is_what_the_recipe_draws_and_its_caption_what_the_command_prints(capsys):
    done = subprocess.run(
        [sys.executable, ROOT / "recipes/draw_weights.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    caption = " ".join(README[README.index("*The same") :].partition("\n\n")[0].split())
    command = re.search(r"`(fairlen methods --compare [^`]*)`", caption)
    assert command and main(shlex.split(command[1])[1:]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "grpo: a token of a short response weighs 7.2 times one of a long" in printed and "7.2 times" in caption
    assert "dapo+balanced: a token of a short response weighs 1.6 times one of a long" in printed
    assert "1.6 times" in caption
    assert "dapo_verl: every token weighs the same" in printed


def test_it_counts_claims():
    claims = (ROOT / "docs/claims.md").read_text()
    counted = re.search(r"^Of (\d+) claims: ([^.]*)\.", claims, re.M)
    assert counted
    found = {name: int(number) for number, name in re.findall(r"(\d+)\s+([a-z]+)", counted[2])}
    shown = re.search(
        r"\| (\d+) claims [^|]* \| (\d+) proved, (\d+) refuted, (\d+) reproduced, (\d+) contradicted, (\d+) without a verdict \|",
        README,
    )
    assert shown and sum(map(int, shown.groups()[1:])) == int(shown[1]) == int(counted[1])
    assert [int(shown[n]) for n in (2, 3, 4, 5)] == [
        found[n] for n in ("proved", "refuted", "reproduced", "contradicted")
    ]


def rooms_of_its_map() -> Iterator[tuple[Path, str]]:
    """(path, what is said of it) of every line of the map; a line further in lies in the folder above it."""
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    above: dict[int, Path] = {-1: ROOT}
    for line in filter(str.strip, tree.splitlines()):
        for _, name, said in re.findall(r"( +)([\w/]+/|\w+\.py)  +(.*?)(?=  +\w+/ +|$)", line):
            depth = len(line) - len(line.lstrip())
            folder = above[max(d for d in above if d < depth)]
            above = {d: path for d, path in above.items() if d < depth} | {depth: folder / name}
            yield folder / name, said


def test_its_map_has_every_room_and_nothing_else():
    rooms = dict(rooms_of_its_map())
    for path, said in rooms.items():
        assert path.exists(), path
        for name in re.findall(r"\b\w+\.py\b", said):
            assert any((folder / name).exists() for folder in (path, ROOT / "tests")), (path, name)
    packages = {path.parent for path in (ROOT / "src" / "fairlen").glob("*/__init__.py")}
    assert packages <= set(rooms)

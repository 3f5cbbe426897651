"""The ledger: what its data may say, that its pages and evidence agree, and that the checker notices when they do not."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fairlen.cli import read_eval_config
from research.ledger.__main__ import main
from research.ledger.check import check, check_study, check_tests, numbers, run_quick, write
from research.ledger.claims import DATA, Claim, Ledger, load_ledger, make_claim, read_results
from research.ledger.page import claims_page, decisions_page
from research.ledger.rule import Condition, Result, explain, judge, parse_condition

ROOT = Path(__file__).parents[2]
PLAIN = {"id": "eqlen-01", "place": "Section 1", "claim": "It is so.", "done": "Looked."}
TESTED = PLAIN | {
    "verdict": "proved",
    "tests": ["tests/test_batch.py::test_sums_counts_and_means_by_hand"],
    "figure": "so",
}


def stored(low: float, high: float) -> dict[str, object]:
    return {"value": (low + high) / 2, "low": low, "high": high, "seeds": 5, "unit": "points", "what": "a difference"}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package's data, to be changed."""
    return Path(shutil.copytree(str(DATA), tmp_path / "data"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


# the data


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (TESTED | {"verdit": "x"}, "eqlen-01: unknown key 'verdit'"),
        ({k: v for k, v in TESTED.items() if k != "place"}, "place is missing"),
        (TESTED | {"id": "fspo-01"}, r"write eqlen- and two digits"),
        (PLAIN, "give either a verdict"),
        (TESTED | {"decide": ["eqlen-minus-grpo low > 0"]}, "give either a verdict"),
        (TESTED | {"verdict": "reproduced"}, "verdict='reproduced': give proved, refuted, out of reach"),
        (PLAIN | {"verdict": "refuted", "figure": "so"}, "verdict=refuted: name the tests"),
        (TESTED | {"figure": ""}, "and the figure that they find"),
        (PLAIN | {"verdict": "out of reach"}, "what is out of reach needs one"),
        (TESTED | {"command": "make study"}, "a command belongs to what is out of reach"),
        (PLAIN | {"decide": ["eqlen-minus-grpo low > 0"], "figure": "5"}, "figure without tests"),
        (TESTED | {"tests": ["test_batch.py"]}, "write tests/FILE.py::test_name"),
        (PLAIN | {"decide": ["eqlen-minus-grpo > 0"]}, "write FIGURE value"),
    ],
)
def test_claims_that_contradict_themselves_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        make_claim(entry, "eqlen")


def test_a_claim_that_says_all_is_read():
    claim = make_claim(TESTED, "eqlen")
    assert claim.verdict == claim.judge({}) == "proved" and len(claim.tests) == 1


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("fspo.toml", '"fspo-02"', '"fspo-01"', "fspo-01: two claims have this id"),
        ("eqlen.toml", "eqlen-minus-grpo low", "eqlen-over-grpo low", "no figure eqlen-over-grpo is defined"),
        ("summary.toml", '"eqlen-02"', '"eqlen-99"', "there is no claim eqlen-99"),
        ("eqlen.toml", "title =", "title", r"eqlen\.toml: "),
    ],
)
def test_names_that_lead_nowhere_are_refused(copied, name, old, new, message):
    change(copied / name, old, new)
    with pytest.raises(ValueError, match=message):
        load_ledger(copied)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"value": 1.0}, "figure x has no low"),
        (stored(2.0, 1.0), r"low=2\.0 is above high=1\.0"),
    ],
)
def test_results_without_an_interval_are_refused(tmp_path, entry, message):
    (tmp_path / "figures.json").write_text(json.dumps({"x": entry}))
    with pytest.raises(ValueError, match=message):
        read_results(tmp_path / "figures.json")


def test_a_figure_in_another_unit_is_refused(copied):
    """A share of 0.01 would pass for a hundredth of a point."""
    entry = stored(0.0, 0.02) | {"unit": ""}
    (copied / "results.json").write_text(json.dumps({"eqlen-minus-grpo": entry}))
    with pytest.raises(ValueError, match="figure eqlen-minus-grpo: unit='': its definition says 'points'"):
        load_ledger(copied, copied / "results.json")


def test_a_figure_that_could_not_be_measured_leaves_its_claims_open(tmp_path):
    entries = {
        "x": stored(1.0, 2.0),
        "y": stored(1.0, 2.0) | {"low": float("nan")},
        "z": stored(1.0, 2.0) | {"value": None},
    }
    (tmp_path / "figures.json").write_text(json.dumps(entries))
    assert list(read_results(tmp_path / "figures.json")) == ["x"]


# verdicts from figures


@pytest.mark.parametrize(
    ("text", "low", "high", "verdict", "why"),
    [
        ("x low > 0", 0.1, 2.0, "reproduced", ""),
        ("x low > 0", -0.1, 2.0, "not reproduced", "undecided with these seeds: x low > 0"),
        ("x low > 0", -2.0, -0.1, "not reproduced", "excluded: x low > 0"),
        ("x high < 1.1", 0.9, 1.0, "reproduced", ""),
        ("x high < 1.1", 1.9, 2.1, "not reproduced", "excluded: x high < 1.1"),
        ("x value > 2.5", 2.0, 4.0, "reproduced", ""),
    ],
)
def test_conditions_by_hand(text, low, high, verdict, why):
    condition, results = parse_condition(text), {"x": Result((low + high) / 2, low, high, 5, "", "")}
    assert str(condition) == text
    assert judge([condition], results) == verdict and explain([condition], results) == why
    assert judge([condition, Condition("y", "low", ">", 0.0)], results) == "open"


def with_results(ledger: Ledger, low: float, high: float) -> Ledger:
    """Every figure of the study stored, with one interval."""
    return replace(
        ledger, results={f.id: Result((low + high) / 2, low, high, 5, f.unit, f.what) for f in ledger.figures}
    )


def test_stored_figures_close_every_open_claim_and_open_the_summary():
    ledger = load_ledger()
    before, after = (replace(ledger, results={}), with_results(ledger, 0.2, 0.3))
    waiting = [claim for claim in before.claims if claim.judge(before.results) == "open"]
    assert len(waiting) > 30 and not any(claim.verdict for claim in waiting)
    assert not [claim for claim in after.claims if claim.judge(after.results) == "open"]
    assert "claims wait for the study" in claims_page(before) and "claims wait" not in claims_page(after)
    sentence = "EqLen was more accurate than GRPO"
    assert sentence not in claims_page(before) and sentence in claims_page(after)
    assert sentence not in claims_page(with_results(ledger, -0.3, -0.2))
    figure = "0.25 points [0.2, 0.3], 5 seeds: accuracy at the end, `eqlen+grpo` minus `grpo`"
    assert figure in " ".join(claims_page(after).split())


def test_the_contract_names_every_figure_and_every_open_claim():
    ledger = load_ledger()
    page = decisions_page(ledger)
    for figure in ledger.figures:
        assert f"| `{figure.id}` |" in page and figure.experiment in ledger.experiments
    for claim in ledger.claims:
        assert (f"[{claim.id}](../claims.md#{claim.id})" in page) == bool(claim.decide)


# the checker


def test_pages_tests_and_figures_agree():
    """The whole check but for running the quick tests, which are in the suite anyway."""
    assert check(load_ledger(), ROOT, run=False) == []


def one_claim(**fields) -> Claim:
    known = {
        "verdict": "proved",
        "tests": ("tests/claims_oracles/test_claims_tables.py::test_the_ablations_cost_what_the_text_says",),
    }
    return Claim(**(PLAIN | known | {"figure": "6.7, 7.4 and 3.6 points"} | fields))


def test_a_renamed_test_and_a_changed_number_are_found():
    path = "tests/claims_oracles/test_claims_tables.py"
    assert list(check_tests(one_claim(), ROOT)) == []
    for missing in (f"{path}::test_the_ablations", "tests/nowhere.py::test_x"):
        assert list(check_tests(one_claim(tests=(missing,), figure=""), ROOT)) == [
            f"eqlen-01: there is no test {missing}"
        ]
    changed = one_claim(figure="6.7, 7.5 and 3.6 points")
    assert list(check_tests(changed, ROOT)) == ["eqlen-01: 7.5 of its figure occurs in none of its tests"]
    without = one_claim(tests=(*one_claim().tests, f"{one_claim().tests[0]}[AIME]"))
    assert "has no parameters" in next(iter(check_tests(without, ROOT)))


def test_numbers_are_read_as_they_are_written():
    assert numbers("51_456 = 536 * 96, -1.24 of 1e-12, 51,456 and x2 in 0.5.") == {51456, 536, 96, 1.24, 1e-12, 0.5}
    share = one_claim(
        figure="22%", tests=("tests/claims_oracles/test_claims_balanced.py::test_balanced_adds_no_number",)
    )
    assert "22" in next(iter(check_tests(share, ROOT)))


def small_checkout(root: Path, ledger: Ledger) -> None:
    """Pages of a ledger without tests of its own."""
    assert write(ledger, root) == ["docs/claims.md", "docs/study/decisions.md"]


def test_an_edited_page_and_a_changed_figure_are_found(tmp_path):
    ledger = replace(load_ledger(), results={})
    untested = tuple(replace(paper, claims=tuple(c for c in paper.claims if c.decide)) for paper in ledger.papers)
    ledger = replace(ledger, papers=untested, summary={})
    small_checkout(tmp_path, ledger)
    assert check(ledger, tmp_path) == []
    change(tmp_path / "docs/claims.md", "eqlen-23: open", "eqlen-23: reproduced")
    assert check(ledger, tmp_path) == [
        "docs/claims.md: not what the ledger says; write it with: python -m research.ledger --write"
    ]
    (tmp_path / "docs/study/figures.json").write_text(json.dumps({"eqlen-minus-grpo": stored(1.0, 2.0)}))
    ran = replace(ledger, results=read_results(tmp_path / "docs/study/figures.json"))
    write(ran, tmp_path)
    (alone,) = check(ran, tmp_path)
    assert "belong together" in alone  # figures without the runs that they are of
    assert "eqlen-23: reproduced" in (tmp_path / "docs/claims.md").read_text()
    change(tmp_path / "docs/study/figures.json", "2.0", "2.5")
    moved = replace(ledger, results=read_results(tmp_path / "docs/study/figures.json"))
    assert any("docs/claims.md: not what" in line for line in check(moved, tmp_path))
    (tmp_path / "docs/study/figures.json").unlink()
    assert any("docs/claims.md: not what" in line for line in check(ledger, tmp_path))


def test_figures_that_the_stored_runs_do_not_give_are_found(tmp_path):
    (tmp_path / "docs/study").mkdir(parents=True)
    for name in ("results.json.gz", "figures.json"):
        (tmp_path / "docs/study" / name).write_bytes((ROOT / "docs/study" / name).read_bytes())
    assert list(check_study(tmp_path)) == []
    figures = json.loads((tmp_path / "docs/study/figures.json").read_text())
    figures["eqlen-minus-grpo"]["low"] = 0.5
    figures["rloo-drop-minus-fspo"]["low"] = -1e-17  # rounding of another processor, where 0 is stored
    figures["new"] = figures.pop("fspo-lre")
    (tmp_path / "docs/study/figures.json").write_text(json.dumps(figures))
    found = [line.split()[1] for line in check_study(tmp_path)]
    assert found == ["eqlen-minus-grpo", "fspo-lre", "new"]


def test_the_numbers_of_the_readme_are_those_of_the_ledger():
    claims = load_ledger().claims
    decided = sum(bool(claim.decide) for claim in claims)
    text = (ROOT / "README.md").read_text()
    assert (
        f"each of {len(claims)} claims with a verdict" in text and f"{decided} of these verdicts are of a study" in text
    )


def test_the_command_shows_one_claim(capsys):
    assert main(["eqlen-23"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("### eqlen-23: ") and "`eqlen-minus-grpo low > 0`" in shown
    assert main(["eqlen-23", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "eqlen-23"
    assert main(["eqlen-99"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_a_quick_test_that_fails_is_named(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("def test_it():\n    assert 1 == 2\n\ndef test_that():\n    pass\n")
    ledger = replace(load_ledger(), papers=())
    for name, failed in (("test_it", 1), ("test_that", 0)):
        claim = one_claim(tests=(f"tests/test_it.py::{name}",), quick=True)
        paper = replace(load_ledger().papers[0], claims=(claim,))
        found = run_quick(replace(ledger, papers=(paper,)), tmp_path)
        assert len(found) == failed and all("test_it.py::test_it" in line for line in found)


# the command line


def test_the_command_shows_every_claim(capsys):
    assert main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    claims = {claim["id"]: claim for paper in data["papers"] for claim in paper["claims"]}
    assert len(claims) > 40 and claims["fspo-02"]["verdict"] == "refuted" and claims["fspo-02"]["tests"]
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(id in shown for id in claims) and f"{len(claims)} claims: " in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rewrite"], "unrecognized arguments: --rewrite"),
        (["--write", "--check"], "not allowed with argument --write"),
    ],
)
def test_unknown_flags_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


# what the page asks a reader to type


def commands() -> list[list[str]]:
    """Every command of fairlen's on the page, as words."""
    page = (ROOT / "docs/claims.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in dict.fromkeys(lines) if line.startswith("fairlen ")]


@pytest.mark.parametrize("words", commands(), ids=lambda words: "-".join(words[:3]))
def test_commands_for_real_hardware_have_methods_and_flags_that_exist(words):
    import tyro

    if words[0] == "verl":
        from fairlen.integrations.verl.launch import VerlConfig

        cut = words.index("--")
        config = tyro.cli(VerlConfig, args=words[1:cut])
        assert config.model and config.data and all("=" in word for word in words[cut + 1 :])
    elif words[0] == "eval":
        assert read_eval_config(words[1:]).suite in ("eqlen", "fspo", "balanced", "grpo_lambda")
    else:
        from fairlen.compare.config import CompareConfig

        assert words[0] == "compare" and len(tyro.cli(CompareConfig, args=words[1:]).variants) == 3


def test_every_claim_has_a_command():
    page = (ROOT / "docs/claims.md").read_text().partition("## Verdicts")[2]
    blocks = re.split(r"\n### \w+-\d\d", page)[1:]
    assert len(blocks) == len(load_ledger().claims)
    assert all(re.search(r"\n```bash\n(pytest|make|fairlen|#)", block) for block in blocks)

"""Statistics of a comparison against closed forms, on evaluations written by hand, and what the page of one says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lines import write_lines
from loops import over
from made_comparison import make_comparison

from fairlen.audit.numbers import plain
from fairlen.cli import main
from fairlen.compare.config import CompareConfig, parse_variant
from fairlen.compare.results import (
    Cell,
    Spent,
    cells_of,
    compare_curves,
    describe_match,
    resampler,
    show_difference,
    summarize,
)
from fairlen.compare.start import start_comparison
from fairlen.evaluate.estimators import mean_by_problem
from fairlen.files.folders import write_json

RECORDS = Path(__file__).parents[1] / "fixtures_formats" / "fairlen" / "records"
"""Rollouts of a small run, for what a comparison measures on them."""


def cell(folder: Path, name: str, seed: int, rights: list[list[list[int]]], length: list[list[int]]) -> Cell:
    """A finished run with these evaluations, [evaluations][problems][samples]."""
    place = folder / name / str(seed)
    place.mkdir(parents=True)
    (place / "records").symlink_to(RECORDS)
    lines = [json.dumps({"update": i, "correct": right, "length": length}) for i, right in enumerate(rights)]
    (place / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    return Cell(parse_variant(name), place, Spent(10 + seed, 1000, 2.0, 5))


def test_one_line_a_method_by_hand(tmp_path):
    """grpo: last (1 + .5 + 0) / 3 = .5, best evaluation 2/3; dapo: last 1, .5, .5 -> 2/3.

    best@2 of grpo: (1 + 3/4 + 0) / 3 = 7/12; pass@2 (1 + 1 + 0) / 3; correct responses of lengths 4, 5, 6, wrong 7, 8, 9.
    """
    length = [[4, 5], [6, 7], [8, 9]]
    grpo = [cell(tmp_path, "grpo", s, [[[1, 1], [1, 1], [0, 0]], [[1, 1], [1, 0], [0, 0]]], length) for s in (0, 1)]
    dapo = [cell(tmp_path, "dapo", s, [[[0, 0], [0, 0], [0, 0]], [[1, 1], [1, 0], [0, 1]]], length) for s in (0, 1)]
    first, second = summarize([grpo[0], dapo[0], grpo[1], dapo[1]])
    assert (first.name, first.last.value, first.peak.value) == ("grpo", pytest.approx(1 / 2), pytest.approx(2 / 3))
    assert (first.best_at.value, first.pass_at.value) == (pytest.approx(7 / 12), pytest.approx(2 / 3))
    assert (first.length_correct, first.length_incorrect, first.spent.updates) == (5, 8, 10.5)
    assert first.difference is None and second.difference is not None
    assert second.difference.value == pytest.approx(2 / 3 - 1 / 2)
    assert second.peak.value == pytest.approx(2 / 3)
    write_json(tmp_path / "results.json", plain([first, second]), allow_nan=False)
    assert json.loads((tmp_path / "results.json").read_text())[1]["difference"]["value"] == pytest.approx(1 / 6)


def test_methods_are_compared_at_equal_tokens(tmp_path):
    """The reference ends at 1,000 tokens with 2 of 4 problems. The other has 1 at 800 and 3 at 1,400: at 1,000 it has
    1 + 2 * 200 / 600 = 5/3, so 5/12 and 1/12 less, where its last evaluation has 1/4 more."""
    rights = {"grpo": [0, 2], "dapo": [0, 1, 3]}
    costs, cells = {"grpo": [0, 1000], "dapo": [0, 800, 1400]}, []
    for name, solved in rights.items():
        made = cell(tmp_path, name, 0, [[[int(i < n)] for i in range(4)] for n in solved], [[5]] * 4)
        metrics = [
            {
                "update": i,
                "rollout_batch": i,
                "eval/accuracy": n / 4,
                "tokens/generated_total": cost,
                "time/training": 1.0 * i,
            }
            for i, (n, cost) in enumerate(zip(solved, costs[name], strict=True))
        ]
        write_lines(made.folder / "metrics.jsonl", *metrics)
        cells.append(replace(made, spent=Spent(1, costs[name][-1], 2.0, 1)))
    first, second = summarize(cells, "generated")
    assert second.difference.value == pytest.approx(-1 / 12) and first.last.value == 1 / 2
    assert second.last.value == second.pass_at.value == second.peak.value == pytest.approx(5 / 12)
    assert first.spent.generated == second.spent.generated == pytest.approx(1000) and second.excess == pytest.approx(0)
    assert second.spent.updates == pytest.approx(1 + 1 / 3)
    # both went to 1,000 tokens; .5, the lower end, is reached at 1,000 and at 800 + 600 / 2
    assert second.equal.accuracy.value == pytest.approx(-1 / 12) and first.equal is None
    assert second.equal.tokens.value == pytest.approx(1100 / 1000 - 1)
    assert summarize(cells)[1].difference.value == pytest.approx(1 / 4)
    for one in cells:  # one evaluation has no curve
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            write_lines(one.folder / name, (one.folder / name).read_text().splitlines()[-1])
    assert summarize(cells)[1].equal is None


def test_a_method_that_did_not_come_as_far_is_named(tmp_path):
    """900 of 1,000 tokens: it lacks 10%."""
    cells = []
    for name, end in (("grpo", 1000), ("dapo", 900)):
        made = cell(tmp_path, name, 0, [[[0]], [[1]]], [[5]])
        lines = [
            {"update": i, "rollout_batch": i, "eval/accuracy": i, "tokens/generated_total": end * i, "time/training": i}
            for i in (0, 1)
        ]
        write_lines(made.folder / "metrics.jsonl", *lines)
        cells.append(replace(made, spent=Spent(1, end, 2.0, 1)))
    results = summarize(cells, "generated")
    assert results[1].excess == pytest.approx(0.1)
    assert "dapo by 10%" in describe_match(results, "generated tokens")


def test_pairing_takes_out_what_is_hard_for_all():
    """Problems differ a lot, the methods by 0.1 on every one: the paired difference is exactly 0.1, unpaired ones overlap."""
    hard = np.random.default_rng(0).random((3, 50)) * 0.8
    draw = resampler(3, 50)
    paired = draw(hard + 0.1 - hard, is_share=False)
    assert (paired.low, paired.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert draw(hard).high > draw(hard + 0.1).low


def test_intervals_cover_at_their_nominal_rate():
    """Accuracies of problems ~ Beta(2, 3), 4 samples, one seed: 95% within 3 points over 400 draws."""
    rng, draw, hits = np.random.default_rng(1), resampler(1, 100), 0
    for _ in range(400):
        chance = rng.beta(2, 3, 100)
        found = draw((rng.binomial(4, chance) / 4)[None])
        hits += found.low <= 2 / 5 <= found.high
    assert abs(hits / 400 - 0.95) < 0.03


def test_seeds_widen_the_interval():
    """Three seeds, alike on every problem: 4.303 * 0.1 / sqrt 3 = 0.248, a quarter; of two 12.7 * 0.1, which ends at 0 and 1."""
    values = np.stack([np.full(40, share) for share in (0.4, 0.5, 0.6)])
    ends = pytest.approx((0.5, 0.2516, 0.7484), abs=1e-4)
    assert resampler(3, 40)(values) == ends
    assert resampler(2, 40)(values[::2]) == pytest.approx((0.5, 0.0, 1.0))
    cost = np.array([0.0, 1.0])
    curves = [(cost, np.stack([np.zeros_like(end), end], 1)) for end in (np.zeros_like(values), values)]
    assert compare_curves(*curves).accuracy == ends


@over("spread", [0.02, 0.08])
def test_three_seeds_without_an_effect_rarely_exclude_0(spread):
    """128 problems, 4 samples, seeds that differ by a spread: 5%, and two standard errors of 400 draws; it was 16% at 0.08."""
    rng, draw, wrong = np.random.default_rng(2), resampler(3, 128), 0
    for _ in range(400):
        chance = np.clip(rng.beta(2, 3, 128) + rng.normal(0, spread, (2, 3, 1)), 0, 1)
        one, other = rng.binomial(4, chance) / 4
        wrong += draw(one - other, is_share=False).excludes(0.0)
    assert wrong / 400 < 0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_where_all_are_alike_a_share_has_the_interval_of_an_evaluation_and_a_difference_has_none(share):
    """8 problems, however many seeds: 0% to 37% for none of them."""
    values, draw = np.full((3, 8), share), resampler(3, 8)
    assert draw(values) == pytest.approx(mean_by_problem(values.T)) and draw(values).low < draw(values).high
    same = draw(values - values, is_share=False)
    assert (show_difference(same), same.excludes(0.0)) == ("+0.0", False)
    assert show_difference(draw(-np.eye(3, 8), is_share=False)).startswith("-12.5 [")  # -3 / 24


def page_of(folder) -> str:
    assert main(["report", str(folder)]) == 0
    return (folder / "report.html").read_text()


def best_of(page: str) -> tuple[str, str]:
    found = re.search(r"<dt>best at the end</dt><dd><strong>(.*?)</strong><span>(.*?)</span>", page)
    assert found
    return found[1], found[2]


@pytest.mark.parametrize(
    ("last", "seeds", "number", "words"),
    [
        ({"grpo": 10, "dapo": 30}, 3, "39%", "dapo, clearly above each other method"),
        ({"grpo": 30, "dapo": 10}, 3, "39%", "grpo, clearly above each other method"),
        ({"grpo": 20, "dapo": 20}, 3, "not clear", "grpo, dapo are tied"),
        ({"grpo": 1, "dapo": 30, "rloo": 30}, 3, "not clear", "dapo, rloo are tied"),
        ({"grpo": 10, "dapo": 30}, 2, "not known", "2 of the 3 seeds that it takes; highest so far: dapo"),
        ({"grpo": 10, "dapo": 30}, 1, "not known", "1 of the 3 seeds that it takes; highest so far: dapo"),
    ],
    ids=["second", "reference", "equal", "two of three", "two seeds", "one seed"],
)
def test_a_winner_is_named_where_intervals_and_seeds_allow_it(last, seeds, number, words, tmp_path):
    """(30 + 0) / 80, (30 + 1) / 80 and (30 + 2) / 80 of three seeds: their mean is 31 / 80 = 38.75%."""
    page = page_of(make_comparison(tmp_path / "c", last, seeds))
    assert best_of(page) == (number, words)
    assert ("differ from the reference" in page) == (seeds == 3)


def test_costs_are_what_was_spent(tmp_path):
    """1,000, 1,030 and 1,060 tokens of three seeds; curves end where the cheapest run did."""
    page = page_of(make_comparison(tmp_path / "c", {"grpo": 10, "dapo": 30}))
    assert "each run spent 1,000 to 1,060 generated tokens" in page
    assert "<h3>Learning at equal generated tokens</h3>" in page
    titles = re.findall(r"<title>(generated tokens [^<]*)</title>", page)
    assert len(titles) == 25
    ends = titles[-1].split("\n")
    assert ends[0] == "generated tokens 1,000"
    assert ends[2].startswith("dapo: 38% [38%, 38%]")  # 30/80, 31/80 * 1000/1030, 32/80 * 1000/1060: 37.5% to 37.7%


def test_while_seeds_are_added_the_page_is_of_those_that_every_method_has(tmp_path, capsys):
    folder = make_comparison(tmp_path / "c", {"GRPO_x": 10, "dapo": 30}, seeds=4)
    (folder / "dapo/seed-3/done.json").unlink()
    page = page_of(folder)
    assert "<dt>seeds</dt><dd><strong>3</strong>" in page and best_of(page)[1].startswith("dapo, clearly above")
    assert "All methods are compared at the generated tokens of GRPO_x" in page  # the name as it is
    for place in folder.glob("dapo/*/done.json"):
        place.unlink()
    assert main(["report", str(folder)]) == 2
    assert "no seed has a finished run of every method; the comparison's command" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[3]", '{"a": 1}'])
@pytest.mark.parametrize("file", ["results.json", "comparison.json", "dapo/seed-1/done.json"])
def test_a_damaged_file_of_a_comparison_is_named(file, text, tmp_path, capsys):
    folder = make_comparison(tmp_path / "c", {"grpo": 10, "dapo": 30})
    (folder / file).write_text(text)
    assert main(["report", str(folder)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{folder / file}: " in said and "the file is damaged; " in said
    assert ("remove it: the comparison's command writes it again" in said) == (file != "comparison.json")


def test_methods_have_their_names_on_the_axis(tmp_path):
    name = "fspo:surrogate.width=0.01,surrogate.z=2"
    page = page_of(make_comparison(tmp_path / "c", {"grpo": 10, name: 30}))
    assert page.count(f'class="row-name c-correct">{name[:35]}…</text>') == 2  # of accuracy, and of the difference
    assert f'<b class="c-correct">&#9679;&nbsp;{name}</b>' in page


def test_three_seeds_are_the_default():
    assert CompareConfig(("grpo", "dapo")).seeds == 3


def test_a_comparison_that_has_not_ended_has_no_page(tmp_path, capsys):
    (tmp_path / "comparison.json").write_text(json.dumps({"match": "generated"}))
    assert main(["report", str(tmp_path)]) == 2
    assert "the comparison has not ended; its command resumes it" in capsys.readouterr().err


def make_runs(folder: Path, **changed) -> list[str]:
    """Two run folders with an evaluation; changed is the `size` of the second, problems and samples, its `data` or `cost`."""
    for name in ("a", "b"):
        of = changed if name == "b" else {}
        size, samples = of.get("size", (40, 2))
        made = cell(folder, name, 0, [[[1] * samples] * size], [[5] * samples] * size).folder
        data = {"sets": [{"fingerprint": "train", "held_out": 0}, {"fingerprint": of.get("data", "f"), "held_out": 9}]}
        write_json(made / "run.json", {"data": data})
        cost = of.get("cost", {"tokens/generated_total": 900, "time/training": 2.5})
        write_lines(made / "metrics.jsonl", {"update": 1, "rollout_batch": 1, "eval/accuracy": 1.0} | cost)
    return [str(folder / name / "0") for name in ("a", "b")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"size": (40, 1)}, "a/0: problems=40, samples=2; {0}/b/0: problems=40, samples=1"),
        ({"size": (39, 2)}, "b/0: problems=39, samples=2): compare runs with the same --problems and --samples"),
        ({"data": "g"}, "other held-out problems (data.sets of run.json): compare runs with the same --eval-data"),
    ],
    ids=["samples", "problems", "data"],
)
def test_runs_on_other_problems_are_not_paired(changed, said, tmp_path, capsys):
    assert main(["compare", *make_runs(tmp_path, **changed)]) == 2
    assert said.format(tmp_path) in " ".join(capsys.readouterr().err.split())


def test_runs_are_compared_as_they_are(tmp_path, capsys):
    """No advice on seeds, k of their own, and a dash for a cost that evaluations lack; records are not to be removed."""
    runs = make_runs(tmp_path, cost={})
    _, second = start_comparison(CompareConfig(tuple(runs)))
    shown = capsys.readouterr().out
    assert "--seeds" not in shown and "pass@2" in shown and "nan" not in shown
    cells = cells_of(second, with_intervals=False)
    assert cells[2] == "+0.0 points" and cells[-3:] == ("1", "-", "-")
    for flag, value in (("seeds", "4"), ("match", "updates"), ("out", "x"), ("learning_rate", "0.5"), ("samples", "9")):
        assert main(["compare", *runs, f"--{flag.replace('_', '-')}", value]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"{flag}={value}: runs are compared as they are; leave it out" in said
    (records := Path(runs[1]) / "records").unlink()
    records.mkdir()
    (records / "responses-000000.parquet").write_text("no table")
    assert main(["compare", *runs]) == 2
    assert "restore them, or leave the run out" in " ".join(capsys.readouterr().err.split())

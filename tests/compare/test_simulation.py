"""What `fairlen methods --compare` says of length, against plain loops over the same rollouts."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairlen import playground
from fairlen.audit.statistics.intervals import length_bins
from fairlen.cli import main
from fairlen.compare import simulation
from fairlen.compare.simulation import BUDGET, NUM_PROMPTS, NUM_TRACKS, make_rollouts, measure, read_rollouts


def test_the_rollouts_have_what_is_measured():
    made = make_rollouts()
    rows = made.table
    assert len(rows) == NUM_PROMPTS * NUM_TRACKS and rows.length.min() >= 1 and rows.length.max() == BUDGET
    assert 0 < rows.truncated.mean() < 0.05 and rows.length[rows.correct].mean() < rows.length[~rows.correct].mean()
    assert made.log_ratio.std() == pytest.approx(0.03, rel=0.01) and len(made.log_ratio) == rows.length.sum()


def test_weights_and_eos_by_hand():
    """1/(N T): a third's mean weight of a token is its number of responses over its tokens."""
    rows = make_rollouts().table
    third = length_bins(rows.length, 3).index
    expected = [rows.length.mean() / rows.length[third == place].mean() for place in range(3)]
    assert measure("grpo").weight == pytest.approx(expected, rel=1e-12)
    for name in ("dapo_verl", "dr_grpo", "fspo"):
        assert measure(name).weight == pytest.approx(np.ones(3), rel=1e-12)
    push = []
    for prompt in range(NUM_PROMPTS):  # (outcome - mean) / T of the responses that end
        own = rows.prompt == prompt
        centred = rows.correct[own] - rows.correct[own].mean()
        push += [a / t for a, t in zip(centred, rows.length[own], strict=True) if t < BUDGET]
    assert measure("grpo+no_std").eos == pytest.approx(sum(push) / sum(map(abs, push)), rel=1e-12)


def test_the_shorter_of_correct_responses_by_hand():
    """Subtracted is 1/4 * pass rate * T / longest; the mean of the group leaves the difference as it is."""
    rows, gaps = make_rollouts().table, []
    for prompt in range(NUM_PROMPTS):
        own = rows.prompt == prompt
        length = rows.length[own & rows.correct]
        median = np.median(length) if len(length) else 0.0
        short, long = length[length < median], length[length > median]
        if len(short) and len(long):
            gaps.append(rows.correct[own].mean() / 4 * (long.mean() - short.mean()) / rows.length[own].max())
    assert measure("grpo+solved_length+no_std").shorter == pytest.approx(np.mean(gaps), rel=1e-12)
    assert measure("grpo").shorter == 0.0 < measure("grpo+ddca").shorter


def test_acceptance_by_hand():
    """The full ratio of a response within 0.8 .. 1.2, and of every prefix within the band of CTPO."""
    rows = make_rollouts()
    parts = np.split(rows.log_ratio, np.cumsum(rows.table.length)[:-1])
    third = length_bins(rows.table.length, 3).index
    total = np.array([part.sum() for part in parts])
    inside = (total >= np.log(0.8)) & (total <= np.log(1.2))
    assert measure("rloo").inside == pytest.approx([inside[third == place].mean() for place in range(3)])
    shares = []
    for part in parts:
        prefix, root = np.cumsum(part), np.sqrt(np.arange(1, len(part) + 1))
        shares.append(((prefix >= -0.025 * root) & (prefix <= 0.05 * root)).mean())
    assert measure("ctpo").inside == pytest.approx([np.array(shares)[third == place].mean() for place in range(3)])


def test_a_band_that_learns_has_seen_the_rollouts():
    """Centred on their drift of 0.03^2 / 2 a token, 0.46 nats at the budget, it accepts all lengths as often."""
    centred, fixed = (measure(name).inside for name in ("fspo_centred", "rloo"))
    assert (
        centred == pytest.approx([0.6827] * 3, abs=0.03) and fixed[2] < 0.5 * fixed[0]
    )  # P(|z| < 1): width is the spread


def write_log(path, lengths):
    rows = [{"prompt": f"{i}", "num_tokens": n, "reward": n == 2} for i in range(32) for n in lengths]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_ones_own_rollouts_by_hand(tmp_path):
    """Correct of 2 tokens, incorrect of 4 and 6: advantages in proportion 2, -1, -1, so 4, 4, 6 parts of 14 at equal weights
    and 2, 1, 1 of 4 where a response weighs the same whatever its length."""
    rows = read_rollouts(write_log(tmp_path / "own.jsonl", (2, 4, 6)))
    assert "96 responses" in rows.title and "2 to 2, 4 to 4, 6 to 6" in rows.title
    expected = {"dr_grpo": [[0, 4, 6], [4, 0, 0]], "grpo": [[0, 3.5, 3.5], [7, 0, 0]]}
    for name, parts in expected.items():
        found = measure(name, rows)
        assert found.parts * 14 == pytest.approx(np.array(parts)) and np.isnan(found.inside).all()
    # one token of each response is its answer: 2/3, 1/3, 1/3 of 4/3, 4/3, 6/3
    spent = {"thinking": rows.table.length - 1, "answer": 0 * rows.table.length + 1}
    found = measure("dr_grpo", replace(rows, table=replace(rows.table, channels=spent)))
    assert found.channels == {"thinking": pytest.approx(5 / 7), "answer": pytest.approx(2 / 7)}
    assert "of its weight have" in found.describe() and "29%" in found.describe()
    assert measure("grpo", rows).weight == pytest.approx([4 / 2, 4 / 4, 4 / 6])  # the mean length over each


def test_what_has_no_verdict_trains_nothing(tmp_path):
    """Three aborted responses beside 32 of 2, 4 and 6 tokens to a prompt each: the same weights as without them."""
    path = Path(write_log(tmp_path / "own.jsonl", (2, 4, 6)))
    aborted = [{"prompt": "0", "num_tokens": n, "reward": None, "finish_reason": "abort"} for n in (2, 4, 6)]
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in aborted))
    assert measure("grpo", read_rollouts(str(path))).weight == pytest.approx([4 / 2, 4 / 4, 4 / 6])


def test_own_rollouts_are_compared_by_the_command(capsys, tmp_path):
    place, page = write_log(tmp_path / "own.jsonl", (2, 4, 6)), tmp_path / "page.html"
    assert main(["methods", "--compare", "grpo", "dr_grpo", "--rollouts", place, "--out", str(page)]) == 0
    assert "96 responses" in capsys.readouterr().out and "Weight of incorrect responses by length" in page.read_text()
    texts = [{"prompt": f"{n}", "response": "3+5=8;" * k, "reward": k == 1} for n in range(32) for k in (1, 2, 3)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    command = ["methods", "--compare", "grpo", "--rollouts", str(tmp_path / "texts.jsonl"), "--tokenizer"]
    assert main([*command, str(playground.PATH)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "thirds by length are 6 to 6, 12 to 12, 18 to 18" in shown  # a token is a character
    few = write_log(tmp_path / "few.jsonl", (2, 2))
    with pytest.raises(ValueError, match="prime-rl:linear: it reads num_read, which rollouts do not hold"):
        measure("prime-rl:linear")
    for one, message in ((few, "of too few lengths"), (str(tmp_path / "none.jsonl"), "none.jsonl")):
        assert main(["methods", "--compare", "grpo", "dr_grpo", "--rollouts", one]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(capsys, tmp_path):
    page = tmp_path / "page.html"
    assert main(["methods", "--compare", "grpo", "ctpo", "--out", str(page)]) == 0
    shown = capsys.readouterr().out
    for name in ("grpo", "ctpo"):
        assert measure(name).describe() in shown and measure(name).describe() in page.read_text()
    assert page.read_text().count("<svg") >= 4 and "Weight of a token by length" in page.read_text()
    assert main(["methods", "--compare", "grpo", "ctpo", "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)
    assert first["name"] == "grpo" and first["weight"] == measure("grpo").weight.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "grpo", "eqlen"], "eqlen chooses what is generated"),
        (["--compare", "grpo", "ctpoo"], "unknown method 'ctpoo': did you mean 'ctpo'?"),
        (
            ["--compare", "grpo", "ctpo", "rloo", "gspo", "dapo", "cispo", "--out", "page.html"],
            "--out draws up to 5 methods",
        ),
        (["dapo", "--out", "page.html"], "--out page.html: it is for --compare"),
    ],
)
def test_what_cannot_be_compared(capsys, arguments, message):
    assert main(["methods", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_torch_methods_are_compared_but_for_their_bounds(monkeypatch, capsys):
    """As README's first install line promises: importing torch fails."""
    monkeypatch.setattr(simulation, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert simulation.run(["grpo", "dapo_verl"], "", False) == 0
    told = capsys.readouterr()
    assert "7.2 times" in told.out and "inside: short" not in told.out and "needs torch" in told.err

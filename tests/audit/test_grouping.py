"""Which responses are compared with each other: those of one policy to one prompt, whatever the columns are called."""

from dataclasses import replace

import numpy as np
import pytest
from lines import write_lines

from fairlen.audit.audit import audit
from fairlen.audit.comparison import compare_logs
from fairlen.audit.readers import Options, read
from fairlen.audit.readers.context import Choices

PROMPTS, SIZE = 60, 8


def make_rows(policy, rng, longer=1.0, prompt=None):
    """Return rows of policies, 0 to 1: the higher, the longer by a factor of 3 and the more often correct, 30% to 80%.

    Within one policy incorrect responses are `longer` times as long.
    """
    policy = np.asarray(policy)
    prompt = np.repeat(np.arange(PROMPTS), len(policy) // PROMPTS) if prompt is None else prompt
    correct = rng.random(len(policy)) < 0.3 + 0.5 * policy
    length = 100 * np.exp(np.log(3) * policy + np.log(longer) * ~correct + rng.normal(0, 0.3, len(policy)))
    columns = (prompt.tolist(), length.astype(int).tolist(), correct.tolist())
    return [{"prompt": f"q{q}", "num_tokens": n, "reward": float(c)} for q, n, c in zip(*columns, strict=True)]


def add_column(rows, **columns):
    return [row | {name: values[place] for name, values in columns.items()} for place, row in enumerate(rows)]


def audit_rows(path, rows, **choices):
    write_lines(path, *rows)
    audits, reading = audit([str(path)], Options(groups=Choices(**choices)))
    assert not reading.unreadable
    return audits[0]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def half(rng):
    """Two policies answer each prompt four times."""
    return np.tile([0, 0, 0, 0, 1, 1, 1, 1], PROMPTS)


@pytest.mark.parametrize(
    ("name", "values"),
    [("zeta", ("one", "two")), ("zeta", (False, True)), ("zeta", (0.7, 1.2)), ("zeta", (3, 40)), ("model", ("a", "b"))],
)
def test_a_planned_column_that_explains_the_effect_forms_groups(tmp_path, rng, name, values):
    policy = half(rng)
    rows = add_column(make_rows(policy, rng), **{name: [values[p] for p in policy.tolist()]})
    order = rng.permutation(len(rows))
    without = audit_rows(tmp_path / "without.jsonl", [{**rows[k], name: None} for k in order])
    found = audit_rows(tmp_path / "with.jsonl", [rows[k] for k in order])
    # correct responses are those of the longer policy: pooled, incorrect ones look shorter
    assert without.conclusion.status == "effect"
    assert without.within.gap.value < -0.2
    assert found.conclusion.status != "effect"
    assert f"`{name}`" in found.conclusion.sentence
    assert abs(found.within.gap.value) < 0.1


def test_a_value_in_an_object_and_one_in_a_list_for_each_response_form_groups(tmp_path, rng):
    policy = half(rng)
    rows = make_rows(policy, rng)
    words = np.where(policy == 1, "two", "one").tolist()
    nested = audit_rows(tmp_path / "nested.jsonl", add_column(rows, zeta=[{"eta": word} for word in words]))
    assert "`zeta.eta`" in nested.log.grouping
    lines = []
    for start in range(0, len(rows), SIZE):
        part = rows[start : start + SIZE]
        lists = {key: [row[key] for row in part] for key in ("num_tokens", "reward")}
        lines.append({"prompt": part[0]["prompt"], **lists, "zeta": words[start : start + SIZE]})
    listed = audit_rows(tmp_path / "listed.jsonl", lines)
    assert "`zeta`" in listed.log.grouping


def test_values_drawn_for_each_response_are_asked_about_and_both_flags_lead_to_a_verdict(tmp_path, rng):
    policy = rng.integers(0, 2, PROMPTS * SIZE)
    rows = add_column(make_rows(policy, rng), zeta=[("one", "two")[p] for p in policy.tolist()])
    path = tmp_path / "rows.jsonl"
    found = audit_rows(path, rows)
    assert found.conclusion.status == "unknown"
    assert "--group-by zeta" in found.conclusion.sentence
    assert "--ignore-columns zeta" in found.conclusion.sentence
    assert not [one for one in found.findings if one.measure.startswith("within")]
    grouped, ignored = audit_rows(path, rows, group_by=("zeta",)), audit_rows(path, rows, ignored=("zeta",))
    assert not grouped.log.question
    assert grouped.conclusion.status != "effect"
    assert (ignored.conclusion.status, ignored.log.grouping) == ("effect", "")


CONSEQUENCES = {
    "a second judge": lambda rng, n, c: (c == (rng.random(len(c)) < 0.95)).tolist(),
    "a limit": lambda rng, n, c: np.where(n >= np.quantile(n, 0.9), "cut", "full").tolist(),
    "turns": lambda rng, n, c: np.maximum(n // 20, 1).tolist(),
    "a format": lambda rng, n, c: (rng.random(len(c)) < 0.5 + 0.4 * c).tolist(),
}


@pytest.mark.parametrize("kind", CONSEQUENCES)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_consequence_of_the_response_hides_no_effect(tmp_path, rng, kind, is_sorted):
    rows = make_rows(np.zeros(PROMPTS * SIZE), rng, longer=1.5)
    length, correct = (np.array([row[key] for row in rows]) for key in ("num_tokens", "reward"))
    rows = add_column(rows, zeta=CONSEQUENCES[kind](rng, length, correct == 1.0))
    if is_sorted:
        rows.sort(key=lambda row: row["zeta"])
    found = audit_rows(tmp_path / "rows.jsonl", rows)
    assert found.conclusion.status == "effect"
    assert found.within.gap.value == pytest.approx(np.log(1.5), abs=0.1)


@pytest.mark.parametrize("key", ["num_tokens", "reward"])
def test_a_file_sorted_by_what_responses_are_shows_its_effect(tmp_path, rng, key):
    rows = make_rows(np.zeros(PROMPTS * SIZE), rng, longer=1.5)
    found = audit_rows(tmp_path / "rows.jsonl", sorted(rows, key=lambda row: row[key]))
    assert found.conclusion.status == "effect"


def test_a_file_for_each_outcome_is_compared_across_files(tmp_path, rng):
    rows = make_rows(np.zeros(PROMPTS * SIZE), rng, longer=1.5)
    for name, reward in (("good", 1.0), ("bad", 0.0)):
        write_lines(tmp_path / f"{name}.jsonl", *[row for row in rows if row["reward"] == reward])
    audits, _ = audit([str(tmp_path)])
    assert [one.conclusion.status for one in audits] == ["effect"]


def test_a_second_run_in_the_same_file_is_compared_separately(tmp_path, rng):
    prompt = np.tile(np.repeat(np.arange(PROMPTS), SIZE), 2)
    run = np.repeat([0, 1], PROMPTS * SIZE)
    rows = make_rows(run, rng, prompt=prompt)
    near = np.lexsort((rng.random(len(run)), prompt // 10, run))  # rows of ten prompts end in any order
    found = audit_rows(tmp_path / "rows.jsonl", [rows[place] for place in near])
    assert found.conclusion.status != "effect"
    assert "visit" in found.log.grouping


def test_a_drift_over_the_file_is_asked_about(tmp_path, rng):
    lap = np.tile(np.arange(SIZE), PROMPTS)
    rows = make_rows(lap / (SIZE - 1), rng)
    order = np.lexsort((rng.random(len(lap)), lap))
    rows = [rows[place] for place in order]
    found = audit_rows(tmp_path / "rows.jsonl", rows)
    assert "--ignore-columns order" in found.log.question
    assert not audit_rows(tmp_path / "rows.jsonl", rows, ignored=("order",)).log.question
    assert not audit_rows(tmp_path / "rows.jsonl", rows, group_by=("order",)).log.question


def test_checkpoints_in_folders_are_told_apart_when_pooled(tmp_path, rng):
    policy = half(rng)
    rows = make_rows(policy, rng)
    for place, name in enumerate(("alpha", "beta")):
        (tmp_path / name).mkdir()
        part = [row for row, of in zip(rows, policy.tolist(), strict=True) if of == place]
        write_lines(tmp_path / name / "rows.jsonl", *part)
    audits, _ = audit([str(tmp_path)], Options(pool=True))
    assert len(audits) == 1
    assert audits[0].conclusion.status != "effect"
    assert audits[0].log.grouping


@pytest.mark.parametrize(
    "name", ["gen_step", "policy_version", "weight_version", "global_steps", "epoch", "rollout_id"]
)
def test_a_number_of_the_policy_is_the_step(tmp_path, name):
    rows = [
        {"prompt": f"q{q}", "num_tokens": 5 + k, "reward": float(k % 2), name: step}
        for step in range(3)
        for q in range(4)
        for k in range(4)
    ]
    write_lines(tmp_path / "rows.jsonl", *rows)
    log = read([str(tmp_path)]).sources[0].log
    assert np.unique(log.batch).tolist() == [0, 1, 2]


def test_a_number_of_the_sample_is_no_step(tmp_path):
    rows = [
        {"prompt": f"q{q}", "num_tokens": 5 + k, "reward": float(k % 2), "epoch": k}
        for q in range(20)
        for k in range(4)
    ]
    write_lines(tmp_path / "rows.jsonl", *rows)
    source = read([str(tmp_path)]).sources[0]
    assert not source.has_steps
    assert source.log.responses.num_prompts == 20


def turn_rows(rng, name, turns):
    """Return a row for each turn of 8 trajectories of each prompt; incorrect ones have `turns` times as many."""
    rows = []
    for q in range(30):
        for k in range(8):
            correct = bool(rng.random() < 0.5)
            for _ in range(3 if correct else 3 * turns):
                length = int(rng.integers(10, 60))
                rows.append({"prompt": f"q{q}", name: f"{q}-{k}", "num_tokens": length, "reward": float(correct)})
    return rows


@pytest.mark.parametrize("name", ["traj_uid", "zeta"])
def test_rows_that_share_an_id_and_a_reward_are_one_response(tmp_path, rng, name):
    rows = turn_rows(rng, name, turns=1)
    found = audit_rows(tmp_path / "rows.jsonl", rows)
    assert len(found.log) == 240  # 30 prompts x 8 trajectories
    assert (found.log.responses.num_turns == 3).all()
    assert found.log.responses.length[0] == sum(row["num_tokens"] for row in rows[:3])
    assert found.conclusion.status != "effect"


def test_rows_that_count_the_turns_of_a_trajectory_are_one_response(tmp_path, rng):
    rows = turn_rows(rng, "traj_uid", turns=1)
    rows = [{**row, "traj_uid": None, "zeta": place % 3} for place, row in enumerate(rows)]
    assert len(audit_rows(tmp_path / "rows.jsonl", rows).log) == 240


def test_rows_that_count_the_samples_of_a_prompt_are_responses(tmp_path, rng):
    rows = make_rows(np.zeros(PROMPTS * SIZE), rng)
    rows = [{**row, "zeta": place % SIZE} for place, row in enumerate(rows)]
    assert len(audit_rows(tmp_path / "rows.jsonl", rows).log) == len(rows)


def test_a_verdict_that_depends_on_what_a_row_is_is_asked_about(tmp_path, rng):
    rows = turn_rows(rng, "traj_uid", turns=2)
    path = tmp_path / "rows.jsonl"
    assert "--group-by traj_uid" in audit_rows(path, rows).conclusion.sentence
    merged = audit_rows(path, rows, group_by=("traj_uid",))
    assert (len(merged.log), merged.conclusion.status) == (240, "effect")
    separate = audit_rows(path, rows, ignored=("traj_uid",))
    assert (len(separate.log), separate.log.question) == (len(rows), "")


def test_answers_that_repeat_are_no_trajectories(tmp_path, rng):
    rows = make_rows(np.zeros(PROMPTS * SIZE), rng)
    rows = add_column(rows, said=[f"{row['prompt']}: {7 if row['reward'] else rng.integers(3)}" for row in rows])
    assert len(audit_rows(tmp_path / "rows.jsonl", rows).log) == len(rows)


def test_a_name_that_is_no_column_and_a_contradiction_are_refused(tmp_path, rng):
    rows = add_column(make_rows(half(rng), rng), zeta=half(rng).tolist())
    write_lines(tmp_path / "rows.jsonl", *rows)
    for choices, word in ((Choices(("zeat",)), "zeta"), (Choices(("zeta",), ("zeta",)), "remove")):
        reading = read([str(tmp_path / "rows.jsonl")], Options(groups=choices))
        assert not reading.sources
        assert word in reading.unreadable[0]


def test_an_open_question_leaves_effects_out_of_a_comparison(tmp_path, rng):
    policy = rng.integers(0, 2, PROMPTS * SIZE)
    rows = add_column(make_rows(policy, rng), zeta=policy.tolist())
    log = audit_rows(tmp_path / "rows.jsonl", rows).log
    found = compare_logs(log, log)
    assert {contrast.measure for contrast in found.contrasts}.isdisjoint(("gap", "order", "bend"))
    assert any("--group-by zeta" in note for note in found.notes)
    assert "gap" in {one.measure for one in compare_logs(*[replace(log, question="")] * 2).contrasts}

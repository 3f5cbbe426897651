"""Logs whose names say nothing are read by what their columns hold, or asked about with a flag that leads to the verdict."""

import numpy as np
import pytest
from lines import read_one, write_lines
from siblings_own import PLANTED, SAME, plain

from fairlen.audit.audit import audit_source
from fairlen.audit.command import AuditConfig, read_audits
from fairlen.audit.conclusion import Margins


def audit_lines(tmp_path, *rows):
    """Return the verdict on rows, whether incorrect responses are longer, and everything that the audit says."""
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    found = audit_source(source).conclusion
    return found.status, found.estimate.value > 0, "; ".join([found.sentence, *source.notes])


def describe_reading(path, **flags):
    """Return the verdicts on a file, and everything that the audit says about it."""
    config = AuditConfig((str(path),), **flags)
    audits, reading = read_audits(config.paths, config.options(), None, Margins())
    sentences = [*(audit.conclusion.sentence for audit in audits), *reading.unreadable, *reading.skipped]
    return {audit.conclusion.status for audit in audits}, "; ".join(sentences)


def test_columns_with_foreign_names_are_read_by_what_they_hold(tmp_path):
    """`oppgave` comes back, `svar` differs within it, and `fasit` has two values; `maskin` is a name in few words."""
    rows = [
        {
            "maskin": f"m{row['k'] % 3}",
            "oppgave": f"hva er {row['q']} ganger to",
            "svar": row["text"],
            "fasit": int(row["correct"]),
        }
        for row in PLANTED
    ]
    status, is_longer, text = audit_lines(tmp_path, *rows)
    assert (status, is_longer) == ("effect", True)
    assert "columns by content: prompt=oppgave,response=svar,correct=fasit; --columns changes it" in text
    assert "the higher value of `fasit` counts as correct" in text


def test_two_columns_that_may_be_the_verdict_are_asked_about(tmp_path):
    rows = [
        {
            "oppgave": f"hva er {row['q']} ganger to",
            "svar": row["text"],
            "en": int(row["correct"]),
            "to": (row["k"] + row["q"]) % 2,
        }
        for row in PLANTED
    ]
    verdicts, text = describe_reading(write_lines(tmp_path / "a.jsonl", *rows))
    assert not verdicts and "--columns prompt=oppgave,response=svar" in text


def test_responses_that_broke_off_are_left_out_by_the_words_of_any_column(tmp_path):
    """Every 9th response was killed after 5 words and has reward 0; without those there is no effect."""
    rows = []
    for number, row in enumerate(SAME):
        is_killed = number % 9 == 0
        text = " ".join(row["text"].split()[:5]) if is_killed else row["text"]
        reward = 0.0 if is_killed else float(row["correct"])
        rows.append(
            {"prompt": row["prompt"], "response": text, "lage": "killed" if is_killed else "done", "reward": reward}
        )
    assert audit_lines(tmp_path, *rows)[0] != "effect"


def test_a_value_far_from_two_others_is_asked_about_and_both_flags_answer(tmp_path):
    """Every 7th response has 5 words and utility -1; among the rest, 0 and 1, lengths show nothing."""
    rows = []
    for number, row in enumerate(SAME):
        is_ungraded = number % 7 == 0
        text = " ".join(row["text"].split()[:5]) if is_ungraded else row["text"]
        rows.append({"prompt": row["prompt"], "response": text, "reward": -1 if is_ungraded else int(row["correct"])})
    path = write_lines(tmp_path / "a.jsonl", *rows)
    verdicts, text = describe_reading(path)
    assert verdicts == {"unknown"} and "--means reward:-1=failed" in text and "--means reward:-1=written" in text
    assert describe_reading(path, means="reward:-1=written")[0] == {"effect"}
    assert describe_reading(path, means="reward:-1=failed")[0] <= {"none", "unknown"}


def test_rewards_of_two_graders_are_correct_by_the_higher_value_of_each(tmp_path):
    """Grader 1 gives 0 and 1, grader 2 gives 5 and 6: half of the whole range would call all of grader 2 correct."""
    rows = []
    for row in PLANTED:
        second = row["k"] % 2
        reward = int(row["correct"]) + 5 * second
        rows.append({"prompt": row["prompt"], "response": row["text"], "pruefer": f"v{second}", "reward": reward})
    status, is_longer, text = audit_lines(tmp_path, *rows)
    assert (status, is_longer) == ("effect", True) and "several scales by `pruefer`" in text


def test_a_normalised_reward_that_contradicts_a_column_of_two_values_does_not_decide(tmp_path):
    """The reward is the length less its mean, over its spread, so that long incorrect responses have the higher one."""
    rows = []
    groups: dict[str, list] = {}
    for row in PLANTED:
        groups.setdefault(row["prompt"], []).append(row)
    for group in groups.values():
        lengths = np.array([len(row["text"]) for row in group], float)
        rewards = (lengths - lengths.mean()) / (lengths.std() + 1e-6)
        rows += [
            {"prompt": row["prompt"], "response": row["text"], "reward": round(value, 4), "fasit": int(row["correct"])}
            for row, value in zip(group, rewards.tolist(), strict=True)
        ]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    verdicts, text = describe_reading(path)
    assert not verdicts and "--columns correct=fasit" in text
    assert describe_reading(path, columns="correct=fasit")[0] == {"effect"}


def test_a_verdict_in_words_beats_a_share_with_the_name_of_a_verdict(tmp_path):
    """`accuracy` is a share that grows with length; `outcome` says who won."""
    rows = [
        {"prompt": row["prompt"], "response": row["text"], "accuracy": round(len(row["text"]) / 4000, 4)}
        | {"outcome": "won" if row["correct"] else "lost"}
        for row in PLANTED
    ]
    status, is_longer, _ = audit_lines(tmp_path, *rows)
    assert (status, is_longer) == ("effect", True)


def test_words_that_cut_a_score_in_two_are_asked_about(tmp_path):
    """1 is the best mark and 6 the worst, and up to 3 is `godkjent`."""
    rows = [
        {"prompt": row["prompt"], "response": row["text"], "score": 1 + row["k"] % 3 + 3 * (not row["correct"])}
        | {"dom": "godkjent" if row["correct"] else "stryk"}
        for row in PLANTED
    ]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    verdicts, text = describe_reading(path)
    assert not verdicts and "--columns correct=dom=godkjent or --columns correct=dom=stryk" in text
    status, text = describe_reading(path, columns="correct=dom=godkjent")
    assert status == {"effect"} and "longer" in text


def test_text_of_objects_next_to_a_short_response_is_asked_about(tmp_path):
    """The response has three words, and `handgrep` what the policy did: half as long again in incorrect responses."""
    rows = [
        {"prompt": row["prompt"], "response": f"that is {row['k'] + 10}", "reward": int(row["correct"])}
        | {"handgrep": [{"verktoy": "sh", "skript": row["text"]}]}
        for row in PLANTED
    ]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    assert describe_reading(path, columns="calls=handgrep")[0] == {"effect"}
    verdicts, text = describe_reading(path)
    assert verdicts == {"unknown"} and "--columns calls=handgrep" in text and "--ignore-columns handgrep" in text


def group_rows(rows):
    """Return the rows of each prompt."""
    groups = {}
    for row in rows:
        groups.setdefault(row["prompt"], []).append(row)
    return groups


def test_lists_of_one_size_are_one_response_each(tmp_path):
    """A line for each prompt: `svar` and `fasit` have as many elements as it has responses."""
    rows = [
        {"oppgave": prompt, "svar": [row["text"] for row in group], "fasit": [int(row["correct"]) for row in group]}
        for prompt, group in group_rows(PLANTED).items()
    ]
    status, is_longer, text = audit_lines(tmp_path, *rows)
    assert (status, is_longer) == ("effect", True) and "response=svar" in text


def test_a_list_of_numbers_without_any_text_is_the_length(tmp_path):
    """An id for each word."""
    rows = [
        {
            "oppgave": row["prompt"],
            "kode": [len(word) + 100 for word in row["text"].split()],
            "fasit": int(row["correct"]),
        }
        for row in PLANTED
    ]
    status, is_longer, text = audit_lines(tmp_path, *rows)
    assert (status, is_longer) == ("effect", True) and "tokens=kode" in text


def test_pieces_of_a_response_are_not_taken_for_responses(tmp_path):
    """The verdict is of all pieces together, some of which the policy may have read."""
    rows = [
        {
            "oppgave": row["prompt"],
            "fasit": int(row["correct"]),
            "deler": [{"kilde": kind, "tekst": row["text"]} for kind in "ab"],
        }
        for row in PLANTED
    ]
    assert not describe_reading(write_lines(tmp_path / "a.jsonl", *rows))[0]


def test_folders_of_workers_are_compared_if_the_user_says_so(tmp_path):
    """Each of 8 folders has one response to every prompt."""
    for worker in range(8):
        folder = tmp_path / f"w{worker}"
        folder.mkdir()
        write_lines(folder / "a.jsonl", *[plain(row) for row in PLANTED if row["k"] == worker])
    verdicts, text = describe_reading(tmp_path)
    assert verdicts == {"unknown"} and "--ignore-columns folder" in text
    assert describe_reading(tmp_path, ignore_columns="folder")[0] == {"effect"}


def test_a_number_of_tokens_next_to_texts_that_were_cut_is_proposed(tmp_path):
    """All texts have 60 characters and an ellipsis; `antTok` has the words of the whole text."""
    rows = [
        {"prompt": row["prompt"], "response": row["text"][:60] + "...", "reward": int(row["correct"])}
        | {"antTok": len(row["text"].split())}
        for row in PLANTED
    ]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    verdicts, text = describe_reading(path)
    assert verdicts == {"unknown"} and "--columns tokens=antTok" in text
    assert describe_reading(path, columns="tokens=antTok")[0] == {"effect"}


def make_searches(seed, share, before, mark):
    """Return rows whose answers have one length; 200 words were read for incorrect responses, 40 for correct ones."""
    rng = np.random.default_rng(seed)
    rows = []
    for prompt in range(150):
        for _ in range(8):
            correct = bool(rng.random() < 0.5)
            reading = " ".join(rng.choice(["lorem", "ipsum", "dolor", "et"], 40 if correct else 200))
            answer = " ".join(rng.choice(["so", "we", "therefore", "add"], int(rng.integers(20, 60))))
            block = f"{before}<{mark}>{reading}</{mark}>\n" if rng.random() < share else ""
            rows.append({"prompt": f"q{prompt}", "completion": block + answer, "reward": float(correct)})
    return rows


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("mark", ["tool_response", "information", "search_results"])
@pytest.mark.parametrize("before", ["", '<call>{"name": "find", "arguments": {"q": "zebra"}}</call>\n', "I look.\n"])
def test_results_of_tools_in_flat_text_never_decide_silently(tmp_path, share, mark, before):
    """They may begin a response, as the call was left out of the log, and may be rare."""
    path = write_lines(tmp_path / "a.jsonl", *make_searches(3, share, before, mark))
    statuses, text = describe_reading(path)
    assert "effect" not in statuses and f"{mark}=read" in text
    statuses, _ = describe_reading(path, means=f"{mark}=read")
    assert "effect" not in statuses


@pytest.mark.parametrize(
    ("name", "values"), [("is_wrong", (False, True)), ("failed", (0, 1)), ("loss", (0.0, 1.0)), ("num_errors", (0, 2))]
)
def test_a_column_in_which_more_is_worse_is_proposed_with_its_sign(tmp_path, name, values):
    """Incorrect responses are the longer ones; taken as a reward the column would say that they are shorter."""
    rows = [{"prompt": f"q{row['q']}", "response": row["text"], name: values[not row["correct"]]} for row in PLANTED]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    statuses, text = describe_reading(path)
    assert not statuses and f"reward=-1*{name}" in text
    statuses, text = describe_reading(path, columns=f"prompt=prompt,response=response,reward=-1*{name}")
    assert statuses == {"effect"} and "longer" in text

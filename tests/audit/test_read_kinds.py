"""Logs whose names say nothing are read by what their columns hold, or asked about with a flag that leads to the verdict."""

from lines import read_one, write_lines
from siblings_own import PLANTED

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

"""Chat templates are programs of somebody else: whatever goes wrong in them, one line says it."""

from pathlib import Path

import pytest
from chat_tokenizers import CHATML, write_shape
from data_sets import sums, write

from fairlen.cli import main

TEMPLATES = {
    "broken": "{% for %}", "raises": "{{ raise_exception('no') }}", "divides by zero": "{{ 1 // 0 }}", "nothing": "{{ '' }}",
    "of a name that is not there": "{{ messages[0].a.b }}", "calls itself": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "reaches out": "{{ ''.__class__.__mro__ }}", "half of a character": "{{ '\\ud800' }}", "is huge": "{{ 'a' * 10 ** 10 }}",
    "escapes": "{{ raise_exception('\x1b]0;owned\x07') }}",
}  # fmt: skip
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return Path(write_shape(tmp_path_factory.mktemp("model")))


def evaluate(model: Path, template: str, tmp_path: Path, capsys) -> tuple[int | str, str]:
    """The exit code and stderr of an evaluation with a template, or the name of the error that got through."""
    (model / "chat_template.jinja").write_text(template)
    write(tmp_path, "rows.jsonl", sums(0, 3))
    flags = [
        "--data", str(tmp_path / "rows.jsonl"), "--samples", "1", "--max-response-length", "4", "--threads", "1",
        "--compile", "off", "--random-init",
    ]  # fmt: skip
    capsys.readouterr()
    try:
        code: int | str = main(["eval", "--model", str(model), *flags, "--out", str(tmp_path / "out")])
    except Exception as error:
        code = f"{type(error).__name__}: {error}"
    return code, capsys.readouterr().err


def test_a_good_template_is_read(model, tmp_path, capsys):
    assert evaluate(model, CHATML, tmp_path, capsys)[0] == 0


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_a_damaged_template_is_one_line(model, tmp_path, capsys, name):
    code, said = evaluate(model, TEMPLATES[name], tmp_path, capsys)
    assert code == 2 and len(said.splitlines()) == 1 and "template" in said, (code, said)
    assert said.removesuffix("\n").isprintable()


@pytest.mark.slow
def test_a_template_that_loops_is_broken_off(model, tmp_path, capsys):
    """10^10 rounds, minutes of them: it is given 10 seconds."""
    code, said = evaluate(model, LOOP, tmp_path, capsys)
    assert code == 2 and "it did not end within 10 s" in said and len(said.splitlines()) == 1

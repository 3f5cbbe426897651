"""What commands print is what they were given."""

from __future__ import annotations

import io

from fairlen.terminal import make_console


def test_brackets_are_text():
    shown = io.StringIO()
    make_console(file=shown).print("a[T] [bold]b[/bold] [/x]")  # the last would be an error of markup
    assert shown.getvalue() == "a[T] [bold]b[/bold] [/x]\n"


def test_files_get_the_width_that_was_asked_for():
    shown = io.StringIO()
    make_console(150, shown).print("word " * 40)
    assert max(map(len, shown.getvalue().splitlines())) > 130

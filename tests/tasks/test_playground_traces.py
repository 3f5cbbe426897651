"""What the model is pre-trained on: styles differ in length and care as they say."""

from dataclasses import replace
from random import Random
from statistics import mean

import pytest

from fairlen.tasks.playground import Chain, Playground, Sums
from research.playground import MAX_LENGTH, STYLES, read_chain, write_trace

CHAIN = Chain(3, (5, 9, 2))


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("direct", "#19"),
        ("step", "3+5=8;8+9=17;17+2=19;#19"),
        ("check", "3+5=8;8+9=17;17+2=19;c3+5=8;8+9=17;17+2=19;#19"),
    ],
)
def test_styles_without_slips_are_written_so(style, text):
    passes = (2, 2) if style == "check" else STYLES[style].passes
    careful = replace(STYLES[style], slip=0.0, passes=passes)
    assert write_trace(Random(0), Sums(), CHAIN, careful) == text


def test_a_slip_is_carried_on():
    slips = replace(STYLES["step"], slip=1.0)
    steps = write_trace(Random(0), Sums(), CHAIN, slips).split(";")
    results = [step.split("=")[1] for step in steps[:-1]]
    assert [step.split("+")[0] for step in steps[1:-1]] == results[:-1]  # the next step starts from the wrong result
    assert steps[-1] == "#" + results[-1]


def test_lengths_vary_twentyfold_and_only_loops_pass_the_budget():
    rng = Random(0)
    lengths: dict[str, list[int]] = {name: [] for name in STYLES}
    for index in range(300):
        family, chain = read_chain(Playground().train(index).text)
        for name, style in STYLES.items():
            assert style.ends == (name != "loop")
            lengths[name].append(len(write_trace(rng, family, chain, style)) + style.ends)
    assert max(max(chars) for name, chars in lengths.items() if name != "loop") <= 160
    assert set(lengths["loop"]) == {MAX_LENGTH}
    assert mean(lengths["check"]) > 20 * mean(lengths["direct"])

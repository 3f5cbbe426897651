"""Following a continuation while it grows, and forking it from where it is."""

import asyncio
import subprocess
import sys

import pytest
from loops import over
from small_engines import build, engine_of

from fairlen.sampling.extend import Continuation, Growing, Sampling

PROMPT = (2, 5, 9, 11)


@pytest.fixture(scope="module")
def model():
    return build("qwen3")


def greedy(engine, number: int = 30) -> Continuation:
    return engine.generate([PROMPT], [Sampling(number, seed=0, temperature=0.0)])[0]


def test_reach_gives_what_a_smaller_budget_would_have_given(model):
    whole = greedy(engine_of(model))
    assert len(whole.token_ids) > 8

    async def ask(number: int) -> tuple[Continuation, Continuation]:
        engine = engine_of(model)
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        assert isinstance(growing, Growing)
        return await asyncio.gather(growing.reach(number), growing)

    for number in (1, 2, 7, len(whole.token_ids) - 1):
        first, all_of_it = asyncio.run(ask(number))
        assert all_of_it == whole
        assert first == Continuation(whole.token_ids[:number], whole.logprobs[:number], "length")
    for number in (len(whole.token_ids), 1000):
        assert asyncio.run(ask(number)) == [whole, whole]


def test_reach_is_told_before_the_end_and_to_everybody(model):
    """In order of tokens, whatever the order of asking; asking again for what is there answers at once."""
    engine, told = engine_of(model), []

    async def follow() -> None:
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))

        async def wait(number: int) -> None:
            told.append(len((await growing.reach(number)).token_ids))

        await asyncio.gather(wait(5), wait(2), wait(5), wait(3))
        assert not growing.future.done()
        told.append(len((await growing.reach(1)).token_ids))
        await growing
        told.append(len((await growing.reach(4)).token_ids))

    asyncio.run(follow())
    assert sorted(told[:4]) == told[:4] == [2, 3, 5, 5] and told[4:] == [1, 4]


@over("slots", [2, 8])
def test_a_fork_of_a_running_sequence_computes_nothing(model, slots):
    """Two forks at tokens 3 and 6 while the parent runs: as from a fresh engine, and only 3 prompt tokens are computed."""
    engine = engine_of(model, max_num_seqs=slots)

    async def fork() -> list[Continuation]:
        parent = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        children = []
        for number in (3, 6):
            await parent.reach(number)
            children.append(parent.fork(number, Sampling(12, seed=number)))
        return await asyncio.gather(parent, *children)

    parent, *children = asyncio.run(fork())
    assert engine.stats.num_computed_tokens == len(PROMPT) - 1
    for number, child in zip((3, 6), children, strict=True):
        prefix = PROMPT + parent.token_ids[:number]
        (expected,) = engine_of(model).generate([prefix], [Sampling(12, seed=number)])
        assert child.token_ids == expected.token_ids
        assert child.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_reach_of_an_abandoned_sequence_is_cancelled_not_forgotten(model):
    engine = engine_of(model)

    async def abandon() -> None:
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        whole, later = asyncio.ensure_future(growing), asyncio.ensure_future(growing.reach(20))
        await asyncio.sleep(0)
        whole.cancel()
        await later

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(abandon(), 5))


def test_reach_raises_what_the_model_raised(model):
    engine = engine_of(model)
    broken = RuntimeError("broken")

    def fail(*_: object) -> None:
        raise broken

    async def follow() -> list[object]:
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        await growing.reach(2)
        handle = model.register_forward_pre_hook(fail)
        try:
            return await asyncio.gather(growing.reach(9), growing, return_exceptions=True)
        finally:
            handle.remove()

    assert asyncio.run(follow()) == [broken, broken]


def test_forks_go_first_and_prompts_are_not_forgotten(model):
    """One slot: two prompts wait while a parent runs, and are asked before it is forked twice."""
    engine, order = engine_of(model, max_num_seqs=1), []

    async def note(name: str, pending) -> None:
        await pending
        order.append(name)

    async def ask() -> None:
        parent = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        waiting = [note(f"prompt {k}", engine.extend((2, k), Sampling(3, seed=k))) for k in (5, 6)]
        tasks = [asyncio.ensure_future(one) for one in (note("parent", parent), *waiting)]
        await parent.reach(4)
        forks = [note(f"fork {k}", parent.fork(k, Sampling(3, seed=k))) for k in (4, 2)]
        await asyncio.gather(*tasks, *forks)

    asyncio.run(ask())
    assert order == ["parent", "fork 4", "fork 2", "prompt 5", "prompt 6"]


@pytest.mark.slow
def test_a_fork_whose_parent_is_gone_is_computed_again(model):
    """A parent that was cancelled, one whose row was given up, and one of other weights."""
    prefix = PROMPT + greedy(engine_of(model)).token_ids[:4]
    (expected,) = engine_of(model).generate([prefix], [Sampling(9, seed=1)])

    async def fork(ending: str) -> tuple[Continuation, int]:
        engine = engine_of(model, max_num_seqs=1, kept_rows=1)
        parent = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        await parent.reach(4)
        if ending == "cancelled":
            whole = asyncio.ensure_future(parent)
            await asyncio.sleep(0)
            whole.cancel()
        else:
            await parent
        if ending == "given up":
            await engine.extend((5, 6, 7), Sampling(3, seed=0))
        if ending == "refreshed":
            engine.refresh(1)
        before = engine.stats.num_computed_tokens
        return await parent.fork(4, Sampling(9, seed=1)), engine.stats.num_computed_tokens - before

    # a row of the prompt is left where the parent did not get to its end: 3 tokens, of the 7 that are needed
    for ending, num_computed in (("cancelled", 4), ("given up", 7), ("refreshed", 7), ("kept", 0)):
        made, computed = asyncio.run(fork(ending))
        assert (made.token_ids, computed) == (expected.token_ids, num_computed), ending
        assert made.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.slow
def test_rows_that_are_released_are_given_up_first(model):
    """Four rows for two prompts and what came of them. A third prompt and what comes of it take the row of the second one's end,
    which nobody will fork, and one more; else the two least recently used, of the first prompt and its end.
    """

    async def ask(releases: bool) -> int:
        engine = engine_of(model, max_num_seqs=1, kept_rows=4)
        early, late = (engine.extend((k, 9, 11, 13, 15), Sampling(4, seed=k)) for k in (5, 6))
        assert (len((await early).token_ids), len((await late).token_ids)) == (4, 4)
        if releases:
            late.release()
        await engine.extend((7, 9), Sampling(1, seed=0))
        before = engine.stats.num_computed_tokens
        await early.fork(4, Sampling(2, seed=0))
        return engine.stats.num_computed_tokens - before

    assert (asyncio.run(ask(False)), asyncio.run(ask(True))) == (5 + 4 - 1, 0)


@over("number", [0, 6])
def test_a_fork_of_tokens_that_were_not_reached_is_refused(model, number):
    engine = engine_of(model)

    async def fork() -> None:
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        await growing.reach(5)
        growing.fork(number, Sampling(3, seed=0))

    with pytest.raises(ValueError, match=rf"fork\({number}\): give 1 to 5, or await reach\({number}\) before"):
        asyncio.run(fork())


def test_rows_take_memory_when_they_are_written():
    """Of 100 MiB less than a tenth is taken, though malloc has 192 MiB of addresses whose pages it gave back."""
    program = """
import numpy as np, torch
from fairlen.engine.cache import Rows
from fairlen.engine.device import give_back_memory, keep_freed_memory
from fairlen.train.memory import read_status
keep_freed_memory()
kept = [np.ones(2**21) for _ in range(12)]
del kept
give_back_memory()
before = read_status("VmRSS")
heads = torch.zeros(1, 4, 1, 64)
found = Rows([(heads, heads)] * 5, 40, 256)
assert sum(one.nbytes for one in found.tensors) == 100 * 2**20
print((read_status("VmRSS") - before) // 2**20, (found.tensors[3] == 0).all().item())
"""
    grown, is_zero = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(grown) < 10 and is_zero == "True"

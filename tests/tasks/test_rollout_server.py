"""The rollout server over HTTP: what a request is answered, and what is refused."""

import asyncio
from typing import Any

import pytest
from loops import over
from test_driven import END, Echo

from fairlen.sampling.extend import Sampling
from fairlen.tasks.driven import Calls

aiohttp = pytest.importorskip("aiohttp")

from fairlen.tasks.rollout_server import RolloutServer  # noqa: E402

ASKED: dict[str, Any] = {
    "temperature": 0.5, "top_k": 0, "min_p": None, "seed": None, "stop_token_ids": [6], "max_tokens": None, "logprobs": 1
}  # fmt: skip
"""What is the run's, or nothing, is no fault."""


def ask(*bodies: dict[str, Any]) -> tuple[list[tuple[int, Any]], Calls]:
    """Send requests of one conversation one after the other; return their statuses and answers."""

    async def run() -> tuple[list[tuple[int, Any]], Calls]:
        server, found = RolloutServer(), []
        await server.start()
        calls = Calls(Echo(), (9,), Sampling(20, seed=3, temperature=0.5), 5.0)
        url = server.url.removesuffix("/v1") + "/inference/v1/generate"
        async with aiohttp.ClientSession() as session:
            with server.playing(calls) as salt:
                for body in bodies:
                    headers = {"X-Session-ID": "one"}
                    async with session.post(url, json={"cache_salt": salt} | body, headers=headers) as answer:
                        found.append((answer.status, await answer.json()))
            async with session.post(url, json={"cache_salt": salt} | bodies[0]) as answer:
                found.append((answer.status, await answer.json()))
        server.close()
        return found, calls

    return asyncio.run(run())


def test_a_request_is_answered_with_tokens_and_their_logprobs():
    """The turn of 5, 6 and END is cut after the stop token 6; the second goes on, without stop tokens, to its end."""
    known = [9, 2, 5, 6, 4]
    found, calls = ask(
        {"token_ids": [9, 2], "sampling_params": ASKED}, {"token_ids": known, "sampling_params": {"temperature": 0.5}}
    )
    (status, one), (_, two), (late, why) = found
    (choice,) = one["choices"]
    assert (status, choice["token_ids"], choice["finish_reason"]) == (200, [5, 6], "stop")
    assert choice["logprobs"]["content"] == [
        {"token": "token_id:5", "logprob": -0.5}, {"token": "token_id:6", "logprob": -0.25}
    ]  # fmt: skip
    assert two["choices"][0]["token_ids"] == [5, 6, END]
    assert calls.conversations["one"].token_ids == (2, 5, 6, 4, 5, 6, END)
    assert late == 404 and "ended" in why["error"]["message"]


@over(
    "given, why",
    [
        ({"temperature": 1.0}, "temperature=1.0, where the run has 0.5"),
        ({"top_p": 0.9}, "top_p=0.9, where the run has 1.0"),
        ({"presence_penalty": 0.5}, "presence_penalty=0.5: this server does not know it"),
    ],
)
def test_another_distribution_is_refused(given, why):
    found, calls = ask({"token_ids": [9, 2], "sampling_params": given})
    status, answer = found[0]
    assert status == 400 and answer["error"]["message"].startswith(why)
    assert calls.refusal.startswith(why) and not calls.conversations


def test_a_prompt_that_does_not_fit_is_refused_in_words_that_environments_know():
    """Their harnesses end the exchange where they read "maximum context length", and pass on other errors."""
    found, calls = ask({"token_ids": [9, *[2] * 20], "sampling_params": {}})
    status, answer = found[0]
    assert status == 400 and answer["error"]["message"].startswith("maximum context length")
    assert not calls.refusal and calls.conversations["one"].finish == "length"

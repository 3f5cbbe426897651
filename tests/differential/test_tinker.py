"""recipes/tinker_loss.py, against its documented losses: weights inside advantages, and a loss of one's own.

With a local stand-in of its types, and with its own where the package is installed.
"""

import importlib.util
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tinker_stand_in
import torch
from fixtures import relative
from foreign import GROUP, LENGTH, MAX_LENGTH, REWARD
from loops import over
from tinker_stand_in import TrainingClient

from fairlen import compose, plan_rows, policy_loss
from fairlen.methods.presets import BASES

RECIPE = Path(__file__).parents[2] / "recipes/tinker_loss.py"
VOCABULARY = 7
UNCLIPPED = ["surrogate.clip_low=1", "surrogate.clip_high=1e9"]
CLOSE = 3e-6
"""Of the largest slope: Tinker's advantages and old log-probs are float32."""


def read_recipe():
    """Return the functions of the recipe, as they run with the present `tinker`."""
    return runpy.run_path(str(RECIPE))


@pytest.fixture(params=["stand-in", *(["tinker"] if importlib.util.find_spec("tinker") else [])])
def page(request, monkeypatch):
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "tinker", tinker_stand_in)
    return read_recipe()


def make_samples():
    """Prompts of 3 tokens, responses, and the sampler's log-probs of these."""
    draw = np.random.RandomState(0)
    tokens = [draw.randint(VOCABULARY, size=3 + length).tolist() for length in LENGTH]
    logprobs = [(-1.9 + 0.3 * draw.standard_normal(length)).astype(np.float32).tolist() for length in LENGTH]
    return [(row[:3], row[3:], old) for row, old in zip(tokens, logprobs, strict=True)]


def make_client():
    return TrainingClient(torch.from_numpy(np.random.RandomState(1).standard_normal((VOCABULARY, VOCABULARY)) * 0.3))


def make_plan(method):
    return plan_rows(method, groups=GROUP, lengths=LENGTH, rewards=REWARD, max_response_length=MAX_LENGTH)


def expected(method, on_policy=False):
    """The gradient of the table by the two calls, rows padded, without Tinker."""
    client, samples = make_client(), make_samples()
    mask = torch.arange(MAX_LENGTH)[None] < torch.tensor(LENGTH)[:, None]
    now = torch.zeros(mask.shape, dtype=torch.float64)
    for number, (prompt, response, _) in enumerate(samples):
        logits = client.table[[prompt[-1], *response[:-1]]].log_softmax(-1)
        now[number, : len(response)] = logits[range(len(response)), response]
    flat = torch.tensor([number for _, _, logprobs in samples for number in logprobs]).double()
    old = torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, flat)
    plan = make_plan(method).to("cpu", torch.float64)
    policy_loss(method, plan, now, None if on_policy else old, mask=mask).total.backward()
    return client.table.grad


@pytest.mark.parametrize(
    ("names", "overrides", "loss_fn", "config"),
    [
        ("grpo+balanced", [], "ppo", {}),
        ("dr_grpo+lp", [], "ppo", {}),
        ("dapo+balanced", [], "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}),
        ("grpo+balanced", UNCLIPPED, "importance_sampling", {}),
        ("cispo", ["surrogate.clip_high=3"], "cispo", {}),
    ],
)
def test_weights_travel_inside_advantages(page, names, overrides, loss_fn, config):
    method, client = compose(names, overrides), make_client()
    client.forward_backward(page["make_data"](make_plan(method), make_samples()), loss_fn, config)
    assert relative(client.table.grad, expected(method)) < CLOSE


@pytest.mark.parametrize("names", ["fspo", "gspo+balanced", "grpo"])
def test_the_first_update_needs_no_clip(page, names):
    """On-policy every ratio is 1, and importance_sampling is the slope of any surrogate."""
    method, client = compose(names), make_client()
    samples = [(prompt, response, None) for prompt, response, _ in make_samples()]
    for number, (prompt, response, _) in enumerate(samples):
        logits = client.table[[prompt[-1], *response[:-1]]].log_softmax(-1).detach()
        samples[number] = (prompt, response, logits[range(len(response)), response].tolist())
    client.forward_backward(page["make_data"](make_plan(method), samples), "importance_sampling")
    assert relative(client.table.grad, expected(method, on_policy=True)) < CLOSE


@over("names", [name for name, build in BASES.items() if build().sampling.is_whole])
def test_any_method_is_a_custom_loss(page, names):
    method, client, counts = compose(names), make_client(), []
    plan, samples = make_plan(method), make_samples()
    loss = page["make_loss"](method, plan, samples, counts)
    client.forward_backward_custom(page["make_data"](plan, samples), loss)
    assert relative(client.table.grad, expected(method)) < CLOSE and len(counts) == 1


def test_the_client_of_the_package_takes_the_same_loss():
    """Tinker's own client-side half: log-probs come in, the slopes of the loss go out as weights."""
    tinker = pytest.importorskip("tinker", reason="tinker is not installed (pip install tinker)")
    method, samples, client, names = compose("fspo+balanced"), make_samples(), make_client(), read_recipe()
    plan = make_plan(method)
    data, loss = names["make_data"](plan, samples), names["make_loss"](method, plan, samples, [])
    outputs = [{"logprobs": tinker.TensorData.from_torch(client.log_probs(datum).detach().float())} for datum in data]
    result = tinker.TrainingClient._compute_custom_loss(data, loss, SimpleNamespace(loss_fn_outputs=outputs))
    for datum in result.data:
        client.log_probs(datum).backward(-datum.loss_fn_inputs["weights"].to_torch().double())
    assert relative(client.table.grad, expected(method)) < CLOSE

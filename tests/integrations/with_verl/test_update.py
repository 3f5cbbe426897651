"""verl's own actor update with our loss, on two ranks with gloo and without Ray: equal to fairlen's trainer.

Rows are shuffled, padded as verl pads, dealt to two ranks, and accumulated over micro-batches of four rows.
"""

import copy
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import DRIFTED
from safetensors.torch import load_file
from test_plans import make_rollouts, plan_rows, rows_of

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from fairlen import playground
from fairlen.integrations.verl.data import copy_shipped
from fairlen.loop.tally import count, observed, sum_counts, update_metrics
from fairlen.methods.compose import compose
from fairlen.methods.method import Method, updates
from fairlen.methods.presets import BASES
from fairlen.policy.model import load_policy
from fairlen.policy.pack import pack
from fairlen.rollouts import Response, Rollouts, whole_segments

pytestmark = pytest.mark.slow  # half a minute for two processes that import verl; test_loss.py has the loss alone

BUDGET, NUM_PROMPT, LIMIT = 9, 4, 240
RANKS = Path(__file__).with_name("ranks.py")
WHOLE = [*sorted(set(BASES) - {"eqlen_unbiased"}), "dapo+balanced", "grpo+toplambda"]
STREAMS = ["eqlen+grpo", "eqlen+gspo", "eqlen_unbiased", "eqlen+dapo+balanced"]
BY_TOKENS = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 60}
"""Micro-batches of segments, whose number is not known before."""
NAMES = [*WHOLE, *STREAMS]
MOVED = {"fspo": 0.1, "dapo+balanced": 0.3, "eqlen+gspo": 0.3}
"""Methods whose rows are trained three times, and the learning rates."""


def make_responses(policy, seed=0):
    """Four prompts of four random texts; old log-probs are the policy's with noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in range(16):
        length = int(rng.integers(1, BUDGET + 1))
        ids = (2, *map(int, rng.integers(3, 21, NUM_PROMPT - 1 + length)))
        right = bool(rng.integers(0, 2)) if row > 1 else bool(row)
        rows.append(Response(
            row // 4, ids, NUM_PROMPT, (0.0,) * length, "length" if length == BUDGET else "stop", seed=row, track=row % 4,
            outcome=float(right), status="correct" if right else "incorrect",
        ))  # fmt: skip
    return with_old_logprobs(policy, Rollouts(tuple(rows), whole_segments(tuple(rows)), BUDGET), rng)


def with_old_logprobs(policy, rollouts, rng):
    """The same texts as of a policy that differs by noise of 0.02 nats a token."""
    rows = []
    for response in rollouts.responses:
        ids = torch.tensor(response.token_ids)
        with torch.no_grad():
            table = policy.model(input_ids=ids[None, :-1]).logits[0].log_softmax(-1)
        own = table.gather(1, ids[1:, None])[response.num_prompt - 1 :, 0].numpy()
        rows.append(replace(response, logprobs=tuple((own + rng.normal(0, 0.02, len(own))).tolist())))
    return replace(rollouts, responses=tuple(rows))


def make_streams(policy, method, num_prompts):
    """Streams of the method, of random texts."""
    drawn = make_rollouts(method.sampling, num_prompts)
    drawn = replace(drawn, responses=tuple(
        replace(r, token_ids=(2, *((x % 18) + 3 for x in r.token_ids[1:]))) for r in drawn.responses
    ))  # fmt: skip
    return with_old_logprobs(policy, drawn, np.random.default_rng(5))


def verl_row(response, start, stop, plan):
    """One row: the text up to `stop`, a mask that is 1 from `start` on, and the plan."""
    return {
        "ids": list(response.token_ids[: response.num_prompt + stop]), "num_prompt": response.num_prompt,
        "mask": [int(place >= start) for place in range(stop)], "old": list(response.logprobs[:stop]), "plan": plan,
    }  # fmt: skip


def planned_rows(method, rollouts):
    """Rows of responses or streams as they are planned on the driver, shuffled."""
    numbers, rows = rows_of(rollouts)
    plan = plan_rows(method, rollouts, numbers, rows)[1] | {"row": np.arange(len(rows))}
    found = []
    for place, (number, row) in enumerate(zip(numbers, rows, strict=True)):
        stop = rollouts.responses[number].length if row.is_end else row.stop
        columns = {name: column[place].item() for name, column in plan.items()}
        one = verl_row(rollouts.responses[number], row.start, stop, columns)
        found.append(one if row.stop > row.start else one | {"mask": [0] * stop})
    return [found[i] for i in np.random.default_rng(1).permutation(len(found))]


def pad_rows(rows):
    """To a multiple of two ranks and four rows, with rows that train nothing."""
    plan = {"trains": False, "advantage": 0.0, "weight": 0.0, "term_weight": 0.0, "bounded": 1.0, "length": 0, "row": 0}
    idle = {"ids": [1] * 6, "num_prompt": 5, "mask": [0], "old": [0.0], "plan": plan}
    return [*rows, *[idle] * (-len(rows) % 8)]


@dataclass
class Ours:
    """What fairlen's own packer, loss and tally come to for a whole rollout batch as one update."""

    gradients: dict[str, torch.Tensor]
    metrics: dict[str, float]
    after: Method


def our_update(policy, method, rollouts):
    counts = []
    policy.model.zero_grad()
    for update in updates(method.score(rollouts)):
        for packed in pack(rollouts, method.weigh(update), 64, is_on_policy=False):
            outputs = policy.forward(packed.inputs, False)
            loss = method.loss(outputs, packed.micro)
            loss.total.backward()
            counts.append(count(method, outputs, packed.micro, loss))
    counts = sum_counts(counts)
    gradients = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    return Ours(gradients, update_metrics(counts), method.update(observed(counts)))


@pytest.fixture(scope="module")
def policy():
    """The playground's, less sure of itself: random texts have log-probs of -29 nats by it, of which float32 loses 1e-5."""
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(0.05)
    return policy


@pytest.fixture(scope="module")
def cases(policy):
    """Every method with what verl gets, and what it has to come to."""
    found = []
    texts = make_responses(policy)
    for names in WHOLE:
        method = compose(names)
        method = method.update(DRIFTED)
        found.append((names, method, texts, planned_rows(method, texts), {}))
    for names in STREAMS:
        method = compose(names, ["sampling.streams=2"])
        streams = make_streams(policy, method, num_prompts=2)
        found.append((names, method, streams, planned_rows(method, streams), BY_TOKENS))
    return found


def run_ranks(folder, number):
    """So many ranks of verl's actor, to their end."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "DIST_INIT_METHOD": f"file://{folder / f'meeting-{number}'}"}
    command = [sys.executable, str(RANKS), str(folder)]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(number)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(number)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert {process.returncode for process in started} == {0}, "".join(output[-4000:] for output in outputs)


def describe(names, method, rows, shape):
    """A case as the ranks read it."""
    padded = pad_rows(rows)
    overrides = [f"sampling.streams={method.sampling.streams}"] if "eqlen" in names else []
    return {
        "names": names, "overrides": overrides, "state": method.state,
        "rows": padded, "mini_rows": len(padded), "epochs": 1, "lr": 0.0, "shape": shape,
    }  # fmt: skip


def run_cases(described, policy, folder, number):
    """What so many ranks of verl came to, by case: metrics, gradients, changes of weights."""
    copy_shipped(folder / "model")
    policy.model.save_pretrained(folder / "model")
    (folder / "cases.json").write_text(json.dumps(described))
    run_ranks(folder, number)
    metrics = json.loads((folder / "results.json").read_text())
    gradients, moved = (
        [load_file(folder / f"{kind}-{number}.safetensors") for number in range(len(described))]
        for kind in ("gradients", "moved")
    )
    return metrics, gradients, moved


@pytest.fixture(scope="module")
def results(cases, policy, tmp_path_factory):
    """What two ranks of verl came to, by case."""
    described = [describe(names, method, rows, shape) for names, method, _, rows, shape in cases]
    first = described[0]
    described.append(first | {"mini_rows": len(first["rows"]) // 2})  # two updates of the first case
    described += [described[NAMES.index(names)] | {"epochs": 3, "lr": rate} for names, rate in MOVED.items()]
    return run_cases(described, policy, tmp_path_factory.mktemp("ranks"), 2)


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_verls_update_has_our_loss_and_gradients(number, cases, results, policy):
    _, method, rollouts, _, _ = cases[number]
    ours = our_update(policy, method, rollouts)
    loss, gradients = ours.metrics["loss/total"], ours.gradients
    metrics, found = results[0][number], results[1][number]
    assert set(found) == set(gradients)
    norm = float(torch.stack([g.double().norm() for g in gradients.values()]).norm())
    assert norm > 1e-3
    # terms of size 1 cancel, in float32
    assert float(np.mean(metrics["loss"])) == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert float(np.mean(metrics["grad_norm"])) == pytest.approx(norm, rel=1e-5)
    top = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert float((found[name] - gradient).abs().max()) < 1e-6 * top, name


def test_two_updates_of_a_rollout_batch_share_its_plan(cases, results):
    """verl gets the plan of one update and makes two: the losses of both add up to that of the whole."""
    whole, halves = results[0][0]["loss"], results[0][len(cases)]["loss"]
    assert len(halves) == 2 and sum(halves) == pytest.approx(float(np.mean(whole)), rel=1e-5, abs=1e-7)


def test_metrics_are_averages_over_all_ranks_and_micro_batches(cases, results, policy):
    """16 rows in 4 micro-batches of 4 rows on 2 ranks, of unlike numbers of tokens, are those of one process."""
    for number, (_, method, rollouts, rows, _) in enumerate(cases):
        trained = [row for row in rows if row["plan"]["trains"]]
        found = results[0][number]["update"]
        assert found["tokens/trained"] == sum(sum(row["mask"]) for row in trained)
        assert found["sequences/trained"] == len(trained)
        ours = our_update(policy, method, rollouts)
        for name in ("loss/total", "ratio/mean", "ratio/max", "ratio/clipped", "ratio/inside", "kl/old"):
            assert found[name] == pytest.approx(ours.metrics[name], rel=1e-5, abs=1e-5), (method, name)
        assert results[0][number]["state"] == pytest.approx(ours.after.state, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("names", MOVED)
def test_three_updates_move_the_parameters_as_in_one_process(names, cases, results, policy):
    """By plain SGD: parameters to 1e-5 of how far they moved, and the state."""
    _, method, rollouts, _, _ = cases[NAMES.index(names)]
    metrics, _, moved = (found[len(cases) + 1 + [*MOVED].index(names)] for found in results)
    own, start = copy.deepcopy(policy), dict(policy.model.named_parameters())
    optimizer = torch.optim.SGD(own.model.parameters(), MOVED[names])
    for _ in range(3):
        method = our_update(own, method, rollouts).after
        optimizer.step()
    ours = {name: (p - start[name]).detach() for name, p in own.model.named_parameters()}
    top = max(float(change.abs().max()) for change in ours.values())
    assert top > 1e-3
    off = max(float((moved[name] - change).abs().max()) for name, change in ours.items())
    assert off / top < 1e-5
    assert metrics["state"] == pytest.approx(method.state, rel=1e-5, abs=1e-7)
    assert metrics["updates"] == [0, 1, 2]

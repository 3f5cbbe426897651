"""Tinker: a datum for each response with advantages of a plan, or a loss for every method; docs/anywhere.md says when which."""

import torch

from fairlen import policy_loss


def make_data(plan, samples):
    """One datum for each response: `client.forward_backward(data, "ppo")`, where Tinker has the method's surrogate."""
    import tinker

    data = []
    for (prompt, response, logprobs), advantage in zip(samples, plan.weight * plan.advantage, strict=True):
        tokens, unseen = prompt + response, [0.0] * (len(prompt) - 1)
        data.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={
                    "target_tokens": tokens[1:],
                    "logprobs": unseen + logprobs,
                    "advantages": unseen + [float(advantage)] * len(response),
                },
            )
        )
    return data


def make_loss(method, plan, samples, counts):
    """The same for every method, as `client.forward_backward_custom(data, loss)`; `counts` are for `finish_update`."""
    rows = [[-1] * (len(prompt) - 1) + [row] * len(response) for row, (prompt, response, _) in enumerate(samples)]

    sequence = torch.tensor([row for one in rows for row in one])

    def loss(data, logprobs):
        old = torch.cat([datum.loss_fn_inputs["logprobs"].to_torch() for datum in data])
        found = policy_loss(method, plan.to("cpu"), torch.cat(logprobs), old, sequence=sequence)
        counts.append(found.counts)
        return found.total, {}

    return loss

"""Reward of an outcome, by stages in order:  reward(responses, reward [R]) -> reward [R]

A stage sees all active responses of a rollout batch, since some compare them. Lengths are generated tokens, EOS included; budgets
are fractions of the run's max response length, so that one preset fits every run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlen.batch import Bools, Floats, Ints, Responses, count_by, mean_by, sum_by
from fairlen.channels import Of
from fairlen.checks import Amount, Checked, Fraction, Positive, PositiveFraction, added_later

NUM_READ = "num_read"
"""Named column: tokens that were not generated, the prompt's own among them."""
ROUNDING = 1e-9
"""0.07 of 100 is 7 and 0.29 of 100 is 29, whatever the binary fractions say."""


@dataclass(frozen=True)
class SoftOverlong(Checked):
    """Subtracts up to `factor` over the last `margin` of the budget.

        reward - factor * clip((length - (1 - margin) budget) / (margin budget), 0, 1)

    Source: DAPO (arXiv:2503.14476, equation 13; margin 4096 of 20480). The paper's -1 beyond the budget cannot occur:
    generation stops there.
    """

    margin: PositiveFraction = 0.2
    """Width of the ramp, fraction of the budget, above 0."""
    factor: Amount = 1.0
    """Penalty at the budget."""
    of: Of = added_later("response")
    """Length that is penalised: of the response, or of one of its channels."""

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        free = (1.0 - self.margin) * responses.max_response_length
        over = np.clip((responses.length_of(self.of) - free) / (responses.max_response_length - free), 0.0, 1.0)
        return reward - self.factor * over


@dataclass(frozen=True)
class TopLambda(Checked):
    """A length penalty on correct responses, only in the prompts of the rollout batch that the model solves best.

        correct responses of selected prompts: reward - alpha * sigmoid((length - mean) / std)    (over the prompt's correct ones)
        everything else: unchanged

    Selected: the max(1, ceil(fraction * prompts)) prompts of highest accuracy among those with a correct response and at least
    `min_accuracy`; ties are broken by a hash of the prompt's responses, not by their order.
    Source: 2505.18086 (GRPO-lambda), its reward formula and fraction 0.2; alpha 0.6 is that of a third party's listing, as the
    authors' code was not read. Where the formula says nothing: a prompt without a correct response is never selected; equal
    lengths give the sigmoid of 0, and so does a single correct response, which has no spread; selection is over the whole rollout
    batch, not one process. The listing fails there, and pays for short incorrect responses.
    """

    fraction: Fraction = 0.2
    """Share of prompts selected, the paper's lambda; 0 selects none, 1 every prompt with a correct response."""
    alpha: Fraction = 0.6
    """Largest penalty; below 1 every correct response stays above every incorrect one."""
    min_accuracy: Fraction = 0.0
    """Prompts below are never selected."""
    of: Of = added_later("response")
    """Length that is penalised: of the response, or of one of its channels."""

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        return reward - self.alpha * self.select(responses)[responses.prompt] * relative_length(responses, self.of)

    def select(self, responses: Responses) -> Bools:
        num = responses.num_prompts
        accuracy = mean_by(responses.prompt, responses.correct, num)
        candidates = np.flatnonzero((accuracy > 0) & (accuracy >= self.min_accuracy))
        present = np.count_nonzero(count_by(responses.prompt, num))
        wanted = max(1, int(np.ceil(self.fraction * present - ROUNDING))) if self.fraction > 0 else 0
        order = np.lexsort((shuffle_keys(responses)[candidates], -accuracy[candidates]))
        chosen = np.zeros(num, np.bool_)
        chosen[candidates[order[:wanted]]] = True
        return chosen


@dataclass(frozen=True)
class LengthPenalty(Checked):
    """The same penalty on the correct responses of every prompt.

        correct responses: reward - alpha * sigmoid((length - mean) / std)      (over the prompt's correct responses)

    Source: the baseline LP of 2505.18086, which is TopLambda with fraction 1; the same form as arXiv:2502.04463.
    """

    alpha: Fraction = 0.6
    """Largest penalty; below 1 every correct response stays above every incorrect one."""
    of: Of = added_later("response")
    """Length that is penalised: of the response, or of one of its channels."""

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        return reward - self.alpha * relative_length(responses, self.of)


@dataclass(frozen=True)
class RelativeLength(Checked):
    """Divides the reward by one plus a share of the length relative to the prompt's mean length.

        reward / (1 + alpha * length / mean length of the prompt's responses)

    Source: GR3 (arXiv:2603.10535), R' = R / (1 + alpha T_i / mean(T)); alpha 0.33 for mathematics and code. Departure: alpha
    is given, not calibrated. Rewards below 0 would be raised by length and are refused.
    """

    alpha: Amount = 0.33
    """Strength, 0 or more."""
    of: Of = added_later("response")
    """Length that is penalised: of the response, or of one of its channels."""

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        if len(reward) and reward.min() < 0:
            raise ValueError(
                f"RelativeLength: reward {reward.min():g} is below 0, where dividing by length would reward it: "
                "put penalties after RelativeLength, or use outcomes of 0 and more"
            )
        length = responses.length_of(self.of)
        mean = mean_by(responses.prompt, length, responses.num_prompts)
        mean[mean == 0.0] = 1.0  # of a channel that no response to the prompt has
        return reward / (1.0 + self.alpha * (length / mean[responses.prompt]))


@dataclass(frozen=True)
class SolvedLength(Checked):
    """Subtracts a share of the length, correct or not, the more the better the prompt is solved.

        reward - mean reward of the prompt * (alpha length / longest + read_alpha read / most + turns_alpha turns / most)

    each over the prompt's responses; `read` are the tokens that were not generated, the prompt's own among them.
    Source: prime-rl's linear length penalty, whose weights are 0.25, 0.1 and 0.1. Departure: a prompt whose mean is below 0 is
    left as it is, where the penalty would turn around.
    """

    alpha: Amount = 0.25
    """Penalty of the longest response to a prompt that is always solved, in units of reward."""
    read_alpha: Amount = added_later(0.0)
    """The same for the response that read most."""
    turns_alpha: Amount = added_later(0.0)
    """The same for the response of most turns."""

    @property
    def reads(self) -> dict[str, tuple[float, ...]]:
        return {NUM_READ: (3.0, 5.0)} if self.read_alpha else {}

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        num, prompt = responses.num_prompts, responses.prompt
        terms = [(self.alpha, responses.length), (self.turns_alpha, responses.num_turns)]
        terms += [(self.read_alpha, responses.named[NUM_READ])] if self.read_alpha else []
        share = np.zeros(len(reward))
        for alpha, column in terms:
            share += alpha * column / np.maximum(extreme_by(np.maximum, prompt, column, num, 1.0), 1.0)[prompt]
        return reward - np.maximum(mean_by(prompt, reward, num), 0.0)[prompt] * share


@dataclass(frozen=True)
class EffortLength(Checked):
    """Rewards short and penalises long responses to the prompts that ask for little effort; others are left alone.

        s = min(1, weight (1 - length / (limit budget)));   reward (1 + max(s, 0)) + penalty min(s, 0)

    Source: NeMo-RL's effort levels (`low_weight`, `low_penalty`, `low_ub`), which look for `low_string` in the prompt; here the
    text is looked for in a column of the data, or with column=prompt in the prompt.
    """

    column: str = "effort"
    """Column of the data, or prompt."""
    text: str = "low"
    """Text in that column of the prompts that ask for little effort."""
    weight: Amount = 1.0
    """Strength of the length term; NeMo-RL's default is 0, which is off."""
    penalty: Amount = 1.0
    """Factor of the term where it is negative: beyond the limit."""
    limit: Positive = 1.0
    """Length that is neither rewarded nor penalised, fraction of the budget."""

    @property
    def reads(self) -> dict[str, tuple[str, ...]]:
        return {self.column: (self.text, "high")}

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        asks = np.array([self.text in str(cell) for cell in responses.named[self.column]], np.bool_)
        limit = self.limit * responses.max_response_length
        size = np.minimum(self.weight * (1.0 - responses.length / limit), 1.0)
        shaped = reward * (1.0 + np.maximum(size, 0.0)) + self.penalty * np.minimum(size, 0.0)
        return np.where(asks, shaped, reward)


@dataclass(frozen=True)
class CentredLength(Checked):
    """A length penalty among the responses of reward 1 of a prompt, which adds up to 0 over them, so that their mean stays.

        reward - alpha (s - mean of s),   s = (length - shortest) / (longest - shortest),   at least 0

    over the prompt's responses of reward 1; prompts with other rewards than 0 and 1 are left alone.
    Source: NeMo-RL's `group_total_length_penalty_coeff`, 0 by default and 0.1 in its guide.
    """

    alpha: Amount = 0.1
    """Difference between the shortest and the longest, in units of reward."""

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        num, prompt = responses.num_prompts, responses.prompt
        is_binary = sum_by(prompt, (reward != 0.0) & (reward != 1.0), num) == 0
        solved = (reward == 1.0) & is_binary[prompt]
        where, length = prompt[solved], responses.length[solved]
        low = extreme_by(np.minimum, where, length, num, np.inf)
        high = extreme_by(np.maximum, where, length, num, 0.0)
        share = (length - low[where]) / np.maximum(high - low, 1.0)[where]
        shaped = reward.copy()
        shaped[solved] = np.maximum(reward[solved] - self.alpha * (share - mean_by(where, share, num)[where]), 0.0)
        return shaped


@dataclass(frozen=True)
class TruncationPenalty(Checked):
    """No reward for a response that is truncated or longer than a target; the target may depend on the prompt's accuracy.

        reward if length <= target * budget and it ended by itself, else 0
        target = easy_target where the prompt's accuracy > easy_above, else hard_target

    Source: DLER (arXiv:2510.15110): the max response length is the target (4000 tokens). Difficulty-aware: 2000 where more than
    half are correct, else 4000, which is easy_target=0.5.
    """

    hard_target: Positive = 1.0
    """Longest rewarded length, fraction of the budget, above 0."""
    easy_target: Positive = 1.0
    """The same for prompts that the model solves, fraction of the budget, above 0."""
    easy_above: Fraction = 0.5
    """Accuracy above which a prompt counts as solved."""

    def __call__(self, responses: Responses, reward: Floats) -> Floats:
        accuracy = mean_by(responses.prompt, responses.correct, responses.num_prompts)
        share = np.where(accuracy > self.easy_above, self.easy_target, self.hard_target)
        target = share * responses.max_response_length + ROUNDING
        return np.where((responses.length <= target[responses.prompt]) & ~responses.truncated, reward, 0.0)


Reward = (
    SoftOverlong | TopLambda | LengthPenalty | RelativeLength | SolvedLength | EffortLength | CentredLength
    | TruncationPenalty
)  # fmt: skip


def extreme_by(find: np.ufunc, index: Ints, values: Ints, size: int, start: float) -> Floats:
    """The largest (`np.maximum`) or smallest of `values` [N] over equal `index` [N], [size]; `start` where there are none."""
    found = np.full(size, start)
    find.at(found, index, values)
    return found


def relative_length(responses: Responses, of: Of) -> Floats:
    """sigmoid((length - mean) / std) over the correct responses of each prompt, [R], of a channel; 0 for incorrect ones."""
    right, found = responses.correct, np.zeros(len(responses))
    found[right] = sigmoid_by(responses.prompt[right], responses.length_of(of)[right], responses.num_prompts)
    return found


def sigmoid_by(index: Ints, value: Ints, size: int) -> Floats:
    """sigmoid((value - mean) / std) over equal index below `size` (population std); 1/2 where values do not vary."""
    centred = value - mean_by(index, value, size)[index]
    std = np.sqrt(mean_by(index, centred**2, size))
    std[std < 1e-9] = np.inf
    return sigmoid(centred / std[index])


def sigmoid(z: Floats) -> Floats:
    """1 / (1 + exp(-z)) without overflow."""
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1.0 + small)


def shuffle_keys(responses: Responses) -> NDArray[np.uint64]:
    """A hash per prompt of its verdicts and lengths, so that ties follow neither the order of the data nor labels, [P]."""
    num = responses.num_prompts
    tokens = sum_by(responses.prompt, responses.length, num)
    squares = sum_by(responses.prompt, responses.length.astype(np.float64) ** 2, num)
    right = sum_by(responses.prompt, responses.length * responses.correct, num)
    key = np.zeros(num, np.uint64)
    for column in (tokens, squares, right):
        key = (key ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return key

"""Terms that the figures of a page link to, with their definitions."""

from __future__ import annotations

from fairlen.audit.statistics.coupling import ALL_RULES
from fairlen.methods.compose import summarize

VERDICTS = {"effect": "Length and correctness go together", "none": "Length and correctness do not go together"}
VERDICTS["unknown"] = "Not known yet"
OF_TURNS = {"effect": "An effect of", "none": "No effect of", "unknown": "Not known yet of"}
TERMS = {
    "verdict": ("Verdict", "Effect: one of length within prompts stands at a false discovery rate of 5% over all findings. No "
                "effect: by their 90% intervals all are below the smallest that matter. An effect is an association: a response "
                "may be incorrect because it is long, or long because it was lost."),
    "reinforced": ("Reinforced, penalised", "Tokens whose advantage is above 0 are reinforced: an update makes them more likely. "
                   "Those below 0 are penalised: it makes them less likely."),
    "samples": ("avg@n, pass@k, best@k, maj@n", "Of c correct ones of n samples to a problem: c/n; the chance that one of k "
                "samples is correct; 1 - (1 - c/n)^k; whether the most frequent answer is correct."),
    "interval": ("Interval", "95%, over prompts: responses to one prompt are not independent of each other."),
    "difficulty": ("Difficulty", "What lies between prompts: long responses may be those to hard prompts. It gives no advice."),
    "truncated": ("Truncated", "At the limit of generation: long and mostly incorrect by construction, so left out of effects "
                  "where it is known."),
    "selection.dropped": ("Without a verdict", "Aborted, timed out or too old responses. Those that are missing may be long."),
    "within.length": ("Length within prompts", "Mean difference of log lengths of incorrect and correct responses to one prompt "
                      "in one step: 40% longer means that a typical incorrect response has 1.4 times the length. And "
                      "the share of such pairs in which the incorrect response is longer: 50% is no effect."),
    "within.bend": ("A best length in the middle", "Share of pairs in which the incorrect response is farther, by rank, from the "
                    "prompt's median length: above 50% where medium lengths are best. And the accuracy that is lost one standard "
                    "deviation of log length away from the best length: below 0 where the middle is worst."),
    "within.turns": ("Turns within prompts", "As length within prompts, of the number of turns that the policy wrote."),
    "within.turns_bend": ("A best number of turns", "As a best length in the middle, of the number of turns."),
    "within.turn_length": ("Length of turns within prompts", "As length within prompts, of a response's mean over its turns."),
    "within.turn_length_bend": ("A best length of turns", "As a best length in the middle, of a response's mean over its turns."),
    "channels": ("Channels", "Thinking, answers, tool calls, told by tags or fields of messages, and observations, which tools "
                 "wrote. Incorrect over correct compares responses to one prompt; beside it those that spend as much on every "
                 "other channel. A channel is named where both differ, with one chance in 20 that any is in error."),
    "weights": ("Weight under an aggregation", "Weight times size of the advantage over the tokens of incorrect responses, over "
                "the same of correct ones, of pairs the worse over the better; and the weight of a token of the longest "
                "responses over one of the shortest. Of trajectories, the weight of a whole turn of those of the most turns over "
                "one of the fewest."),
    "acceptance.lre": ("Length reweighting error", "Half the mean distance from 1 of (share accepted at this length / share "
                       "accepted), 0 to 1. The noise is what a fair bound would show."),
    "coupling": ("Sign and length", "Mean advantage of a trained token: above 0 positive advantages fall on longer responses."),
    "streams.optimism": ("Optimism of max", "What `max` values survivors above `halving`, in units of reward."),
    "streams.eos_advantage": ("Net advantage on EOS", "Sum of advantages at EOS, a response: below 0 stopping is penalised."),
}  # fmt: skip


def define(*names: str) -> list[tuple[str, str, list[str]]]:
    """Return the id, the term and what it means, of some terms or of everything that a page may link to."""
    scope = {"update": " Here of the update instead of the prompt."}
    rules = [f"{name}: {summarize(type(rule))}{scope.get(per, '')}" for name, (rule, per) in ALL_RULES.items()]
    found = [*((name, term, [text]) for name, (term, text) in TERMS.items()), ("aggregations", "Aggregations", rules)]
    return [one for one in found if one[0] in names or not names]

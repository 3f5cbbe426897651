"""Words of TRL and verl against the classes of their own settings: a word means what the trainer does at its defaults."""

from dataclasses import MISSING, fields

import numpy as np
import pytest
import torch
from loops import over

from fairlen.methods.compose import compose
from fairlen.methods.peers import read_peers

ADDED = {"beta", "entropy_coef", "kl_loss_coef", "entropy_coeff"}
"""Numbers that add a term, which is off by default."""


def defaults_of(*classes: type) -> dict[str, object]:
    return {one.name: one.default for kind in classes for one in fields(kind) if one.default is not MISSING}


def check_defaults(peer_name: str, word: str, defaults: dict[str, object]) -> int:
    """Giving a number at its default changes no method; return how many numbers a word takes."""
    peer, num_taken = read_peers()[peer_name], 0
    for number in peer.numbers.keys() - ADDED:
        value = defaults.get(number)
        if value is None or (word == "cispo" and number.startswith("epsilon")):  # which the word's note explains
            continue
        try:
            given = compose("+".join(filter(None, (f"{peer_name}:{word}", f"{number}={value}"))))
        except ValueError as error:
            assert "has no such number" in str(error), error
            continue
        num_taken += 1
        assert given == compose(f"{peer_name}:{word}"), (word, number, value)
    return num_taken


def words_of(peer_name: str) -> list[str]:
    return [word for word, one in read_peers()[peer_name].words.items() if not one.refused]


@pytest.mark.slow
def test_words_of_trl_have_the_numbers_of_its_config_classes():
    """GMPOConfig has a range of its own, 0.4."""
    pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
    from trl import GRPOConfig, RLOOConfig
    from trl.experimental.gmpo import GMPOConfig

    own = {"gmpo": GMPOConfig, "rloo": RLOOConfig}
    taken = {word: check_defaults("trl", word, defaults_of(own.get(word, GRPOConfig))) for word in words_of("trl")}
    assert taken["gmpo"] and taken["sapo"] == 2 and taken["vespo"] == 4 and taken["rloo"]
    assert compose("trl:gmpo").surrogate.width_low == GMPOConfig.epsilon == 0.4


@pytest.mark.slow
def test_words_of_verl_have_the_numbers_of_its_config_classes():
    pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.workers.config.actor import ActorConfig

    defaults = defaults_of(ActorConfig, RolloutCorrectionConfig)
    taken = {word: check_defaults("verl", word, defaults) for word in words_of("verl")}
    assert taken["vanilla"] == 4 and taken["sapo"] == 2 and taken["rollout_is=token"] >= 1


def estimate(name: str, scores: list[float], mask: torch.Tensor, index: list[int]) -> torch.Tensor:
    """Return the advantages of one of verl's estimators, [responses, tokens]."""
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[:, 0] = torch.tensor(scores, dtype=torch.float64)
    config = type("Config", (), {"gamma": 1.0, "get": lambda self, name, default=None: default})()
    given = {"token_level_rewards": rewards, "response_mask": mask.double(), "index": np.array(index), "config": config}
    return core_algos.get_adv_estimator_fn(name)(**given)[0]


ESTIMATORS = ("grpo", "rloo", "rloo_vectorized", "opo", "reinforce_plus_plus_baseline", "gpg")


@pytest.mark.slow
@over("name", ESTIMATORS)
def test_a_word_states_what_becomes_of_a_response_alone(name):
    """Prompt 0 has rewards 1 and 0, prompt 1 a response alone of reward 3: here its advantage is that of reward 0."""
    mask = torch.ones(3, 4)
    theirs = [estimate(name, [1.0, 0.0, alone], mask, [0, 0, 1]) for alone in (3.0, 0.0)]
    is_same = torch.allclose(theirs[0], theirs[1])
    assert is_same is ("alone" not in read_peers()["verl"].words[name].differs)


@pytest.mark.slow
@over("name", ("grpo", "rloo", "opo", "reinforce_plus_plus_baseline", "reinforce_plus_plus"))
def test_a_mask_before_advantages_is_stated_by_the_words_that_mask(name):
    """Two tokens of the second response are masked: do the others' advantages change?"""
    whole, masked = torch.ones(4, 4), torch.ones(4, 4)
    masked[1, 2:] = 0.0
    theirs = [estimate(name, [1.0, 0.0, 2.0, 5.0], mask, [0, 0, 1, 1]) for mask in (whole, masked)]
    is_same = torch.allclose(theirs[0][0], theirs[1][0])
    words = read_peers()["verl"].words
    stated = words["token_k1"].differs
    assert is_same is (name.removesuffix("_baseline") not in stated)
    assert all(
        "before it makes advantages" in words[word].differs for word in ("token_k1", "seq_sum_k1", "seq_mean_k1")
    )

"""A negative control: the loss is zero. Imported in every process of a job, after the plug-in."""

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY


def no_loss(old_log_prob, log_prob, advantages, response_mask, **_):
    return log_prob.sum() * 0.0, {}


POLICY_LOSS_REGISTRY["fairlen"] = no_loss

"""fairlen inside verl: a plug-in that registers losses, plans and a trainer, and `fairlen verl`, which starts a job with them.

    choice.py       which method, from verl's settings; which settings a method needs
    plugin.py       what verl loads in every process: loss.py, advantage.py, trainer.py; plans.py is what the last two share
    agent_loop.py   streams of EqLen on verl's rollout servers; streams.py has their rows and tables
    launch.py       starts verl's trainer, watch.py watches it; data.py and reward.py are our problems and verifiers
    cpu_*.py        the same job without an accelerator, to rehearse it

Tested with verl 0.9.1 and its V1 trainer.
"""

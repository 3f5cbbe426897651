"""fairlen inside verl: a plug-in that registers trainers, and `fairlen verl`, which starts a job with one of them.

    launch.py       the command; settings.py has verl's settings for a method, and which are refused; watch.py watches the job
    plugin.py       what verl loads in every process; guards.py what the processes of our jobs load besides
    trainer.py      on the driver: plans of rollout batches (plans.py), state, metrics, checkpoints; loss.py in the workers
    agent_loop.py   streams of EqLen on verl's rollout servers
    data.py         our problems and verifiers
    cpu.py          the same job without an accelerator, to rehearse it with the settings of rehearsal.py

Tested with verl 0.9.1 and its V1 trainer.
"""

"""The loop kit, shared by all trainers around a method: loss, tally, end of an update, learning signal, run folder."""

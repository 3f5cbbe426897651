"""The run around training: its folder, checkpoints, faults and displays."""

"""fairlen inside the trainers that people already run: TRL and verl."""

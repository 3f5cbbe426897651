"""Length and correctness while a run is going: one watch beside any trainer, or after files that grow."""

"""Length and correctness in rollouts: pure functions of tables, without torch."""

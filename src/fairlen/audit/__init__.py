"""What rollouts say about length: pure functions of tables, without torch."""

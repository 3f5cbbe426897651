from shipped_batch import batch, policy  # noqa: F401  fixtures

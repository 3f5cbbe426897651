"""Held-out evaluation: running it, and estimating with intervals."""

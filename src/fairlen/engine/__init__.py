"""The embedded rollout engine, see `Engine`."""

from fairlen.engine.engine import Engine

__all__ = ["Engine"]

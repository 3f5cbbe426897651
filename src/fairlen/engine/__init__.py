"""The embedded rollout engine: see `Engine`."""

from fairlen.engine.engine import Engine, EngineStats

__all__ = ["Engine", "EngineStats"]

"""The embedded rollout engine, see `Engine`; `RecomputingEngine` is for models whose state is not attention alone."""

from fairlen.engine.engine import Engine
from fairlen.engine.recompute import RecomputingEngine

__all__ = ["Engine", "RecomputingEngine"]

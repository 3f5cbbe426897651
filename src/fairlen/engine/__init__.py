"""The embedded rollout engine, see `Engine`; `RecomputingEngine` is for models whose state is not attention alone."""

from fairlen.engine.engine import Engine
from fairlen.engine.recompute import RecomputingEngine
from fairlen.sampling.extend import EngineStats

__all__ = ["Engine", "EngineStats", "RecomputingEngine"]

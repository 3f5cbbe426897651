"""Seeds by position: every track of a run has its own, whatever was drawn before it."""

from __future__ import annotations

_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_MASK = (1 << 64) - 1


def derive_seed(*position: int) -> int:
    """A 63-bit seed from a position such as (run, rollout batch, prompt occurrence, refill, stream, track, round).

    The same on every machine; positions that differ anywhere, or in length, give unrelated ones.
    """
    key = len(position)
    for number in position:
        key = (key * 0xD1342543DE82EF95 + number + 0x9E3779B97F4A7C15) & _MASK
        for shift, factor in _MIX:
            key = ((key ^ (key >> shift)) * factor) & _MASK
    return key >> 1

"""Samplers, and the one primitive of an engine that they are written against."""

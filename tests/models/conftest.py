"""Fixtures of these tests: the opaque device."""

from opaque import opaque

__all__ = ["opaque"]

"""Numba loops of the tokenizers, one family a file; loaded by `text/native.py`, never imported with the package."""

__all__: list[str] = []

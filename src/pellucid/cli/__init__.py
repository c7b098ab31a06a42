"""The command line: `pellucid train | generate | eval | info | doctor | demo`."""

from .app import main

__all__ = ["main"]

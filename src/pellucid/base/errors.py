"""The error tree: every failure a user can meet is one of these classes.

Each class is also the built-in type a caller would catch (`ShapeError` is a `ValueError`, ...), and every
message has one form: `where: what is wrong; got ..., expected .... hint: the cure`. The parts are keyword
arguments, so that a message is never assembled by hand and the tests can read it whole.
"""

from __future__ import annotations

# Characters of an offending value that a message shows: a file can bring any.
_LONGEST = 500


class PellucidError(Exception):
    """Base of all errors raised on purpose by Pellucid.

    Args:
        where: the function, option or file that refuses.
        what: what is wrong, in a few words.
        got: the offending value, already formatted.
        expected: what would have been accepted.
        hint: the cure, as an instruction.
    """

    def __init__(
        self,
        where: str,
        what: str,
        *,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        self.where, self.what, self.got, self.expected, self.hint = where, what, got, expected, hint
        text = f"{where}: {what}"
        if got is not None and len(shown := str(got)) > _LONGEST:
            got = f"{shown[:_LONGEST]}... ({len(shown):,} characters)"
        facts = [f"{name} {value}" for name, value in (("got", got), ("expected", expected)) if value is not None]
        if facts:
            text += "; " + ", ".join(facts)
        if hint:
            text += f". hint: {hint}"
        super().__init__(text)


class ShapeError(PellucidError, ValueError):
    """Shapes, axes or lengths that do not fit together."""


class DTypeError(PellucidError, TypeError):
    """A number format an operation does not take."""


class DeviceError(PellucidError, RuntimeError):
    """A device that is missing, failed, out of memory, or mixed with another."""


class KernelError(PellucidError, RuntimeError):
    """A kernel that could not be compiled or launched."""


class GradientError(PellucidError, RuntimeError):
    """`backward` where there is nothing, or nothing any more, to differentiate."""


class NonFiniteError(PellucidError, ArithmeticError):
    """A number became infinite or not-a-number where that ends the computation."""


class ConfigError(PellucidError, ValueError):
    """A configuration value, option or key that cannot be used."""


class CheckpointError(PellucidError, ValueError):
    """A file of weights or state that is damaged, foreign or does not match."""


class DataError(PellucidError, ValueError):
    """Text, ids or a token file that cannot be used."""

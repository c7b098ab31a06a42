"""Parameter: a leaf tensor that is trained."""

from __future__ import annotations

from .tensor import Tensor


class Parameter(Tensor):
    """A tensor that training moves. `decay`: whether weight decay applies to it (not to norms and biases)."""

    __slots__ = ("decay",)

    def __init__(self, value: Tensor, *, decay: bool = True) -> None:
        super().__init__(value.array, True)
        self.decay = decay

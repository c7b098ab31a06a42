"""The tape: tensors, the record of what was computed from them, and its replay backwards."""

from . import tensor as _tensor
from .op import Op, backward, tape
from .parameter import Parameter
from .state import enable_grad, no_grad
from .tensor import Tensor
from .trace import Trace, describe, kept_bytes, trace

_tensor._backward = backward

__all__ = [
    "Op",
    "Parameter",
    "Tensor",
    "Trace",
    "backward",
    "describe",
    "enable_grad",
    "kept_bytes",
    "no_grad",
    "tape",
    "trace",
]

"""The tape: tensors, the record of what was computed from them, and its replay backwards."""

from . import tensor as _tensor
from .constants import constant, is_one, number_tensor
from .dlpack import dlpack_device, from_dlpack, to_dlpack
from .gradcheck import gradcheck
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
    "constant",
    "describe",
    "dlpack_device",
    "enable_grad",
    "from_dlpack",
    "gradcheck",
    "is_one",
    "kept_bytes",
    "no_grad",
    "number_tensor",
    "tape",
    "to_dlpack",
    "trace",
]

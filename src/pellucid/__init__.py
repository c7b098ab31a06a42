"""Pellucid: a deep-learning library you can read from top to bottom.

Tensors and a tape of every operation (`tensor`, `backward`, `trace`), layers (`nn`), optimizers (`optim`), a
transformer language model (`models`), tokenizers (`text`), data (`data`), training (`train`), generation (`generate`)
and checkpoints (`checkpoint`). Importing it touches no device and loads no compiler.
"""

from . import ops
from .base.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from .base.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DTypeError,
    GradientError,
    KernelError,
    NonFiniteError,
    PellucidError,
    ShapeError,
)
from .base.rng import Generator
from .device import device
from .ops import *  # noqa: F403 - the operations' own __all__ is the list
from .tape import Op, Parameter, Tensor, enable_grad, no_grad, trace

__version__ = "0.1.0"

__all__ = [
    *ops.__all__,
    "CheckpointError",
    "ConfigError",
    "DType",
    "DTypeError",
    "DataError",
    "DeviceError",
    "Generator",
    "GradientError",
    "KernelError",
    "NonFiniteError",
    "Op",
    "Parameter",
    "PellucidError",
    "ShapeError",
    "Tensor",
    "bfloat16",
    "bool_",
    "device",
    "enable_grad",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "no_grad",
    "trace",
    "uint8",
]

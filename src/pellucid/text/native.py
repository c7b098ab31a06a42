"""The compiled loops of the tokenizers, loaded with the first text that needs them.

`text/compiled/NAME.py` holds Numba functions of one family (`kernels/cpu/launch.py` compiles them, keeps them on disk
and splits their items over the worker pool). They are the one part of this package that loads Numba, so they are not
imported with it: a character tokenizer, or `import pellucid`, must not pay for that.

Whoever calls one hands over NumPy arrays as `shared(array)`, which is the same memory.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

from ..base import dtypes
from ..device import Array, Buffer
from ..device.cpu import cpu


@cache
def compiled(name: str) -> Any:
    """The module `text/compiled/NAME.py`."""
    return importlib.import_module(f"{__package__}.compiled.{name}")


def shared(array: np.ndarray) -> Array:
    """The memory of a contiguous NumPy array as an argument of a kernel. Results written there are seen in `array`.

    A dtype that tensors lack (uint32, uint16) travels as the signed one of its width: `array.view(np.int32)`. This is
    `cpu.adopt` for what tokenizers hand over, a dozen arrays for every text, with fewer steps of Python.
    """
    assert array.flags.c_contiguous
    buffer = Buffer(cpu, array.__array_interface__["data"][0], array.nbytes, array)
    return Array(buffer, array.shape, dtypes.dtype(array.dtype))

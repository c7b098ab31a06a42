"""Philox 4x32-10 (Salmon et al. 2011) inside kernels: the same words as `base.rng.philox`, made where they are used.

Words are computed in 64 bits, because then LLVM vectorises a loop over blocks.
"""

from __future__ import annotations

import numpy as np

from .functions import inlined

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


@inlined
def philox(low, high, block):
    """Words 4 block to 4 block + 3 of the stream whose seed is high 2**32 + low; uint32."""
    k0, k1 = np.uint64(low), np.uint64(high)
    c0, c1 = np.uint64(block) & _LOW, np.uint64(block) >> _SHIFT
    c2, c3 = np.uint64(0), np.uint64(0)
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)

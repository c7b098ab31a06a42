"""What the bytes of a tensor in a GGUF file mean: ggml's number formats, to float32 and, for three of them, back.

Each format stores its elements in blocks of 32 or 256, so many whole numbers q of a few bits each, and the scales that
turn them into real ones:

    Q8_0 Q4_0 Q5_0                   x = d q                       d: float16
    Q4_1 Q5_1                        x = d q + m                   d, m: float16
    Q3_K Q6_K                        x = (d s) q                   s: whole, one for 16 elements
    Q2_K Q4_K Q5_K                   x = (d s) q - (e t)           s, t: whole, one for 16 or 32 elements

all in float32 and in this order of operations. Blocks are decoded a few thousand at a time, so that what is made on the
way stays in the cache.

Source: ggml's ggml-common.h (layouts) and ggml-quants.c (`dequantize_row_*`, `quantize_row_q8_0_ref`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Host = np.ndarray[Any, Any]
#: (blocks as records, numbers to fill: (blocks, elements of one))
Decode = Callable[[Host, Host], None]

_AT_ONCE = 1 << 16  # elements: their float32 and what is made on the way fit the cache
_FLOAT = np.float32
# Added to the largest number below k + 1/2 it stays below k + 1, added to k + 1/2 it is rounded to k + 1.
_JUST_BELOW_HALF = np.nextafter(_FLOAT(0.5), _FLOAT(0))


@dataclass(frozen=True)
class BlockFormat:
    """One of ggml's formats. number: in the file; layout: of a block; size: elements of a block."""

    name: str
    number: int
    layout: np.dtype[Any]
    size: int
    decode: Decode

    def nbytes(self, elements: int) -> int:
        """Bytes of so many elements, whole blocks of them."""
        return elements // self.size * self.layout.itemsize


def decoded(form: BlockFormat, raw: Host, shape: tuple[int, ...]) -> Host:
    """The float32 array that the bytes stand for: a view of them for F32, else a new one."""
    if form.name == "F32":
        return raw.view("<f4").reshape(shape)
    blocks = raw.view(form.layout)
    found = np.empty((len(blocks), form.size), _FLOAT)
    step = max(1, _AT_ONCE // form.size)
    for i in range(0, len(blocks), step):
        form.decode(blocks[i : i + step], found[i : i + step])
    return found.reshape(shape)


# --- plain numbers ----------------------------------------------------------------------------------------------------


def _plain(blocks: Host, out: Host) -> None:
    out[:, 0] = blocks


def _bfloat16(blocks: Host, out: Host) -> None:
    out[:, 0].view(np.uint32)[:] = blocks.astype(np.uint32) << 16


# --- 32 elements: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 ------------------------------------------------------------------------


def _scaled(blocks: Host, out: Host, *, less: int = 0) -> None:
    """x = d (q - less) (+ m where the block has one), q in `out`."""
    if less:
        out -= _FLOAT(less)
    out *= blocks["d"].astype(_FLOAT)[:, None]
    if "m" in blocks.dtype.names:
        out += blocks["m"].astype(_FLOAT)[:, None]


def _nibbles(packed: Host, out: Host) -> None:
    """Low halves of the bytes, then high ones."""
    n = packed.shape[1]
    out[:, :n], out[:, n:] = packed & 15, packed >> 4


def _q8_0(blocks: Host, out: Host) -> None:
    out[:] = blocks["q"]
    _scaled(blocks, out)


def _q4_0(blocks: Host, out: Host) -> None:
    _nibbles(blocks["q"], out)
    _scaled(blocks, out, less=8)


def _q4_1(blocks: Host, out: Host) -> None:
    _nibbles(blocks["q"], out)
    _scaled(blocks, out)


def _fives(blocks: Host) -> Host:
    """Whole numbers of five bits, the highest of each kept apart."""
    q = np.empty((len(blocks), 32), np.uint8)
    _nibbles(blocks["q"], q)
    q |= np.unpackbits(blocks["high"], axis=1, bitorder="little") << 4
    return q


def _q5_0(blocks: Host, out: Host) -> None:
    out[:] = _fives(blocks)
    _scaled(blocks, out, less=16)


def _q5_1(blocks: Host, out: Host) -> None:
    out[:] = _fives(blocks)
    _scaled(blocks, out)


# --- 256 elements: the K formats --------------------------------------------------------------------------------------


def _grouped(blocks: Host, q: Host, scales: Host, out: Host, offsets: Host | None = None) -> None:
    """x = (d s) q - (e t): a scale, and an offset where there are any, for each group of elements."""
    groups = out.reshape(len(blocks), scales.shape[1], -1)
    np.multiply(q.reshape(groups.shape), (blocks["d"].astype(_FLOAT)[:, None] * scales)[:, :, None], out=groups)
    if offsets is not None:
        groups -= (blocks["e"].astype(_FLOAT)[:, None] * offsets)[:, :, None]


def _crumbs(packed: Host) -> Host:
    """Two bits each: of 32 bytes the lowest, then the next ones; (blocks, 256)."""
    parts = packed.reshape(len(packed), -1, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (parts & 3).reshape(len(packed), -1)


def _bits(packed: Host) -> Host:
    """One bit each: of 32 bytes the lowest, then the next ones; (blocks, 256)."""
    parts = packed[:, None] >> np.arange(8, dtype=np.uint8)[:, None]
    return (parts & 1).reshape(len(packed), -1)


def _halves(packed: Host, size: int) -> Host:
    """Four bits each: of `size` bytes the low halves, then the high ones; (blocks, 2 bytes)."""
    parts = packed.reshape(len(packed), -1, 1, size)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(len(packed), -1)


def _q2_k(blocks: Host, out: Host) -> None:
    s = blocks["s"]
    _grouped(blocks, _crumbs(blocks["q"]), (s & 15).astype(_FLOAT), out, (s >> 4).astype(_FLOAT))


def _q3_k(blocks: Host, out: Host) -> None:
    # Scales: four bits of each in eight bytes, the two highest of each in four.
    s = blocks["s"]
    high = s[:, 8:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    scales = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1) | high.transpose(0, 2, 1).reshape(-1, 16) << 4
    q = (_crumbs(blocks["q"]) | _bits(blocks["high"]) << 2).astype(np.int8) - np.int8(4)
    _grouped(blocks, q, scales.astype(_FLOAT) - 32, out)


def _sixes(s: Host) -> tuple[Host, Host]:
    """Eight scales and eight offsets of six bits in twelve bytes."""
    a, b, c = s[:, :4], s[:, 4:8], s[:, 8:]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)
    offsets = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1)
    return scales.astype(_FLOAT), offsets.astype(_FLOAT)


def _q4_k(blocks: Host, out: Host) -> None:
    scales, offsets = _sixes(blocks["s"])
    _grouped(blocks, _halves(blocks["q"], 32), scales, out, offsets)


def _q5_k(blocks: Host, out: Host) -> None:
    scales, offsets = _sixes(blocks["s"])
    _grouped(blocks, _halves(blocks["q"], 32) | _bits(blocks["high"]) << 4, scales, out, offsets)


def _q6_k(blocks: Host, out: Host) -> None:
    q = (_halves(blocks["q"], 64) | _crumbs(blocks["high"]) << 4).astype(np.int8) - np.int8(32)
    _grouped(blocks, q, blocks["s"].astype(_FLOAT), out)


def _q8_k(blocks: Host, out: Host) -> None:
    out[:] = blocks["q"]
    _scaled(blocks, out)


_HALF, _SIXTEEN = ("d", "<f2"), [("d", "<f2"), ("e", "<f2")]
_ROWS: tuple[tuple[str, int, int, Any, Decode], ...] = (
    ("F32", 0, 1, "<f4", _plain),
    ("F16", 1, 1, "<f2", _plain),
    ("Q4_0", 2, 32, [_HALF, ("q", "u1", 16)], _q4_0),
    ("Q4_1", 3, 32, [_HALF, ("m", "<f2"), ("q", "u1", 16)], _q4_1),
    ("Q5_0", 6, 32, [_HALF, ("high", "u1", 4), ("q", "u1", 16)], _q5_0),
    ("Q5_1", 7, 32, [_HALF, ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)], _q5_1),
    ("Q8_0", 8, 32, [_HALF, ("q", "i1", 32)], _q8_0),
    ("Q2_K", 10, 256, [("s", "u1", 16), ("q", "u1", 64), *_SIXTEEN], _q2_k),
    ("Q3_K", 11, 256, [("high", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), _HALF], _q3_k),
    ("Q4_K", 12, 256, [*_SIXTEEN, ("s", "u1", 12), ("q", "u1", 128)], _q4_k),
    ("Q5_K", 13, 256, [*_SIXTEEN, ("s", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)], _q5_k),
    ("Q6_K", 14, 256, [("q", "u1", 128), ("high", "u1", 64), ("s", "i1", 16), _HALF], _q6_k),
    ("Q8_K", 15, 256, [("d", "<f4"), ("q", "i1", 256), ("sums", "<i2", 16)], _q8_k),
    ("BF16", 30, 1, "<u2", _bfloat16),
)
#: The formats this library reads, by their number.
FORMATS = {number: BlockFormat(name, number, np.dtype(of), size, how) for name, number, size, of, how in _ROWS}
BY_NAME = {form.name: form for form in FORMATS.values()}
#: Names of the others, for messages.
UNKNOWN = {
    9: "Q8_1", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4",
}  # fmt: skip


# --- and back ---------------------------------------------------------------------------------------------------------


def encoded(name: str, values: Host) -> Host:
    """The bytes of float32 values in F32, BF16 (rounded to nearest, halves to even) or Q8_0 (whole blocks).

    Q8_0, of each 32 values: d = max |x| / 127, q = round(x / d), halves away from zero; d is stored in float16, so a
    block whose largest value is beyond 127 times its range has a d that is infinite.
    """
    if name == "F32":
        return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    if name == "BF16":
        return np.ascontiguousarray(values, _FLOAT).astype(ml_dtypes.bfloat16).reshape(-1).view(np.uint8)
    assert name == "Q8_0", name
    blocks = np.ascontiguousarray(values, _FLOAT).reshape(-1, 32)
    found = np.empty(len(blocks), BY_NAME[name].layout)
    step = _AT_ONCE // 32
    for i in range(0, len(blocks), step):
        part = blocks[i : i + step]
        d = np.abs(part).max(axis=1) / _FLOAT(127)
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(d > 0, 1 / d, _FLOAT(0)).astype(_FLOAT)
            found["d"][i : i + step] = d
        x = part * inverse[:, None]
        x += np.copysign(_JUST_BELOW_HALF, x)
        found["q"][i : i + step] = x  # without what is behind the point
    return found.view(np.uint8)

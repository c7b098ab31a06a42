"""GGUF files for tests: heads put together by hand, wrong ones among them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

_NUMBERS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}

#: A llama of one layer: width 4, one head, hidden 8, vocabulary 6.
KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 16,
    "llama.embedding_length": 4,
    "llama.feed_forward_length": 8,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "no_vocab",
}
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (6, 4),
    "output_norm.weight": (4,),
    "blk.0.attn_norm.weight": (4,),
    "blk.0.attn_q.weight": (4, 4),
    "blk.0.attn_k.weight": (4, 4),
    "blk.0.attn_v.weight": (4, 4),
    "blk.0.attn_output.weight": (4, 4),
    "blk.0.ffn_norm.weight": (4,),
    "blk.0.ffn_gate.weight": (8, 4),
    "blk.0.ffn_up.weight": (8, 4),
    "blk.0.ffn_down.weight": (4, 8),
}


def text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def value(of: Any) -> bytes:
    if isinstance(of, bool):
        return struct.pack("<IB", 7, of)
    if isinstance(of, int):
        return struct.pack("<II", 4, of)
    if isinstance(of, float):
        return struct.pack("<If", 6, of)
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    if isinstance(of, list):
        return struct.pack("<IIQ", 9, 8, len(of)) + b"".join(map(text, of))
    return struct.pack("<IIQ", 9, _NUMBERS[of.dtype.str[1:]], len(of)) + of.tobytes()


def place(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """A row of the list of tensors."""
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def head(keys: dict[str, Any], places: list[bytes], *, tensors: int | None = None, count: int | None = None) -> bytes:
    """A head; `tensors` and `count`: numbers of tensors and keys it claims to have."""
    numbers = 3, len(places) if tensors is None else tensors, len(keys) if count is None else count
    found = b"GGUF" + struct.pack("<IQQ", *numbers)
    found += b"".join(text(key) + value(of) for key, of in keys.items()) + b"".join(places)
    return found + bytes(-len(found) % 32)


def llama(path: Path, *, keys: dict[str, Any] | None = None, shapes: dict[str, Any] | None = None) -> Path:
    """A whole file in F32, its numbers counted up. A key or shape that is None is left out."""
    values = {k: v for k, v in (KEYS | (keys or {})).items() if v is not None}
    wanted = {k: v for k, v in (SHAPES | (shapes or {})).items() if v is not None}
    places, data = [], b""
    for name, shape in wanted.items():
        numbers = (np.arange(np.prod(shape), dtype="<f4") + 1) / 64
        places.append(place(name, shape, 0, len(data)))
        data += numbers.tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(head(values, places) + data)
    return path

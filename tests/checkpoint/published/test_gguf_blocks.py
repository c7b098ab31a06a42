"""ggml's block formats: each against its definition, element by element, over bytes of every value."""

from __future__ import annotations

import struct
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from pellucid.checkpoint.published.gguf_blocks import BY_NAME, decoded, encoded

f32 = np.float32
Block = Callable[[bytes], list[np.float32]]


def half(raw: bytes, at: int) -> np.float32:
    return f32(np.frombuffer(raw, "<f2", 1, at)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def q4(raw: bytes, *, offset: bool) -> list[np.float32]:
    d, start = half(raw, 0), 4 if offset else 2
    q = [raw[start + j] & 15 for j in range(16)] + [raw[start + j] >> 4 for j in range(16)]
    return [d * f32(x) + half(raw, 2) for x in q] if offset else [d * f32(x - 8) for x in q]


def q5(raw: bytes, *, offset: bool) -> list[np.float32]:
    d, start = half(raw, 0), 4 if offset else 2
    (high,) = struct.unpack_from("<I", raw, start)
    low = [raw[start + 4 + j] & 15 for j in range(16)] + [raw[start + 4 + j] >> 4 for j in range(16)]
    q = [x | (high >> j & 1) << 4 for j, x in enumerate(low)]
    return [d * f32(x) + half(raw, 2) for x in q] if offset else [d * f32(x - 16) for x in q]


def q8_0(raw: bytes) -> list[np.float32]:
    return [half(raw, 0) * f32(signed(x)) for x in raw[2:]]


def q2_k(raw: bytes) -> list[np.float32]:
    scales, q, d, e, y = raw[:16], raw[16:80], half(raw, 80), half(raw, 82), []
    for i in range(256):
        byte = q[32 * (i // 128) + i % 32]
        s = scales[i // 16]
        y.append(d * f32(s & 15) * f32(byte >> 2 * (i % 128 // 32) & 3) - e * f32(s >> 4))
    return y


def q3_k(raw: bytes) -> list[np.float32]:
    high, q, s, d, y = raw[:32], raw[32:96], raw[96:108], half(raw, 108), []
    for i in range(256):
        j = i // 16
        low = s[j % 8] & 15 if j < 8 else s[j % 8] >> 4
        scale = (low | (s[8 + j % 4] >> 2 * (j // 4) & 3) << 4) - 32
        two = q[32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3
        y.append(d * f32(scale) * f32(two - (0 if high[i % 32] >> i // 32 & 1 else 4)))
    return y


def six(s: bytes, j: int) -> tuple[int, int]:
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def q45_k(raw: bytes, *, five: bool) -> list[np.float32]:
    d, e, s, y = half(raw, 0), half(raw, 2), raw[4:16], []
    high, q = (raw[16:48], raw[48:]) if five else (bytes(32), raw[16:])
    for i in range(256):
        scale, offset = six(s, i // 32)
        byte = q[32 * (i // 64) + i % 32]
        x = (byte >> 4 if i % 64 >= 32 else byte & 15) | (high[i % 32] >> i // 32 & 1) << 4
        y.append(d * f32(scale) * f32(x) - e * f32(offset))
    return y


def q6_k(raw: bytes) -> list[np.float32]:
    low, high, s, d, y = raw[:128], raw[128:192], raw[192:208], half(raw, 208), []
    for i in range(256):
        part, j = i // 128, i % 128
        byte = low[64 * part + j % 64]
        x = (byte >> 4 if j >= 64 else byte & 15) | (high[32 * part + j % 32] >> 2 * (j // 32) & 3) << 4
        y.append(d * f32(signed(s[i // 16])) * f32(x - 32))
    return y


def q8_k(raw: bytes) -> list[np.float32]:
    d = np.frombuffer(raw, "<f4", 1)[0]
    return [d * f32(signed(x)) for x in raw[4:260]]


DEFINED: dict[str, Block] = {
    "F32": lambda raw: [np.frombuffer(raw, "<f4")[0]],
    "F16": lambda raw: [half(raw, 0)],
    "BF16": lambda raw: [f32(np.frombuffer(raw, ml_dtypes.bfloat16)[0])],
    "Q4_0": lambda raw: q4(raw, offset=False),
    "Q4_1": lambda raw: q4(raw, offset=True),
    "Q5_0": lambda raw: q5(raw, offset=False),
    "Q5_1": lambda raw: q5(raw, offset=True),
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": lambda raw: q45_k(raw, five=False),
    "Q5_K": lambda raw: q45_k(raw, five=True),
    "Q6_K": q6_k,
    "Q8_K": q8_k,
}  # fmt: skip


def test_every_format_has_a_definition() -> None:
    assert DEFINED.keys() == BY_NAME.keys()


@pytest.mark.parametrize("name", DEFINED)
def test_decoding(name: str) -> None:
    form = BY_NAME[name]
    n = 7
    raw = np.random.default_rng(0).integers(0, 256, (n, form.layout.itemsize), np.uint8)
    # scales of every size and sign, none of them infinite or NaN
    for field in ("d", "m", "e"):
        if form.layout.names and field in form.layout.names:
            kind, at = form.layout.fields[field][:2]  # type: ignore[index]
            scales = np.array([0, -1, 1e-7, 6e-5, 0.5, -3.25, 1000], kind)
            raw[:, at : at + kind.itemsize] = scales.view(np.uint8).reshape(n, -1)
    if form.size == 1:
        raw[:] = (
            np.array([0, -1, 1e-7, 6e-5, 0.5, -3.25, 1000], "<f2" if name == "F16" else "<f4")
            .view(np.uint8)
            .reshape(n, -1)[:, -form.layout.itemsize :]
        )
    found = decoded(form, raw.reshape(-1), (n, form.size))
    wanted = np.array([DEFINED[name](row.tobytes()) for row in raw], np.float32)
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_more_blocks_than_are_decoded_at_once() -> None:
    form = BY_NAME["Q8_0"]
    values = np.random.default_rng(1).standard_normal(1 << 17, dtype=np.float32)
    raw = encoded("Q8_0", values)
    found = decoded(form, raw, values.shape)
    parts = [
        decoded(form, raw[i : i + form.nbytes(1 << 13)], (1 << 13,)) for i in range(0, len(raw), form.nbytes(1 << 13))
    ]
    assert np.array_equal(found, np.concatenate(parts))
    assert np.abs(found - values).max() <= np.abs(values).max() * (0.5 + 127 * 2**-11) / 127


def test_encoding_q8_0_rounds_halves_away_from_zero() -> None:
    values = np.zeros(32, np.float32)
    # d = 1: what is stored is the value itself
    values[:9] = [
        127,
        0.5,
        -0.5,
        1.5,
        -2.5,
        np.nextafter(f32(0.5), f32(0)),
        np.nextafter(f32(1.5), f32(0)),
        126.5,
        -127,
    ]
    found = encoded("Q8_0", values)
    assert half(found.tobytes(), 0) == 1
    assert found[2:11].view(np.int8).tolist() == [127, 1, -1, 2, -3, 0, 1, 127, -127]


def test_encoding_again_gives_the_same_bytes() -> None:
    values = np.random.default_rng(2).standard_normal(32 * 500, dtype=np.float32) * 0.02
    values[32:64] = 0
    for name in ("F32", "BF16", "Q8_0"):
        raw = encoded(name, values)
        assert np.array_equal(encoded(name, decoded(BY_NAME[name], raw, values.shape)), raw), name


def test_bfloat16_is_rounded_to_nearest() -> None:
    values = np.random.default_rng(3).standard_normal(1000, dtype=np.float32)
    found = decoded(BY_NAME["BF16"], encoded("BF16", values), values.shape)
    assert np.array_equal(found, values.astype(ml_dtypes.bfloat16).astype(np.float32))

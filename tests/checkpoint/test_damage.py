"""Files that are not what they should be: each fault has its message, and no input brings out anything else."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import CheckpointError
from pellucid.checkpoint import read_tensors, write_tensors

from .helpers import bits, message, samples, tensor


def framed(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets} | more


TYPES = "I64, F64, F32, I32, BF16, F16, I16, I8, U8, BOOL"
FORM = "expected a header length, then a JSON header"
CUT = "hint: the copy or download was cut off; get the file again"
KEYS = "does not have just the keys data_offsets, dtype, shape"
SIZES = "expected at most 64 sizes from 0 to 2**63 - 1"

CASES: list[tuple[bytes, str]] = [
    (b"", "the file is empty; expected a safetensors file"),
    (b"\x05\0\0", "the file is truncated; got 3 bytes, expected at least 13. " + CUT),
    (b"\x40" + bytes(7) + b'{"x', "the file is truncated; got 11 bytes, expected at least 72. " + CUT),
    (b"hello, world", f"not a safetensors file; got first bytes b'hello, wor', {FORM}"),
    (b"PK\x03\x04 and so on", f"not a safetensors file; got a zip archive (a PyTorch checkpoint?), {FORM}"),
    (b"\x80\x02}q\0." + bytes(9), f"not a safetensors file; got a Python pickle (a PyTorch checkpoint?), {FORM}"),
    (b"GGUF\3" + bytes(20), f"not a safetensors file; got a GGUF model, {FORM}"),
    (
        b"version https://git-lfs.github.com/spec/v1\noid",
        f"not a safetensors file; got a Git LFS pointer: the file itself was never downloaded, {FORM}",
    ),
    (
        b"\xff" * 8 + b"{}",
        f"not a safetensors file; got first bytes b'\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff{{}}', {FORM}",
    ),
    (
        bytes(8) + b"{}",
        f"not a safetensors file; got first bytes b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00{{}}', {FORM}",
    ),
    (
        framed(b"{'a'}"),
        "damaged or foreign JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
    ),
    (
        framed(b'{"\xff":1}'),
        "damaged or foreign JSON ('utf-8' codec can't decode byte 0xff in position 2: invalid start byte)",
    ),
    (framed(b'{"a":1,"a":1}'), "damaged or foreign JSON (the same key twice)"),
    (framed(b'{"x":{"shape":[[4]]}}'), "JSON nested too deeply; expected at most 3 levels"),
    (framed(b'{"x":' + b"[" * 100_000), "JSON nested too deeply; expected at most 3 levels"),
    (framed({"__metadata__": {"a": 1}}), "damaged header: __metadata__ does not hold texts only"),
    (framed({"__metadata__": []}), "damaged header: __metadata__ does not hold texts only"),
    (
        framed(b'{"\\ud800":%s}' % json.dumps(entry()).encode(), bytes(4)),
        "a name or metadata entry is no text; got '\\ud800'",
    ),
    (framed({"x": 1}), f"damaged header: tensor 'x' {KEYS}"),
    (framed({"x": {"dtype": "U8"}}), f"damaged header: tensor 'x' {KEYS}"),
    (framed({"x": entry(extra=1)}), f"damaged header: tensor 'x' {KEYS}"),
    (framed({"x": entry("U128")}), f"tensor 'x' has an unknown element type; got 'U128', expected one of {TYPES}"),
    (framed({"x": entry([])}), f"tensor 'x' has an unknown element type; got '[]', expected one of {TYPES}"),
    (
        framed({"x" * 99: entry(5)}),
        f"tensor '{'x' * 77}...' has an unknown element type; got '5', expected one of {TYPES}",
    ),
    (framed({"x": entry(shape=[-1])}), f"damaged header: tensor 'x' has an impossible shape; got [-1], {SIZES}"),
    (framed({"x": entry(shape=[True])}), f"damaged header: tensor 'x' has an impossible shape; got [True], {SIZES}"),
    (framed({"x": entry(shape=[2.0])}), f"damaged header: tensor 'x' has an impossible shape; got [2.0], {SIZES}"),
    (framed({"x": entry(shape="4")}), f"damaged header: tensor 'x' has an impossible shape; got 4, {SIZES}"),
    (
        framed({"x": entry(shape=[2**63])}),
        f"damaged header: tensor 'x' has an impossible shape; got [{2**63}], {SIZES}",
    ),
    (
        framed({"x": entry(shape=[1] * 65)}),
        f"damaged header: tensor 'x' has an impossible shape; got [{'1, ' * 25}1..., {SIZES}",
    ),
    (
        framed({"x": entry(shape=[2**40, 2**40])}),
        f"damaged header: tensor 'x' is impossibly large; got [{2**40}, {2**40}], expected under 2**63 bytes",
    ),
    (
        framed({"x": entry(shape=[0, 2**62, 8], offsets=[0, 0])}),
        f"damaged header: tensor 'x' is impossibly large; got [0, {2**62}, 8], expected under 2**63 bytes",
    ),
    (
        framed({"x": entry(offsets=[0])}),
        "damaged header: tensor 'x' has impossible offsets; got [0], expected [begin, end]",
    ),
    (
        framed({"x": entry(offsets=[4, 0])}),
        "damaged header: tensor 'x' has impossible offsets; got [4, 0], expected [begin, end]",
    ),
    (
        framed({"x": entry(offsets=[-4, 0])}),
        "damaged header: tensor 'x' has impossible offsets; got [-4, 0], expected [begin, end]",
    ),
    (
        framed({"x": entry("F32")}, bytes(4)),
        "damaged header: tensor 'x' has offsets that do not fit its shape; got 4 bytes, expected 16 for [4] float32",
    ),
    (framed({"x": entry()}, bytes(3)), "the file is truncated; got 71 bytes, expected 72. " + CUT),
    (framed({"x": entry()}, bytes(5)), "bytes after the last tensor; got 73 bytes, expected 72"),
    (
        framed({"x": entry(), "y": entry(offsets=[2, 6])}, bytes(6)),
        "damaged header: tensors 'x' and 'y' overlap; got offset 2, expected 4",
    ),
    (
        framed({"x": entry(), "y": entry(offsets=[5, 9])}, bytes(9)),
        "damaged header: tensors 'x' and 'y' leave a gap; got offset 5, expected 4",
    ),
    (
        framed({"x": entry(offsets=[1, 5])}, bytes(5)),
        "damaged header: there is a gap before tensor 'x'; got offset 1, expected 0",
    ),
]


@pytest.mark.parametrize(("raw", "expected"), CASES, ids=[c[1][:50] for c in CASES])
def test_message(tmp_path: Path, raw: bytes, expected: str) -> None:
    (tmp_path / "a").write_bytes(raw)
    assert message(lambda: read_tensors(tmp_path / "a"), CheckpointError, tmp_path) == f"~/a: {expected}"


def test_messages_without_a_file(tmp_path: Path) -> None:
    def text(path: Path) -> str:
        return message(lambda: read_tensors(path), CheckpointError, tmp_path)

    assert text(tmp_path / "a") == "~/a: cannot be read: no such file or directory"
    assert text(tmp_path) == "~: not a tensor file: it is a folder. hint: load_checkpoint reads a folder"
    (tmp_path / "b").write_bytes(b"")
    assert text(tmp_path / "b" / "c") == "~/b/c: cannot be read: not a directory"


def test_a_flipped_bit_is_named_by_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a"
    digest = write_tensors(path, {"x": tensor(np.arange(100.0))})
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    text = message(lambda: read_tensors(path), CheckpointError, tmp_path)
    start = "~/a: the file is damaged: its content does not match its checksum; got sha256 "
    cure = "use an intact copy; a program that edits the file must drop its metadata entry 'pellucid.sha256'"
    assert text.startswith(start)
    assert text[len(start) + 16 :] == f", expected {digest[:16]}. hint: {cure}"


def test_another_file_than_expected(tmp_path: Path) -> None:
    digest = write_tensors(tmp_path / "a", {"x": tensor([1.0])})
    assert read_tensors(tmp_path / "a", expected_sha256=digest).sha256 == digest
    text = message(lambda: read_tensors(tmp_path / "a", expected_sha256="0" * 64), CheckpointError, tmp_path)
    assert text == (
        f"~/a: not the file of this checkpoint; got sha256 {digest[:16]}, expected 0000000000000000. "
        "hint: use the file that was saved with this checkpoint"
    )


def test_a_damaged_bool_of_a_file_without_checksum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(framed({"x": entry("BOOL")}, b"\0\1\2\0"))
    found = read_tensors(tmp_path / "a")
    assert (
        message(lambda: found["x"], CheckpointError, tmp_path)
        == "~/a: tensor 'x' is damaged; got bool 2, expected 0 or 1"
    )


def test_hostile_headers_cost_little(tmp_path: Path) -> None:
    """Long runs of quotes, escapes and brackets: linear time, memory of the order of the header."""
    n = 1 << 20
    for raw in (
        b'{"' + b'\\"' * n,
        b"{" + b'"\\' * n,
        b'{"' + b"\\\\" * n,
        b"{" * n,
        b'{"x":' + b"9" * n + b"}",
        b"{" + b" " * n,
    ):
        (tmp_path / "a").write_bytes(framed(raw))
        tracemalloc.start()
        start = time.perf_counter()
        try:
            with pytest.raises(CheckpointError):
                read_tensors(tmp_path / "a")
            assert tracemalloc.get_traced_memory()[1] < 20 * len(raw)
        finally:
            tracemalloc.stop()
        assert time.perf_counter() - start < 5


def flip(raw: bytes, rng: np.random.Generator, limit: int) -> bytes:
    found = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        found[int(rng.integers(0, limit))] ^= 1 << int(rng.integers(0, 8))
    return bytes(found)


def cut(raw: bytes, rng: np.random.Generator, limit: int) -> bytes:
    return raw[: int(rng.integers(0, len(raw)))]


def splice(raw: bytes, rng: np.random.Generator, limit: int) -> bytes:
    a, b, c = (int(n) for n in rng.integers(0, limit, 3))
    return raw[:a] + raw[b : b + int(rng.integers(0, 64))] + raw[c:]


def noise(raw: bytes, rng: np.random.Generator, limit: int) -> bytes:
    return rng.bytes(int(rng.integers(0, 200)))


def noise_behind_a_length(raw: bytes, rng: np.random.Generator, limit: int) -> bytes:
    return framed(b"{" + rng.bytes(int(rng.integers(0, 200))), rng.bytes(20))


def numbers(raw: bytes, rng: np.random.Generator, limit: int) -> bytes:
    """Huge and negative numbers in the place of those in the header."""
    at = [i for i in range(8, limit) if raw[i : i + 1].isdigit()]
    i = at[int(rng.integers(0, len(at)))]
    huge = rng.choice([b"-1", b"18446744073709551616", b"9223372036854775807", b"1e308", b"9" * 5000, b"NaN", b"null"])
    header = raw[8:i] + bytes(huge) + raw[i + 1 : limit]
    return framed(header, raw[limit:])


MUTATIONS: list[Callable[[bytes, np.random.Generator, int], bytes]] = [
    flip, cut, splice, noise, noise_behind_a_length, numbers,
]  # fmt: skip


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("where", ["header", "anywhere"])
def test_fuzz(tmp_path: Path, mutate: Callable[[bytes, np.random.Generator, int], bytes], where: str) -> None:
    """Always a CheckpointError or the very tensors that were saved."""
    path = tmp_path / "a"
    tensors = samples()
    write_tensors(path, tensors)
    raw = path.read_bytes()
    length = 8 + int.from_bytes(raw[:8], "little")
    limit = len(raw) if where == "anywhere" and mutate is not numbers else length
    saved = {k: bits(t.numpy()) for k, t in tensors.items()}
    refused = []
    for seed in range(60):
        path.unlink()
        path.write_bytes(mutate(raw, np.random.default_rng(seed), limit))
        tracemalloc.start()
        try:
            found = {k: bits(v) for k, v in read_tensors(path).items()}
            assert found == saved
        except CheckpointError as error:
            refused.append(str(error))
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 4 << 20
    assert len(refused) > 50
    assert all(text.startswith(f"{path}: ") and len(text) < 1000 for text in refused)

"""Models of llama2.c (Karpathy 2023), "version 0" files: the smallest published Llama-style checkpoints.

The file is seven int32 (dim, hidden, layers, heads, kv heads, vocab, seq; vocab negated where the head has its own
matrix), then float32 tensors without names or checksum, so the one check there is must be exact: the length that the
seven numbers ask for. Weights get the names Hugging Face gives Llama's; rotary pairs stay interleaved (x0, x1), as
the configuration says.
Format: https://github.com/karpathy/llama2.c, export.py `legacy_export`
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ..base.errors import CheckpointError, DataError
from ..base.files import StrPath, open_regular
from .storage import unreadable

Host = np.ndarray[Any, Any]

_HEADER = struct.Struct("<7i")
_MAGIC = 0x616B3432  # "ak42": files of version 1 and later begin with it
_NORM_EPS = 1e-5
_UNKNOWN, _BOS, _EOS = 0, 1, 2
_FIRST_BYTE = 3  # id of the token that stands for byte 0
_LARGEST_VOCABULARY = 1 << 26  # bytes


def load_llama2c(path: StrPath) -> tuple[dict[str, Any], dict[str, Host]]:
    """(configuration, weights by name) of a version 0 file; weights are read-only views of the mapped file.

    Raises:
        CheckpointError: missing, foreign, of a later version, impossible numbers, or a length that doesn't fit them.
    """
    where = os.fspath(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            config, tied = _config(file.read(_HEADER.size), where)
            parts = _parts(config, tied)
            expected = _HEADER.size + 4 * sum(prod(shape) for _, shape in parts)
            if size != expected:
                what = "the file is truncated" if size < expected else "bytes after the last tensor"
                got, wanted = f"{size:,} bytes", f"{expected:,} by its header"
                raise CheckpointError(where, what, got=got, expected=wanted, hint="get the file again")
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise unreadable(path, error) from error
    return config, _named(parts, np.frombuffer(mapped, "<f4", offset=_HEADER.size))


def _config(header: bytes, where: str) -> tuple[dict[str, Any], bool]:
    if len(header) < _HEADER.size:
        got, expected = f"{len(header)} bytes", f"at least {_HEADER.size}"
        raise CheckpointError(where, "too short for a llama2.c file", got=got, expected=expected)
    dim, hidden, layers, heads, kv_heads, vocab, seq = numbers = _HEADER.unpack(header)
    if dim == _MAGIC:
        got, expected = f"version {hidden}", "version 0"
        raise CheckpointError(
            where, "a llama2.c file of another version", got=got, expected=expected, hint="export it with --version 0"
        )
    possible = min(dim, hidden, layers, heads, kv_heads, seq) > 0 and vocab != 0
    if not possible or dim % heads or heads % kv_heads or dim // heads % 2:
        names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "seq")
        got = ", ".join(f"{name} {n}" for name, n in zip(names, numbers, strict=True))
        expected = "positive numbers, dim = heads * even head size, heads a multiple of kv_heads"
        raise CheckpointError(where, "not a llama2.c version 0 file", got=got, expected=expected)
    config: dict[str, Any] = {
        "vocab_size": abs(vocab),
        "d_model": dim,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "head_dim": dim // heads,
        "d_ff": hidden,
        "max_seq_len": seq,
        "rope_interleaved": True,
        "tie_embeddings": vocab > 0,
        "norm_eps": _NORM_EPS,
    }
    return config, vocab > 0


def _parts(c: dict[str, Any], tied: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of each part in file order; `{}` in a name stands for the layer, the first axis then. Matrices
    are (outputs, inputs)."""
    layers, dim, hidden, kv = c["n_layers"], c["d_model"], c["d_ff"], c["n_kv_heads"] * c["head_dim"]
    rope = (c["max_seq_len"], c["head_dim"] // 2)
    parts = [
        ("model.embed_tokens.weight", (c["vocab_size"], dim)),
        ("model.layers.{}.input_layernorm.weight", (layers, dim)),
        ("model.layers.{}.self_attn.q_proj.weight", (layers, dim, dim)),
        ("model.layers.{}.self_attn.k_proj.weight", (layers, kv, dim)),
        ("model.layers.{}.self_attn.v_proj.weight", (layers, kv, dim)),
        ("model.layers.{}.self_attn.o_proj.weight", (layers, dim, dim)),
        ("model.layers.{}.post_attention_layernorm.weight", (layers, dim)),
        ("model.layers.{}.mlp.gate_proj.weight", (layers, hidden, dim)),
        ("model.layers.{}.mlp.down_proj.weight", (layers, dim, hidden)),
        ("model.layers.{}.mlp.up_proj.weight", (layers, hidden, dim)),
        ("model.norm.weight", (dim,)),
        ("", rope),
        ("", rope),
    ]
    return parts if tied else [*parts, ("lm_head.weight", (c["vocab_size"], dim))]


def _named(parts: list[tuple[str, tuple[int, ...]]], numbers: Host) -> dict[str, Host]:
    weights: dict[str, Host] = {}
    at = 0
    for name, shape in parts:
        part = numbers[at : at + prod(shape)].reshape(shape)
        at += part.size
        if "{}" in name:
            weights.update((name.format(i), layer) for i, layer in enumerate(part))
        elif name:
            weights[name] = part
    return weights


class Llama2cVocabulary:
    """The pieces of a llama2.c tokenizer file, which are SentencePiece's: ids to text, and text to ids.

    Ids 0, 1 and 2 are unknown, begin and end of text; 3 to 258 the bytes; then pieces, each with a score.
    """

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float]) -> None:
        self.pieces, self.scores = list(pieces), list(scores)
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Ids of `text` after a space, as SentencePiece has it: characters (or their bytes), then the neighbours whose
        joined piece scores highest are merged until none is left   (Sennrich et al. 2016)."""
        ids: list[int] = []
        for character in " " + text if text else "":
            raw = character.encode("utf-8")
            ids += [self._ids[raw]] if raw in self._ids else [_FIRST_BYTE + b for b in raw]
        while True:
            joined = [self._ids.get(self.pieces[a] + self.pieces[b]) for a, b in pairwise(ids)]
            pairs = [(self.scores[j], -i, j) for i, j in enumerate(joined) if j is not None]
            if not pairs:
                return [_BOS, *ids] if bos else ids
            _, at, j = max(pairs)
            ids[-at : 2 - at] = [j]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; begin and end of text stand for none, and the space before the first word goes.

        Raises:
            DataError: an id outside the vocabulary.
        """
        raw = b""
        for i in ids:
            if not 0 <= i < len(self.pieces):
                raise DataError(
                    "Llama2cVocabulary.decode",
                    "id outside the vocabulary",
                    got=i,
                    expected=f"0 to {len(self.pieces) - 1}",
                )
            if i not in (_BOS, _EOS):
                raw += bytes([i - _FIRST_BYTE]) if _FIRST_BYTE <= i < _FIRST_BYTE + 256 else self.pieces[i]
        return raw.removeprefix(b" ").decode("utf-8", errors="replace")


def load_llama2c_tokenizer(path: StrPath) -> Llama2cVocabulary:
    """Reads a llama2.c tokenizer file: int32 length of the longest piece, then float32 score, int32 length and bytes
    of each.

    Raises:
        CheckpointError: missing, foreign or truncated.
    """
    where = os.fspath(path)
    try:
        with open_regular(path) as file:
            raw = file.read(_LARGEST_VOCABULARY)
    except OSError as error:
        raise unreadable(path, error) from error
    longest = int.from_bytes(raw[:4], "little")
    pieces: list[bytes] = []
    scores: list[float] = []
    at = 4
    while at < len(raw):
        score, length = struct.unpack_from("<fi", raw, at) if at + 8 <= len(raw) else (0.0, -1)
        if not 0 <= length <= longest or at + 8 + length > len(raw):
            what = f"not a llama2.c tokenizer file, or damaged: piece {len(pieces)} at byte {at}"
            raise CheckpointError(
                where, what, got=f"length {length}", expected=f"0 to {longest} bytes, within the file"
            )
        pieces.append(raw[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    expected = [b"<0x%02X>" % b for b in range(256)]
    if pieces[_FIRST_BYTE : _FIRST_BYTE + 256] != expected:
        raise CheckpointError(
            where, "not a llama2.c tokenizer file: ids 3 to 258 are not the bytes", got=f"{len(pieces)} pieces"
        )
    return Llama2cVocabulary(pieces, scores)

"""llama2.c files: the names are right (a plain NumPy Llama tells the known story), and damage is refused."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import CheckpointError, DataError
from pellucid.checkpoint import load_llama2c, load_llama2c_tokenizer

from .helpers import message

Host = np.ndarray[Any, Any]


@pytest.fixture
def models(corpus_folder: Path) -> Path:
    if not (corpus_folder / "models" / "stories260K.bin").exists():
        pytest.skip("no models/stories260K.bin in the folder of real data")
    return corpus_folder / "models"


def next_logits(c: dict[str, Any], w: dict[str, Host], cache: list[list[Host]], token: int, position: int) -> Host:
    """One token through a Llama, written from its description and nothing of ours."""

    def norm(x: Host, name: str) -> Host:
        return x / np.sqrt(np.mean(x * x) + c["norm_eps"]) * w[name + ".weight"]

    def rope(x: Host) -> Host:
        angle = position * 10000.0 ** (-np.arange(0, c["head_dim"], 2) / c["head_dim"])
        z = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    x = w["model.embed_tokens.weight"][token].astype(np.float64)
    for i in range(c["n_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm")
        q, k, v = ((w[f"{p}self_attn.{n}_proj.weight"] @ h).reshape(-1, c["head_dim"]) for n in "qkv")
        cache[2 * i].append(rope(k))
        cache[2 * i + 1].append(v)
        keys, values = (np.repeat(np.stack(a, 1), c["n_heads"] // c["n_kv_heads"], 0) for a in cache[2 * i : 2 * i + 2])
        scores = np.einsum("hd,htd->ht", rope(q), keys) / np.sqrt(c["head_dim"])
        p_ = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("ht,htd->hd", p_ / p_.sum(-1, keepdims=True), values).reshape(-1)
        x = x + w[p + "self_attn.o_proj.weight"] @ mixed
        h = norm(x, p + "post_attention_layernorm")
        gate, up = w[p + "mlp.gate_proj.weight"] @ h, w[p + "mlp.up_proj.weight"] @ h
        x = x + w[p + "mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    return w["model.embed_tokens.weight"] @ norm(x, "model.norm")


def test_the_known_story(models: Path) -> None:
    config, weights = load_llama2c(models / "stories260K.bin")
    assert config == {
        "vocab_size": 512, "d_model": 64, "n_layers": 5, "n_heads": 8, "n_kv_heads": 4, "head_dim": 8, "d_ff": 172,
        "max_seq_len": 512, "rope_interleaved": True, "tie_embeddings": True, "norm_eps": 1e-5,
    }  # fmt: skip
    assert len(weights) == 5 * 9 + 2
    assert sum(x.size for x in weights.values()) == 260_032
    known = [int(n) for n in (models / "stories260K.greedy.txt").read_text().split()]
    vocabulary = load_llama2c_tokenizer(models / "tok512.bin")
    cache: list[list[Host]] = [[] for _ in range(2 * config["n_layers"])]
    ids = [1]
    for position in range(len(known)):
        ids.append(int(np.argmax(next_logits(config, weights, cache, ids[-1], position))))
    assert ids[1:] == known
    story = vocabulary.decode(ids)
    assert story.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    )
    assert vocabulary.encode(story) == ids


def test_the_vocabulary(models: Path) -> None:
    vocabulary = load_llama2c_tokenizer(models / "tok512.bin")
    assert vocabulary.vocab_size == 512
    for text in ("", "a", " two  spaces", "Zürich, 東京 🙂", "\n"):
        assert vocabulary.decode(vocabulary.encode(text)) == text
        assert vocabulary.decode(vocabulary.encode(text, bos=False)) == text
    assert message(lambda: vocabulary.decode([512]), DataError) == (
        "Llama2cVocabulary.decode: id outside the vocabulary; got 512, expected 0 to 511"
    )


def model(*numbers: int, extra: int = 0) -> bytes:
    """A file of the smallest sizes: dim 4, hidden 3, 2 layers, 2 heads, 1 kv head, vocab 5, seq 6."""
    dim, hidden, layers, heads, kv, vocab, seq = numbers
    head = dim // heads
    n = abs(vocab) * dim * (2 if vocab < 0 else 1) + layers * (2 * dim + 2 * dim * dim + 2 * kv * head * dim)
    n += layers * 3 * dim * hidden + dim + seq * head
    return struct.pack("<7i", *numbers) + np.arange(n, dtype="<f4").tobytes() + bytes(extra)


def test_an_untied_head(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(model(4, 3, 2, 2, 1, -5, 6))
    config, weights = load_llama2c(tmp_path / "a")
    assert config["tie_embeddings"] is False
    assert config["vocab_size"] == 5
    assert weights["lm_head.weight"].shape == (5, 4)
    last = np.frombuffer((tmp_path / "a").read_bytes()[-80:], "<f4").reshape(5, 4)
    assert np.array_equal(weights["lm_head.weight"], last)
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (2, 4)
    assert weights["model.layers.1.mlp.down_proj.weight"].shape == (4, 3)


def test_messages(tmp_path: Path) -> None:
    good = model(4, 3, 2, 2, 1, 5, 6)

    def text(raw: bytes) -> str:
        (tmp_path / "a").write_bytes(raw)
        return message(lambda: load_llama2c(tmp_path / "a"), CheckpointError, tmp_path)

    def header(*numbers: int) -> bytes:
        return struct.pack("<7i", *numbers) + good[28:]

    expected = "expected positive numbers, dim = heads * even head size, heads a multiple of kv_heads"
    no = "~/a: not a llama2.c version 0 file; got "
    assert (
        message(lambda: load_llama2c(tmp_path / "b"), CheckpointError, tmp_path)
        == "~/b: cannot be read: no such file or directory"
    )
    assert message(lambda: load_llama2c(tmp_path), CheckpointError, tmp_path) == "~: cannot be read: is a directory"
    assert text(b"") == "~/a: too short for a llama2.c file; got 0 bytes, expected at least 28"
    assert text(header(0x616B3432, 1, 4, 3, 2, 2, 1)) == (
        "~/a: a llama2.c file of another version; got version 1, expected version 0. hint: export it with --version 0"
    )
    for numbers in [
        (4, 3, -2, 2, 1, 5, 6),
        (4, 3, 2, 3, 1, 5, 6),
        (8, 3, 2, 4, 3, 5, 6),
        (2, 3, 2, 2, 1, 5, 6),
        (4, 3, 2, 2, 1, 0, 6),
    ]:
        names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "seq")
        got = ", ".join(f"{a} {b}" for a, b in zip(names, numbers, strict=True))
        assert text(header(*numbers)) == f"{no}{got}, {expected}"
    whole = f"expected {len(good)} by its header. hint: get the file again"
    assert text(good[:-1]) == f"~/a: the file is truncated; got {len(good) - 1} bytes, {whole}"
    assert text(good + b"\0") == f"~/a: bytes after the last tensor; got {len(good) + 1} bytes, {whole}"
    huge = 2**31 - 2
    assert text(header(huge, huge, huge, 1, 1, huge, huge)).startswith(
        f"~/a: the file is truncated; got {len(good)} bytes, expected "
    )


def test_fuzz(tmp_path: Path) -> None:
    """Headers of noise and of flipped bits: an error or a model of the file's size, and no memory for either."""
    good = model(4, 3, 2, 2, 1, 5, 6)
    path = tmp_path / "a"
    refused = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        raw = bytearray(good)
        if seed % 3 == 0:
            raw[int(rng.integers(0, 28))] ^= 1 << int(rng.integers(0, 8))
        elif seed % 3 == 1:
            raw[:28] = rng.bytes(28)
        else:
            del raw[int(rng.integers(0, len(raw))) :]
        path.unlink(missing_ok=True)
        path.write_bytes(raw)
        tracemalloc.start()
        try:
            _, weights = load_llama2c(path)
            assert sum(x.nbytes for x in weights.values()) <= len(raw)
        except CheckpointError as error:
            refused.append(str(error))
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 1 << 20
    assert len(refused) > 200
    assert all(text.startswith(f"{path}: ") for text in refused)


def test_damaged_vocabularies(tmp_path: Path) -> None:
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % b for b in range(256)), b" ", b"a"]
    good = struct.pack("<i", 7) + b"".join(struct.pack("<fi", 0.0, len(p)) + p for p in pieces)
    path = tmp_path / "v"
    path.write_bytes(good)
    assert load_llama2c_tokenizer(path).encode("a") == [1, 259, 260]

    def text(raw: bytes) -> str:
        path.unlink(missing_ok=True)
        path.write_bytes(raw)
        return message(lambda: load_llama2c_tokenizer(path), CheckpointError, tmp_path)

    assert text(b"") == "~/v: not a llama2.c tokenizer file: ids 3 to 258 are not the bytes; got 0 pieces"
    assert text(good[:-1]) == (
        f"~/v: not a llama2.c tokenizer file, or damaged: piece 260 at byte {len(good) - 9}; "
        "got length 1, expected 0 to 7 bytes, within the file"
    )
    assert text(good[:9] + b"\xff" + good[10:]) == (
        "~/v: not a llama2.c tokenizer file, or damaged: piece 0 at byte 4; "
        "got length 65285, expected 0 to 7 bytes, within the file"
    )
    refused = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        raw = bytearray(good)
        raw[int(rng.integers(0, len(raw)))] ^= 1 << int(rng.integers(0, 8))
        path.unlink()
        path.write_bytes(raw)
        try:
            assert load_llama2c_tokenizer(path).vocab_size == len(pieces)
        except CheckpointError as error:
            refused.append(str(error))
    assert refused
    assert all(text.startswith(f"{path}: ") for text in refused)

"""SentencePiece vocabularies: files read and refused, text prepared as they say, both models against plain Python."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.base.rng import Generator
from pellucid.device import pool
from pellucid.text import (
    SentencePieceTokenizer,
    SentencePieceVocabulary,
    load_tokenizer,
    read_llama2c_vocabulary,
    read_sentencepiece,
    sentencepiece,
    sentencepiece_tokenizer,
)
from pellucid.text.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, byte_name

Value = int | float | bytes


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, value: Value) -> bytes:
    """One field of a protocol buffer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def model_file(
    pieces: list[tuple[str, float, int]],
    trainer: dict[int, Value] | None = None,
    normal: dict[int, Value] | None = None,
) -> bytes:
    """A `.model` file."""
    parts = [field(1, field(1, p.encode()) + field(2, score) + field(3, kind)) for p, score, kind in pieces]
    for number, fields in ((2, trainer or {}), (3, normal or {})):
        parts.append(field(number, b"".join(field(k, v) for k, v in fields.items())))
    return b"".join(parts)


PIECES = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    ("▁", -2.0, NORMAL),
    ("▁a", -3.0, NORMAL),
    ("a", -4.0, NORMAL),
    ("b", -4.5, NORMAL),
    ("ab", -5.0, NORMAL),
    ("USER", 0.0, USER_DEFINED),
    ("▁ab", -7.25, NORMAL),
    ("ba", -9.0, UNUSED),
    ("ی", -6.0, NORMAL),
]


def vocabulary(
    model: str = "unigram", *, pieces: list[tuple[str, float, int]] = PIECES, **options: object
) -> SentencePieceVocabulary:
    if options.get("byte_fallback"):
        pieces = [*pieces, *((byte_name(byte), 0.0, BYTE) for byte in range(256))]
    names, scores, types = zip(*pieces, strict=True)
    return SentencePieceVocabulary(model, names, scores, types, **options)  # type: ignore[arg-type]


def shown(tokenizer: SentencePieceTokenizer, text: str) -> list[str]:
    return [tokenizer.vocabulary.pieces[i] for i in tokenizer.encode(text)]


def random_texts(n: int) -> list[str]:
    source = random.Random(11)
    return ["".join(source.choice("aaabb  ▁یxU") for _ in range(i % 25)) + "USER" * (i % 3) for i in range(n)]


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.model"
    path.write_bytes(model_file(PIECES, {3: 1, 44: b"?"}, {3: 0, 4: 0, 5: 1}))
    found = read_sentencepiece(path)
    assert found == vocabulary(
        add_dummy_prefix=False, remove_extra_whitespaces=False, escape_whitespaces=True, unknown_text="?"
    )
    path.write_bytes(model_file([(byte_name(b), 0.0, BYTE) for b in range(256)] + PIECES, {3: 2, 35: 1}))
    found = read_sentencepiece(path)
    assert (found.model, found.byte_fallback, found.add_dummy_prefix) == ("bpe", True, True)
    assert (found.remove_extra_whitespaces, found.unknown, found.unknown_text) == (True, 256, " ⁇ ")
    # Fields of the file that say nothing about ids, and a piece without score and type.
    path.write_bytes(model_file(PIECES) + field(1, field(1, b"new")) + field(4, b"tests") + field(99, 1.0))
    found = read_sentencepiece(path)
    assert (found.pieces[-1], found.scores[-1], found.types[-1]) == ("new", 0.0, NORMAL)


def test_unigram_ids() -> None:
    tokenizer = SentencePieceTokenizer(vocabulary())
    assert tokenizer.normalize("  ab   a ") == "▁ab▁a"
    assert shown(tokenizer, "  ab   a ") == ["▁", "ab", "▁a"]
    assert shown(tokenizer, "aUSERb") == ["▁a", "USER", "b"]
    # Unknown characters in a row are one; an unused piece is not used.
    assert shown(tokenizer, "xyzba") == ["▁", "<unk>", "b", "a"]
    assert tokenizer.encode("").tolist() == tokenizer.encode("   ").tolist() == []
    assert (tokenizer.special, tokenizer.unknown) == ({"<s>": 1, "</s>": 2}, 0)
    assert tokenizer.encode("<s>a", allowed_special=["<s>"]).tolist() == [1, 4]
    assert 1 not in tokenizer.encode("<s>a")
    kept = SentencePieceTokenizer(vocabulary(remove_extra_whitespaces=False, byte_fallback=True))
    assert shown(kept, " a  é") == ["▁", "▁a", "▁", "▁", "<0xC3>", "<0xA9>"]
    plain = SentencePieceTokenizer(vocabulary(add_dummy_prefix=False, escape_whitespaces=False))
    assert shown(plain, "a a") == ["a", "<unk>", "a"]
    words, _ = tokenizer.n_best("ab", 2), tokenizer.sample("ab", generator=Generator(1), alpha=0.5)
    assert [[tokenizer.vocabulary.pieces[i] for i in ids] for ids, _ in words] == [["▁", "ab"], ["▁ab"]]


def slow_bpe(v: SentencePieceVocabulary, normal: str) -> list[int]:
    """SentencePiece's BPE, searching all neighbours for every join."""
    ids = {p: i for i, (p, k) in enumerate(zip(v.pieces, v.types, strict=True)) if k in (NORMAL, USER_DEFINED, UNUSED)}
    users = sorted((p for p, k in zip(v.pieces, v.types, strict=True) if k == USER_DEFINED), key=len, reverse=True)
    symbols: list[tuple[str, bool]] = []
    while normal:
        user = next((p for p in users if normal.startswith(p)), None)
        symbols.append((user or normal[0], user is not None))
        normal = normal[len(symbols[-1][0]) :]
    made: dict[str, tuple[str, str]] = {}
    while True:
        best = None
        for i in range(len(symbols) - 1):
            (a, fixed), (b, stays) = symbols[i], symbols[i + 1]
            if not fixed and not stays and a + b in ids:
                made.setdefault(a + b, (a, b))
                if best is None or v.scores[ids[a + b]] > best[0]:
                    best = v.scores[ids[a + b]], i
        if best is None:
            break
        i = best[1]
        symbols[i : i + 2] = [(symbols[i][0] + symbols[i + 1][0], False)]
    result: list[int] = []
    run = False

    def put(piece: str) -> None:
        nonlocal run
        number = ids.get(piece)
        if number is not None and v.types[number] == UNUSED and piece in made:
            put(made[piece][0])
            put(made[piece][1])
        elif number is not None:
            result.append(number)
            run = False
        elif v.byte_fallback:
            result.extend(v.pieces.index(byte_name(byte)) for byte in piece.encode())
        elif not run:
            result.append(v.unknown)
            run = True

    for piece, _ in symbols:
        put(piece)
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True, "remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
        {"pieces": [p for p in PIECES if p[2] != UNUSED]},
        {"pieces": [*PIECES, ("a▁b", -1.0, NORMAL), ("▁▁", -1.5, NORMAL), ("▁▁▁", -1.25, NORMAL)]},
        {"pieces": [*(p for p in PIECES if p[0] != "▁"), ("aba", -4.75, NORMAL), ("bab", -4.75, NORMAL)]},
    ],
    ids=["plain", "bytes", "no prefix", "none unused", "over spaces", "ties"],
)
def test_bpe_ids(options: dict) -> None:
    tokenizer = SentencePieceTokenizer(vocabulary("bpe", **options))
    texts = random_texts(600)
    before = pool.threads()
    try:
        pool.set_threads(2)
        batch = tokenizer.encode_batch(texts)
    finally:
        pool.set_threads(before)
    for text, ids in zip(texts, batch, strict=True):
        assert ids.tolist() == slow_bpe(tokenizer.vocabulary, tokenizer.normalize(text)), text
        assert np.array_equal(ids, tokenizer.encode(text))
    if tokenizer.vocabulary.byte_fallback:
        assert all(tokenizer.decode(ids) == text for text, ids in zip(texts, batch, strict=True) if "▁" not in text)


def test_a_long_word_takes_linear_time() -> None:
    tokenizer = SentencePieceTokenizer(vocabulary("bpe"))
    ids = tokenizer.encode("ab" * 500_000)
    assert (len(ids), tokenizer.decode(ids[:3])) == (500_000, "ababab")


def test_too_large_a_vocabulary() -> None:
    for model in ("unigram", "bpe"):
        longest = [*PIECES, ("a" * 4095, -1.0, NORMAL)]
        tokenizer = SentencePieceTokenizer(vocabulary(model, pieces=longest, add_dummy_prefix=False))
        assert len(tokenizer.encode("a" * 4095)) == (1 if model == "unigram" else 4095)
        with pytest.raises(DataError) as refused:
            vocabulary(model, pieces=[*PIECES, ("a" * 4096, -1.0, NORMAL)])
        where = "SentencePieceVocabulary: piece 12 is too long"
        assert str(refused.value) == f"{where}; got 4096 characters, expected at most 4095 bytes"


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentencepiece_tokenizer, "_LONGEST_WORD", 6)
    tokenizer = SentencePieceTokenizer(vocabulary("bpe"))
    with pytest.raises(DataError) as refused:
        tokenizer.encode("abc")
    where = "SentencePieceTokenizer.encode"
    assert str(refused.value) == f"{where}: too long a word; got 6 bytes, expected less than 6"
    monkeypatch.setattr(sentencepiece, "_MOST_PIECES", 5)
    with pytest.raises(DataError) as refused:
        vocabulary()
    assert str(refused.value) == "SentencePieceVocabulary: too many pieces; got 12, expected at most 5"


def test_decoding() -> None:
    tokenizer = SentencePieceTokenizer(vocabulary(byte_fallback=True))
    pieces = tokenizer.vocabulary.pieces
    bytes_ = [pieces.index(byte_name(byte)) for byte in "é".encode()]
    # Every space at the beginning goes where extra ones do, one where they don't.
    assert tokenizer.decode([3, 3, 4, 3, 4]) == "a  a"
    kept = SentencePieceTokenizer(vocabulary(byte_fallback=True, remove_extra_whitespaces=False))
    assert kept.decode([3, 3, 4]) == "  a"
    assert kept.decode([1, 4, 2, 4]) == "a a"
    assert kept.decode([4, 1, 4], show_special=True) == "a<s>a"
    assert kept.decode([*bytes_, 4, 0]) == "é a ⁇ "
    assert kept.decode(bytes_[:1]) == "�"
    bare = SentencePieceTokenizer(vocabulary(add_dummy_prefix=False, remove_extra_whitespaces=False))
    assert bare.decode([4, 4]) == " a a"
    for ids in ([4, 3, 4, 1, 4, *bytes_, 4], [*bytes_, 3, 3], [3, 3, 3, 4]):
        for one in (tokenizer, kept):
            stream = one.stream_decoder()
            assert "".join([*map(stream.push, ids), stream.finish()]) == one.decode(ids)
            goes_on = one.stream_decoder(after=[5])
            assert "a" + goes_on.push(ids) + goes_on.finish() == one.decode([5, *ids])


def test_our_file(tmp_path: Path) -> None:
    for model in ("unigram", "bpe"):
        saved = SentencePieceTokenizer(vocabulary(model, byte_fallback=True, unknown_text="?"))
        saved.save(tmp_path / "t.json")
        loaded = load_tokenizer(tmp_path / "t.json")
        assert isinstance(loaded, SentencePieceTokenizer)
        assert loaded.vocabulary == saved.vocabulary
        assert loaded.fingerprint() == saved.fingerprint()
        assert loaded.settled("ab a") == 0


def test_a_bpe_vocabulary_has_no_probabilities() -> None:
    tokenizer = SentencePieceTokenizer(vocabulary("bpe"))
    for call in (lambda: tokenizer.n_best("a", 2), lambda: tokenizer.sample("a", generator=Generator(0))):
        with pytest.raises(DataError, match="a BPE vocabulary has no probabilities; expected a Unigram vocabulary"):
            call()


GOOD = model_file(PIECES)
NOT = "not a SentencePiece model (SentencePieceVocabulary: "
REFUSED = {
    "empty": (b"", f"{NOT}not a score and a type for each piece; got 0 pieces)"),
    "cut": (GOOD[:20], "a damaged protocol buffer: a field of 12 bytes with 2 left"),
    "length": (b"\x0a\xff\xff\xff\xff\x0f", "a damaged protocol buffer: a field of 4294967295 bytes with 0 left"),
    "number": (b"\x08" + b"\xff" * 11, "a damaged protocol buffer: a number of more than ten bytes"),
    "wire type": (b"\x0b", "a damaged protocol buffer: a field of wire type 3"),
    "no number": (b"\x00\x01", "a damaged protocol buffer: a field without number"),
    "text": (field(1, field(1, b"\xff")), "a damaged protocol buffer: text that is not UTF-8 (invalid start byte)"),
    "piece": (field(1, 7), "a damaged protocol buffer: a number where text or a message belongs"),
    "score": (field(1, field(2, 3)), "a damaged protocol buffer: no float where one belongs"),
    "type": (field(1, field(3, b"x")), "a damaged protocol buffer: bytes where a number belongs"),
    "kind": (model_file(PIECES, {3: 3}),
             f"{NOT}a kind of model that is not supported; got word, expected unigram or bpe)"),
    "far kind": (model_file(PIECES, {3: 9}),
                 f"{NOT}a kind of model that is not supported; got type 9, expected unigram or bpe)"),
    "suffix": (model_file(PIECES, {24: 1}), "asks for treat_whitespace_as_suffix, which is not supported"),
    "denormalizer": (GOOD + field(5, field(2, b"x")), "asks for a denormaliser, which is not supported"),
    "charsmap": (model_file(PIECES, None, {2: b"nonsense!"}),
                 "not a SentencePiece model (CharsMap: a damaged character map: no trie in it; got 9 bytes)"),
    "twice": (model_file([*PIECES, PIECES[-1]]), f"{NOT}the same piece twice)"),
    "empty piece": (model_file([*PIECES, ("", 0.0, NORMAL)]), f"{NOT}piece 12 is no piece; got '')"),
    "no unknown": (model_file(PIECES[1:]), f"{NOT}not one unknown piece; got 0)"),
    "two unknowns": (model_file([*PIECES, ("x", 0.0, UNKNOWN)]), f"{NOT}not one unknown piece; got 2)"),
    "nan": (model_file([*PIECES, ("x", float("nan"), NORMAL)]),
            f"{NOT}the score of piece 12 is no finite number; got nan)"),
    "piece type": (model_file([*PIECES, ("x", 0.0, 7)]),
                   f"{NOT}the type of piece 12 is unknown; got 7, expected 1 to 6)"),
    "bytes": (model_file([*PIECES, ("<0x00>", 0.0, BYTE)], {35: 1}),
              f"{NOT}byte fallback without pieces for the 256 bytes; got 1 of them)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_files(name: str, tmp_path: Path) -> None:
    content, message = REFUSED[name]
    path = tmp_path / "m.model"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        read_sentencepiece(path)
    found = str(refused.value).replace(f"{path}: ", "", 1)
    assert found == message


def damaged(good: bytes, n: int) -> list[bytes]:
    """Files with a few bytes changed, cut, repeated or left out."""
    source = random.Random(5)
    files = []
    for _ in range(n):
        raw, at = bytearray(good), source.randrange(len(good))
        kind = source.randrange(4)
        if kind == 0:
            raw[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            raw[at:at] = raw[at : at + source.randrange(1, 20)]
        else:
            del raw[at : at + source.randrange(1, 9)]
        files.append(bytes(raw))
    return files


@pytest.mark.parametrize("reader", [read_sentencepiece, read_llama2c_vocabulary])
def test_damage_is_one_error_or_another_vocabulary(
    reader: Callable[[Path], SentencePieceVocabulary], tmp_path: Path
) -> None:
    good = GOOD if reader is read_sentencepiece else llama2c_file()
    path = tmp_path / "m"
    refused = 0
    for content in damaged(good, 300):
        path.write_bytes(content)
        try:
            found = reader(path)
        except DataError as error:
            assert str(error).startswith(str(path))  # noqa: PT017 - some, not all, damage is refused
            assert len(str(error).splitlines()) == 1  # noqa: PT017
            refused += 1
        else:
            assert SentencePieceTokenizer(found).decode(SentencePieceTokenizer(found).encode("ab")) is not None
    assert refused > 50


def llama2c_file() -> bytes:
    names = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(byte_name(b).encode() for b in range(256)), b"a", b" ", b" a", b"b"]
    return struct.pack("<i", 7) + b"".join(struct.pack("<fi", -float(i), len(p)) + p for i, p in enumerate(names))


def test_llama2c_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tok.bin"
    path.write_bytes(llama2c_file())
    tokenizer = SentencePieceTokenizer(read_llama2c_vocabulary(path))
    assert (tokenizer.vocab_size, dict(tokenizer.special)) == (263, {"<s>": 1, "</s>": 2})
    assert tokenizer.encode("a  ab\n").tolist() == [261, 260, 261, 262, 3 + 10]
    assert tokenizer.decode(tokenizer.encode("a  ab\n")) == "a  ab\n"


def test_a_real_llama2c_vocabulary(corpus_folder: Path) -> None:
    path = corpus_folder / "models" / "tok512.bin"
    if not path.exists():
        pytest.skip("no models/tok512.bin in the folder of real data")
    tokenizer = SentencePieceTokenizer(read_llama2c_vocabulary(path))
    ids = [403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338]
    text = "Once upon a time, there was a little girl"
    assert tokenizer.decode(ids).startswith(text)
    assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids

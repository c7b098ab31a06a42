"""Reading token files: windows, chunks, ranges, resume, and every damaged file refused."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import ConfigError, DataError
from pellucid.base.rng import Generator
from pellucid.data import TokenBatch, TokenFile, documents
from pellucid.text import ByteTokenizer, CharTokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> TokenFile:
    """0, 1, 2, ... 999, so that an id tells its position."""
    TokenFile.write(tmp_path / "corpus.bin", np.arange(1000))
    return TokenFile.open(tmp_path / "corpus.bin", seed=42)


def refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError) as error:
        call()
    assert str(error.value) == message


def offsets(batch: TokenBatch) -> list[int]:
    assert (np.diff(batch.ids, axis=1) == 1).all()  # contiguous
    return batch.ids[:, 0].tolist()


def test_the_file_is_little_endian_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    assert TokenFile.write(path, [1, 256, 2**32 - 1]) == 3
    assert path.read_bytes() == b"\x01\0\0\0\0\x01\0\0\xff\xff\xff\xff"
    assert TokenFile.open(path).ids.tolist() == [1, 256, 2**32 - 1]
    assert [p.name for p in tmp_path.iterdir()] == ["t.bin"]


def test_opening_maps_and_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with open(path, "wb") as file:
        file.truncate(1 << 30)  # a hole: 268 million tokens that take no space
    tracemalloc.start()
    try:
        tokens = TokenFile.open(path, seed=1)
        batch = tokens.batch(7, 8, 513)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(tokens) == 1 << 28
    assert batch.ids.shape == (8, 513)
    assert peak < 1_000_000
    assert tokens.ids.dtype == np.dtype("<u4")
    with pytest.raises(ValueError, match="read-only"):
        tokens.ids[0] = 1


def test_batch_has_contiguous_windows(corpus: TokenFile) -> None:
    batch = corpus.batch(0, 8, 65)
    assert batch.ids.shape == (8, 65)
    assert batch.inputs.shape == batch.targets.shape == (8, 64)
    assert batch.n_targets == 8 * 64
    assert all(0 <= at <= 1000 - 65 for at in offsets(batch))


def test_batch_depends_on_seed_and_step_only(corpus: TokenFile) -> None:
    straight = [corpus.batch(step, 4, 17).ids for step in range(20)]
    resumed = TokenFile.open(corpus.path, seed=42)
    for step in (19, 7, 7, 0):
        assert np.array_equal(resumed.batch(step, 4, 17).ids, straight[step])
    assert len({ids.tobytes() for ids in straight}) == 20
    other = TokenFile.open(corpus.path, seed=43)
    assert not np.array_equal(other.batch(0, 4, 17).ids, straight[0])
    # The first windows of a step are the same in a larger batch.
    assert np.array_equal(corpus.batch(3, 9, 17).ids[:4], straight[3])
    # Written down: a run resumed by a later version has to see the same data.
    assert offsets(TokenFile.open(corpus.path, seed=42).batch(40_000, 4, 17)) == [788, 511, 290, 794]


def test_windows_are_uniform_and_reach_both_ends(corpus: TokenFile) -> None:
    part = corpus.part(0, 40)
    counts = np.zeros(40 - 9 + 1)
    for step in range(200):
        counts += np.bincount(offsets(part.batch(step, 80, 9)), minlength=len(counts))
    assert counts.sum() == 16_000
    # Chi-squared with 31 degrees of freedom exceeds 70 once in 12,000.
    assert ((counts - 500) ** 2 / 500).sum() < 70


def test_window_as_long_as_the_corpus(corpus: TokenFile) -> None:
    assert offsets(corpus.batch(5, 3, 1000)) == [0, 0, 0]
    chunk = corpus.chunk(0, 3, 1000)
    assert chunk is not None
    assert offsets(chunk) == [0]
    assert corpus.chunk(1, 3, 1000) is None


@pytest.mark.parametrize(("tokens", "sequences", "seq_len"), [(1000, 3, 64), (1000, 8, 100), (65, 2, 13), (12, 5, 5)])
def test_chunks_give_every_token_once_in_order(corpus: TokenFile, tokens: int, sequences: int, seq_len: int) -> None:
    part, found, index = corpus.part(0, tokens), [], 0
    while (batch := part.chunk(index, sequences, seq_len)) is not None:
        assert batch.ids.shape[1] == seq_len
        assert batch.n_targets == len(batch) * (seq_len - 1)  # short, never padded
        found.append(batch)
        index += 1
    windows = tokens // seq_len
    assert np.array_equal(np.concatenate([batch.ids.ravel() for batch in found]), np.arange(windows * seq_len))
    assert index == -(-windows // sequences)
    assert [len(batch) for batch in found[:-1]] == [sequences] * (index - 1)
    assert part.chunk(index + 5, sequences, seq_len) is None


def test_ranges_share_the_file(corpus: TokenFile) -> None:
    train, held_out = corpus.split(0.9)
    assert (len(train), len(held_out), held_out.start) == (900, 100, 900)
    assert np.shares_memory(train.ids, corpus.ids)
    assert held_out.ids[0] == 900
    assert max(max(offsets(train.batch(step, 50, 101))) for step in range(20)) <= 799
    opened = TokenFile.open(corpus.path, start=900, seed=42)
    assert np.array_equal(opened.ids, held_out.ids)
    assert TokenFile.open(corpus.path, start=10, stop=20).ids.tolist() == list(range(10, 20))
    inner = held_out.part(10, 20)
    assert (inner.start, inner.ids[0], inner.seed) == (910, 910, 42)
    assert repr(inner) == f"TokenFile({corpus.path!r}, tokens=10, start=910, seed=42)"


def test_vocabulary_check_names_the_first_bad_id(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    ids = np.arange(3_000_000, dtype=np.uint32) % 50
    ids[[2_500_000, 2_900_000]] = 97, 99
    TokenFile.write(path, ids)
    tokens = TokenFile.open(path)
    assert tokens.check_vocabulary(100) == 99
    assert tokens.part(0, 2_500_000).check_vocabulary(50) == 49
    hint = "hint: the file was made with another tokenizer, is damaged, or lost its description"
    for part in (tokens, tokens.part(1_000_000)):
        refused(
            lambda part=part: part.check_vocabulary(97),
            f"{path}: id outside the vocabulary at token 2500000; got 97, expected 0 to 96. {hint}",
        )


def test_tokenizer_check(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "t.bin", CharTokenizer("ab")
    TokenFile.write(path, [0, 1, 1], tokenizer=tokenizer)
    tokens = TokenFile.open(path)
    tokens.check_tokenizer(CharTokenizer("ab"))
    other = CharTokenizer("abc")
    refused(
        lambda: tokens.check_tokenizer(other),
        f"{path}: the ids were made with another tokenizer; got char {other.fingerprint()[:12]} (3 ids), expected "
        f"{tokenizer.fingerprint()[:12]} (2 ids). hint: load the tokenizer the file was written with",
    )
    # Without a side file, only the ids themselves can be looked at.
    TokenFile.write(path, [0, 1, 2])
    TokenFile.open(path).check_tokenizer(other)
    with pytest.raises(DataError, match="id outside the vocabulary at token 2"):
        TokenFile.open(path).check_tokenizer(tokenizer)


@pytest.mark.parametrize("name", ["batch", "chunk"])
def test_bad_arguments(corpus: TokenFile, name: str) -> None:
    take, where = getattr(corpus, name), f"TokenFile.{name}"
    number = {"batch": "step", "chunk": "index"}[name]
    refused(
        lambda: take(0, 4, 1),
        f"{where}: a window too short to predict anything; got 1, expected at least 2 tokens",
    )
    refused(lambda: take(0, 0, 8), f"{where}: no sequences; got 0, expected at least 1")
    refused(lambda: take(-1, 4, 8), f"{where}: negative {number}; got -1, expected 0 or more")
    refused(
        lambda: take(0, 4, 1001),
        f"{where}: the window is longer than the tokens of {corpus.path}; got seq_len=1001, expected at most 1000. "
        "hint: use a shorter window or more text",
    )


def test_bad_ranges(corpus: TokenFile) -> None:
    for start, stop in ((0, 1001), (5, 5), (-1, 5), (1000, None), (10, 5)):
        refused(
            lambda start=start, stop=stop: TokenFile.open(corpus.path, start=start, stop=stop),
            f"{corpus.path}: no such range of tokens; got start={start}, stop={stop}, "
            "expected 0 <= start < stop <= 1000",
        )
    for fraction in (0.0, 1.0):
        with pytest.raises(DataError, match="no such range of tokens"):
            corpus.split(fraction)
    with pytest.raises(ConfigError, match="seed out of range"):
        TokenFile.open(corpus.path, seed=-1)


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    refused(lambda: TokenFile.open(path), f"{path}: cannot be read: no such file or directory")
    refused(lambda: TokenFile.open(tmp_path), f"{tmp_path}: cannot be read: is a directory")
    path.write_bytes(b"")
    refused(
        lambda: TokenFile.open(path),
        f"{path}: the token file is empty; expected at least 1 token of 4 bytes",
    )
    for size in (1, 3, 4001, 4002):
        path.write_bytes(b"x" * size)
        refused(
            lambda size=size: TokenFile.open(path),
            f"{path}: not a token file: its length is not a multiple of 4; got {size} bytes. hint: write it with "
            "TokenFile.write; text needs a tokenizer first",
        )
    # Text whose length happens to fit is caught by the ids it would have.
    path.write_bytes(b"To be, or not to be.")
    refused(
        lambda: TokenFile.open(path).check_vocabulary(50_000),
        f"{path}: id outside the vocabulary at token 0; got 1646292820, expected 0 to 49999. hint: the file was made "
        "with another tokenizer, is damaged, or lost its description",
    )


def test_a_cut_file_is_refused_by_its_description(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    TokenFile.write(path, list(b"abcdef"), tokenizer=ByteTokenizer())
    path.write_bytes(path.read_bytes()[:-2])
    refused(
        lambda: TokenFile.open(path),
        f"{path}: the file and its description do not belong together; got 5 tokens, expected 6 by {path}.json. hint: "
        "the file was cut or replaced; write it again",
    )


def test_a_flipped_bit_is_found_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    TokenFile.write(path, list(b"abcdef"), tokenizer=ByteTokenizer())
    tokens = TokenFile.open(path)
    tokens.verify()
    raw = bytearray(path.read_bytes())
    raw[9] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged: the checksum differs"):
        TokenFile.open(path).verify()
    TokenFile.write(path, [1])
    refused(
        lambda: TokenFile.open(path).verify(),
        f"{path}: no description with a checksum; expected {path}.json",
    )


def test_bad_descriptions(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    side = tmp_path / "t.bin.json"
    TokenFile.write(path, list(b"abcdef"), tokenizer=ByteTokenizer())
    good = json.loads(side.read_text())
    what = "not the description of a token file"
    cases: list[tuple[object, str]] = [
        ({**good, "dtype": "int16"}, "ids in a format that is not read here; got int16, expected uint16 or uint32"),
        ({**good, "version": 9}, "a version this library does not read; got 9, expected 1"),
        ({**good, "type": "other"}, f"{what}; got type 'other', expected type 'pellucid-tokens'"),
        ({**good, "count": "6"}, "wrong type of 'count'; got str, expected int"),
        ([], f"{what}; got JSON list, expected a JSON object"),
    ]
    for content, message in cases:
        side.write_text(json.dumps(content))
        refused(lambda: TokenFile.open(path), f"{side}: {message}")
    side.write_text(json.dumps(good)[:-5])
    with pytest.raises(DataError, match="damaged or foreign JSON"):
        TokenFile.open(path)


def test_ids_of_a_small_vocabulary_take_two_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    for size, dtype, width in ((256, "uint16", 2), (1 << 16, "uint16", 2), ((1 << 16) + 1, "uint32", 4)):
        tokenizer = ByteTokenizer(special=[f"<{i}>" for i in range(size - 256)])
        TokenFile.write(path, [0, 200, size - 1], tokenizer=tokenizer)
        tokens = TokenFile.open(path)
        assert path.stat().st_size == 3 * width
        assert tokens.ids.dtype == np.dtype(dtype)
        assert tokens.ids.tolist() == [0, 200, size - 1]
        assert tokens.batch(0, 1, 3).ids.tolist() == [[0, 200, size - 1]]
        tokens.verify()
        tokens.check_tokenizer(tokenizer)
        assert tokens.check_vocabulary(size) == size - 1
        path.write_bytes(path.read_bytes()[:-1])
        refused(
            lambda width=width: TokenFile.open(path),
            f"{path}: not a token file: its length is not a multiple of {width}; got {3 * width - 1} bytes. hint: "
            "write it with TokenFile.write; text needs a tokenizer first",
        )


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "t.bin", ByteTokenizer()
    path.write_bytes(b"a\0\0\0b\0\0\0")
    side = {"type": "pellucid-tokens", "version": 1, "dtype": "uint32", "vocab_size": 256, "count": 2}
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "t.bin.json").write_text(json.dumps({**side, "tokenizer": tokenizer.fingerprint(), "sha256": sha256}))
    tokens = TokenFile.open(path)
    tokens.verify()
    tokens.check_tokenizer(tokenizer)
    assert tokens.ids.tolist() == [*b"ab"]


def test_an_id_no_model_can_have_is_refused_with_the_batch(tmp_path: Path) -> None:
    TokenFile.write(tmp_path / "t.bin", [1, 2**32 - 1, 3])
    refused(
        lambda: TokenFile.open(tmp_path / "t.bin").batch(0, 1, 3),
        "TokenBatch: id out of range at position 0, 1; got 4294967295, expected 0 to 2147483647",
    )


def test_shakespeare_from_text_to_batches(corpus_folder: Path, tmp_path: Path) -> None:
    source = corpus_folder / "english" / "tinyshakespeare.txt"
    tokenizer = CharTokenizer.train(documents(source))
    path = tmp_path / "shakespeare.bin"
    assert TokenFile.write_documents(path, documents(source), tokenizer) == 1_115_394
    train, held_out = TokenFile.open(path, seed=1337).split(0.9)
    train.check_tokenizer(tokenizer)
    assert (len(train), len(held_out)) == (1_003_854, 111_540)
    text = source.read_text(encoding="utf-8")
    batch = train.batch(3, 4, 257)
    for row in batch.ids:
        assert tokenizer.decode(row) in text
    total = count = index = 0
    while (chunk := held_out.chunk(index, 64, 257)) is not None:
        total += float((chunk.weights * (chunk.targets == 0)).sum()) * chunk.n_targets
        count += chunk.n_targets
        index += 1
    # The share of line ends, by chunks with a short last batch, is that of all predicted tokens.
    windows = held_out.ids[: 111_540 // 257 * 257].reshape(-1, 257)[:, 1:]
    assert count == windows.size
    assert abs(total - np.count_nonzero(windows == 0)) < 0.01


def test_any_length_reads_back(tmp_path: Path) -> None:
    stream = Generator(5)
    for n in (1, 2, 3, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1):
        ids = stream.words(n)
        assert TokenFile.write(tmp_path / "t.bin", ids) == n
        assert np.array_equal(TokenFile.open(tmp_path / "t.bin").ids, ids)


def test_an_epoch_has_every_window_once_in_an_order_of_its_own(corpus: TokenFile) -> None:
    windows = corpus.windows(11)
    assert windows == 99
    epochs = [[o for step in range(33) for o in offsets(corpus.shuffled(33 * k + step, 3, 11))] for k in range(2)]
    for found in epochs:
        assert sorted(found) == list(range(0, 990, 10))
        assert found != sorted(found)
    assert epochs[0] != epochs[1]
    # by (seed, epoch) alone, whatever was asked for before, also where a batch ends one epoch and begins the next
    again = TokenFile.open(corpus.path, seed=42)
    assert offsets(again.shuffled(24, 4, 11)) == [*epochs[0][96:], *epochs[1][:1]]
    assert offsets(TokenFile.open(corpus.path, seed=43).shuffled(0, 4, 11)) != epochs[0][:4]
    refused(lambda: corpus.shuffled(-1, 1, 11), "TokenFile.shuffled: negative step; got -1, expected 0 or more")

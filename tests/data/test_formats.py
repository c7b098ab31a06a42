"""Compressed files and parquet: the same documents as the plain file, in constant memory; damage is named."""

from __future__ import annotations

import gzip
import io
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.data import documents, holds_several

zstandard = pytest.importorskip("zstandard")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

JSONL = '{"text": "سلام"}\n\n{"text": "b"}\n'.encode()
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda raw: gzip.compress(raw[:5]) + gzip.compress(raw[5:]),
    ".zst": lambda raw: zstandard.compress(raw[:5]) + zstandard.compress(raw[5:]),
}


def refused(path: Path, message: str, **options: str) -> None:
    with pytest.raises(DataError) as error:
        list(documents(path, **options))
    assert str(error.value) == message


def table(path: Path, columns: dict[str, object]) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("ending", PACK)
def test_compressed_files(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending](JSONL))
    assert list(documents(path)) == ["سلام", "b"]
    text = "متن\r\n" * 300_000
    (tmp_path / f"b.TXT{ending}").write_bytes(PACK[ending](text.encode()))
    assert "".join(documents(tmp_path / f"b.TXT{ending}")) == text
    assert "".join(documents(tmp_path)) == "سلامb" + text
    assert holds_several(path)
    assert not holds_several(tmp_path / f"b.TXT{ending}")


@pytest.mark.parametrize("ending", PACK)
def test_how_far_a_file_has_been_read(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    # Python 3.12 reads gzip in pieces of 128 KiB, so it has to be a few of them
    path.write_bytes(PACK[ending](b"".join(b'{"text": "%x"}\n' % (i * 7919 % 99991) for i in range(300_000))))
    found, seen = documents(path), []
    assert found.bytes_total == path.stat().st_size
    for number, _ in enumerate(found):
        if number % 1000 == 0:
            seen.append(found.bytes_read)
    assert seen == sorted(seen)
    assert len(set(seen)) > 5
    assert found.bytes_read == found.bytes_total


@pytest.mark.parametrize("ending", PACK)
def test_damage(ending: str, tmp_path: Path) -> None:
    path, good = tmp_path / f"a.txt{ending}", PACK[ending](b"some text, " * 10_000)
    kind = {".gz": "gzip", ".zst": "zstd"}[ending]
    path.write_bytes(good[:-3])
    with pytest.raises(DataError) as error:
        list(documents(path))
    assert str(error.value).startswith(f"{path}: damaged {kind} data: ")
    path.write_bytes(b"no such thing")
    with pytest.raises(DataError) as error:
        list(documents(path))
    assert str(error.value).startswith(f"{path}: damaged {kind} data: ")
    path.write_bytes(PACK[ending](b""))
    refused(path, f"{path}: the file is empty")
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 0xFF
    path.write_bytes(bad)
    with pytest.raises(DataError, match="damaged"):
        list(documents(path))


def test_bad_lines_are_named_in_compressed_files_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(JSONL + b"[]\n"))
    refused(path, f'{path}:4: not a JSON object; got list, expected {{"text": "..."}}')


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_small_file_that_unpacks_to_a_large_one(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{ending}"
    raw = io.BytesIO()
    packer = (
        gzip.GzipFile(fileobj=raw, mode="wb")
        if ending == ".gz"
        else zstandard.ZstdCompressor().stream_writer(raw, closefd=False)
    )
    with packer as out:
        for _ in range(64):
            out.write(b"a" * (1 << 20))
    path.write_bytes(raw.getvalue())
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        count = sum(len(piece) for piece in documents(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 64 << 20
    assert peak < 80 << 20


def test_parquet(tmp_path: Path) -> None:
    texts = [f"سند {i}" for i in range(5000)]
    path = table(tmp_path / "a.parquet", {"id": list(range(5000)), "text": texts, "body": ["x"] * 5000})
    assert list(documents(path)) == texts
    assert list(documents(path, field="body")) == ["x"] * 5000
    assert list(documents(tmp_path)) == texts
    assert holds_several(path)
    found = documents(path)
    next(found)
    assert 0 <= found.bytes_read < found.bytes_total
    list(found)
    assert found.bytes_read == found.bytes_total
    encoded = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    assert list(documents(table(tmp_path / "d.parquet", {"text": encoded}))) == ["a", "b", "a"]


def test_parquet_that_cannot_be_read(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", {"body": ["a"], "n": [1]})
    refused(path, f"{path}: no column 'text'; got body, n. hint: name the column that holds the text")
    refused(path, f"{path}: column 'n' is not text; got int64, expected string", field="n")
    path = table(tmp_path / "b.parquet", {"text": ["a", None]})
    refused(path, f"{path}: row 2: no text in column 'text'; got null")
    path = table(tmp_path / "c.parquet", {"text": pyarrow.array([], pyarrow.string())})
    refused(path, f"{path}: no documents: the table has no rows")
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError) as error:
        list(documents(path))
    assert str(error.value).startswith(f"{path}: no parquet file, or a damaged one: ")


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.txt.zst", "zstandard")])
def test_a_missing_package_is_named_with_the_cure(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    refused(
        path,
        f"{path}: needs the package {package}, which is not installed. hint: pip install {package}, or pip install "
        "'pellucid[corpus]' for every format",
    )

"""Documents from text files, JSONL and folders; constant memory; every bad input named."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.data import Continued, documents, sources


def whole(pieces: list[str]) -> list[str]:
    """Pieces put together to documents."""
    found, open_document = [], False
    for piece in pieces:
        if open_document:
            found[-1] += piece
        else:
            found.append(str(piece))
        open_document = isinstance(piece, Continued)
    assert not open_document
    return found


def refused(message: str, path: Path, **options: str) -> None:
    with pytest.raises(DataError) as error:
        list(documents(path, **options))
    assert str(error.value) == message


def test_text_is_taken_as_it_is(corpus_folder: Path) -> None:
    for name in ("persian/saadi.txt", "english/tinyshakespeare.txt"):
        path = corpus_folder / name
        pieces = list(documents(path))
        assert len(pieces) == 1 + (path.stat().st_size - 1) // sources._PIECE
        assert whole(pieces) == [path.read_bytes().decode("utf-8")]
    assert "\r\n" in whole(list(documents(corpus_folder / "persian" / "saadi.txt")))[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 64])
def test_no_piece_breaks_a_character(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIECE", size)
    text = "aé\u200cی🙂\r\n" * 5
    (tmp_path / "t.txt").write_bytes(text.encode())
    pieces = list(documents(tmp_path / "t.txt"))
    assert whole(pieces) == [text]
    assert all(pieces)
    assert [isinstance(piece, Continued) for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbf")
    (tmp_path / "t.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "b"}\n')
    assert list(documents(tmp_path / "t.txt")) == ["a\ufeff"]
    assert list(documents(tmp_path / "t.jsonl")) == ["b"]


def test_jsonl(corpus_folder: Path) -> None:
    path = corpus_folder / "instructions" / "gsm8k_test.jsonl"
    answers = list(documents(path, field="answer"))
    assert len(answers) == 1319
    assert answers[0] == json.loads(path.read_text(encoding="utf-8").splitlines()[0])["answer"]


def test_jsonl_line_forms(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\n{"text": "a"}\r\n  \n{"text": "", "x": 1}\n\t{"text": "\\ud83d\\ude42"} \n{"text": "last"}')
    assert list(documents(path)) == ["a", "", "🙂", "last"]


def test_bad_jsonl_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for line, message in {
        b'{"text": "a"': "not JSON: Expecting ',' delimiter at column 13",
        b'["text"]': 'not a JSON object; got list, expected {"text": "..."}',
        b'{"q": 1, "a": 2}': "no field 'text'; got q, a. hint: name the field that holds the text",
        b"{}": "no field 'text'; got no fields. hint: name the field that holds the text",
        b'{"text": null}': "field 'text' is not text; got NoneType, expected a string",
        b'{"text": "\\ud800"}': "field 'text' holds half a surrogate pair. hint: repair the escape in the line",
        b'{"text": "\xff"}': "not UTF-8 text: bad byte 10 in the line",
        b"[" * 100_000: "not JSON this reader takes: nested too deeply, or a number too long",
        b'{"text": ' + b"1" * 10_000 + b"}": "not JSON this reader takes: nested too deeply, or a number too long",
    }.items():
        path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
        stream = documents(path)
        assert next(stream) == "fine"
        with pytest.raises(DataError) as error:
            next(stream)
        assert str(error.value) == f"{path}:3: {message}"


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_LONGEST_LINE", 20)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"text": "123456789"}\n')
    refused(
        f"{path}:1: line too long for one document; got more than 20 bytes. hint: JSONL holds one document a line; "
        "write a long text as a .txt file",
        path,
    )


def test_folder_is_read_in_order(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": "b",
        "a/z.md": "az",
        "a.txt": "a.",
        "a/B.TXT": "aB",
        "a/deep/er.py": "deep",
        "c.jsonl": '{"text": "c1"}\n{"text": "c2"}\n',
        "empty.txt": "",
        ".hidden.txt": "no",
        ".git/x.txt": "no",
        "image.png": "no",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert list(documents(tmp_path)) == ["aB", "deep", "az", "a.", "b", "c1", "c2"]
    assert list(documents(tmp_path, pattern="*.png")) == ["no"]
    assert list(documents(os.fspath(tmp_path), pattern="[bc].txt")) == ["b"]


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    refused(f"{path}: cannot be read: no such file or directory", path)
    path.write_bytes(b"")
    refused(f"{path}: the file is empty", path)
    path.write_bytes(b"\xef\xbb\xbf")
    refused(f"{path}: the file is empty", path)
    path.write_bytes(b"text" * 400_000 + b"\0")
    refused(f"{path}: a binary file: NUL byte at offset 1600000; expected UTF-8 text", path)
    hint = "hint: convert it first, for example with iconv -t UTF-8"
    path.write_bytes("é".encode() * 600_001 + b"\xe9 ")
    refused(f"{path}: not UTF-8 text: bad byte at offset 1200002. {hint}", path)
    path.write_bytes(b"cut \xf0\x9f\x99")
    refused(f"{path}: not UTF-8 text: bad byte at offset 4. {hint}", path)
    path.write_bytes("utf-16".encode("utf-16"))
    refused(f"{path}: a binary file: NUL byte at offset 3; expected UTF-8 text", path)
    (tmp_path / "t.jsonl").write_bytes(b"\n \n")
    refused(
        f"{tmp_path / 't.jsonl'}: no documents: the file is empty or every line is blank",
        tmp_path / "t.jsonl",
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_bad_byte_is_located_across_pieces(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIECE", size)
    path = tmp_path / "t.txt"
    for good, bad in (("🙂é", b"\xff"), ("ab🙂", b"\xf0\x9fa"), ("\ufeffé", b"\xc3")):
        path.write_bytes(good.encode() + bad)
        with pytest.raises(DataError, match=f"bad byte at offset {len(good.encode())}[.]"):
            list(documents(path))


def test_what_is_no_text_at_all(tmp_path: Path) -> None:
    refused(
        f"{tmp_path}: no text in this folder; expected files that end in .txt, .md, .rst, .py, .jsonl, "
        ".parquet. hint: choose the files with a pattern",
        tmp_path,
    )
    refused(
        f"{tmp_path}: no text in this folder; expected names like *.tex. hint: choose the files with a pattern",
        tmp_path,
        pattern="*.tex",
    )
    if not hasattr(os, "mkfifo"):
        return
    os.mkfifo(tmp_path / "pipe")
    refused(
        f"{tmp_path / 'pipe'}: not a regular file. hint: give a file or a folder of text",
        tmp_path / "pipe",
    )


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Modes don't stop the superuser, so the refusal is played.
    path = tmp_path / "t.txt"
    path.write_text("a")

    def denied(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    stream = documents(path)
    with pytest.raises(DataError) as error:
        next(stream)
    monkeypatch.undo()
    assert str(error.value) == f"{path}: cannot be read: permission denied"


def test_a_large_file_takes_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(("کتاب\n" * 100_000).encode() * 24)  # 21 MB
    tracemalloc.start()
    try:
        characters = sum(len(piece) for piece in documents(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert characters == 12_000_000
    assert peak < 9 * sources._PIECE

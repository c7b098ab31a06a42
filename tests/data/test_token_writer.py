"""Writing token files: from ids, documents and JSONL; constant memory; nothing half-written after any failure."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.data import Continued, TokenFile, documents, sources, token_writer
from pellucid.text import END_OF_TEXT, ByteTokenizer, CharTokenizer, Tokenizer


def refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError) as error:
        call()
    assert str(error.value) == message


def test_documents_with_an_end_after_each(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "t.bin", ByteTokenizer(special=[END_OF_TEXT])
    pieces = ["ab", Continued("é"), Continued(""), "f", "", Continued("x"), Continued("y")]
    assert TokenFile.write_documents(path, pieces, tokenizer, eos=tokenizer.eot) == 11
    tokens = TokenFile.open(path)
    assert tokens.ids.tolist() == [*b"ab", 256, *"éf".encode(), 256, 256, *b"xy", 256]
    assert json.loads((tmp_path / "t.bin.json").read_text()) == {
        "type": "pellucid-tokens",
        "version": 1,
        "dtype": "uint16",
        "tokenizer": tokenizer.fingerprint(),
        "vocab_size": 257,
        "count": 11,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    assert tokens.info is not None
    assert tokens.info.vocab_size == 257
    assert TokenFile.write_documents(path, pieces, tokenizer) == 7


def test_a_tokenizer_may_wait_for_what_follows(tmp_path: Path) -> None:
    class Pairs(ByteTokenizer):
        """Two ASCII characters an id, where the text allows: its ids depend on the cut."""

        def settled(self, text: str) -> int:
            return len(text) // 2 * 2

        def _encode(self, text: str) -> np.ndarray:
            return np.array([sum(text[i : i + 2].encode()) for i in range(0, len(text), 2)], dtype=np.uint32)

        _encode_batch = Tokenizer._encode_batch

    texts = ["abcdefg", "hij"]
    for size in (1, 2, 3, 10):
        pieces = []
        for text in texts:
            cut = [text[i : i + size] for i in range(0, len(text), size)]
            pieces += [*map(Continued, cut[:-1]), cut[-1]]
        TokenFile.write_documents(tmp_path / "t.bin", pieces, Pairs(), eos=7)
        want = [195, 199, 203, 103, 7, 209, 106, 7]
        assert TokenFile.open(tmp_path / "t.bin").ids.tolist() == want


def test_persian_folder_round_trip(corpus_folder: Path, tmp_path: Path) -> None:
    folder = corpus_folder / "persian"
    tokenizer = CharTokenizer.train(documents(folder), special=[END_OF_TEXT])
    count = TokenFile.write_documents(tmp_path / "t.bin", documents(folder), tokenizer, eos=tokenizer.eot)
    tokens = TokenFile.open(tmp_path / "t.bin")
    assert len(tokens) == count
    ends = np.flatnonzero(tokens.ids == tokenizer.eot)
    files = sorted(folder.glob("*.txt"))
    assert len(ends) == len(files)
    begin = 0
    for end, file in zip(ends.tolist(), files, strict=True):
        assert tokenizer.decode(tokens.ids[begin:end]).encode() == file.read_bytes()
        begin = end + 1


def test_jsonl_with_any_encoder(corpus_folder: Path, tmp_path: Path) -> None:
    source = corpus_folder / "instructions" / "gsm8k_test.jsonl"
    path = tmp_path / "t.bin"
    count = TokenFile.write_jsonl(path, source, field="question", eos=0, encode=lambda text: list(text.encode()))
    lines = [json.loads(line)["question"].encode() for line in source.read_text(encoding="utf-8").splitlines()]
    assert bytes(TokenFile.open(path).ids.astype(np.uint8)) == b"".join(line + b"\0" for line in lines)
    assert count == len(TokenFile.open(path))
    assert not (tmp_path / "t.bin.json").exists()


def test_jsonl_details(tmp_path: Path) -> None:
    path, source = tmp_path / "t.bin", tmp_path / "t.json"  # the name doesn't matter here
    source.write_text('{"text": "a"}\n\n{"text": ""}\n{"text": "b"}\n')
    assert TokenFile.write_jsonl(path, source, encode=lambda text: list(text.encode())) == 2
    assert TokenFile.write_jsonl(path, source, eos=9, encode=ByteTokenizer().encode) == 5
    assert TokenFile.open(path).ids.tolist() == [97, 9, 9, 98, 9]
    refused(
        lambda: TokenFile.write_jsonl(source, source, encode=ByteTokenizer().encode),
        f"{source}: the token file would replace its source. hint: give it another name",
    )
    source.write_text('{"text": "a"}\n\n{"tex": ""}\n')
    refused(
        lambda: TokenFile.write_jsonl(tmp_path / "new.bin", source, encode=ByteTokenizer().encode),
        f"{source}:3: no field 'text'; got tex. hint: name the field that holds the text",
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.bin", "t.json"]


def test_writing_takes_constant_memory(tmp_path: Path) -> None:
    source, path = tmp_path / "t.txt", tmp_path / "t.bin"
    source.write_bytes(b"all work and no play makes jack\n" * (1 << 19))  # 16 MB, 64 MB of ids
    tokenizer = CharTokenizer.train(documents(source))
    tracemalloc.start()
    try:
        count = TokenFile.write_documents(path, documents(source), tokenizer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == source.stat().st_size
    assert peak < 32 * sources._PIECE


BAD_IDS = {
    "negative": ([1, -2], "id out of range at token 1; got -2, expected 0 to 4294967295"),
    "wide": ([1, 5, 2**32], "id out of range at token 2; got 4294967296, expected 0 to 4294967295"),
    "empty": ([], "no tokens to write; expected at least 1"),
    "real": (
        [0.5],
        "ids are not a list of integers; got float64 with shape (1,), expected one dimension of an integer type",
    ),
    "flags": (
        np.array([True]),
        "ids are not a list of integers; got bool with shape (1,), expected one dimension of an integer type",
    ),
    "square": (
        np.ones((2, 2), dtype=int),
        "ids are not a list of integers; got int64 with shape (2, 2), expected one dimension of an integer type",
    ),
}


@pytest.mark.parametrize("name", BAD_IDS)
def test_bad_ids_leave_the_old_file(name: str, tmp_path: Path) -> None:
    ids, message = BAD_IDS[name]
    path = tmp_path / "t.bin"
    TokenFile.write(path, list(b"old"), tokenizer=ByteTokenizer())
    refused(lambda: TokenFile.write(path, ids), f"{path}: {message}")
    tokens = TokenFile.open(path)
    tokens.verify()
    assert tokens.ids.tolist() == list(b"old")
    assert sorted(os.listdir(tmp_path)) == ["t.bin", "t.bin.json"]


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    refused(
        lambda: TokenFile.write(path, [1, 256], tokenizer=ByteTokenizer()),
        f"{path}: id out of range at token 1; got 256, expected 0 to 255",
    )
    refused(
        lambda: TokenFile.write_documents(path, ["abc", "d"], ByteTokenizer(), eos=256),
        f"{path}: id out of range at token 3; got 256, expected 0 to 255",
    )
    refused(
        lambda: TokenFile.write_documents(path, ["", ""], ByteTokenizer()),
        f"{path}: no tokens to write; expected at least 1",
    )
    assert os.listdir(tmp_path) == []


def test_text_that_has_no_ids_is_located(tmp_path: Path) -> None:
    tokenizer, path = CharTokenizer("abc"), tmp_path / "t.bin"
    inner = (
        "CharTokenizer.encode: character 1 (line 1) is not in the vocabulary; got 'x' (U+0078), expected one of its 3 "
        "characters. hint: train the tokenizer on text that has it, or with unknown=True"
    )
    refused(
        lambda: TokenFile.write_documents(path, ["abc", "axc"], tokenizer),
        f"document 1: can't be encoded ({inner})",
    )
    refused(
        lambda: TokenFile.write_documents(path, ["abc", Continued("abcab"), Continued("ab"), "bx"], tokenizer),
        f"document 1, text from character 7 on: can't be encoded ({inner})",
    )
    assert os.listdir(tmp_path) == []


def test_new_ids_never_keep_an_old_description(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    TokenFile.write(path, list(b"abc"), tokenizer=ByteTokenizer())
    TokenFile.write(path, [1, 2, 3])
    assert TokenFile.open(path).info is None
    assert os.listdir(tmp_path) == ["t.bin"]


@pytest.mark.parametrize("failure", [ValueError("encoder"), KeyboardInterrupt(), OSError("not about the output")])
def test_an_exception_passes_and_leaves_nothing(failure: BaseException, tmp_path: Path) -> None:
    def encode(text: str) -> list[int]:
        if text == "b":
            raise failure
        return [1] * 1_000_000

    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    with pytest.raises(type(failure)) as raised:
        TokenFile.write_jsonl(tmp_path / "t.bin", tmp_path / "t.jsonl", encode=encode)
    assert raised.value is failure
    assert os.listdir(tmp_path) == ["t.jsonl"]


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "t.bin"
    TokenFile.write(path, [1, 2, 3])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # stands for a disk with a megabyte left
    try:
        refused(
            lambda: TokenFile.write(path, np.zeros(1 << 20, dtype=np.uint32)),
            f"{path}: cannot be written: file too large",
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert TokenFile.open(path).ids.tolist() == [1, 2, 3]
    assert os.listdir(tmp_path) == ["t.bin"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    TokenFile.write(path, list(b"old"), tokenizer=ByteTokenizer())
    program = (
        "import os, signal, sys\n"
        "from pellucid.data import TokenFile\n"
        "from pellucid.text import ByteTokenizer\n"
        "def texts():\n"
        "    yield 'x' * 5_000_000\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "TokenFile.write_documents(sys.argv[1], texts(), ByteTokenizer())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    tokens = TokenFile.open(path)
    tokens.verify()
    assert tokens.ids.tolist() == list(b"old")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_what_a_killed_writer_left_is_removed_and_a_live_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    program = (
        "import sys, time\n"
        "from pellucid.data import TokenFile\n"
        "from pellucid.text import ByteTokenizer\n"
        "def texts():\n"
        "    yield 'x' * 5_000_000\n"
        "    print('written', flush=True)\n"
        "    time.sleep(60)\n"
        "TokenFile.write_documents(sys.argv[1], texts(), ByteTokenizer())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (temporary,) = tmp_path.iterdir()
        (tmp_path / ".other.bin.1.00000000.tmp").write_text("another file's")
        TokenFile.write(path, [1])
        assert temporary.exists()
        process.kill()
    assert temporary.exists()
    TokenFile.write(path, [2])
    assert sorted(os.listdir(tmp_path)) == [".other.bin.1.00000000.tmp", "t.bin"]


def test_a_kill_at_the_very_end_leaves_no_ids_with_a_wrong_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new description is there and the new file hasn't taken its name yet: there must be no old file under it."""
    path, seen = tmp_path / "t.bin", []
    TokenFile.write(path, list(b"old"), tokenizer=ByteTokenizer())
    replace = os.replace

    def watched(source: str, target: str) -> None:
        seen.append((Path(target).name, path.exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    TokenFile.write(path, [1, 2], tokenizer=ByteTokenizer(special=[f"<{i}>" for i in range(1 << 16)]))
    assert seen == [("t.bin.json", False), ("t.bin", False)]


def test_batches_do_not_show_in_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "t.jsonl"
    texts = ["a", "", "héllo\n", "x" * 50, "", *(f"document {i}" for i in range(30))]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = ByteTokenizer(special=[END_OF_TEXT])
    want = [i for text in texts for i in [*text.encode(), 256]]
    for together in (1, 7, 100, 1 << 20):
        monkeypatch.setattr(token_writer, "_TOGETHER", together)
        for given in (texts, documents(source)):
            TokenFile.write_documents(tmp_path / "t.bin", given, tokenizer, eos=256)
            assert TokenFile.open(tmp_path / "t.bin").ids.tolist() == want


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tokenizer, seen = tmp_path / "t.jsonl", ByteTokenizer(special=[END_OF_TEXT]), []
    source.write_text("".join(json.dumps({"text": "x" * 100}) + "\n" for _ in range(1000)))
    monkeypatch.setattr(token_writer, "_TOGETHER", 10_000)
    TokenFile.write_documents(tmp_path / "t.bin", documents(source), tokenizer, eos=256, on_progress=seen.append)
    assert [e.documents for e in seen] == list(range(100, 1001, 100))
    assert [e.tokens for e in seen] == list(range(10_100, 101_001, 10_100))
    assert all(e.bytes_total == source.stat().st_size for e in seen)
    read = [e.bytes_read for e in seen]
    assert read == sorted(read)
    assert read[-1] == seen[-1].bytes_total
    assert seen[-1].seconds_left == 0
    assert seen[0].seconds_left > 0
    TokenFile.write_documents(tmp_path / "t.bin", ["ab", "c"], tokenizer, on_progress=seen.append)
    assert (seen[-1].documents, seen[-1].tokens) == (2, 3)
    assert (seen[-1].bytes_read, seen[-1].bytes_total, seen[-1].seconds_left) == (None, None, None)


def test_somebody_elses_documents_are_read_in_the_callers_thread(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        assert threading.current_thread() is threading.main_thread()
        yield "abc"

    assert TokenFile.write_documents(tmp_path / "t.bin", texts(), ByteTokenizer()) == 3


def test_a_bad_line_ends_the_writing_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_writer, "_TOGETHER", 10)
    source = tmp_path / "t.jsonl"
    source.write_text('{"text": "0123456789"}\n' * 50 + "{}\n")
    refused(
        lambda: TokenFile.write_documents(tmp_path / "t.bin", documents(source), ByteTokenizer()),
        f"{source}:51: no field 'text'; got no fields. hint: name the field that holds the text",
    )
    assert os.listdir(tmp_path) == ["t.jsonl"]
    assert not any(thread.name.startswith("pellucid-reader") for thread in threading.enumerate())


PEAK = """
import resource, sys
from pellucid.data import TokenFile, documents
from pellucid.text import ByteTokenizer, END_OF_TEXT
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = TokenFile.write_documents(sys.argv[1], documents(sys.argv[2]), ByteTokenizer(special=[END_OF_TEXT]), eos=256)
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_the_memory_of_the_process_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Peak resident memory, which also counts what no Python allocation shows."""
    found = {}
    for megabytes in (8, 64):
        source = tmp_path / f"{megabytes}.jsonl"
        line = json.dumps({"text": "all work and no play " * 48}) + "\n"
        source.write_text(line * (megabytes * 1_000_000 // len(line)))
        done = subprocess.run(
            [sys.executable, "-c", PEAK, tmp_path / "t.bin", source], check=True, capture_output=True, text=True
        )
        count, kilobytes = map(int, done.stdout.split())
        assert count > 0.98e6 * megabytes
        found[megabytes] = kilobytes
    assert found[64] < 64 << 10
    assert found[64] - found[8] < 16 << 10


def test_a_target_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        raise AssertionError("read before the target was checked")
        yield ""

    refused(
        lambda: TokenFile.write_documents(tmp_path / "no" / "t.bin", texts(), ByteTokenizer()),
        f"{tmp_path / 'no' / 't.bin'}: cannot be written: its folder does not exist. hint: create the folder first",
    )
    refused(
        lambda: TokenFile.write_documents(tmp_path, texts(), ByteTokenizer()),
        f"{tmp_path}: cannot be written: is a folder. hint: give the name of a file",
    )

"""Runs that were stopped and went on: the same bytes, and nothing mixed in from another run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.data import TokenFile, documents, token_writer
from pellucid.data.token_writer import Encoded
from pellucid.text import END_OF_TEXT, ByteTokenizer, Tokenizer, UnigramTokenizer

TEXT = "".join(f"line {i} of a text, {i * i} characters or so\n" for i in range(3000))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text and two hundred documents, read a few thousand characters at a time."""
    monkeypatch.setattr(token_writer, "_TOGETHER", 5_000)
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines()[:2000]))
    return folder


class Stop(BaseException):
    """What ends a run from outside."""


def stopping(after: int) -> Callable[[Encoded], None]:
    calls = 0

    def progress(_: Encoded) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise Stop

    return progress


def write(path: Path, corpus: Path, tokenizer: Tokenizer, **options: object) -> int:
    return TokenFile.write_documents(path, documents(corpus), tokenizer, eos=tokenizer.eot, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["byte", "unigram"])
def test_a_stopped_run_goes_on(kind: str, corpus: Path, tmp_path: Path) -> None:
    special = [END_OF_TEXT]
    tokenizer = ByteTokenizer(special=special) if kind == "byte" else UnigramTokenizer.train(TEXT, 320, special=special)
    want = tmp_path / "want.bin"
    count = write(want, corpus, tokenizer)
    path = tmp_path / "t.bin"
    for after in (1, 3, 7):
        with pytest.raises(Stop):
            write(path, corpus, tokenizer, on_progress=stopping(after), resume=True)
        assert sorted(os.listdir(tmp_path)) == ["corpus", "t.bin.part", "t.bin.part.json", "want.bin", "want.bin.json"]
    # What a kill left behind the ids that are known.
    with open(tmp_path / "t.bin.part", "ab") as file:
        file.write(b"more")
    seen: list[Encoded] = []
    assert write(path, corpus, tokenizer, on_progress=seen.append, resume=True) == count
    assert path.read_bytes() == want.read_bytes()
    assert (tmp_path / "t.bin.json").read_bytes() == (tmp_path / "want.bin.json").read_bytes()
    assert not list(tmp_path.glob("*.part*"))
    assert (seen[-1].tokens, seen[-1].documents, seen[-1].seconds_left) == (count, 2001, 0.0)
    assert 0 < seen[0].bytes_skipped < (seen[0].bytes_read or 0)
    TokenFile.open(path).verify()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text(TEXT * 40)
    program = (
        "import os, signal, sys\n"
        "from pellucid.data import TokenFile, documents, token_resume\n"
        "from pellucid.text import ByteTokenizer\n"
        "token_resume._SECONDS = 0.0\n"
        "def kill(done):\n"
        "    if done.tokens > 3_000_000:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "found = documents(sys.argv[2])\n"
        "TokenFile.write_documents(sys.argv[1], found, ByteTokenizer(), on_progress=kill, resume=True)\n"
    )
    path = tmp_path / "t.bin"
    done = subprocess.run([sys.executable, "-c", program, str(path), str(tmp_path / "c.txt")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "t.bin.part.json").read_text())["tokens"] > 1_000_000
    seen: list[Encoded] = []
    TokenFile.write_documents(
        path, documents(tmp_path / "c.txt"), ByteTokenizer(), on_progress=seen.append, resume=True
    )
    assert seen[0].bytes_skipped > 0
    assert bytes(TokenFile.open(path).ids.astype("u1")) == (TEXT * 40).encode()


def test_refusals(corpus: Path, tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "t.bin", ByteTokenizer(special=[END_OF_TEXT])
    part = f"{path}.part"

    def message(call: Callable[[], object]) -> str:
        with pytest.raises(DataError) as error:
            call()
        return str(error.value)

    assert message(lambda: TokenFile.write_documents(path, ["a"], tokenizer, resume=True)) == (
        "TokenFile.write_documents: only documents of files can be resumed. hint: give what pellucid.data.documents "
        "returns"
    )
    assert os.listdir(tmp_path) == ["corpus"]
    with pytest.raises(Stop):
        write(path, corpus, tokenizer, on_progress=stopping(4), resume=True)
    cure = f"hint: remove {part} and {part}.json to begin again"
    other = f"{part}: of another run: the corpus, the tokenizer or the end of documents has changed. {cure}"
    assert message(lambda: write(path, corpus, ByteTokenizer(), resume=True)) == other
    assert message(lambda: TokenFile.write_documents(path, documents(corpus), tokenizer, resume=True)) == other
    whole = Path(part).read_bytes()
    Path(part).write_bytes(b"x" + whole[1:])
    damaged = f"{part}: damaged: the ids are not those that were written. {cure}"
    assert message(lambda: write(path, corpus, tokenizer, resume=True)) == damaged
    Path(part).write_bytes(whole[:100])
    assert message(lambda: write(path, corpus, tokenizer, resume=True)) == damaged
    Path(part).write_bytes(whole)
    (corpus / "a.txt").write_text(TEXT + "more")
    assert message(lambda: write(path, corpus, tokenizer, resume=True)) == other
    # Without it nothing is in the way.
    write(path, corpus, tokenizer)
    TokenFile.open(path).verify()

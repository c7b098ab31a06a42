"""`pellucid tokenizer` and the tokenizer that `pellucid train` trains."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.cli import main
from pellucid.cli.corpus import whole_lines
from pellucid.cli.runs import open_run
from pellucid.data import Continued, TokenFile
from pellucid.text import (
    END_OF_TEXT,
    ByteTokenizer,
    CharTokenizer,
    NormalizedTokenizer,
    Normalizer,
    Tokenizer,
    UnicodeForm,
    UnigramTokenizer,
    load_tokenizer,
)
from pellucid.text.measure import by_script, measure, pieces_of, script_of, script_of_piece

from .conftest import SHORT, Refused

Output = pytest.CaptureFixture[str]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capfd: Output) -> Run:
    """Runs an action with --json and returns what it printed."""

    def found(*arguments: object) -> dict[str, Any]:
        capfd.readouterr()
        assert main(["tokenizer", *map(str, arguments), "--json"]) == 0
        out, _ = capfd.readouterr()
        assert out.count("\n") == 1
        return json.loads(out)

    return found


@pytest.fixture(scope="module")
def tokenizer(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Unigram tokenizer file."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    assert main(["tokenizer", "train", "--corpus", str(corpus), "--vocab", "280", "--out", str(path)]) == 0
    return path


def printed(capfd: Output, *arguments: object) -> str:
    capfd.readouterr()
    assert main(["tokenizer", *map(str, arguments)]) == 0
    return capfd.readouterr()[0]


# --- train ------------------------------------------------------------------------------------------------------------


def test_training(corpus: Path, tokenizer: Path, tmp_path: Path, run: Run) -> None:
    found = run("train", "--corpus", corpus, "--vocab", 280, "--out", tmp_path / "t.json")
    assert (tmp_path / "t.json").read_bytes() == tokenizer.read_bytes()
    loaded = load_tokenizer(tmp_path / "t.json")
    assert found["fingerprint"] == loaded.fingerprint()
    assert (found["kind"], found["vocabulary"], loaded.vocab_size) == ("unigram", 280, 280)
    assert loaded.eot is not None
    text = corpus.read_text()
    assert found["characters_per_token"] == pytest.approx(len(text) / len(loaded.encode(text)))


@pytest.mark.parametrize(("kind", "size"), [("char", 17), ("byte", 257)])
def test_kinds_that_have_a_size(kind: str, size: int, corpus: Path, tmp_path: Path, run: Run) -> None:
    found = run("train", "--corpus", corpus, "--kind", kind, "--out", tmp_path / "t.json")
    assert found["vocabulary"] == size
    assert load_tokenizer(tmp_path / "t.json").kind == kind
    run("train", "--corpus", corpus, "--kind", kind, "--out", tmp_path / "t.json", "--special", "<a>", "<b>")
    assert list(load_tokenizer(tmp_path / "t.json").special) == ["<a>", "<b>"]


def test_byte_pairs(corpus: Path, tmp_path: Path, run: Run) -> None:
    found = run("train", "--corpus", corpus, "--kind", "bpe", "--vocab", 280, "--out", tmp_path / "t.json")
    assert found["characters_per_token"] > 2
    loaded = load_tokenizer(tmp_path / "t.json")
    assert (loaded.kind, loaded.vocab_size) == ("bpe", 280)
    assert loaded.eot == 279
    options = ["--kind", "bpe", "--vocab", 280, "--out", tmp_path / "s.json", "--space-before"]
    run("train", "--corpus", corpus, *options)
    ids = run("encode", tmp_path / "s.json", "wind")["ids"]
    assert ids == run("encode", tmp_path / "s.json", "wind wind")["ids"][len(ids) :]
    assert run("decode", tmp_path / "s.json", *ids)["text"] == "wind"
    run("encode", tmp_path / "t.json", "--corpus", corpus, "--out", tmp_path / "t.bin", "--resume")
    tokens = TokenFile.open(tmp_path / "t.bin")
    tokens.check_tokenizer(loaded)
    assert loaded.decode(tokens.ids) == corpus.read_text()


def test_normalisers(tmp_path: Path, run: Run, capfd: Output) -> None:
    (tmp_path / "t.txt").write_text("علي كتاب علی کتاب e\u0301", encoding="utf-8")
    options = ["--corpus", tmp_path / "t.txt", "--kind", "char", "--out", tmp_path / "t.json"]
    run("train", *options, "--normalize", "nfc", "persian")
    assert printed(capfd, "encode", tmp_path / "t.json", "علي") == printed(capfd, "encode", tmp_path / "t.json", "علی")
    ids = run("encode", tmp_path / "t.json", "كتاب é")["ids"]
    assert run("decode", tmp_path / "t.json", *ids)["text"] == "کتاب é"
    assert run("info", tmp_path / "t.json", tmp_path / "t.txt")["corpus"]["tokens"] == 19
    run("train", *options)
    assert printed(capfd, "encode", tmp_path / "t.json", "علي") != printed(capfd, "encode", tmp_path / "t.json", "علی")


def test_training_on_jsonl_and_folders(corpus: Path, tmp_path: Path, run: Run) -> None:
    lines = [json.dumps({"body": line + "\n"}) for line in corpus.read_text().splitlines()]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "c" / "b.log").write_text("zzz")
    options = ["--kind", "char", "--out", tmp_path / "t.json"]
    run("train", "--corpus", tmp_path / "c", "--field", "body", *options)
    assert "z" not in load_tokenizer(tmp_path / "t.json").characters  # type: ignore[attr-defined]
    run("train", "--corpus", tmp_path / "c", "--pattern", "*.log", *options)
    assert load_tokenizer(tmp_path / "t.json").characters == "z"  # type: ignore[attr-defined]


def test_a_long_document_is_cut_between_lines() -> None:
    pieces = [
        Continued("one tw"),
        Continued("o\nthree fo"),
        "ur",
        "five",
        Continued("six sev"),
        Continued("en"),
        "eight",
    ]
    found = list(whole_lines(pieces))
    assert "".join(found) == "".join(pieces)
    assert not {"tw", "fo", "sev"} & {word for text in found for word in text.split()}
    assert "five" in found


# --- encode, decode ---------------------------------------------------------------------------------------------------


def test_encode_and_decode(tokenizer: Path, run: Run, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the night é"
    loaded = load_tokenizer(tokenizer)
    ids = loaded.encode(text).tolist()
    assert run("encode", tokenizer, text) == {"ids": ids, "characters": 11}
    assert printed(capfd, "encode", tokenizer, text) == " ".join(map(str, ids)) + "\n"
    assert printed(capfd, "decode", tokenizer, *ids) == text + "\n"
    assert run("decode", tokenizer, *ids) == {"text": text, "ids": len(ids)}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{text}\n".encode())))
    assert run("encode", tokenizer) == {"ids": loaded.encode(text + "\n").tolist(), "characters": 12}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(" ".join(map(str, ids)).encode())))
    assert printed(capfd, "decode", tokenizer) == text + "\n"


def test_pieces_and_special_tokens(tokenizer: Path, run: Run, capfd: Output) -> None:
    eot = load_tokenizer(tokenizer).eot
    assert eot not in run("encode", tokenizer, END_OF_TEXT)["ids"]
    assert run("encode", tokenizer, END_OF_TEXT, "--special", "--pieces") == {
        "ids": [eot],
        "characters": 13,
        "pieces": [END_OF_TEXT],
    }
    assert re.fullmatch(r' +\d+  "a"\n', printed(capfd, "encode", tokenizer, "a", "--pieces"))
    assert run("decode", tokenizer, eot, "--show-special")["text"] == END_OF_TEXT
    assert run("decode", tokenizer, eot)["text"] == ""


def test_a_corpus_into_a_token_file(corpus: Path, tokenizer: Path, tmp_path: Path, run: Run, capfd: Output) -> None:
    found = run("encode", tokenizer, "--corpus", corpus, "--out", tmp_path / "t.bin")
    tokens, loaded = TokenFile.open(tmp_path / "t.bin"), load_tokenizer(tokenizer)
    tokens.verify()
    assert (found["tokens"], found["documents"], found["bytes"]) == (len(tokens), 1, 2 * len(tokens))
    assert tokens.ids[-1] == loaded.eot
    assert loaded.decode(tokens.ids) == corpus.read_text()
    part = run("decode", tokenizer, "--tokens", tmp_path / "t.bin", "--start", 5, "--count", 7)
    assert part == {"text": loaded.decode(tokens.ids[5:12]), "ids": 7}
    assert "documents   1\n" in printed(capfd, "encode", tokenizer, "--corpus", corpus, "--out", tmp_path / "t.bin")


# --- info, compare ----------------------------------------------------------------------------------------------------


def test_info(corpus: Path, tokenizer: Path, run: Run, capfd: Output) -> None:
    loaded = load_tokenizer(tokenizer)
    found = run("info", tokenizer, corpus, "--pieces", 3)
    assert (found["kind"], found["vocabulary"]) == ("unigram", 280)
    assert sum(s["tokens"] for s in found["pieces_by_script"].values()) == 279
    text, ids = corpus.read_text(), loaded.encode(corpus.read_text())
    whole = {"tokens": len(ids), "characters_per_token": len(text) / len(ids), "bytes_per_token": len(text) / len(ids)}
    assert found["corpus"] == whole
    assert sum(s["tokens"] for s in found["corpus_by_script"].values()) == len(ids)
    assert next(iter(found["corpus_by_script"])) == "Latin"
    assert [len(piece) for piece in found["longest"]] == sorted((len(p) for p in found["longest"]), reverse=True)
    assert len(found["longest"]) == 3
    assert list(found["rarest"].values()) == sorted(found["rarest"].values())
    assert 0 < found["unused"] < 279
    shown = printed(capfd, "info", tokenizer, corpus)
    assert re.search(r"^tokens of the text +number  characters/token  bytes/token$", shown, re.MULTILINE)
    assert f"{found['unused']:,} more are not used" in shown
    assert "corpus" not in run("info", tokenizer)
    assert "rarest" not in printed(capfd, "info", tokenizer)


def test_compare(corpus: Path, tokenizer: Path, tmp_path: Path, run: Run, capfd: Output) -> None:
    ByteTokenizer().save(tmp_path / "b.json")
    found = run("compare", tokenizer, tmp_path / "b.json", "--corpus", corpus)["tokenizers"]
    assert [row["kind"] for row in found] == ["unigram", "byte"]
    assert found[1]["tokens"] == len(corpus.read_bytes())
    assert found[1]["bytes_per_token"] == 1
    assert found[0]["characters_per_token"] > 2
    assert len(printed(capfd, "compare", tokenizer, tmp_path / "b.json", "--corpus", corpus).splitlines()) == 3


def test_scripts() -> None:
    assert [script_of(c) for c in "aی漢אй가𝐀ａㇰ1! \n\u0301"] == [
        *("Latin", "Arabic", "Han", "Hebrew", "Cyrillic", "Hangul", "other letters", "other letters", "Katakana"),
        *("digits", "signs", "spaces", "spaces", "marks"),
    ]
    pieces = [" می".encode(), b"\xd9", b" ", b"2a", b"--", b""]
    assert [script_of_piece(p) for p in pieces[:5]] == ["Arabic", "parts of characters", "spaces", "Latin", "signs"]
    found = by_script(pieces, np.array([2, 5, 0, 1, 0, 9]))
    assert {k: (s.tokens, s.characters, s.bytes) for k, s in found.items()} == {
        "parts of characters": (5, 5, 5),
        "Arabic": (2, 6, 10),
        "Latin": (1, 2, 2),
    }


def test_pieces_are_those_inside_a_text() -> None:
    tokenizer = UnigramTokenizer.train("the wind and the sea of stone " * 9, 275, special=["<a>"])
    for given in (tokenizer, NormalizedTokenizer(tokenizer, Normalizer([UnicodeForm("NFC")]))):
        pieces = pieces_of(given)
        assert pieces[274] == b""
        assert b" the" in pieces
        ids = given.encode("sea and the wind")
        assert b"".join(pieces[i] for i in ids.tolist()) == b" sea and the wind"
    assert pieces_of(ByteTokenizer(special=["<a>"])) == [*(bytes([i]) for i in range(256)), b""]


def test_a_measurement_is_the_same_in_any_batches(corpus_folder: Path) -> None:
    texts = (corpus_folder / "persian" / "saadi.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    tokenizer: Tokenizer = CharTokenizer.train(texts)
    found = measure(tokenizer, texts)
    assert found.whole.tokens == found.whole.characters == sum(map(len, texts))
    assert found.whole.bytes == sum(len(t.encode()) for t in texts)
    assert next(iter(found.scripts)) == "Arabic"
    assert sum(s.characters for s in found.scripts.values()) == found.whole.characters


# --- pellucid train ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_run_trains_its_tokenizer(kind: str, corpus: Path, tmp_path: Path, capfd: Output) -> None:
    for name in ("a", "b") if kind == "unigram" else ("a",):
        options = [
            "--corpus",
            str(corpus),
            "--out",
            str(tmp_path / name),
            "--train-tokenizer",
            "--tokenizer-vocab",
            "280",
            *([] if kind == "unigram" else ["--tokenizer", kind]),
        ]
        assert main(["train", *options, *SHORT, "--steps", "2", "--json"]) == 0
    _, err = capfd.readouterr()
    assert f"trained a {kind} tokenizer of 280 ids" in err
    run = open_run(tmp_path / "a")
    assert (run.tokenizer.kind, run.tokenizer.vocab_size, run.config.model.vocab_size) == (kind, 280, 280)
    tokens, held_out = run.tokens()
    assert held_out is not None
    whole = [*tokens.ids.tolist(), *held_out.ids.tolist()]
    assert run.tokenizer.decode(whole) == corpus.read_text()
    if kind == "unigram":
        assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
    assert main(["info", str(tmp_path / "a" / "tokenizer.json")]) == 0
    assert "vocabulary   280" in capfd.readouterr()[0]
    assert main(["generate", str(tmp_path / "a"), "the sea", "--tokens", "5", "--seed", "1"]) == 0
    assert capfd.readouterr()[0].splitlines()[-1].startswith("the sea")


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes(
    corpus: Path, tokenizer: Path, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.bin").write_bytes(b"\0" * 8)

    def line(*arguments: object, notes: int = 0) -> str:
        return refused("tokenizer", *arguments, notes=notes).removeprefix("pellucid tokenizer: ")

    assert line("trian") == "trian: unknown action. hint: did you mean 'train'?"
    assert line("x") == "x: unknown action. hint: the actions are train, encode, decode, info, compare"
    helps = "hint: pellucid tokenizer train --help explains every option"
    assert line("train") == f"--corpus: missing argument. {helps}"
    assert line("train", "--corpus", "no") == "no: cannot be read: no such file or directory"
    assert line("train", "--corpus", "empty.txt") == "empty.txt: the file is empty"
    assert line("train", "--corpus", corpus, "--kind", "wordpiece") == (
        "--kind: not one of the choices; got 'wordpiece', expected 'bpe', 'byte', 'char', 'unigram'"
    )
    assert line("train", "--corpus", corpus, "--kind", "char", "--vocab", 9) == (
        "--vocab: a char tokenizer has the size it has. hint: leave it out"
    )
    assert line("train", "--corpus", corpus, "--space-before") == "--space-before: not for unigram. hint: --kind bpe"
    assert line("train", "--corpus", corpus, "--vocab", 0) == "--vocab: must be at least 1; got 0"
    assert line("train", "--corpus", corpus, "--out", "no/t.json") == (
        "no/t.json: cannot be written: its folder does not exist. hint: create the folder first"
    )
    assert line("train", "--corpus", corpus, "--vocab", 99999, notes=1).endswith(
        "hint: lower --vocab, or give more text"
    )
    for kind in ("unigram", "bpe"):
        small = line("train", "--corpus", corpus, "--kind", kind, "--vocab", 5, notes=1)
        assert re.match(r"--vocab: (a )?vocabulary smaller than the alphabet; got \d+, expected at least \d+", small)
        assert small.endswith(". hint: raise --vocab")
    assert line("encode", "no.json", "a") == "no.json: cannot be read: no such file or directory"
    assert line("encode", tokenizer, "a", "--out", "t.bin") == "--out: needs a corpus. hint: --corpus PATH --out FILE"
    assert line("encode", tokenizer, "--corpus", corpus) == "--corpus: nowhere to write the ids. hint: --out FILE.bin"
    assert line("encode", tokenizer, "a", "--corpus", corpus, "--out", "t.bin") == (
        "--corpus: cannot be combined with a text, --pieces or --special"
    )
    assert line("decode", tokenizer, "1", "x") == "ID: not an id; got 'x', expected whole numbers"
    assert line("decode", tokenizer, 99999).startswith(
        "UnigramTokenizer.decode: id outside the vocabulary at position 0;"
    )
    assert line("decode", tokenizer, 1, "--tokens", "bad.bin") == "--tokens: cannot be combined with ids"
    assert line("info", tokenizer, "--pieces", -1) == "--pieces: must not be negative; got -1"
    assert line("info", corpus).startswith(f"{corpus}: not a tokenizer file")
    assert line("compare", "--corpus", corpus) == (
        "TOKENIZER: nothing to compare. hint: name tokenizer files before --corpus"
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1 two")))
    assert line("decode", tokenizer) == "stdin: not an id; got 'two', expected whole numbers"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert line("encode", tokenizer) == "stdin: not UTF-8 text: bad byte at offset 0"
    assert sorted(os.listdir(tmp_path)) == ["bad.bin", "empty.txt"]


def test_mistakes_of_training(corpus: Path, refused: Refused, tmp_path: Path) -> None:
    def line(*arguments: object, notes: int = 0) -> str:
        found = refused("train", "--corpus", corpus, "--out", tmp_path / "run", *arguments, notes=notes)
        return found.removeprefix("pellucid train: ")

    assert line("--tokenizer-vocab", 300) == "--tokenizer-vocab: no tokenizer is trained. hint: add --train-tokenizer"
    assert line("--train-tokenizer", "--tokenizer-vocab", 0) == "--tokenizer-vocab: must be at least 1; got 0"
    assert line("--train-tokenizer", "--tokenizer", "byte", "--tokenizer-vocab", 300) == (
        "--tokenizer-vocab: a byte tokenizer has the size it has. hint: leave it out"
    )
    assert line("--train-tokenizer", "--tokenizer", "x.json", notes=1) == (
        "--tokenizer: not a kind that can be trained; got 'x.json', expected auto or one of unigram, bpe, char, byte"
    )
    found = line("--train-tokenizer", "--tokenizer-vocab", 3, notes=1)
    assert found.startswith("--tokenizer-vocab: vocabulary smaller than the alphabet; got 3, expected at least ")
    assert found.endswith(". hint: raise --tokenizer-vocab")
    assert line("--tokenizer", "unigram", notes=1) == (
        "unigram: no such tokenizer; expected auto, byte, char or a tokenizer file. hint: --train-tokenizer "
        "--tokenizer unigram trains one"
    )
    (tmp_path / "t.bin").write_bytes(b"\0" * 400)
    found = refused("train", "--corpus", tmp_path / "t.bin", "--train-tokenizer", notes=1)
    assert found == (
        f"pellucid train: --train-tokenizer: a token file has no text ({tmp_path / 't.bin'}). hint: train one on text "
        "first: pellucid tokenizer train"
    )
    assert not (tmp_path / "run").exists()

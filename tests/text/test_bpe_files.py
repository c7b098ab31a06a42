"""Published formats: what is read, written and refused. Equal ids beside the originals are tests/peers' business."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.errors import DataError
from pellucid.base.rng import Generator
from pellucid.text import (
    BPETokenizer,
    PipelineTokenizer,
    load_tokenizer,
    read_gpt2,
    read_tiktoken,
    write_tiktoken,
)
from pellucid.text.alphabet import CHARACTERS, ORDER, spelled
from pellucid.text.patterns import PATTERNS

CORPUS = ["the cat sat on the mat, then that cat ran.\n", "I can't; WE'LL see 1234.  \n\n", "کتاب می‌خوانم é🙂\n"] * 4
TEXTS = [*CORPUS, "", " the", "trailing  ", "\u0000\u200d"]


@pytest.fixture(scope="module")
def trained() -> BPETokenizer:
    return BPETokenizer.train(CORPUS, 290, special=["<|endoftext|>"])


def vocabulary() -> dict[str, Any]:
    """A small tokenizer.json in the oldest layout: no type of the model, merges as strings."""
    letters = {letter: i for i, letter in enumerate("abcdé")}
    return {
        "version": "1.0",
        "added_tokens": [],
        "model": {"vocab": letters | {"ab": 5, "abc": 6, "<unk>": 7}, "merges": ["a b", "ab c"], "unk_token": "<unk>"},
    }


def written(content: Any, folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "clip"])
def test_a_saved_tokenizer_is_the_same(pattern: str, tmp_path: Path) -> None:
    made = BPETokenizer.train(CORPUS, 280, pattern=pattern, special=["<|a|>", "<|b|>"])
    made.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert isinstance(loaded, BPETokenizer)
    assert loaded.fingerprint() == made.fingerprint()
    assert loaded.special == made.special
    assert loaded.encode_batch(TEXTS).ids.tolist() == made.encode_batch(TEXTS).ids.tolist()


def test_the_oldest_layout(tmp_path: Path) -> None:
    loaded = load_tokenizer(written(vocabulary(), tmp_path))
    assert loaded.encode("abcab dé!").tolist() == [6, 5, 7, 3, 4, 7]
    pairs = vocabulary()
    pairs["model"] |= {"type": "BPE", "merges": [["a", "b"], ["ab", "c"]], "fuse_unk": True}
    assert load_tokenizer(written(pairs, tmp_path)).encode("abcab dé!!").tolist() == [6, 5, 7, 3, 4, 7]


def test_tokens_in_normalised_text(tmp_path: Path) -> None:
    content = vocabulary()
    content["normalizer"] = {"type": "Lowercase"}
    flags = {"special": True, "normalized": True}
    content["added_tokens"] = [{"id": 8, "content": "<S>", **flags}, {"id": 9, "content": "<R>", "special": True}]
    loaded = load_tokenizer(written(content, tmp_path))
    assert loaded.encode("AB<s>ab<r><R>", allowed_special="all").tolist() == [5, 8, 5, 7, 7, 7, 9]
    assert loaded.encode("a<S>b", allowed_special=["<S>"]).tolist() == [0, 8, 1]
    assert loaded.encode("a<S>b").tolist() == [0, 7, 7, 7, 1]
    batch = loaded.encode_batch(["", "<s>", "ab<R>"], allowed_special="all")
    assert [ids.tolist() for ids in batch] == [[], [8], [5, 9]]
    ids, offsets = loaded.encode_offsets("AB<s>ab<r><R>", allowed_special="all")
    assert ids.tolist() == [5, 8, 5, 7, 7, 7, 9]
    assert offsets.tolist() == [[0, 2], [2, 5], [5, 7], [7, 8], [8, 9], [9, 10], [10, 13]]


def test_unigram_models_are_read_and_written(tmp_path: Path) -> None:
    pieces = [["<unk>", 0.0], ["▁", -2.0], ["a", -1.5], ["b", -1.5], ["▁ab", -2.5], ["<s>", 0.0]]
    added = {"id": 5, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = {
        "version": "1.0",
        "added_tokens": [added | {"special": True}],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
        "decoder": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
        "model": {"unk_id": 0, "vocab": pieces},
    }
    loaded = load_tokenizer(written(content, tmp_path))
    assert isinstance(loaded, PipelineTokenizer)
    assert loaded.encode("ab ba").tolist() == [4, 1, 3, 2]
    assert loaded.encode("<s>ab", allowed_special="all").tolist() == [5, 4]
    assert loaded.encode("xa").tolist() == [1, 0, 2]
    assert loaded.decode([4, 1, 3, 2]) == "ab ba"
    loaded.save(tmp_path / "again.json")
    again = load_tokenizer(tmp_path / "again.json")
    assert again.fingerprint() == loaded.fingerprint()
    assert again.encode("ab xba").tolist() == loaded.encode("ab xba").tolist()


def test_the_frame_is_told_not_added(tmp_path: Path) -> None:
    content = vocabulary()
    content["added_tokens"] = [
        {"id": 8, "content": "<s>", "special": True},
        {"id": 9, "content": "</s>", "special": True},
    ]
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    content["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    loaded = load_tokenizer(written(content, tmp_path))
    assert isinstance(loaded, PipelineTokenizer)
    assert loaded.frame == ((8,), ())
    assert loaded.encode("ab").tolist() == [5]
    content["post_processor"] = {"type": "RobertaProcessing", "cls": ["<s>", 8], "sep": ["</s>", 9]}
    again = load_tokenizer(written(content, tmp_path))
    assert isinstance(again, PipelineTokenizer)
    assert again.frame == ((8,), (9,))


@pytest.mark.parametrize(("kept", "offsets"), [(True, [[0, 0], [1, 2], [3, 3]]), (False, [[1, 1], [1, 2], [3, 3]])])
def test_offsets_without_white_space(kept: bool, offsets: list[list[int]], tmp_path: Path) -> None:
    plain = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "model": {"vocab": {"Ġ": 0, "a": 1}}}
    trims = {"type": "ByteLevel", "add_prefix_space": kept, "trim_offsets": True}
    bare, loaded = (
        load_tokenizer(written(content, tmp_path)) for content in (plain, plain | {"post_processor": trims})
    )
    assert bare.encode_offsets(" a ")[1].tolist() == [[0, 1], [1, 2], [2, 3]]
    ids, found = loaded.encode_offsets(" a ")
    assert ids.tolist() == bare.encode(" a ").tolist()
    assert found.tolist() == offsets
    # Ids don't depend on it, so it is the same tokenizer; a saved one trims again.
    assert loaded.fingerprint() == bare.fingerprint()
    loaded.save(tmp_path / "again.json")
    assert load_tokenizer(tmp_path / "again.json").encode_offsets(" a ")[1].tolist() == offsets


def test_files_of_ranks(trained: BPETokenizer, tmp_path: Path) -> None:
    path = tmp_path / "ranks.tiktoken"
    write_tiktoken(trained, path)
    assert path.read_bytes().startswith(base64.b64encode(b"!") + b" 0\n")
    loaded = read_tiktoken(path, pattern="gpt2", special={"<|endoftext|>": 289})
    assert loaded.encode_batch(TEXTS).ids.tolist() == trained.encode_batch(TEXTS).ids.tolist()
    # As a tokenizer.json it has merges, and gives the same ids.
    loaded.save(tmp_path / "t.json")
    assert (
        load_tokenizer(tmp_path / "t.json").encode_batch(TEXTS).ids.tolist() == loaded.encode_batch(TEXTS).ids.tolist()
    )
    with pytest.raises(DataError) as refused:
        load_tokenizer(path)
    assert str(refused.value) == (
        f"{path}: ranks of an unknown tokenizer, without a pattern to cut text. hint: give read_tiktoken its pattern, "
        "one of gpt2, cl100k, llama3, qwen2, o200k, tekken, clip, and its special tokens"
    )


def test_ids_that_ranks_leave_out(trained: BPETokenizer, tmp_path: Path) -> None:
    write_tiktoken(trained, tmp_path / "ranks")
    loaded = read_tiktoken(tmp_path / "ranks", pattern="gpt2", special={"<|end|>": 300})
    assert loaded.vocab_size == 301
    assert loaded.decode([300], show_special=True) == "<|end|>"
    with pytest.raises(DataError) as refused:
        loaded.decode([5, 295])
    assert str(refused.value) == (
        "BPETokenizer.decode: an id that the vocabulary leaves out; got 295. hint: use the tokenizer the ids were made "
        "with"
    )


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")])
def test_gpt2s_pair_of_files(names: tuple[str, str], trained: BPETokenizer, tmp_path: Path) -> None:
    assert trained.model.merges is not None
    content = trained.to_json()["model"]["vocab"]
    (tmp_path / names[0]).write_text(json.dumps(content), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{spelled(a)} {spelled(b)}" for a, b in trained.model.merges)]
    (tmp_path / names[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode_batch(TEXTS).ids.tolist() == trained.encode_batch(TEXTS).ids.tolist()
    assert loaded.eot == 289
    (tmp_path / names[1]).write_text("\n".join([*lines, "x y z"]), encoding="utf-8")
    with pytest.raises(DataError) as refused:
        read_gpt2(tmp_path / names[0], tmp_path / names[1])
    assert str(refused.value) == (
        f"{tmp_path / names[0]}: a damaged vocabulary (model.merges: merge {len(lines) - 1} is not a pair of tokens; "
        "got 'x y z')"
    )


def clip_file(path: Path, lines: int = 48894) -> Path:
    """A list of merges of CLIP's length: every pair of the last letters, and pairs of those."""
    letters = [CHARACTERS[byte] for byte in ORDER]
    ended = [f"{a} {b}</w>" for a in letters[64:90] for b in letters[64:90]]
    merges = [*ended, *(f"{a} {b}" for a in letters for b in letters)]
    text = "\n".join(["#version", *merges[:lines]]) + "\n"
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    return path


def test_clips_list_of_merges(tmp_path: Path) -> None:
    loaded = load_tokenizer(clip_file(tmp_path / "bpe.txt.gz"))
    assert isinstance(loaded, BPETokenizer)
    assert loaded.vocab_size == 49408
    assert dict(loaded.special) == {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
    assert loaded.frame == ((49406,), (49407,))
    ids = loaded.encode("A cat's  12")
    assert [loaded.piece(int(i)) for i in ids] == [b"a ", b"c", b"at ", b"'", b"s ", b"1 ", b"2 "]
    assert loaded.decode(ids) == "a cat 's 1 2 "
    with pytest.raises(DataError) as refused:
        load_tokenizer(clip_file(tmp_path / "short.gz", lines=40000))
    assert str(refused.value) == (
        f"{tmp_path / 'short.gz'}: not CLIP's list of merges; got 40000 merges, expected 48894"
    )
    cut = tmp_path / "cut.gz"
    cut.write_bytes((tmp_path / "bpe.txt.gz").read_bytes()[:5000])
    with pytest.raises(DataError) as refused:
        load_tokenizer(cut)
    assert str(refused.value) == f"{cut}: not a whole gzip file"


def changed(**changes: Any) -> dict[str, Any]:
    content = vocabulary()
    model = changes.pop("model", {})
    content["model"] |= model
    return content | changes


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
BYTE_LEVEL = {"type": "ByteLevel"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": (
        changed(extra=1),
        "the file: unknown keys; got extra, expected only added_tokens, decoder, model, normalizer, padding, "
        "post_processor, pre_tokenizer, truncation, version",
    ),
    "unknown option": (
        changed(model={"vocab_size": 7}),
        "model: unknown keys; got vocab_size, expected only byte_fallback, continuing_subword_prefix, dropout, "
        "end_of_word_suffix, fuse_unk, ignore_merges, merges, type, unk_token, vocab",
    ),
    "truncation": (
        changed(truncation={"max_length": 77}),
        'truncation: cutting and filling up texts is for whoever makes batches. hint: set "truncation" to null',
    ),
    "model": (
        changed(model={"type": "WordPiece"}),
        "model.type: a model this library doesn't have; got 'WordPiece', expected BPE or Unigram",
    ),
    "dropout": (changed(model={"dropout": 0.1}), "model.dropout: random merges are not supported; got 0.1"),
    "prefix": (
        changed(model={"continuing_subword_prefix": "##"}),
        "model.continuing_subword_prefix: not supported; got '##'",
    ),
    "no vocabulary": (changed(model={"vocab": []}), "model.vocab: not a table of tokens and ids"),
    "one id twice": (
        changed(model={"vocab": {"a": 0, "b": 0}}),
        "model.vocab: one id for two tokens; got 0 of 'a' and 'b'",
    ),
    "huge id": (
        changed(model={"vocab": {"a": 0, "b": 1 << 40}}),
        "model.vocab: not an id; got 1099511627776 of 'b', expected below 16777216",
    ),
    "far id": (
        changed(model={"vocab": {"a": 0, "b": 9_000_000}}),
        "model.vocab: ids far beyond the number of tokens; got 9000000, expected about 2",
    ),
    "negative id": (
        changed(model={"vocab": {"a": -1}}),
        "model.vocab: not an id; got -1 of 'a', expected below 16777216",
    ),
    "surrogate": (changed(model={"vocab": {"a\ud800": 0}}), "model.vocab: half a surrogate pair in a token; got id 0"),
    "merge of three": (
        changed(model={"merges": ["a b c"]}),
        "model.merges: merge 0 is not a pair of tokens; got 'a b c'",
    ),
    "circle": (
        changed(model={"merges": ["ab c", "abc ab"]}),
        "BPEModel: merge 1 of a token that is not in the vocabulary; got b'abcab' in b'abc' + b'ab'",
    ),
    "merge twice": (changed(model={"merges": ["a b", "a b"]}), "BPEModel: the same merge twice; got ids 0 and 1"),
    "empty merge": (
        changed(model={"vocab": {"a": 0, "": 1, "<unk>": 2}, "merges": [["", "a"]]}),
        "BPEModel: merge 0 of a token that is not in the vocabulary; got b'' in b'' + b'a'",
    ),
    "unknown token": (
        changed(model={"unk_token": "[UNK]"}),
        "model.unk_token: not a token of the vocabulary; got '[UNK]'",
    ),
    "bytes": (
        changed(model={"byte_fallback": True}),
        "model.byte_fallback: without tokens for all 256 bytes; got no <0x00>",
    ),
    "added twice": (
        changed(added_tokens=[{"id": 8, "content": "x"}, {"id": 8, "content": "y"}]),
        "BPETokenizer: two special tokens of one id; got 'x' and 'y'",
    ),
    "added elsewhere": (
        changed(added_tokens=[{"id": 9, "content": "ab"}]),
        "added_tokens: an id other than the vocabulary's; got 9 and 5 for 'ab'",
    ),
    "single word": (
        changed(added_tokens=[{"id": 8, "content": "x", "single_word": "yes"}]),
        "added_tokens: a switch that is neither true nor false; got 'x'",
    ),
    "normaliser": (
        changed(normalizer={"type": "BertNormalizer"}),
        "normalizer: a part this library doesn't have; got BertNormalizer",
    ),
    "pre-tokeniser": (
        changed(pre_tokenizer={"type": "UnicodeScripts"}),
        "pre_tokenizer: a part this library doesn't have; got UnicodeScripts",
    ),
    "expression": (
        changed(pre_tokenizer=SPLIT | {"pattern": {"Regex": "(a+)+$"}}),
        "Split: a regular expression this library has no scanner for; got '(a+)+$', expected one of gpt2, cl100k, "
        "llama3, qwen2, o200k, tekken, clip. hint: add a row to text/patterns.py, with a test against the original",
    ),
    "behaviour": (
        changed(pre_tokenizer=SPLIT | {"pattern": {"Regex": PATTERNS["gpt2"].regexes[0]}, "behavior": "Removed"}),
        "Split: a behaviour that is not supported with the pattern of gpt2; got Removed, invert False",
    ),
    "order": (
        changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL, {"type": "Digits"}]}),
        "pre_tokenizer: a part behind ByteLevel; got Digits",
    ),
    "space": (
        changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTE_LEVEL]}),
        "ByteLevel: add_prefix_space behind another pre-tokeniser is not supported",
    ),
    "decoder": (changed(decoder={"type": "CTC"}), "decoder: a part this library doesn't have; got CTC"),
    "trimming": (
        changed(post_processor={"type": "ByteLevel", "trim_offsets": 1}),
        "ByteLevel: wrong type of 'trim_offsets'; got int, expected bool",
    ),
    "template": (
        changed(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]"}}]}),
        "post_processor: a token that is not among the added ones; got '[CLS]'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = written(content, tmp_path)
    with pytest.raises(DataError) as refused:
        load_tokenizer(path)
    assert str(refused.value) == f"{path}: a tokenizer.json that can't be used ({message})"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("IQ== 0\nIg== x\n", "line 2 is not a token in base64 and its rank; got 'Ig== x'"),
        ("IQ== 0\nIg=\n", "line 2 is not a token in base64 and its rank; got 'Ig='"),
        ("IQ== 0\nIQ== 1\n", "the token or the rank of line 2 is there already; got rank 1"),
        ("IQ== 0\nIg== 0\n", "the token or the rank of line 2 is there already; got rank 0"),
        ("IQ== 0\nIg== 99999999999\n", "line 2 is not a token in base64 and its rank; got rank 99999999999"),
        ("IQ== 0\nIg== 9999999\n", "not a file of ranks; got 2 tokens"),
        ("IQ== 0\nIg== " + "9" * 5000 + "\n", None),
    ],
)
def test_bad_ranks(lines: str, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text(lines)
    with pytest.raises(DataError) as refused:
        read_tiktoken(path, pattern="gpt2")
    if message is not None:
        assert str(refused.value) == f"{path}: {message}"
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("make", [lambda t: t.to_json(), lambda t: changed()], ids=["trained", "small"])
def test_any_damage_is_an_error_or_a_tokenizer(
    make: Callable[[BPETokenizer], dict[str, Any]], trained: BPETokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    good = json.dumps(make(trained), ensure_ascii=False).encode("utf-8")
    stream = Generator(11)
    for _ in range(150):
        raw = bytearray(good)
        at, bit = int(stream.integers(len(raw), 1)[0]), int(stream.integers(8, 1)[0])
        raw[at] ^= 1 << bit
        path.write_bytes(raw if bit else good[:at])
        try:
            load_tokenizer(path).encode("the cat é")
        except DataError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - most, not all, changes are refused


def test_ranks_need_merges_in_order(tmp_path: Path) -> None:
    content = vocabulary()
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False}
    content["model"] |= {"vocab": {"a": 0, "b": 1, "bb": 2, "ab": 3}, "merges": ["a b", "b b"], "unk_token": None}
    loaded = load_tokenizer(written(content, tmp_path))
    assert isinstance(loaded, BPETokenizer)
    with pytest.raises(DataError) as refused:
        write_tiktoken(loaded, tmp_path / "ranks")
    assert str(refused.value) == f"{tmp_path / 'ranks'}: merges that don't follow the order of the ids"

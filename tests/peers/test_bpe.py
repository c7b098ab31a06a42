"""Byte-pair tokenizers beside `tokenizers` and `tiktoken`: equal ids on every text, equal vocabularies from training.

Vocabularies are trained here, so nothing has to be fetched; where there are published ones (`make vocabularies`), those
are compared too.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.text import BPETokenizer, Tokenizer, load_tokenizer, read_tiktoken, write_tiktoken
from pellucid.text.alphabet import ORDER
from pellucid.text.batch import IdBatch, utf8_batch
from pellucid.text.hub_write import canonical_merges
from pellucid.text.patterns import PATTERNS
from pellucid.text.special import is_word
from pellucid.text.split import split
from pellucid.text.unicode import LETTER, LOWER, NUMBER, PUNCTUATION, SPACE, UPPER, classes
from pellucid.text.unicode_runs import RUNS

from .texts import HARD, SCALARS, every_scalar, random_texts, same_ids, scalar_texts

tokenizers = pytest.importorskip("tokenizers")
tiktoken = pytest.importorskip("tiktoken")

# tiktoken's own expressions, as its published encodings have them.
RUST = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "llama3": PATTERNS["llama3"].regexes[0],
    "qwen2": PATTERNS["qwen2"].regexes[0],
    "o200k": PATTERNS["o200k"].regexes[0],
    "tekken": PATTERNS["tekken"].regexes[0],
}
TEXTS = [*HARD, *random_texts(1, 1000)]


@pytest.fixture(scope="session")
def corpus(repository: Path) -> list[str]:
    """Lines to train on: English and code from the checkout, and Persian, Greek, Chinese and emoji from the texts."""
    text = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text += (repository / "src" / "pellucid" / "text" / "special.py").read_text(encoding="utf-8")
    return [*text.splitlines(keepends=True), *HARD[6:12] * 3, *random_texts(2, 500)]


@pytest.fixture(scope="session")
def real_texts(request: pytest.FixtureRequest) -> list[str]:
    """The files of real data, whole, where there are some."""
    folder: Path = request.getfixturevalue("corpus_folder")
    files = sorted([*folder.glob("*/*.txt"), *folder.glob("*/*.jsonl"), *folder.glob("*/*.json")])
    return [path.read_bytes().decode("utf-8") for path in files]


def hub_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    # What it returns holds far more than ids: not for a million texts at once.
    return [
        found.ids
        for at in range(0, len(texts), 1 << 15)
        for found in tokenizer.encode_batch_fast(texts[at : at + (1 << 15)], add_special_tokens=False)
    ]


def rank_ids(encoding: Any, texts: list[str]) -> list[list[int]]:
    # Its `encode_ordinary_batch` spends 20 microseconds a text on its threads.
    return list(map(encoding.encode_ordinary, texts))


# --- characters and words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "mask"),
    [
        (r"\p{L}", LETTER),
        (r"\p{N}", NUMBER),
        (r"\s", SPACE),
        (r"\p{P}", PUNCTUATION),
        (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
        (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", LOWER),
    ],
)
def test_classes_of_every_character(expression: str, mask: int) -> None:
    index, pages = classes()
    codes = np.array(SCALARS)
    ours = pages[(index[codes >> 7].astype(np.int64) << 7) | (codes & 127)] & mask
    expected = set(codes[ours != 0].tolist())
    plain = tiktoken.Encoding(
        "x", pat_str=expression, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
    )
    everything = "".join(map(chr, SCALARS))
    # What an expression doesn't match is dropped by tiktoken, and kept by a split that removes matches.
    assert set(map(ord, plain.decode(plain.encode_ordinary(everything)))) == expected
    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), "removed")
    left = {
        ord(c)
        for i in range(0, len(everything), 4096)
        for word, _ in cut.pre_tokenize_str(everything[i : i + 4096])
        for c in word
    }
    assert set(SCALARS) - left == expected


@pytest.mark.parametrize("name", PATTERNS)
def test_words_of_every_pattern(name: str) -> None:
    pattern = PATTERNS[name]
    texts = [text for text in [*TEXTS, *scalar_texts(29)] if text]
    drops = name == "clip"
    data, starts, _ = split(*utf8_batch(texts, "test"), pattern)
    raw, edges = data.tobytes(), starts.tolist()
    for expression in pattern.regexes:
        cut = tokenizers.pre_tokenizers.Split(
            tokenizers.Regex(expression), "removed" if drops else "isolated", invert=drops
        )
        at = 0
        for text in texts:
            expected = [word for word, _ in cut.pre_tokenize_str(text)]
            found = [raw[edges[k] : edges[k + 1]].decode() for k in range(at, min(at + len(expected), len(edges) - 1))]
            assert found == expected, repr(text)
            at += len(expected)
        assert at == len(edges) - 1


def test_characters_of_a_single_word() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.add_tokens([tokenizers.AddedToken("they", single_word=True, normalized=False)])
    word = made.token_to_id("they")
    for code, found in zip(SCALARS, hub_ids(made, [f"they{chr(code)}" for code in SCALARS]), strict=True):
        assert is_word(chr(code)) == (word not in found), hex(code)


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUST)
def test_tiktoken(name: str, corpus: list[str], tmp_path: Path) -> None:
    trained = BPETokenizer.train(corpus, 700, pattern=name)
    write_tiktoken(trained, tmp_path / "ranks.tiktoken")
    ours = read_tiktoken(tmp_path / "ranks.tiktoken", pattern=name, special={"<|x|>": 700, "<|end|>": 705})
    theirs = tiktoken.Encoding(
        name, pat_str=RUST[name], mergeable_ranks=dict(ours.model.ids), special_tokens={"<|x|>": 700, "<|end|>": 705}
    )
    texts = [*TEXTS, *scalar_texts(11)]
    same_ids(ours.encode_batch(texts), rank_ids(theirs, texts), texts)
    text = "a<|x|> b<|end|><|x|>"
    assert ours.encode(text, allowed_special="all").tolist() == theirs.encode(text, allowed_special="all")
    assert ours.encode(text, allowed_special=["<|x|>"]).tolist() == theirs.encode(
        text, allowed_special={"<|x|>"}, disallowed_special=()
    )
    assert ours.encode(text).tolist() == theirs.encode_ordinary(text)


def broken_bytes(texts: list[str]) -> list[bytes]:
    """Random bytes, and texts with a few of their bytes changed."""
    stream = np.random.default_rng(7)
    found = [stream.bytes(int(n)) for n in stream.integers(1, 60, 300)]
    for text in texts:
        raw = bytearray(text.encode()[:400])
        for at in stream.integers(len(raw), size=2).tolist() if raw else []:
            raw[at] = int(stream.integers(256))
        found.append(bytes(raw))
    return found


@pytest.mark.parametrize("name", RUST)
def test_bytes_that_are_no_text(name: str, corpus: list[str], tmp_path: Path) -> None:
    trained = BPETokenizer.train(corpus, 700, pattern=name)
    write_tiktoken(trained, tmp_path / "ranks.tiktoken")
    ours = read_tiktoken(tmp_path / "ranks.tiktoken", pattern=name, special={})
    theirs = tiktoken.Encoding(name, pat_str=RUST[name], mergeable_ranks=dict(ours.model.ids), special_tokens={})
    for raw in broken_bytes(TEXTS):
        assert ours.encode_bytes(raw).tolist() == theirs._encode_bytes(raw), raw
        assert trained.decode_bytes(trained.encode_bytes(raw)) == raw


def hub_trained(corpus: list[str], size: int) -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, initial_alphabet=alphabet
    )
    made.train_from_iterator(corpus, trainer)
    return made


@pytest.fixture(scope="session")
def hub_file(corpus: list[str]) -> str:
    """A tokenizer.json of 1,500 tokens."""
    return hub_trained(corpus, 1500).to_str()


def test_training_finds_the_same_merges(corpus: list[str], hub_file: str) -> None:
    ours = BPETokenizer.train(corpus, 1500).to_json()["model"]
    theirs = json.loads(hub_file)["model"]
    assert ours["merges"] == theirs["merges"]
    assert ours["vocab"] == theirs["vocab"]


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": PATTERNS["llama3"].regexes[0]}, "behavior": "Isolated", "invert": False}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "space before": {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True, "use_regex": True}},
    "llama": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL]}, "ignore_merges": True},
    "digits": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL | {"use_regex": True}],
        }
    },
    "numbers": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": False}, BYTE_LEVEL | {"use_regex": True}],
        }
    },
    "one word": {"pre_tokenizer": BYTE_LEVEL},
    "always a space": {"normalizer": {"type": "Prepend", "prepend": " "}},
    "small letters": {"normalizer": {"type": "Lowercase"}},
    "added": {
        "added_tokens": [
            {"id": 1500, "content": "<|a|>", **ADDED},
            {"id": 1501, "content": "<|a|>b", **ADDED, "lstrip": True},
            {"id": 1502, "content": "  ", **ADDED, "special": False},
            {"id": 1503, "content": "<R>", **ADDED, "rstrip": True},
            {"id": 1504, "content": "they", **ADDED, "special": False, "normalized": True},
        ]
    },
    "single words": {
        "added_tokens": [
            {"id": 1500, "content": "they", **ADDED, "special": False, "single_word": True},
            {"id": 1501, "content": "<R>", **ADDED, "single_word": True, "rstrip": True},
            {"id": 1502, "content": "zq", **ADDED, "special": False, "single_word": True, "normalized": True},
        ]
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_tokenizer_json(name: str, hub_file: str, tmp_path: Path) -> None:
    content = json.loads(hub_file)
    changes = dict(CHANGES[name])
    content["model"]["ignore_merges"] = changes.pop("ignore_merges", False)
    content |= changes
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    ours, theirs = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    marked = ["they", "theythey they <R><R> x<R> <R>x zq zqzq zq.zq", "they  theythe"]
    marked += ["<|a|>b <|a|><R>  x", "  <|a|>b", "a  the\n <|a|>b<R> \t", "they  theythe"]
    texts = [*TEXTS, *marked, *scalar_texts(61)]
    same_ids(ours.encode_batch(texts, allowed_special="all"), hub_ids(theirs, texts), texts)
    # Written again it is the same, here and there.
    ours.save(tmp_path / "again.json")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "again.json"))
    assert load_tokenizer(tmp_path / "again.json").fingerprint() == ours.fingerprint()
    assert hub_ids(again, texts[:200]) == hub_ids(theirs, texts[:200])


@pytest.fixture(scope="session")
def hub_characters(corpus: list[str]) -> str:
    """A tokenizer.json whose symbols are characters, and whose words begin with U+2581."""
    letters = "▁abcdefghijklmnopqrstuvwxyzAIT.,'0123456789é中"
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>", "<s>"],
        show_progress=False,
        limit_alphabet=40,
        initial_alphabet=list(letters),
    )
    made.train_from_iterator(corpus, trainer)
    return made.to_str()


@pytest.mark.parametrize("fallback", ["bytes", "unknown", "fused"])
@pytest.mark.parametrize("mark", ["prepend", "metaspace", "first", "words"])
def test_characters_as_symbols(fallback: str, mark: str, hub_characters: str, tmp_path: Path) -> None:
    content = json.loads(hub_characters)
    model = content["model"]
    model["fuse_unk"] = fallback == "fused"
    if fallback == "bytes":
        model["byte_fallback"] = True
        for byte in range(256):
            model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    if mark == "prepend":
        content["pre_tokenizer"] = None
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    elif mark == "words":
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]}
    else:
        content["pre_tokenizer"] = space | ({"prepend_scheme": "first", "split": False} if mark == "first" else {})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    ours, theirs = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    texts = [*TEXTS, "▁a ▁▁b▁ c", "<s> a<s>b", *scalar_texts(97)]
    same_ids(ours.encode_batch(texts, allowed_special="all"), hub_ids(theirs, texts), texts)
    # The first files of Llama look for special tokens in normalised text.
    for token in content["added_tokens"]:
        token["normalized"] = True
    path.write_text(json.dumps(content), encoding="utf-8")
    ours, theirs = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    texts = ["<s> a<s>b", "<s>", "x <s><s> <unk> y", "<s><unk>z<s>", *TEXTS[:100]]
    same_ids(ours.encode_batch(texts, allowed_special="all"), hub_ids(theirs, texts), texts)


@pytest.mark.parametrize("words", [False, True], ids=["spaces kept", "spaces collapsed"])
def test_unigram_in_a_tokenizer_json(words: bool, corpus: list[str], tmp_path: Path) -> None:
    """As T5 has it: U+2581 for spaces, <unk> for what no piece covers, </s> behind the text."""
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    space = tokenizers.pre_tokenizers.Metaspace()
    split = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, space]) if words else space
    made.normalizer = tokenizers.normalizers.NFC()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=600, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(corpus[:400], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    made.save(str(tmp_path / "tokenizer.json"))
    ours, theirs = (
        load_tokenizer(tmp_path / "tokenizer.json"),
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
    )
    texts = [*TEXTS, "▁a ▁▁b▁ c", "</s> a</s>b", *scalar_texts(97)]
    same_ids(ours.encode_batch(texts, allowed_special="all"), hub_ids(theirs, texts), texts)
    assert ours.to_json()["post_processor"]["single"][-1] == {"SpecialToken": {"id": "</s>", "type_id": 0}}
    ours.save(tmp_path / "again.json")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "again.json"))
    assert hub_ids(again, texts[:300]) == hub_ids(theirs, texts[:300])


def test_merges_of_ranks(corpus: list[str], tmp_path: Path) -> None:
    """A vocabulary that came without merges gets the ones it was trained with."""
    trained = BPETokenizer.train(corpus, 900, pattern="o200k")
    write_tiktoken(trained, tmp_path / "ranks")
    assert canonical_merges(read_tiktoken(tmp_path / "ranks", pattern="o200k").model) == trained.model.merges


def test_real_text(real_texts: list[str]) -> None:
    """Trained on the first lines of every file, compared on the first 200,000 characters as one text."""
    real_texts = [text[:200_000] for text in real_texts]
    lines = [line for text in real_texts for line in text.splitlines(keepends=True)[:800]]
    theirs = hub_trained(lines, 4000)
    ours = BPETokenizer.train(lines, 4000)
    same_ids(ours.encode_batch(real_texts), hub_ids(theirs, real_texts), [text[:50] for text in real_texts])
    for text in real_texts:
        assert ours.decode(ours.encode(text)) == text


def test_the_table_of_characters_is_what_its_script_writes() -> None:
    """Of characters that Python's own, older Unicode has; what later versions added is compared with `tokenizers`."""
    pytest.importorskip("regex")
    from tests.repo import unicode_runs

    found = unicode_runs.kinds()
    expected = "".join(letter * int(n or 1) for letter, n in re.findall(r"([a-z-])(\d*)", RUNS)).ljust(0x110000, "-")
    assert len(expected) == len(found) == 0x110000
    assigned = (code for code in range(0x110000) if unicodedata.category(chr(code)) != "Cn")
    # The one letter that Unicode 17 moved: from the small ones to those without case.
    assert [hex(code) for code in assigned if found[code] != expected[code]] in ([], ["0x295"])


# --- published vocabularies -------------------------------------------------------------------------------------------


def published(vocabularies: Path, name: str) -> Path:
    path = vocabularies / name
    if not path.exists():
        pytest.skip(f"no {name}: make vocabularies could not fetch it")
    return path


@pytest.fixture(scope="session")
def more_texts(request: pytest.FixtureRequest) -> list[str]:
    """The real texts where there are some: vocabularies that were fetched are compared without them too."""
    try:
        return request.getfixturevalue("real_texts")
    except pytest.skip.Exception:
        return []


@pytest.fixture(scope="session")
def all_texts(more_texts: list[str]) -> list[str]:
    """What a published vocabulary is asked about; then a line of a million letters, and one of 10 MB."""
    line = "".join(more_texts).replace("\n", " ")[:10_000_000]
    return [*every_scalar(), *scalar_texts(29), *TEXTS, *more_texts, "x" * 1_000_000, line]


@cache
def opened(path: Path) -> Tokenizer:
    """Loading one takes seconds, and two tests want the same."""
    return load_tokenizer(path)


@pytest.mark.parametrize("name", ["r50k", "p50k", "cl100k", "o200k"])
def test_published_ranks(name: str, vocabularies: Path, all_texts: list[str]) -> None:
    ours = opened(published(vocabularies, f"{name}_base.tiktoken"))
    assert isinstance(ours, BPETokenizer)
    pattern = RUST[ours.parts.pretokenizer.cuts[0].name]
    theirs = tiktoken.Encoding(
        name, pat_str=pattern, mergeable_ranks=dict(ours.model.ids), special_tokens=dict(ours.special)
    )
    same_ids(ours.encode_batch(all_texts), rank_ids(theirs, all_texts), all_texts)
    for raw in broken_bytes(TEXTS):
        assert ours.encode_bytes(raw).tolist() == theirs._encode_bytes(raw), raw


def test_published_gpt2(vocabularies: Path, all_texts: list[str]) -> None:
    """The same vocabulary in two kinds of files."""
    ranks = opened(published(vocabularies, "r50k_base.tiktoken")).encode_batch(all_texts)
    gpt2 = opened(published(vocabularies, "gpt2")).encode_batch(all_texts)
    assert np.array_equal(gpt2.ids, ranks.ids)
    assert np.array_equal(gpt2.starts, ranks.starts)


@pytest.mark.parametrize("name", ["qwen3.json", "bpe_simple_vocab_16e6.txt.gz"])
def test_published_files(name: str, vocabularies: Path, all_texts: list[str], tmp_path: Path) -> None:
    path, texts = published(vocabularies, name), all_texts[:-2]
    ours = load_tokenizer(path)
    ours.save(tmp_path / path.name)
    source = path if path.suffix == ".json" else tmp_path / path.name
    theirs = tokenizers.Tokenizer.from_file(str(source))
    same_ids(ours.encode_batch(texts, allowed_special="all"), hub_ids(theirs, texts), texts)
    assert load_tokenizer(tmp_path / path.name).fingerprint() == ours.fingerprint()


def test_published_tekken(vocabularies: Path, all_texts: list[str], tmp_path: Path) -> None:
    path = published(vocabularies, "tekken_240911.json")
    ours, content = load_tokenizer(path), json.loads(path.read_text(encoding="utf-8"))
    first, size = content["config"]["default_num_special_tokens"], content["config"]["default_vocab_size"]
    ranks = {base64.b64decode(item["token_bytes"]): item["rank"] for item in content["vocab"][: size - first]}
    theirs = tiktoken.Encoding("tekken", pat_str=content["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    found, texts = ours.encode_batch(all_texts[:-2]), all_texts[:-2]
    assert found.ids.min() >= first
    same_ids(IdBatch(found.ids - np.uint32(first), found.starts), rank_ids(theirs, texts), texts)
    assert (ours.vocab_size, ours.special["[INST]"], ours.special["<SPECIAL_20>"]) == (size, 3, 20)
    ours.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json").fingerprint() == ours.fingerprint()


def test_order_of_bytes() -> None:
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    assert len(ORDER) == len(alphabet) == 256

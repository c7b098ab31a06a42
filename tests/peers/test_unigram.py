"""Unigram and SentencePiece vocabularies beside `sentencepiece` and `tokenizers`: equal ids on every text.

Vocabularies are trained here by the peers, so nothing has to be fetched; where there are published SentencePiece models
(`make vocabularies`), those are compared too.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.text import SentencePieceTokenizer, UnigramModel, UnigramTokenizer, load_tokenizer
from pellucid.text.batch import utf8_batch

from .texts import HARD, SCALARS, every_scalar, random_texts, same_ids, scalar_texts

sentencepiece = pytest.importorskip("sentencepiece")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = [*HARD, *random_texts(3, 4000), "USERxUSER▁▁ ▁ USE", "<s></s><unk><0x41>", " ▁ ", "▁", "\x01", "\u3000\u3000"]
LLAMA: dict[str, Any] = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
}
USERS = ["USER", "▁▁", "ab", "<0x41>"]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bytes": LLAMA,
    "user defined": {"user_defined_symbols": USERS, "normalization_rule_name": "nfkc_cf", "pad_id": 3},
    "over spaces": {"add_dummy_prefix": False, "split_by_whitespace": False},
}


@pytest.fixture(scope="session")
def corpus(repository: Path) -> list[str]:
    """Lines to train on: English, code, and several scripts."""
    text = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text += (repository / "src" / "pellucid" / "text" / "special.py").read_text(encoding="utf-8")
    lines = [*text.splitlines(), *HARD[6:12] * 3, *random_texts(2, 500)]
    return [line.replace("\0", "") for text in lines for line in text.split("\n") if line.strip()]


@pytest.fixture(scope="session")
def real_texts(corpus_folder: Path) -> list[str]:
    """Lines of the files of real data, and one of a megabyte."""
    files = sorted(corpus_folder.glob("*/*.txt"))
    texts = [path.read_bytes().decode("utf-8") for path in files]
    return [*(line for text in texts for line in text.split("\n")[:4000]), " ".join(texts)[:1_000_000]]


def trained(corpus: list[str], **options: Any) -> bytes:
    model = io.BytesIO()
    settings = {"vocab_size": 1500, "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=model, **settings)
    return model.getvalue()


def compare(ours: SentencePieceTokenizer, theirs: Any, texts: list[str]) -> None:
    same_ids(ours.encode_batch(texts), theirs.encode(texts, num_threads=2), texts)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", OPTIONS)
def test_models(kind: str, name: str, corpus: list[str], tmp_path: Path) -> None:
    content = trained(corpus, model_type=kind, **OPTIONS[name])
    path = tmp_path / "m.model"
    path.write_bytes(content)
    ours = load_tokenizer(path)
    assert isinstance(ours, SentencePieceTokenizer)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    # With characters of its own a vocabulary is asked about each of Unicode's once.
    scalars = [*map(chr, SCALARS), *scalar_texts(7)] if name in ("plain", "bytes") else scalar_texts(11)
    compare(ours, theirs, [*TEXTS, *scalars])
    for text in TEXTS[:600]:
        assert ours.normalize(text) == theirs.normalize(text), repr(text)
        ids = theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids), repr(text)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", [*OPTIONS, "spaces kept"])
def test_offsets(kind: str, name: str, corpus: list[str], tmp_path: Path) -> None:
    options = {"remove_extra_whitespaces": False} if name == "spaces kept" else OPTIONS[name]
    content = trained(corpus, model_type=kind, **options)
    (tmp_path / "m.model").write_bytes(content)
    ours = SentencePieceTokenizer.read(tmp_path / "m.model")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    compared = 0
    for text in [*HARD[:14], *random_texts(9, 400), "ｶﾞ ﬁne ㌔ e\u0301  \u00ad½ x\u200b ", *scalar_texts(901)]:
        expected = theirs.encode(text, return_type="offset_mapping")
        ids, offsets = ours.encode_offsets(text)
        assert ids.tolist() == expected["ids"] == ours.encode(text).tolist()
        following = [*offsets[1:, 0].tolist(), len(text)][: len(ids)]
        for (begin, end), behind, other in zip(offsets.tolist(), following, expected["offsets"], strict=True):
            # There, of ids that share a character, the last one alone has it.
            shared = behind < end and other[1] == behind
            assert begin == other[0], (repr(text), begin, end, other)
            assert end == other[1] or shared, (repr(text), begin, end, other)
            compared += not shared
    assert compared > 1000


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_real_texts(kind: str, real_texts: list[str], tmp_path: Path) -> None:
    for options in ({}, LLAMA):
        content = trained(real_texts[:-1:3], model_type=kind, **{**options, "vocab_size": 2000})
        (tmp_path / "m.model").write_bytes(content)
        ours = SentencePieceTokenizer.read(tmp_path / "m.model")
        compare(ours, sentencepiece.SentencePieceProcessor(model_proto=content), real_texts)


def test_n_best(corpus: list[str], tmp_path: Path) -> None:
    content = trained(corpus, model_type="unigram")
    (tmp_path / "m.model").write_bytes(content)
    ours = SentencePieceTokenizer.read(tmp_path / "m.model")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    for text in ("hello world", "trailing newline", "the gradient", "کتاب"):
        found = [ids for ids, _ in ours.n_best(text, 5)]
        expected = theirs.nbest_encode(text, nbest_size=5)
        assert found[0] == expected[0]
        # Nearly equal scores may change places: their sums are taken in another order.
        assert sorted(found) == sorted(expected)


def test_the_unigram_model_of_tokenizers(corpus: list[str]) -> None:
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    peer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    peer.train_from_iterator(corpus, trainer)
    pieces = sorted(peer.get_vocab(), key=peer.get_vocab().get)
    scores = dict(map(tuple, json.loads(peer.to_str())["model"]["vocab"]))
    words = [text.replace("<unk>", "") for text in [*TEXTS, *scalar_texts(7)]]
    for fallback in (False, True):
        names = [*pieces, *(f"<0x{byte:02X}>" for byte in range(256))] if fallback else pieces
        values = [scores.get(name, -20.0) for name in names]
        theirs = tokenizers.models.Unigram(list(zip(names, values, strict=True)), 0, fallback)
        ours = UnigramModel([n.encode() for n in names], np.array(values), byte_fallback=fallback, unk_id=0)
        ids, starts = ours.encode_words(*utf8_batch(words, "here"))
        for i, word in enumerate(words):
            expected = [token.id for token in theirs.tokenize(word)]
            assert ids[starts[i] : starts[i + 1]].tolist() == expected, repr(word[:200])


def test_a_vocabulary_of_ours_is_as_good(corpus_folder: Path) -> None:
    """Characters a token with 8,000 pieces, a line a document: not 1% below sentencepiece's vocabulary."""
    for name in ("english/tinyshakespeare.txt", "persian/hafez.txt"):
        path = corpus_folder / name
        if not path.exists():
            pytest.skip(f"no {name} in the folder of real data")
        lines = path.read_text(encoding="utf-8").splitlines()
        size = 8000 if name.startswith("english") else 3000
        theirs = sentencepiece.SentencePieceProcessor(
            model_proto=trained(lines, model_type="unigram", vocab_size=size, num_threads=2)
        )
        ours = UnigramTokenizer.train(lines, size)
        expected = sum(map(len, theirs.encode(lines, num_threads=2)))
        assert len(ours.encode_batch(lines).ids) * 0.99 <= expected


def test_published_models(vocabularies: Path) -> None:
    paths = sorted(vocabularies.glob("*.model*"))
    if not paths:
        pytest.skip("no published models: make vocabularies could not fetch them")
    for path in paths:
        ours = SentencePieceTokenizer.read(path)
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
        texts = [*TEXTS, *every_scalar(), *scalar_texts(29), "word " * 20_000]
        compare(ours, theirs, texts)

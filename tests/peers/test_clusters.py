"""The character map of a tokenizer.json beside `tokenizers`: which characters it takes together, and what they become.

A map made for the purpose shows where clusters begin and end: of one under 6 bytes, all gives way to what the key at
its beginning becomes, and of a longer one, each character.
"""

from __future__ import annotations

import base64
import io
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.text.grapheme_runs import RUNS
from pellucid.text.graphemes import ClusterMap

from .test_normalizers import field
from .texts import HARD, SCALARS, random_texts

tokenizers = pytest.importorskip("tokenizers")
spm = pytest.importorskip("sentencepiece")

KEYS = {"a": "Z", "\u0301": "Y", "☀": "W", "क": "K", "\u1161": "V", "\u11a8": "T", "가": "G", "각": "H", "\u1100": "L"}
CHANGES = {"a": "", "b": "xyz", "e\u0301": "", "\u0301": "Y", "c\u0302": "12345", "\u0302": ""}
JOINED = [
    *map(chr, range(0x300, 0x310)),
    *map(chr, range(0x610, 0x620)),
    *"aeou \n\r½ﬁ☀कé\u0915\u094d\u00ad\u200b\u3000ﾞｶ",
]
JOINED += ["\r\n", "\u200d", "\u0600", "👨", "🏽", "🇮", "\u1100", "\u1161", "\u11a8", "가", "각", "e\u0301", "a\u0301"]


def made(folder: Path, rules: dict[str, str] | None) -> bytes:
    """The map of these rules, or of NFKC as SentencePiece has it."""
    options = {}
    if rules is not None:
        spell = lambda text: " ".join(f"{ord(c):X}" for c in text)  # noqa: E731
        (folder / "rules.tsv").write_text("".join(f"{spell(key)}\t{spell(new)}\n" for key, new in rules.items()))
        options = {"normalization_rule_tsv": str(folder / "rules.tsv")}
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g"] * 10),
        model_writer=model,
        vocab_size=12,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return field(field(model.getvalue(), 3), 2)


def compare(block: bytes, texts: list[str]) -> None:
    ours, theirs = ClusterMap(base64.b64encode(block).decode()), tokenizers.normalizers.Precompiled(block)
    for text in texts:
        assert ours(text) == theirs.normalize_str(text), ascii(text)


def test_every_scalar(tmp_path: Path) -> None:
    """Alone, between letters, and before a mark; a line break stands apart from everything but a carriage return."""
    lines = [f"{c}\na{c}b{c}\u0301\u0301\n" for c in map(chr, SCALARS)]
    compare(made(tmp_path, KEYS), ["".join(lines[i : i + 100]) for i in range(0, len(lines), 100)])


PLACES: dict[str, Callable[[str], str]] = {
    "before a letter": lambda c: f"{c}a\u0301",
    "a picture": lambda c: f"©\u200d{c}\u200d☀\u0301",
    "between pictures": lambda c: f"©{c}\u200d☀\u0301",
    "before a virama": lambda c: f"{c}\u094dक\u0301",
    "between consonants": lambda c: f"क{c}क\u0301",
    "before a linked consonant": lambda c: f"क{c}\u094dक\u0301",
    "behind a virama": lambda c: f"क\u094d{c}क\u0301",
    "around L": lambda c: f"\u1100{c}\u0301\n{c}\u1100\u0301",
    "around V": lambda c: f"\u1161{c}\u0301\n{c}\u1161\u0301",
    "around T": lambda c: f"\u11a8{c}\u0301\n{c}\u11a8\u0301",
    "around LV": lambda c: f"가{c}\u0301\n{c}가\u0301",
    "around LVT": lambda c: f"각{c}\u0301\n{c}각\u0301",
}


@pytest.mark.parametrize("place", PLACES)
def test_characters_that_join(place: str, tmp_path: Path) -> None:
    """All that have a class of their own, their neighbours, and a hundredth of the others."""
    letters = "".join(letter * int(n or 1) for letter, n in re.findall("([a-z-])([0-9]*)", RUNS)).ljust(0x110001, "-")
    codes = [c for c in SCALARS if c % 101 == 0 or letters[max(0, c - 1) : c + 2] != "---"]
    # Of the syllables and of the variation selectors, which are all alike, a few.
    lines = [PLACES[place](chr(c)) for c in codes if c % 13 == 0 or letters[c - 1 : c + 2] not in ("sss", "eee", "ccc")]
    compare(made(tmp_path, KEYS), ["\n".join(lines[i : i + 100]) for i in range(0, len(lines), 100)])


@pytest.mark.parametrize("rules", [None, KEYS, CHANGES], ids=["nfkc", "keys", "changes"])
def test_texts_and_their_offsets(rules: dict[str, str] | None, tmp_path: Path) -> None:
    block, stream = made(tmp_path, rules), random.Random(1)
    texts = [*HARD[:15], *random_texts(5, 500)]
    texts += ["".join(stream.choices(JOINED, k=stream.randrange(1, 9))) for _ in range(2000)]
    texts += ["".join(stream.choices("abcde\u0301\u0302", k=stream.randrange(1, 9))) for _ in range(1000)]
    compare(block, texts)
    ours = ClusterMap(base64.b64encode(block).decode())
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"?": 0}, merges=[], unk_token="?", fuse_unk=False))
    theirs.normalizer = tokenizers.normalizers.Precompiled(block)
    for text, found in zip(texts, theirs.encode_batch(texts), strict=True):
        assert ours.origins(text).tolist() == [begin for begin, _ in found.offsets], ascii(text)

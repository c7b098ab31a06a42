"""Normalisers beside those of `tokenizers` and sentencepiece, on every character alone and between letters."""

from __future__ import annotations

import io
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.text.charsmap import CharsMap
from pellucid.text.normalize import (
    CollapseSpaces,
    Lowercase,
    Normalizer,
    Prepend,
    Replace,
    Step,
    Strip,
    StripAccents,
    UnicodeForm,
)

peer = pytest.importorskip("tokenizers").normalizers
Regex = pytest.importorskip("tokenizers").Regex
spm = pytest.importorskip("sentencepiece")

SCALARS = [c for c in map(chr, range(0x110000)) if not 0xD800 <= ord(c) < 0xE000]
# Characters this Python knows.
OLD = [c for c in SCALARS if unicodedata.category(c) != "Cn"]
PAIRS: dict[str, tuple[Step, object]] = {
    "NFC": (UnicodeForm("NFC"), peer.NFC()),
    "lowercase": (Lowercase(), peer.Lowercase()),
    "replace": (Replace("ab", "c"), peer.Replace("ab", "c")),
    "regex": (Replace(r"\s+", " ", regex=True), peer.Replace(Regex(r"\s+"), " ")),
    "prepend": (Prepend("x"), peer.Prepend("x")),
    "strip": (Strip(), peer.Strip()),
}


@pytest.mark.parametrize("name", PAIRS)
def test_steps_agree_on_every_character(name: str) -> None:
    step, other = PAIRS[name]
    wrong = [c for c in OLD if any(step(t) != other.normalize_str(t) for t in (c, f"a{c}b"))]  # type: ignore[attr-defined]
    assert wrong == []


@pytest.mark.parametrize("form", ["NFD", "NFKC", "NFKD"])
def test_forms_agree_but_for_characters_newer_than_the_peer(form: str) -> None:
    step, other = UnicodeForm(form), getattr(peer, form)()  # type: ignore[arg-type]
    wrong = [c for c in OLD if step(c) != other.normalize_str(c)]
    # The peer leaves them as they are.
    assert all(other.normalize_str(c) == c for c in wrong)
    assert len(wrong) < 80


def test_accents_agree_but_for_marks_newer_than_the_peer() -> None:
    other = peer.StripAccents()
    # Two signs were marks until Unicode 12.
    wrong = [c for c in OLD if c not in "\u1cf2\u1cf3" and StripAccents()(c) != other.normalize_str(c)]
    assert all(unicodedata.category(c).startswith("M") and other.normalize_str(c) == c for c in wrong)
    assert len(wrong) < 350


@pytest.fixture(scope="module")
def charsmap() -> CharsMap:
    """The map every sentencepiece model has unless another was asked for."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g"] * 10), model_writer=model, vocab_size=12, minloglevel=2
    )
    specification = field(field(model.getvalue(), 3), 2)
    return CharsMap.of(specification)


def field(message: bytes, wanted: int) -> bytes:
    """The last field `wanted` of a protocol buffer, one of bytes."""
    at, found = 0, b""

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        size = number() if key & 7 == 2 else {1: 8, 5: 4}.get(key & 7)
        if size is None:
            number()
            continue
        if key == wanted << 3 | 2:
            found = message[at : at + size]
        at += size
    return found


@pytest.fixture(scope="module")
def sentencepiece() -> Callable[[str], str]:
    options = {"add_dummy_prefix": False, "escape_whitespaces": False, "remove_extra_whitespaces": True}
    return spm.SentencePieceNormalizer(rule_name="nmt_nfkc", **options).normalize


def test_charsmap_agrees_on_every_character(charsmap: CharsMap, sentencepiece: Callable[[str], str]) -> None:
    ours = Normalizer([charsmap, CollapseSpaces()])
    assert [c for c in SCALARS if c != "\0" and ours(f"a{c}b") != sentencepiece(f"a{c}b")] == []


def test_charsmap_agrees_on_characters_side_by_side(charsmap: CharsMap, sentencepiece: Callable[[str], str]) -> None:
    ours, rng = Normalizer([charsmap, CollapseSpaces()]), random.Random(1)
    near = [
        *map(chr, range(0x300, 0x370)),
        *map(chr, range(0x1100, 0x1200)),
        *map(chr, range(0x610, 0x680)),
        *"aeouA \n",
    ]
    for _ in range(50_000):
        text = "".join(rng.choices(near, k=rng.randrange(1, 9)))
        assert ours(text) == sentencepiece(text), ascii(text)


def test_charsmap_agrees_on_real_text(
    charsmap: CharsMap, sentencepiece: Callable[[str], str], corpus_folder: Path
) -> None:
    ours = Normalizer([charsmap, CollapseSpaces()])
    for path in sorted(corpus_folder.glob("persian/*.txt")):
        text = path.read_text(encoding="utf-8")
        assert ours(text) == sentencepiece(text)

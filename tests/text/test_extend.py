"""More special tokens: old ids stay, new ones come last, and the file that is saved has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.text import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    NormalizedTokenizer,
    Normalizer,
    Tokenizer,
    UnicodeForm,
    UnigramTokenizer,
    load_tokenizer,
    with_special,
)

TEXT = "the wind and the sea and the stone went over the wind and a night of stone and sea " * 40

KINDS: dict[str, Tokenizer] = {
    "byte": ByteTokenizer(special=["<|endoftext|>"]),
    "char": CharTokenizer(TEXT),
    "bpe": BPETokenizer.train(TEXT, 280, special=["<|endoftext|>"]),
    "unigram": UnigramTokenizer.train(TEXT, 285, special=["<|endoftext|>"]),
    "normalized": NormalizedTokenizer(CharTokenizer(TEXT), Normalizer([UnicodeForm("NFC")])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_old_ids_stay_and_new_ones_come_last(kind: str, tmp_path: Path) -> None:
    old = KINDS[kind]
    new = with_special(old, ["<|user|>", "<|end|>"])
    n = old.vocab_size
    assert new.vocab_size == n + 2
    assert dict(new.special) == {**old.special, "<|user|>": n, "<|end|>": n + 1}
    assert np.array_equal(new.encode("the wind and the sea"), old.encode("the wind and the sea"))
    ids = new.encode("<|user|>the sea<|end|>", allowed_special="all")
    assert ids.tolist() == [n, *old.encode("the sea").tolist(), n + 1]
    assert new.decode(ids) == "the sea"
    assert new.decode(ids, show_special=True) == "<|user|>the sea<|end|>"
    new.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json").fingerprint() == new.fingerprint() != old.fingerprint()


def test_refusals() -> None:
    for names, message in (
        (["<|endoftext|>"], "with_special: the vocabulary has this special token already; got '<|endoftext|>'"),
        (["a", "a"], "with_special: the same special token twice; got a, a"),
        ([""], "with_special: not a name for a special token; got ''"),
    ):
        with pytest.raises(DataError) as error:
            with_special(KINDS["bpe"], names)
        assert str(error.value) == message

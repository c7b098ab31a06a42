"""From the text a user names to the two files every run starts with: tokenizer.json and tokens.bin."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from ..base.errors import ConfigError, DataError
from ..base.files import reading, reason
from ..data import Continued, TokenFile, documents, holds_several
from ..text import (
    END_OF_TEXT,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    NormalizedTokenizer,
    Normalizer,
    Persian,
    Tokenizer,
    UnicodeForm,
    UnigramTokenizer,
    load_tokenizer,
)
from .progress import Encoding

Kind = Literal["unigram", "bpe", "char", "byte"]
"""Tokenizers that can be made from a text."""
Form = Literal["nfc", "nfkc", "persian"]
"""Normalisers that can be put before them."""

TRAINED_IDS = 4096
"""Ids of a tokenizer that `pellucid train` trains, unless another number is asked for."""
LARGEST_ALPHABET = 256
"""Distinct characters up to which `auto` takes characters as tokens."""


def is_token_file(path: Path) -> bool:
    """Whether a path is meant as ids rather than text."""
    return path.suffix == ".bin"


def check_corpus(path: Path) -> None:
    """Refuses at once what can be seen to be no corpus. Raises DataError."""
    if is_token_file(path):
        TokenFile.open(path)
    else:
        documents(path)


def new_tokenizer(wanted: str, vocab_size: int, corpus: Path) -> Tokenizer:
    """The tokenizer that `--train-tokenizer` asks for, of the kind `--tokenizer` names ("auto": unigram).

    Raises:
        ConfigError: no such kind, or nothing to train on.
        DataError: a corpus that can't be used, or a size that can't be had from it.
    """
    kind = "unigram" if wanted == "auto" else wanted
    if kind not in get_args(Kind):
        expected = f"auto or one of {', '.join(get_args(Kind))}"
        raise ConfigError("--tokenizer", "not a kind that can be trained", got=repr(wanted), expected=expected)
    if is_token_file(corpus):
        hint = "train one on text first: pellucid tokenizer train"
        raise ConfigError("--train-tokenizer", f"a token file has no text ({corpus})", hint=hint)
    special = [END_OF_TEXT] if holds_several(corpus) else []
    texts = whole_lines(documents(corpus))
    return train_tokenizer(kind, texts, vocab_size, special, flag="--tokenizer-vocab")  # type: ignore[arg-type]


def choose_tokenizer(wanted: str, corpus: Path) -> Tokenizer:
    """The tokenizer that `--tokenizer` asks for; "auto" and "char" read the corpus once.

    A corpus of several documents gets a token that ends a document.

    Raises:
        DataError: corpus or tokenizer file can't be used.
        ConfigError: a token file without the tokenizer it was made with.
    """
    if is_token_file(corpus):
        if wanted in ("auto", "byte", "char"):
            hint = "name the tokenizer file the ids were made with"
            raise ConfigError("--tokenizer", f"needed for a token file ({corpus})", got=repr(wanted), hint=hint)
        tokenizer = load_tokenizer(wanted)
        tokens = TokenFile.open(corpus)
        tokens.check_tokenizer(tokenizer)
        tokens.check_vocabulary(tokenizer.vocab_size)
        return tokenizer
    special = [END_OF_TEXT] if holds_several(corpus) else []
    if wanted == "byte":
        return ByteTokenizer(special=special)
    if wanted in ("auto", "char"):
        found = CharTokenizer.train(documents(corpus), special=special)
        if wanted == "char" or len(found.characters) <= LARGEST_ALPHABET:
            return found
        return ByteTokenizer(special=special)
    if not wanted or not Path(wanted).exists():
        hint = f"--train-tokenizer --tokenizer {wanted} trains one" if wanted in get_args(Kind) else None
        expected = "auto, byte, char or a tokenizer file"
        raise DataError(wanted or "--tokenizer", "no such tokenizer", expected=expected, hint=hint)
    return load_tokenizer(wanted)


def train_tokenizer(
    kind: Kind,
    texts: Iterable[str],
    vocab_size: int,
    special: Sequence[str],
    *,
    flag: str,
    normalize: Sequence[Form] = (),
    space_before: bool = False,
) -> Tokenizer:
    """A new tokenizer of `vocab_size` ids (those of char and byte follow from what they are), behind the normalisers
    named. space_before: of bpe.

    Raises:
        DataError: no text, or a size that can't be had from it, in the name of the flag that asked for it.
    """
    forms = {"nfc": UnicodeForm("NFC"), "nfkc": UnicodeForm("NFKC"), "persian": Persian()}
    normalizer = Normalizer([forms[name] for name in normalize])
    try:
        found = _trained(kind, map(normalizer, texts), vocab_size, special, space_before)
    except DataError as error:
        if "smaller than" in error.what or "larger than" in error.what:
            hint = f"raise {flag}" if "smaller" in error.what else f"lower {flag}, or give more text"
            raise DataError(flag, error.what, got=error.got, expected=error.expected, hint=hint) from error
        raise
    return NormalizedTokenizer(found, normalizer) if normalizer else found


def _trained(
    kind: Kind, texts: Iterable[str], vocab_size: int, special: Sequence[str], space_before: bool
) -> Tokenizer:
    if kind == "unigram":
        return UnigramTokenizer.train(texts, vocab_size, special=special)
    if kind == "bpe":
        return BPETokenizer.train(texts, vocab_size, special=special, space_before=space_before)
    return CharTokenizer.train(texts, special=special) if kind == "char" else ByteTokenizer(special=special)


def whole_lines(texts: Iterable[str]) -> Iterator[str]:
    """The same text, with the pieces of a long document cut where a line ends, else at a space: two halves of a word
    are no words."""
    waiting = ""
    for text in texts:
        waiting += text
        if not isinstance(text, Continued):
            yield waiting
            waiting = ""
        elif at := waiting.rfind("\n") + 1 or max(waiting.rfind(" "), 0):
            yield waiting[:at]
            waiting = waiting[at:]
    if waiting:
        yield waiting


def write_tokens(target: Path, corpus: Path, tokenizer: Tokenizer) -> TokenFile:
    """The corpus as ids, encoded in constant memory, or copied where it is ids already."""
    if not is_token_file(corpus):
        try:
            with Encoding() as progress:
                TokenFile.write_documents(target, documents(corpus), tokenizer, eos=tokenizer.eot, on_progress=progress)
            return TokenFile.open(target)
        except DataError as error:
            if not error.where.startswith("document"):
                raise
            raise DataError(f"{corpus}: {error.where}", error.what) from error
    with reading(corpus):
        pass
    try:
        shutil.copyfile(corpus, target)
        side = Path(f"{corpus}.json")
        if side.exists():
            shutil.copyfile(side, f"{target}.json")
    except OSError as error:
        raise DataError(str(target), f"cannot be written: {reason(error)}") from error
    copied = TokenFile.open(target)
    if copied.info is not None:
        copied.verify()
    return copied


def write_texts(target: Path, texts: Iterable[str], tokenizer: Tokenizer) -> TokenFile:
    """Documents as ids, with the end-of-text token after each where the vocabulary has one."""
    TokenFile.write_documents(target, texts, tokenizer, eos=tokenizer.eot)
    return TokenFile.open(target)


def bytes_per_token(tokens: TokenFile, tokenizer: Tokenizer) -> float:
    """UTF-8 bytes a token stands for, on average: what makes losses of different tokenizers comparable."""
    block = 1 << 20
    count = sum(len(tokenizer.decode_bytes(tokens.ids[i : i + block])) for i in range(0, len(tokens), block))
    return count / len(tokens)

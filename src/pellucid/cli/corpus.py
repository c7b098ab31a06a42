"""From the text a user names to the two files every run starts with: tokenizer.json and tokens.bin."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from ..base.errors import ConfigError, DataError
from ..base.files import reading, reason
from ..data import TokenFile, documents
from ..text import END_OF_TEXT, ByteTokenizer, CharTokenizer, Tokenizer, load_tokenizer

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
    special = [END_OF_TEXT] if corpus.is_dir() or corpus.suffix.lower() == ".jsonl" else []
    if wanted == "byte":
        return ByteTokenizer(special=special)
    if wanted in ("auto", "char"):
        found = CharTokenizer.train(documents(corpus), special=special)
        if wanted == "char" or len(found.characters) <= LARGEST_ALPHABET:
            return found
        return ByteTokenizer(special=special)
    if not wanted or not Path(wanted).exists():
        raise DataError(wanted or "--tokenizer", "no such tokenizer", expected="auto, byte, char or a tokenizer file")
    return load_tokenizer(wanted)


def write_tokens(target: Path, corpus: Path, tokenizer: Tokenizer) -> TokenFile:
    """The corpus as ids, encoded in constant memory, or copied where it is ids already."""
    if not is_token_file(corpus):
        try:
            return write_texts(target, documents(corpus), tokenizer)
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

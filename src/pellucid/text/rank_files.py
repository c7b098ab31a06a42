"""Byte-pair vocabularies in files of their own: tiktoken's ranks, GPT-2's pair of files, CLIP's list of merges.

None of them says how text is cut into words, which changes ids as much as the merges do. For the published files it
is known: tiktoken's four are recognised by their checksum, GPT-2's and CLIP's have one pattern each. For another file
of ranks the caller names it.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.errors import DataError
from ..base.files import StrPath, read_json, reading, replacing
from .alphabet import CHARACTERS, ORDER
from .bpe import BPEModel
from .bpe_tables import MOST_TOKENS
from .bpe_tokenizer import BPETokenizer
from .hub_read import model_of
from .normalize import Lowercase, Normalizer, UnicodeForm
from .parts import Parts
from .patterns import PATTERNS, pattern_named
from .pretokenize import Pretokenizer
from .special import AddedToken
from .tokenizer import END_OF_TEXT

_LARGEST = 1 << 27  # bytes; the largest published file of ranks has under 4 MB
_FILL = {"<|fim_prefix|>": 1, "<|fim_middle|>": 2, "<|fim_suffix|>": 3}

# SHA-256 of a published file: name of the pattern, special tokens.
_PUBLISHED: dict[str, tuple[str, dict[str, int]]] = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": ("gpt2", {END_OF_TEXT: 50256}),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": ("gpt2", {END_OF_TEXT: 50256}),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": (
        "cl100k",
        {END_OF_TEXT: 100257, **{name: 100257 + i for name, i in _FILL.items()}, "<|endofprompt|>": 100276},
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": (
        "o200k",
        {END_OF_TEXT: 199999, "<|endofprompt|>": 200018},
    ),
}


def read_tiktoken(
    path: StrPath, *, pattern: str | None = None, special: Mapping[str, int] | None = None
) -> BPETokenizer:
    """The tokenizer of a tiktoken rank file: lines of a token in base64, a space and its rank, which is its id.

    `pattern` (a name in `PATTERNS`) and `special` (names and ids) are known for r50k, p50k, cl100k and o200k.

    Raises:
        DataError: a file that is none, a token or a rank twice, or an unknown file without `pattern`.
    """
    where = os.fspath(path)
    raw = _read(path)
    known = _PUBLISHED.get(hashlib.sha256(raw).hexdigest())
    if pattern is None:
        if known is None:
            hint = f"give read_tiktoken its pattern, one of {', '.join(PATTERNS)}, and its special tokens"
            raise DataError(where, "ranks of an unknown tokenizer, without a pattern to cut text", hint=hint)
        pattern = known[0]
    if special is None:
        special = {} if known is None else known[1]
    ranks = _ranks(raw, where)
    tokens: list[bytes | None] = [None] * (1 + max(ranks.values()))
    for token, rank in ranks.items():
        tokens[rank] = token
    model = BPEModel(tokens, None, whole=True)
    parts = Parts(model=model, pretokenizer=Pretokenizer(cuts=(pattern_named(pattern, where),)))
    added = [AddedToken(name, number) for name, number in special.items()]
    if taken := [t.content for t in added if t.id < len(tokens) and tokens[t.id] is not None]:
        raise DataError(where, "a special token with the id of another", got=taken[0])
    return BPETokenizer(parts, vocab_size=max([len(tokens), *(t.id + 1 for t in added)]), added=added)


def write_tiktoken(tokenizer: BPETokenizer, path: StrPath) -> None:
    """Writes the vocabulary as a rank file, which knows neither special tokens nor the pattern.

    Raises DataError for a vocabulary whose merges aren't in the order of its ids: ranks can't express it.
    """
    model = tokenizer.model
    ids = model.ids
    if model.characters or model.suffix:
        raise DataError(os.fspath(path), "a rank file is for byte-level vocabularies without a suffix")
    if model.merges is not None:
        results = [ids[left + right] for left, right in model.merges]
        if results != sorted(set(results)):
            raise DataError(os.fspath(path), "merges that don't follow the order of the ids")
    lines = (
        base64.b64encode(token) + b" %d\n" % number for number, token in enumerate(model.tokens) if token is not None
    )
    with replacing(path) as write:
        write(b"".join(lines))


def read_gpt2(vocab: StrPath, merges: StrPath) -> BPETokenizer:
    """The tokenizer of GPT-2's two files: `encoder.json` (or vocab.json), and `vocab.bpe` (or merges.txt).

    Raises DataError.
    """
    content = read_json(vocab, "GPT-2's table of tokens")
    lines = _lines(_read(merges), os.fspath(merges))
    if lines and lines[0].startswith("#version"):
        del lines[0]
    added = [AddedToken(END_OF_TEXT, content[END_OF_TEXT])] if type(content.get(END_OF_TEXT)) is int else []
    try:
        model, texts = model_of({"type": "BPE", "vocab": content, "merges": lines}, added, byte_level=True)
    except DataError as error:
        raise DataError(os.fspath(vocab), f"a damaged vocabulary ({error})") from error
    parts = Parts(model=model, pretokenizer=Pretokenizer(cuts=(PATTERNS["gpt2"],)), texts=texts)
    return BPETokenizer(parts, vocab_size=len(model.tokens), added=added)


def read_clip(path: StrPath) -> BPETokenizer:
    """The tokenizer of CLIP's `bpe_simple_vocab_16e6.txt.gz`: 49,408 ids, of small letters alone.

    Text is normalised (NFC) and made small, as CLIP's tokenizer.json has it. What CLIP's first code does before that,
    repairing text and HTML (ftfy, html.unescape), is not done. Raises DataError.
    """
    where = os.fspath(path)
    wanted = 49152 - 256 - 2
    lines = _lines(_unzipped(path), where)[1 : wanted + 1]
    if len(lines) < wanted:
        raise DataError(where, "not CLIP's list of merges", got=f"{len(lines)} merges", expected=wanted)
    letters = [CHARACTERS[byte] for byte in ORDER]
    vocab = [*letters, *(letter + "</w>" for letter in letters), *(line.replace(" ", "") for line in lines)]
    names = ("<|startoftext|>", END_OF_TEXT)
    ids = {text: number for number, text in enumerate([*vocab, *names])}
    if len(ids) != len(vocab) + len(names):
        raise DataError(where, "a damaged list of merges: the same token twice")
    added = [AddedToken(name, ids[name]) for name in names]
    item: dict[str, Any] = {"type": "BPE", "vocab": ids, "merges": lines, "end_of_word_suffix": "</w>"}
    try:
        model, texts = model_of(item, added, byte_level=True)
    except DataError as error:
        raise DataError(where, f"a damaged list of merges ({error})") from error
    parts = Parts(
        model=model,
        pretokenizer=Pretokenizer(cuts=(PATTERNS["clip"],)),
        normalizer=Normalizer([UnicodeForm("NFC"), Lowercase()]),
        texts=texts,
        frame=((ids[names[0]],), (ids[names[1]],)),
    )
    return BPETokenizer(parts, vocab_size=len(ids), added=added)


def read_folder(folder: Path) -> BPETokenizer | None:
    """The tokenizer of GPT-2's two files in a folder, or None where they aren't there."""
    for vocab, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        if (folder / vocab).is_file() and (folder / merges).is_file():
            return read_gpt2(folder / vocab, folder / merges)
    return None


def _ranks(raw: bytes, where: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    taken: set[int] = set()
    for number, line in enumerate(raw.splitlines(), 1):
        if not line:
            continue
        parts = line.split(b" ")
        try:
            token, rank = base64.b64decode(parts[0], validate=True), int(parts[1])
        except (binascii.Error, ValueError, IndexError):
            shown = line[:40].decode("ascii", errors="replace")
            raise DataError(where, f"line {number} is not a token in base64 and its rank", got=repr(shown)) from None
        if len(parts) != 2 or not token or not 0 <= rank < MOST_TOKENS:
            raise DataError(where, f"line {number} is not a token in base64 and its rank", got=f"rank {rank}")
        if token in ranks or rank in taken:
            raise DataError(where, f"the token or the rank of line {number} is there already", got=f"rank {rank}")
        ranks[token] = rank
        taken.add(rank)
    if not ranks or max(ranks.values()) > 2 * len(ranks) + (1 << 16):
        raise DataError(where, "not a file of ranks", got=f"{len(ranks)} tokens")
    return ranks


def _read(path: StrPath) -> bytes:
    with reading(path) as file:
        raw = file.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise DataError(os.fspath(path), "too large for a vocabulary", expected=f"at most {_LARGEST} bytes")
    return raw


def _unzipped(path: StrPath) -> bytes:
    where = os.fspath(path)
    with reading(path) as file, gzip.open(file) as stream:
        try:
            raw = stream.read(_LARGEST + 1)
        except (gzip.BadGzipFile, EOFError, OSError, ValueError) as error:
            raise DataError(where, "not a whole gzip file") from error
    if len(raw) > _LARGEST:
        raise DataError(where, "too large for a vocabulary", expected=f"at most {_LARGEST} bytes unpacked")
    return raw


def _lines(raw: bytes, where: str) -> list[str]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(where, "not UTF-8", got=f"byte {error.start}") from error
    return [line for line in text.replace("\r\n", "\n").split("\n") if line]

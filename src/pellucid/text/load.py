"""From a file back to a tokenizer: what the file holds tells which kind it is.

Our own files name their kind (`type`); a Hugging Face tokenizer.json is known by its `model`. Vocabularies that are
no JSON, or that need a second file, are read by the functions of `rank_files`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..base.errors import DataError
from ..base.files import StrPath, check_header, check_keys, read_json, reading
from ..base.gguf import MAGIC
from .byte import ByteTokenizer
from .char import CharTokenizer
from .gguf import read_gguf_tokenizer
from .hub_own import own_tokenizer
from .hub_read import read_content
from .normalize import Normalizer
from .normalized import NormalizedTokenizer
from .rank_files import read_clip, read_folder, read_tiktoken
from .sentencepiece_tokenizer import SentencePieceTokenizer
from .tekken import tekken_of
from .tokenizer import Tokenizer
from .unigram_tokenizer import UnigramTokenizer

_KINDS = {kind.kind: kind for kind in (ByteTokenizer, CharTokenizer, UnigramTokenizer, SentencePieceTokenizer)}
_NORMALIZED = {"type": (str,), "version": (int,), "normalizer": (list,), "tokenizer": (dict,)}
_GZIP = b"\x1f\x8b"
# A message that begins with a message that begins with text: the first piece of a SentencePiece model.
_MODEL = re.compile(rb"\n([\x04-\x7f])\n([\x01-\x7f])")
_RANKS = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")


def load_tokenizer(path: StrPath) -> Tokenizer:
    """The tokenizer in a file that `Tokenizer.save` wrote, or in one of the published formats: Hugging Face's
    tokenizer.json, tiktoken's ranks (r50k, p50k, cl100k, o200k), CLIP's gzipped merges, SentencePiece's .model,
    Mistral's tekken.json, the vocabulary of a GGUF file; or in a folder that has a tokenizer.json, or GPT-2's
    encoder.json and vocab.bpe.

    Raises:
        DataError: missing, damaged or foreign file, unknown type, version or keys, or a part of a tokenizer.json that
            this library can't do exactly; the message names the file.
    """
    where = os.fspath(path)
    if os.path.isdir(path):
        folder = Path(path)
        if not (folder / "tokenizer.json").is_file():
            if (found := read_folder(folder)) is not None:
                return found
            raise DataError(
                where, "a folder without a tokenizer", expected="tokenizer.json, or encoder.json and vocab.bpe"
            )
        path = folder / "tokenizer.json"
        where = os.fspath(path)
    with reading(path) as file:
        start = file.read(4096)
    if start.startswith(_GZIP):
        return read_clip(path)
    if start.startswith(MAGIC):
        return read_gguf_tokenizer(path)
    if _RANKS.match(start):
        return read_tiktoken(path)
    if (model := _MODEL.match(start)) and model[2] < model[1]:
        return SentencePieceTokenizer.read(path)
    return _tokenizer(read_json(path, "a tokenizer file"), where)


def _tokenizer(content: dict[str, Any], where: str) -> Tokenizer:
    """The tokenizer a JSON object describes."""
    hub = "model" in content and "type" not in content
    if "config" in content and "vocab" in content:
        try:
            return tekken_of(content)
        except DataError as error:
            raise DataError(where, f"a Tekken file that can't be used ({error})") from error
    kinds = (*_KINDS, NormalizedTokenizer.kind)
    kind = "" if hub else check_header(content, kinds, Tokenizer.version, where=where, what="a tokenizer file")
    try:
        if kind == NormalizedTokenizer.kind:
            check_keys(content, _NORMALIZED, where=NormalizedTokenizer.__name__)
            normalizer, inner = Normalizer.from_json(content["normalizer"]), content["tokenizer"]
            if inner.get("type") == kind:
                raise DataError(kind, "a normaliser around another")
            return NormalizedTokenizer(_tokenizer(inner, "tokenizer"), normalizer)
        return own_tokenizer(content) or read_content(content) if hub else _KINDS[kind].from_json(content)
    except DataError as error:
        what = "a tokenizer.json that can't be used" if hub else "a damaged tokenizer file"
        raise DataError(where, f"{what} ({error})") from error

"""From a tokenizer file back to the tokenizer: the `type` in the JSON picks the class from one literal table."""

from __future__ import annotations

import os

from ..base.errors import DataError
from ..base.files import StrPath, check_header, read_json
from .byte import ByteTokenizer
from .char import CharTokenizer
from .sentencepiece_tokenizer import SentencePieceTokenizer
from .tokenizer import Tokenizer
from .unigram_tokenizer import UnigramTokenizer

_KINDS = {kind.kind: kind for kind in (ByteTokenizer, CharTokenizer, UnigramTokenizer, SentencePieceTokenizer)}


def load_tokenizer(path: StrPath) -> Tokenizer:
    """The tokenizer in a file that `Tokenizer.save` wrote.

    Raises:
        DataError: missing, damaged or foreign file, unknown type, version or keys; the message names the file.
    """
    where = os.fspath(path)
    content = read_json(path, "a tokenizer file")
    kind = check_header(content, tuple(_KINDS), Tokenizer.version, where=where, what="a tokenizer file")
    try:
        return _KINDS[kind].from_json(content)
    except DataError as error:
        raise DataError(where, f"a damaged tokenizer file ({error})") from error

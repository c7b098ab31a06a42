"""Mistral's Tekken files: a JSON object with tiktoken-like ranks, the pattern that cuts text, and special tokens.

Ids begin with the special tokens, a fixed number of them; the rank of a token comes on top of that. A file may hold
more ranks than its vocabulary uses: those beyond `default_vocab_size` are none. Special tokens the file doesn't name
are `<SPECIAL_n>`. Files up to version 7 may name none; what they mean then is a list of mistral-common 1.13.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ..base.errors import DataError
from .bpe import BPEModel
from .bpe_tables import MOST_TOKENS
from .bpe_tokenizer import BPETokenizer
from .hub_parts import record
from .parts import Parts
from .patterns import pattern_of
from .pretokenize import Pretokenizer
from .special import AddedToken

_TOP = {"config": {}, "vocab": [], "special_tokens": None, "type": None}
# What a model does with pictures and sound is no matter of text.
_BESIDE = {"image": None, "audio": None, "multimodal": None}
_CONFIG = {
    "pattern": "",
    "num_vocab_tokens": 0,
    "default_vocab_size": 0,
    "default_num_special_tokens": 0,
    "version": "",
}
_OLD_VERSIONS = ("v3", "v7")
_OLD_NAMES = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)


def tekken_of(content: dict[str, Any]) -> BPETokenizer:
    """The tokenizer that the object in a tekken.json describes. Raises DataError."""
    top = record(content, _TOP | _BESIDE, "the file")
    config = record(top["config"], _CONFIG, "config")
    sizes = config["default_vocab_size"], config["default_num_special_tokens"]
    if any(type(size) is not int for size in sizes) or not 0 <= sizes[1] < sizes[0] <= MOST_TOKENS:
        got = f"{sizes[0]!r}, {sizes[1]!r} of them special"
        raise DataError("config", "not a size of a vocabulary", got=got, expected=f"at most {MOST_TOKENS}")
    if not isinstance(config["pattern"], str):
        raise DataError("config", "not a pattern", got=repr(config["pattern"])[:60])
    cut = pattern_of(config["pattern"], "config.pattern")
    size, first = sizes
    added = _special(top["special_tokens"], first, config["version"])
    tokens: list[bytes | None] = [None] * first
    if not isinstance(top["vocab"], list) or len(top["vocab"]) < size - first:
        got = len(top["vocab"]) if isinstance(top["vocab"], list) else type(top["vocab"]).__name__
        raise DataError("vocab", "fewer tokens than the vocabulary has", got=got, expected=size - first)
    for rank, item in enumerate(top["vocab"][: size - first]):
        tokens.append(_token(item, rank))
    parts = Parts(model=BPEModel(tokens, None, whole=True), pretokenizer=Pretokenizer(cuts=(cut,)))
    return BPETokenizer(parts, vocab_size=size, added=added)


def _token(item: Any, rank: int) -> bytes:
    if not isinstance(item, dict) or item.get("rank") != rank or not isinstance(item.get("token_bytes"), str):
        raise DataError("vocab", f"entry {rank} is not the token of this rank", got=repr(item)[:60])
    try:
        token = base64.b64decode(item["token_bytes"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError("vocab", f"the bytes of token {rank} are no base64", got=repr(item["token_bytes"])) from error
    if not token or (rank < 256 and token != bytes([rank])):
        raise DataError("vocab", f"token {rank} is not what it has to be", got=repr(token), expected="a byte first")
    return token


def _special(items: Any, count: int, version: Any) -> list[AddedToken]:
    """The special tokens: those the file names, and fillers."""
    names: dict[int, str] = {}
    if items is None:
        if version not in _OLD_VERSIONS:
            raise DataError("special_tokens", "missing", got=f"version {version!r}", expected="a list of them")
        names = dict(enumerate(_OLD_NAMES))
    elif not isinstance(items, list):
        raise DataError("special_tokens", "not a list", got=type(items).__name__)
    else:
        for rank, item in enumerate(items):
            if not isinstance(item, dict) or item.get("rank") != rank or not isinstance(item.get("token_str"), str):
                raise DataError("special_tokens", f"entry {rank} is not the token of this rank", got=repr(item)[:60])
            names[rank] = item["token_str"]
    if len(names) > count:
        raise DataError("special_tokens", "more than the vocabulary has", got=len(names), expected=f"at most {count}")
    return [AddedToken(names.get(i, f"<SPECIAL_{i}>"), i) for i in range(count)]

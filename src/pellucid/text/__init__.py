"""Text to ids and back: tokenizers, their files and their trainers."""

from .batch import IdBatch
from .byte import ByteTokenizer
from .char import CharTokenizer
from .load import load_tokenizer
from .special import AddedToken
from .tokenizer import END_OF_TEXT, StreamDecoder, Tokenizer

__all__ = [
    "END_OF_TEXT",
    "AddedToken",
    "ByteTokenizer",
    "CharTokenizer",
    "IdBatch",
    "StreamDecoder",
    "Tokenizer",
    "load_tokenizer",
]

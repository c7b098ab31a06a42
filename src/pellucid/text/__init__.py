"""Text to ids and back: tokenizers, their files and their trainers."""

from .byte import ByteTokenizer
from .char import CharTokenizer
from .load import load_tokenizer
from .tokenizer import END_OF_TEXT, StreamDecoder, Tokenizer

__all__ = ["END_OF_TEXT", "ByteTokenizer", "CharTokenizer", "StreamDecoder", "Tokenizer", "load_tokenizer"]

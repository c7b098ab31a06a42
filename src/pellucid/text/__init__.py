"""Text to ids and back: tokenizers, their files and their trainers."""

from .batch import IdBatch
from .byte import ByteTokenizer
from .char import CharTokenizer
from .charsmap import CharsMap
from .load import load_tokenizer
from .normalize import (
    CollapseSpaces,
    Lowercase,
    Normalizer,
    Persian,
    Prepend,
    Replace,
    Strip,
    StripAccents,
    UnicodeForm,
)
from .sentencepiece import SentencePieceVocabulary, read_llama2c_vocabulary, read_sentencepiece
from .sentencepiece_tokenizer import SentencePieceTokenizer
from .special import AddedToken
from .tokenizer import END_OF_TEXT, StreamDecoder, Tokenizer
from .unigram import UnigramModel
from .unigram_tokenizer import UnigramTokenizer
from .unigram_train import UnigramTraining

__all__ = [
    "END_OF_TEXT",
    "AddedToken",
    "ByteTokenizer",
    "CharTokenizer",
    "CharsMap",
    "CollapseSpaces",
    "IdBatch",
    "Lowercase",
    "Normalizer",
    "Persian",
    "Prepend",
    "Replace",
    "SentencePieceTokenizer",
    "SentencePieceVocabulary",
    "StreamDecoder",
    "Strip",
    "StripAccents",
    "Tokenizer",
    "UnicodeForm",
    "UnigramModel",
    "UnigramTokenizer",
    "UnigramTraining",
    "load_tokenizer",
    "read_llama2c_vocabulary",
    "read_sentencepiece",
]

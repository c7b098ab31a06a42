"""Text to ids and back: tokenizers, their files and their trainers, chat templates.

Templates in Jinja are in `pellucid.text.jinja`, imported by name.
"""

from .batch import IdBatch
from .bpe import BPEModel
from .bpe_tokenizer import BPETokenizer
from .byte import ByteTokenizer
from .char import CharTokenizer
from .charsmap import CharsMap
from .chat import ChatIds, ChatML, ChatTemplate, Llama2, Llama3
from .extend import with_special
from .gguf import read_gguf_tokenizer
from .graphemes import ClusterMap
from .hub_own import hub_content
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
from .normalized import NormalizedTokenizer
from .parts import Parts
from .pipeline import PipelineTokenizer
from .pretokenize import Pretokenizer
from .rank_files import read_clip, read_gpt2, read_tiktoken, write_tiktoken
from .sentencepiece import SentencePieceVocabulary, read_llama2c_vocabulary, read_sentencepiece
from .sentencepiece_tokenizer import SentencePieceTokenizer
from .special import AddedToken
from .tokenizer import END_OF_TEXT, StreamDecoder, Tokenizer
from .transcript import Transcript
from .unigram import UnigramModel
from .unigram_tokenizer import UnigramTokenizer
from .unigram_train import UnigramTraining

__all__ = [
    "END_OF_TEXT",
    "AddedToken",
    "BPEModel",
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "CharsMap",
    "ChatIds",
    "ChatML",
    "ChatTemplate",
    "ClusterMap",
    "CollapseSpaces",
    "IdBatch",
    "Llama2",
    "Llama3",
    "Lowercase",
    "NormalizedTokenizer",
    "Normalizer",
    "Parts",
    "Persian",
    "PipelineTokenizer",
    "Prepend",
    "Pretokenizer",
    "Replace",
    "SentencePieceTokenizer",
    "SentencePieceVocabulary",
    "StreamDecoder",
    "Strip",
    "StripAccents",
    "Tokenizer",
    "Transcript",
    "UnicodeForm",
    "UnigramModel",
    "UnigramTokenizer",
    "UnigramTraining",
    "hub_content",
    "load_tokenizer",
    "read_clip",
    "read_gguf_tokenizer",
    "read_gpt2",
    "read_llama2c_vocabulary",
    "read_sentencepiece",
    "read_tiktoken",
    "with_special",
    "write_tiktoken",
]

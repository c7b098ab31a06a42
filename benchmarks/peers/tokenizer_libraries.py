"""`tokenizers` (Hugging Face) and sentencepiece, trained and run as their documentation has it, on the same lines.

No normalisation on any side: ours has none by default. Each takes the threads of the run for training and encoding.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any


class HubTokenizers:
    """`tokenizers`: Unigram over words that a Metaspace pre-tokeniser makes, or byte-level BPE as GPT-2 has it."""

    name = "tokenizers"

    def __init__(self, threads: int) -> None:
        # Read when the library first makes its thread pool.
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        self._library = import_module("tokenizers")

    def train(self, lines: Sequence[str], kind: str, size: int) -> Any:
        lib = self._library
        if kind == "unigram":
            found = lib.Tokenizer(lib.models.Unigram())
            found.pre_tokenizer = lib.pre_tokenizers.Metaspace()
            trainer = lib.trainers.UnigramTrainer(
                vocab_size=size, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
            )
        else:
            found = lib.Tokenizer(lib.models.BPE())
            found.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=True)
            trainer = lib.trainers.BpeTrainer(
                vocab_size=size, initial_alphabet=lib.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
            )
        found.train_from_iterator(lines, trainer)
        return found

    def encode(self, trained: Any, lines: Sequence[str]) -> Any:
        return trained.encode_batch(lines, add_special_tokens=False)

    def count(self, encoded: Any) -> int:
        return sum(len(e.ids) for e in encoded)


class SentencePiece:
    """sentencepiece: its Unigram and its BPE."""

    name = "sentencepiece"

    def __init__(self, threads: int) -> None:
        self._library, self._threads = import_module("sentencepiece"), threads

    def train(self, lines: Sequence[str], kind: str, size: int) -> Any:
        model = io.BytesIO()
        self._library.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            normalization_rule_name="identity",
            num_threads=self._threads,
            minloglevel=2,
        )
        return self._library.SentencePieceProcessor(model_proto=model.getvalue())

    def encode(self, trained: Any, lines: Sequence[str]) -> Any:
        return trained.encode(lines, num_threads=self._threads)

    def count(self, encoded: Any) -> int:
        return sum(map(len, encoded))

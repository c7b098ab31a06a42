"""The tokenizer a published file describes: normalise -> cut into words -> model -> ids, and back.

The parts are a `Normalizer`, a `Pretokenizer` and a model (`BPEModel`, `UnigramModel`) that turns words into ids;
special tokens are cut out before all of them. A batch of texts goes through each stage as one array of bytes, in the
worker pool. Decoding knows nothing of words: every id stands for its bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from .align import through, trimmed
from .batch import IdBatch, character_offsets, utf8, utf8_batch
from .hub_write import content_of
from .normalize import Lowercase, Persian, StripAccents, UnicodeForm
from .parts import Parts
from .pretokenize import Words
from .special import AddedToken, SpecialTokens
from .started import StartedTokenizer

# A space is a character by itself to these, so a text may be cut before it.
_LOCAL = (UnicodeForm, Lowercase, StripAccents, Persian)


class PipelineTokenizer(StartedTokenizer):
    """A tokenizer of parts. `to_json` is the content of a Hugging Face tokenizer.json, and so is a saved file.

    Args:
        parts: the stages.
        vocab_size: number of ids, those of added tokens included.
        added: special tokens, and plain words beside the model's.
    """

    kind: ClassVar[str] = "pipeline"

    def __init__(self, parts: Parts, *, vocab_size: int, added: Sequence[AddedToken] = ()) -> None:
        super().__init__(vocab_size, {}, added=added)
        self.parts = parts
        self._meanings = parts.meanings(added)
        # Behind a special token nothing is put before a text that "first" keeps for the very beginning.
        self._position_matters = parts.pretokenizer.mark_before == "first"
        self._late_names, self._late = self._normalized(added)

    def _normalized(self, added: Sequence[AddedToken]) -> tuple[dict[str, str], SpecialTokens | None]:
        """The tokens that are looked for in normalised text: by their names, what they look like there."""
        normalizer = self.parts.normalizer
        if not normalizer or not any(token.normalized for token in added):
            return {}, None
        names = {token.content: normalizer(token.content) for token in added if token.normalized}
        tokens = [replace(t, content=names[t.content], normalized=False) for t in added if t.normalized]
        return names, SpecialTokens(type(self).__name__, tokens, self.vocab_size)

    def encode(self, text: str, *, allowed_special: str | Collection[str] = ()) -> np.ndarray:
        allowed = self._added.allowed(allowed_special)
        if self._late is None or allowed.isdisjoint(self._late_names):
            return super().encode(text, allowed_special=allowed_special)
        late = frozenset(self._late_names[name] for name in allowed if name in self._late_names)
        parts = [np.empty(0, np.uint32)]
        for begin, end, number in self._added.cut(text, allowed.difference(self._late_names)):
            if number is not None:
                parts.append(np.array([number], np.uint32))
                continue
            # These names stand in what the normaliser makes of the text between the others.
            normal = self.parts.normalizer(text[begin:end])
            for b, e, inner in self._late.cut(normal, late):
                first = begin == 0 and b == 0
                found = self._words_of([normal[b:e]], first=first)[0] if inner is None else np.array([inner], np.uint32)
                parts.append(found)
        return np.concatenate(parts)

    def encode_batch(self, texts: Sequence[str], *, allowed_special: str | Collection[str] = ()) -> IdBatch:
        if self._late is None or self._added.allowed(allowed_special).isdisjoint(self._late_names):
            return super().encode_batch(texts, allowed_special=allowed_special)
        return IdBatch.of([self.encode(text, allowed_special=allowed_special) for text in texts])

    def encode_offsets(
        self, text: str, *, allowed_special: str | Collection[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        self._check_text(text, "encode_offsets")
        allowed = self._added.allowed(allowed_special)
        if self._late is None or allowed.isdisjoint(self._late_names):
            return self._trimmed(*super().encode_offsets(text, allowed_special=allowed_special))
        late = frozenset(self._late_names[name] for name in allowed if name in self._late_names)
        ids, offsets = [np.empty(0, np.uint32)], [np.empty((0, 2), np.int64)]
        for begin, end, number in self._added.cut(text, allowed.difference(self._late_names)):
            if number is not None:
                ids.append(np.array([number], np.uint32))
                offsets.append(np.array([[begin, end]], np.int64))
                continue
            normal, origins = self._origins(text[begin:end])
            for b, e, inner in self._late.cut(normal, late):
                if inner is None:
                    found, where = self._word_offsets(normal[b:e], first=begin == 0 and b == 0)
                else:
                    found, where = np.array([inner], np.uint32), np.array([[0, e - b]], np.int64)
                ids.append(found)
                offsets.append(through(origins, where + b) + begin)
        return self._trimmed(np.concatenate(ids), np.concatenate(offsets))

    def _trimmed(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for space_before in self.parts.trims:
            offsets = trimmed(offsets, self._blanks[ids], space_before=space_before)
        return ids, offsets

    @cached_property
    def _blanks(self) -> np.ndarray:
        return self.parts.blanks(self.added.values(), self.vocab_size)

    @property
    def added(self) -> Mapping[str, AddedToken]:
        """All tokens beside the model's, by name."""
        return self._added.by_name

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids the file wants before and after a text. `encode` doesn't add them: they are for whoever builds a
        prompt."""
        return self.parts.frame

    def piece(self, number: int) -> bytes:
        """The bytes an id stands for. Raises DataError for an id that is none."""
        self._checked([number])
        return self._started(np.array([number]), False)[0]

    def _encode(self, text: str) -> np.ndarray:
        return self._run([text], first=True)[0]

    def _encode_rest(self, text: str) -> np.ndarray:
        return self._run([text], first=False)[0]

    def _encode_batch(self, texts: Sequence[str]) -> IdBatch:
        return self._run(texts, first=True)

    def _run(self, texts: Sequence[str], *, first: bool) -> IdBatch:
        normalizer = self.parts.normalizer
        try:
            return self._words_of([normalizer(text) for text in texts] if normalizer else texts, first=first)
        except DataError:
            utf8_batch(texts, f"{type(self).__name__}.encode")  # names the place in the text as it came
            raise

    def _words_of(self, texts: Sequence[str], *, first: bool) -> IdBatch:
        """Ids of normalised texts."""
        words = self._cut(texts, first=first)
        ids, id_starts = self.parts.model.encode_words(words.data, words.starts)
        return IdBatch(ids, id_starts[words.firsts])

    def _cut(self, texts: Sequence[str], *, first: bool) -> Words:
        """The words of normalised texts."""
        pretokenizer = self.parts.pretokenizer
        if pretokenizer.rewrites:
            texts = [pretokenizer.rewrite(text, first=first) for text in texts]
        return pretokenizer.cut(*utf8_batch(texts, f"{type(self).__name__}.encode"))

    def _origins(self, text: str) -> tuple[str, np.ndarray]:
        utf8(text, f"{type(self).__name__}.encode_offsets")
        return self.parts.normalizer.origins(text)

    def _encode_offsets(self, text: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        normal, origins = self._origins(text)
        ids, offsets = self._word_offsets(normal, first=first)
        return ids, through(origins, offsets)

    def _word_offsets(self, normal: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a normalised text, and the characters of it that each stands for."""
        prepared, origins = self.parts.pretokenizer.rewritten(normal, first=first)
        data = np.frombuffer(utf8(prepared, f"{type(self).__name__}.encode_offsets"), np.uint8)
        words = self.parts.pretokenizer.cut(data, np.array([0, len(data)]))
        ids, id_starts, ends = self.parts.model.encode_ends(words.data, words.starts)
        counts = np.diff(id_starts)
        end = ends.astype(np.int64) + np.repeat(words.starts[:-1], counts)
        begin = np.concatenate([[0], end[:-1]])[: len(end)]
        if words.at is not None:
            end = np.where(end > begin, words.at[end - 1] + 1, words.at[begin])
            begin = words.at[begin]
        return ids, through(origins, character_offsets(data, begin, end))

    def settled(self, text: str) -> int:
        parts = self.parts
        always = [token for token in self._added.by_name.values() if not token.special]
        if any(t.lstrip or t.rstrip or any(c.isspace() for c in t.content) for t in always):
            return 0
        if not all(isinstance(step, _LOCAL) for step in parts.normalizer.steps):
            return 0
        return parts.pretokenizer.settled(text)

    def _started(self, ids: np.ndarray, start: bool) -> tuple[bytes, bool]:
        try:
            raw = b"".join(map(self._meanings.__getitem__, ids.tolist()))
        except KeyError as error:
            raise DataError(
                f"{type(self).__name__}.decode",
                "an id that the vocabulary leaves out",
                got=error.args[0],
                hint="use the tokenizer the ids were made with",
            ) from None
        if start and self.parts.strip_space:
            return raw.removeprefix(b" "), not raw
        return raw, start and not raw

    def to_json(self) -> dict[str, Any]:
        return content_of(self.parts, list(self.added.values()))

    def _identity(self) -> dict[str, Any]:
        # Offsets are no matter of ids.
        return content_of(replace(self.parts, trims=()), list(self.added.values()))

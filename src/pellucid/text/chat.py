"""Chat templates: a conversation as the text, and as the ids, that a chat model was trained on.

A template puts marks of its own between messages, and the marks are special tokens. Whoever writes a message must not
be able to write a mark. So before a template sees the messages, the first character of everything in them that is or
could become the name of a special token is exchanged for a stand-in (a character of a private use area that occurs
nowhere); names that are found in the result are then the template's own, and the stand-ins are turned back in what is
encoded as ordinary text.

Ids are those of the whole text, as other libraries give them, not of messages encoded one by one. `encode_masked` also
says which tokens the assistant is to produce: its words and the end of its turn.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from .tokenizer import Tokenizer

Message = Mapping[str, Any]
Spans = list[tuple[int, int]]
Put = Callable[[Any], Any]

# Supplementary Private Use Area-B: nobody's characters, and none that a template could look for.
_STAND_INS = range(0x100000, 0x10FFFE)


@dataclass(frozen=True)
class ChatIds:
    """ids: uint32. assistant: of each id, whether the assistant is to produce it."""

    ids: np.ndarray
    assistant: np.ndarray


class ChatTemplate(ABC):
    """From messages (`{"role": "user", "content": "..."}`, in order) to text and ids.

    A subclass sets `marks`, the special tokens it can't do without, and `stops`, texts after which the assistant's turn
    is over where no token says so, and defines `_render`.
    """

    marks: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """The conversation as text; `add_generation_prompt` opens the assistant's next turn.

        Raises:
            DataError: messages the template can't express.
        """
        return self._render(_checked(messages), add_generation_prompt, plain, spans=False)[0]

    def encode(
        self, tokenizer: Tokenizer, messages: Sequence[Message], *, add_generation_prompt: bool = False
    ) -> np.ndarray:
        """The conversation as ids, uint32. Names of special tokens in messages are text like any other.

        Raises:
            DataError: as `render`, and for a vocabulary without the template's marks.
        """
        return self._encode(tokenizer, messages, add_generation_prompt, spans=False).ids

    def encode_masked(
        self, tokenizer: Tokenizer, messages: Sequence[Message], *, add_generation_prompt: bool = False
    ) -> ChatIds:
        """The same ids, and which of them the assistant is to produce: for training on conversations.

        Raises:
            DataError: as `encode`, and for a template that doesn't tell.
        """
        return self._encode(tokenizer, messages, add_generation_prompt, spans=True)

    def _encode(
        self, tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool, *, spans: bool
    ) -> ChatIds:
        if missing := [mark for mark in self.marks if mark not in tokenizer.special]:
            raise DataError(
                type(self).__name__,
                "the vocabulary lacks special tokens of this template",
                got=", ".join(tokenizer.special) or "none",
                expected=", ".join(missing),
                hint="use the tokenizer of the model the template belongs to",
            )
        hidden = Hidden(tokenizer.special, strings_in([list(messages), self._own_text()]))
        text, places = self._render(_checked(messages, hidden.put), add_generation_prompt, hidden.put, spans=spans)
        parts, flags = [np.empty(0, np.uint32)], [np.empty(0, np.bool_)]
        for begin, end, number in tokenizer.cut_special(text, allowed_special="all"):
            if number is not None:
                parts.append(np.array([number], np.uint32))
                flags.append(np.array([any(b <= begin < e for b, e in places)]))
                continue
            ids = _ordinary(tokenizer, hidden.restore(text[begin:end]), begin == 0)

            def tokens(at: int, begin: int = begin, end: int = end, ids: np.ndarray = ids) -> int:
                if not begin < at < end:
                    return 0 if at <= begin else len(ids)
                return _equal(_ordinary(tokenizer, hidden.restore(text[begin:at]), begin == 0), ids)

            flag = np.zeros(len(ids), np.bool_)
            for b, e in places:
                if b < end and e > begin:
                    flag[tokens(b) : tokens(e)] = True
            parts.append(ids)
            flags.append(flag)
        return ChatIds(np.concatenate(parts), np.concatenate(flags))

    @abstractmethod
    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, put: Put, *, spans: bool
    ) -> tuple[str, Spans]:
        """The text; with `spans` also begin and end of everything in it that the assistant is to produce. `put` has
        been applied to the messages; what else is not the template's own goes through it too."""

    def _own_text(self) -> object:
        """Whatever of the template's own text holds characters nobody else may use."""
        return ""


def _ordinary(tokenizer: Tokenizer, text: str, first: bool) -> np.ndarray:
    """Ids of text without special tokens; `first`: nothing stands before it."""
    parts = [np.empty(0, np.uint32)]
    for begin, end, number in tokenizer.cut_special(text, allowed_special=()):
        if number is not None:
            parts.append(np.array([number], np.uint32))
        else:
            encode = tokenizer._encode if first and begin == 0 else tokenizer._encode_rest
            parts.append(encode(text[begin:end]))
    return np.concatenate(parts)


def _equal(alone: np.ndarray, ids: np.ndarray) -> int:
    """How many of `ids` are those that the beginning of their text has alone; one that goes on beyond it is not."""
    n = min(len(alone), len(ids))
    differ = np.flatnonzero(alone[:n] != ids[:n])
    return int(differ[0]) if len(differ) else n


class Hidden:
    """Stand-ins for the first characters of special names. `used`: texts whose characters can't be stand-ins."""

    def __init__(self, names: Iterable[str], used: Iterable[str]) -> None:
        self._names = sorted(names, key=lambda name: (-len(name), name))
        first_ones = dict.fromkeys(name[0] for name in self._names)
        self._to = dict(zip(first_ones, stand_ins(used, len(first_ones)), strict=True))
        self._back = str.maketrans({stand_in: c for c, stand_in in self._to.items()})
        # A whole name, or the beginning of one where the text ends: the next text could complete it.
        whole = [re.escape(name[1:]) for name in self._names]
        begun = {re.escape(name[1:i]) for name in self._names for i in range(1, len(name))}
        follow = "|".join([*whole, f"(?:{'|'.join(sorted(begun))})\\Z"]) if begun else "|".join(whole)
        first = "".join(map(re.escape, self._to))
        self._find = re.compile(f"[{first}](?={follow})") if self._names else re.compile("(?!)")

    def put(self, value: Any) -> Any:
        """`plain` of a value, with stand-ins in each of its texts, keys included."""
        return plain(value, lambda text: self._find.sub(lambda m: self._to[m[0]], text))

    def restore(self, text: str) -> str:
        """The text as it was."""
        return text.translate(self._back) if self._to else text


def stand_ins(used: Iterable[str], count: int) -> list[str]:
    """`count` characters that occur in none of the texts. Raises DataError where there are too few."""
    taken = {c for text in used for c in set(text) if ord(c) in _STAND_INS}
    free = list(islice((chr(code) for code in _STAND_INS if chr(code) not in taken), count))
    if len(free) < count:
        raise DataError(
            "chat template", "the messages use up the private use area", got=f"{len(taken)} characters of it"
        )
    return free


class ChatML(ChatTemplate):
    """`<|im_start|>role\\ncontent<|im_end|>\\n` for each message (OpenAI 2023; Qwen, SmolLM2, Yi)."""

    marks: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")

    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, put: Put, *, spans: bool
    ) -> tuple[str, Spans]:
        built = Builder()
        for message in written(messages):
            built.add(f"<|im_start|>{message['role']}\n")
            built.add(f"{message['content']}<|im_end|>", assistant=message["role"] == "assistant")
            built.add("\n")
        return built.done("<|im_start|>assistant\n" if add_generation_prompt else "")


class Llama3(ChatTemplate):
    """`<|start_header_id|>role<|end_header_id|>\\n\\ncontent<|eot_id|>` for each message, after one
    `<|begin_of_text|>`; white space around a content is dropped (Llama 3 model card, 2024)."""

    marks: tuple[str, ...] = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, put: Put, *, spans: bool
    ) -> tuple[str, Spans]:
        built = Builder()
        built.add("<|begin_of_text|>")
        for message in written(messages):
            built.add(f"<|start_header_id|>{message['role']}<|end_header_id|>\n\n")
            built.add(f"{message['content'].strip()}<|eot_id|>", assistant=message["role"] == "assistant")
        return built.done("<|start_header_id|>assistant<|end_header_id|>\n\n" if add_generation_prompt else "")


class Llama2(ChatTemplate):
    """`<s>[INST] user [/INST] assistant </s>` for each pair of messages; a system message goes into the first user's,
    between `<<SYS>>` marks (Llama 2, 2023). Those marks are ordinary text in its vocabulary: a message that holds one
    is refused. Roles alternate, and a user speaks last where the assistant is to answer."""

    marks: tuple[str, ...] = ("<s>", "</s>")
    forbidden: ClassVar[tuple[str, ...]] = ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>")

    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, put: Put, *, spans: bool
    ) -> tuple[str, Spans]:
        for i, message in enumerate(written(messages)):
            for mark in self.forbidden:
                if mark in message["content"]:
                    raise DataError(f"Llama2: message {i}", "holds a mark of the template", got=repr(mark))
        turns = list(messages)
        opening = ""
        if turns and turns[0]["role"] == "system":
            opening = f"<<SYS>>\n{turns.pop(0)['content'].strip()}\n<</SYS>>\n\n"
        wanted = ["user", "assistant"] * ((len(turns) + 1) // 2)
        roles = [message["role"] for message in turns]
        if not turns or roles != wanted[: len(turns)]:
            expected = "user and assistant in turn, after at most one system"
            raise DataError(
                "Llama2", "roles out of order", got=", ".join(m["role"] for m in messages), expected=expected
            )
        if add_generation_prompt and roles[-1] != "user":
            raise DataError("Llama2", "nothing to answer", got="assistant", expected="user as the last role")
        built = Builder()
        for i, message in enumerate(turns):
            content = message["content"].strip()
            if message["role"] == "user":
                built.add(f"<s>[INST] {opening if i == 0 else ''}{content} [/INST]")
            else:
                built.add(f" {content} </s>", assistant=True)
        return built.done("")


class Builder:
    """Text put together piece by piece, with the places of the assistant's."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._spans: Spans = []
        self._length = 0

    def add(self, text: str, *, assistant: bool = False) -> None:
        if assistant:
            self._spans.append((self._length, self._length + len(text)))
        self._parts.append(text)
        self._length += len(text)

    def done(self, last: str) -> tuple[str, Spans]:
        return "".join([*self._parts, last]), self._spans


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """A value of JSON's kinds, built anew: a template gets no object whose methods could do anything. `text` is applied
    to every string. Raises DataError for a value of another kind."""
    if isinstance(value, str):
        return text(str(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {plain(key, text): plain(inner, text) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, text) for inner in value]
    raise DataError(
        "chat template", "a value that is no JSON", got=type(value).__name__, expected="texts, numbers, lists"
    )


def _checked(messages: Sequence[Message], put: Put = plain) -> list[dict[str, Any]]:
    """The messages as dictionaries, without keys of None. Raises DataError for one without a role."""
    found = []
    for i, message in enumerate(messages):
        where = f"message {i}"
        if not isinstance(message, Mapping):
            raise DataError(where, "not a message", got=type(message).__name__, expected="role and content by name")
        role = message.get("role")
        if not isinstance(role, str) or not re.fullmatch(r"[\w.-]+", role):
            raise DataError(where, "no role", got=repr(role), expected="a word, such as 'user'")
        found.append({put(key): put(inner) for key, inner in message.items() if inner is not None})
    return found


def written(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages, all with text. Raises DataError for one whose content is missing or of another kind."""
    for i, message in enumerate(messages):
        if not isinstance(message.get("content"), str):
            got = type(message["content"]).__name__ if "content" in message else "no content"
            raise DataError(f"message {i}", "its content is not text", got=got, expected="a string")
    return messages


def strings_in(value: object) -> Iterable[str]:
    """Every text in nested lists and dictionaries."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from strings_in(key)
            yield from strings_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_in(inner)

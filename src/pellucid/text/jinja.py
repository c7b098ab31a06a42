"""Chat templates in Jinja, as published models carry them, run in a sandbox.

A template file is code of somebody else's. It runs in a sandbox (`sandbox.py`): no attribute of Python's internals, no
changed argument, no file, no run without an end, and at most `LARGEST` characters of output. What it may call beside
Jinja's own is what Hugging Face offers: `raise_exception`, `strftime_now`, the filter `tojson`, `break` and `continue`,
and the block `{% generation %}` around the assistant's words.

Imported by name, because Jinja takes as long to load as all of `pellucid.text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.utils import Namespace

from ..base.errors import DataError
from ..base.files import StrPath, read_json, reading
from .chat import ChatTemplate, Message, Put, Spans, plain, stand_ins, strings_in
from .sandbox import LARGEST, WHERE, Sandbox
from .template_files import named_default, token_text

# What an expression in a template may raise of its own: a sum of a text and a number, a missing key, a division by 0.
_FAULTS = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)
_LARGEST_FILE = 1 << 24  # bytes
_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")
# The variable with the two characters that `{% generation %}` leaves around its content until the places are known.
_MARKS = "generation_marks"


class JinjaTemplate(ChatTemplate):
    """A chat template in Jinja.

    Args:
        source: the template.
        variables: what it reads beside the messages: `bos_token`, `eos_token`, `tools`, `enable_thinking`.
        now: the time `strftime_now` tells.

    Tokens of the assistant, for `encode_masked`, are those in `{% generation %}` blocks. Without such blocks they are
    found by comparison: what a conversation adds to the prompt that asks for it.

    Raises:
        DataError: a template with a mistake; each method, for one that refuses the messages or does what it may not.
    """

    def __init__(
        self,
        source: str,
        *,
        variables: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._marked = _GENERATION.search(source) is not None
        self.variables: dict[str, Any] = plain(variables or {})
        environment = self._sandbox = Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            more_filters={"tojson": _tojson},
        )
        environment.globals = {
            "range": environment.bounded_range,
            "namespace": _Namespace,
            "dict": lambda *pairs, **items: dict(*pairs, **items),
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(form),
        }
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise DataError(WHERE, f"line {error.lineno}: {error.message}") from error
        except (*_FAULTS, SyntaxError) as error:
            raise DataError(WHERE, f"can't be compiled ({error})") from error

    @classmethod
    def load(
        cls, path: StrPath, *, variables: Mapping[str, Any] | None = None, now: Callable[[], datetime] = datetime.now
    ) -> JinjaTemplate:
        """The template in a file: Jinja (`chat_template.jinja`), or a JSON file with the key `chat_template`
        (`tokenizer_config.json`), whose special tokens (`bos_token`, ...) are variables then.

        Raises:
            DataError: a file that can't be read, has no template, or one with a mistake.
        """
        shown = str(path)
        given = dict(variables or {})
        if shown.endswith(".json"):
            content = read_json(path, "a tokenizer's configuration")
            source = named_default(content.get("chat_template"))
            if source is None:
                raise DataError(shown, "no chat template in it", expected="the key 'chat_template'")
            tokens = {name: token_text(value) for name, value in content.items() if name.endswith("_token")}
            given = {name: value for name, value in tokens.items() if value is not None} | given
        else:
            with reading(path) as file:
                raw = file.read(_LARGEST_FILE)
            try:
                source = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(shown, f"not UTF-8 text: bad byte at offset {error.start}") from error
        try:
            return cls(source, variables=given, now=now)
        except DataError as error:
            raise DataError(shown, f"{error.where}: {error.what}") from error

    def _own_text(self) -> object:
        return [self.source, self.variables]

    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, put: Put, *, spans: bool
    ) -> tuple[str, Spans]:
        text, places = self._run(messages, add_generation_prompt, put)
        if self._marked or not spans:
            return text, places
        for i, message in enumerate(messages):
            if message.get("role") == "assistant":
                before = self._run(messages[:i], True, put)[0]
                after = self._run(messages[: i + 1], False, put)[0]
                if not after.startswith(before) or not text.startswith(before):
                    raise DataError(
                        WHERE,
                        f"message {i} does not go on where its prompt ends, so its tokens are not known",
                        hint="put {% generation %} around the assistant's words in the template",
                    )
                # What stands behind the end of the turn, a line break as a rule, nobody has to produce.
                end = len(after.rstrip())
                places.append((len(before), end if text.startswith(after[:end]) else len(before)))
        return text, places

    def _run(self, messages: Sequence[Message], add_generation_prompt: bool, put: Put) -> tuple[str, Spans]:
        # The names of special tokens are the only variables that may bring some.
        given = {name: v if name.endswith("_token") else put(v) for name, v in self.variables.items()}
        values: dict[str, Any] = {**given, "messages": messages, "add_generation_prompt": add_generation_prompt}
        opens, closes = values[_MARKS] = stand_ins(strings_in([values, self.source]), 2)
        parts, length = [], 0
        self._sandbox.begin()
        try:
            for part in self._template.generate(values):
                parts.append(part)
                length += len(part)
                if length > LARGEST:
                    raise DataError(WHERE, "writes without an end", got=f"more than {LARGEST} characters")
        except DataError:
            raise
        except _FAULTS as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
            raise DataError(WHERE, f"failed: {reason}") from error
        return _unmarked("".join(parts), opens, closes)


class _Namespace(Namespace):
    """Jinja's own, but for names that begin with an underscore, which could reach what is Python's, and for its
    spelling, which would write what is in it as often as it is reached."""

    def __init__(*args: Any, **items: Any) -> None:
        self, *pairs = args
        Namespace.__init__(self)
        for name, value in dict(*pairs, **items).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace can't have the attribute {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """The block `{% generation %}`: its content, between two marks."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_between", [nodes.ContextReference()]), [], [], body).set_lineno(line)

    def _between(self, context: Context, caller: Callable[[], str]) -> str:
        opens, closes = context[_MARKS]
        return f"{opens}{caller()}{closes}"


def _unmarked(text: str, opens: str, closes: str) -> tuple[str, Spans]:
    """The text without the marks of `{% generation %}`, and where they stood."""
    if opens not in text:
        return text, []
    parts: list[str] = []
    spans: Spans = []
    length = 0
    for i, part in enumerate(text.split(opens)):
        inner, _, outer = part.partition(closes) if i else ("", "", part)
        if inner:
            spans.append((length, length + len(inner)))
        parts += [inner, outer]
        length += len(inner) + len(outer)
    return "".join(parts), spans


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own, without HTML's escapes.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise DataError(WHERE, f"refuses the messages: {message}")

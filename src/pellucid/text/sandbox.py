"""The sandbox chat templates run in: Jinja's own, and bounds on how long a template runs and how large its values get.

Jinja's immutable sandbox keeps a template away from Python's internals. It doesn't keep it from loops in loops that
never end, from text that doubles with every turn, or from a width of ten thousand million. So every turn of a loop and
every call is counted here, and whatever could make a large value out of small ones is measured before it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterable, Sized, ValuesView
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..base.errors import DataError

WHERE = "chat template"
LARGEST = 1 << 26
"""Characters a template may write, and elements of a value in it."""
MOST_TURNS = 1 << 21
"""Turns of loops and calls a template may take; what is handled counts, too: 64 characters or 16 elements as a turn."""

# What writes what it holds when it is written.
_HOLDERS = (list, tuple, dict, ItemsView, ValuesView)
_LONGEST_NUMBER = 1 << 14  # bits
# A width or precision in a format: "%99999999d", "{:99999999}".
_WIDE = re.compile(r"[0-9]{8}|%[-+ #0]*\*")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with bounds; `begin` starts the count anew. Raises DataError for a template that runs
    without an end or makes a value that is too large."""

    def __init__(self, *, more_filters: dict[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(**options)
        self.intercepted_binops = frozenset({"+", "*", "**", "%"})
        self._turns = 0
        self._sizes: dict[int, tuple[Any, int]] = {}
        self.add_extension(_Counted)
        self.filters = {name: self._bounded(function) for name, function in (self.filters | more_filters).items()}
        self.concat = self._joined

    def begin(self) -> None:
        """From here on a template may take all its turns."""
        self._turns = 0
        self._sizes.clear()

    def turn(self, n: int = 1) -> bool:
        """Counts; true, so that it can stand before a condition. Raises DataError when there were too many."""
        self._turns += n
        if self._turns > MOST_TURNS:
            raise DataError(WHERE, "runs without an end", got=f"more than {MOST_TURNS:,} turns of loops and calls")
        return True

    def bounded_range(self, *bounds: int) -> range:
        """Jinja's range, whose numbers count as turns."""
        found = self._range(*bounds)
        self.turn(len(found))
        return found

    _range: Callable[..., range] = staticmethod(ImmutableSandboxedEnvironment().globals["range"])

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """What every call in a template goes through."""
        if getattr(__obj, "__func__", None) is _Counted.turn:  # by far the most, and cheap so
            return __self.turn(*args)
        # A text's `format` comes wrapped.
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        __self._measure(__obj, [owner, *args, *named.values()])
        return super().call(__context, __obj, *args, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """What every operator in a template goes through that could make much of little."""
        if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            self._fits(len(left) + len(right))
            self._fits(self._reached(left) + self._reached(right), MOST_TURNS)
        elif operator == "%" and isinstance(left, str):
            self._form(left)
        elif operator in "**":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Sized) and isinstance(other, int):
                    self._fits(len(one) * other)
                    self._fits(self._reached(one) * other, MOST_TURNS)
            if isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * right
                self._fits(bits, _LONGEST_NUMBER)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The template's tree, in which every turn of a loop and every macro counts, and `~` is measured."""
        found = Parser(self, source, name, filename).parse()
        counted = next(e for e in self.extensions.values() if isinstance(e, _Counted))
        for loop in found.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            # A macro takes many times as long as the turn of a loop.
            count = nodes.Const(1 if isinstance(loop, nodes.For) else 8)
            loop.body.insert(0, nodes.ExprStmt(counted.call_method("turn", [count])).set_lineno(loop.lineno))
            if isinstance(loop, nodes.For) and loop.test is not None:
                loop.test = nodes.And(counted.call_method("turn"), loop.test).set_lineno(loop.lineno)
        return _Measured(counted).visit(found)

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def measured(*args: Any, **named: Any) -> Any:
            self._measure(function, [*args, *named.values()])
            return function(*args, **named)

        return measured

    def _measure(self, function: Any, values: list[Any]) -> None:
        """Counts a call with these values (what it belongs to is one of them), and refuses what it could make."""
        self.turn()
        name, texts = getattr(function, "__name__", ""), [v for v in values if isinstance(v, str)]
        for value in values:
            if isinstance(value, str):
                self.turn(len(value) >> 6)
            elif isinstance(value, list | tuple | dict | range):
                self.turn(len(value) >> 4)
                self._reached(value)
            elif isinstance(value, int):
                self._fits(abs(value))
        if name in ("replace", "do_replace", "indent", "do_indent", "expandtabs") and texts:
            widths = [abs(v) for v in values if isinstance(v, int)]
            self._fits(len(texts[0]) * max([len(texts[-1]) if name.endswith("replace") else 0, *widths, 1]))
        elif name in ("join", "do_join", "sync_do_join"):
            parts = next((v for v in values if isinstance(v, list | tuple | dict | range)), ())
            self._fits(len(parts) * max([len(t) for t in texts], default=0) + _length(parts))
        elif name in ("format", "format_map", "do_format"):
            for text in texts:
                self._form(text)

    def made(self, value: Any) -> Any:
        """What a list, tuple or dict in the template goes through."""
        self._reached(value)
        return value

    def _reached(self, value: Any) -> int:
        """Elements of a value and of all that lies in it, each counted as often as a walk comes to it: a list that
        holds a list twice is twice as much to write, and 60 of them in one another are more than can be."""
        if not isinstance(value, _HOLDERS):
            return 0
        known = self._sizes.get(id(value))
        if known is None:  # what is known stays alive, so no other gets its number
            inner = value.values() if isinstance(value, dict) else value
            known = self._sizes[id(value)] = value, len(value) + sum(map(self._reached, inner))
            self._fits(known[1], MOST_TURNS)
        return known[1]

    def _joined(self, parts: Iterable[str]) -> str:
        found = list(parts)
        self._fits(length := _length(found))
        self.turn(length >> 6)
        return "".join(found)

    def _form(self, text: str) -> None:
        if _WIDE.search(text):
            raise DataError(WHERE, "a format wider than any text needs", got=ascii(text)[:80])

    def _fits(self, size: int, most: int = LARGEST) -> None:
        if size > most:
            raise DataError(WHERE, "makes a value too large", got=f"size {size:,}" if size < 1 << 64 else None)


class _Counted(Extension):
    """What the tree calls: methods of an extension, which no template can put others in the place of."""

    def turn(self, n: int = 1) -> bool:
        sandbox = self.environment
        assert isinstance(sandbox, Sandbox)
        return sandbox.turn(n)

    def made(self, value: Any) -> Any:
        sandbox = self.environment
        assert isinstance(sandbox, Sandbox)
        return sandbox.made(value)

    def joined(self, *parts: Any) -> str:
        sandbox = self.environment
        assert isinstance(sandbox, Sandbox)
        return sandbox.concat(map(str, parts))


class _Measured(NodeTransformer):
    """Puts `joined` in the place of the operator `~`, and `made` around what holds other values."""

    def __init__(self, counted: _Counted) -> None:
        self._counted = counted

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = [self.visit(part) for part in node.nodes]
        return self._counted.call_method("joined", parts).set_lineno(node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._made(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._made(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._made(node) if node.ctx == "load" else self.generic_visit(node)

    def _made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return self._counted.call_method("made", [node]).set_lineno(node.lineno)


def _length(parts: Iterable[Any]) -> int:
    return sum(len(part) for part in parts if isinstance(part, str))

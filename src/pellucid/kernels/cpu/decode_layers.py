"""The layers of a Llama for one new token, at the cost of reading their weights once, as one native call.

A program holds the launches of all layers with every address filled in; it is made once for a model and its caches and
kept as long as they live. A step writes the position and a few addresses and runs it, so it is for one thread at a
time, like the caches. What is small (norms, rotary positions) is a launch of one item, which the caller runs alone:
sharing it would cost more than doing it.
"""

from __future__ import annotations

import math
import struct
from array import array
from functools import cache
from weakref import WeakKeyDictionary

from ...base import dtypes
from ...base.errors import ShapeError
from ...device import Array, pool
from ..llama_layers import MATRICES, LlamaLayers
from . import digits_ir, ir, isa, step_ir
from .inference import passes, prepare_words, product_words, segment_word
from .products_ir import PREPARE, PRODUCT
from .step_ir import ATTEND, MOST_TOGETHER, ROTATE
from .vectors_ir import Format

_LANES = 16  # at most in a vector of scores

Launch = tuple[int, "array[int]", int]  # address, block, items


@cache
def _native(path: isa.Isa) -> dict[str, int]:
    """Addresses of the passes around the products."""
    engine = ir.compile_functions(step_ir.step_text(Format("float32", path)), path)
    return {name: engine.get_function_address(name) for name in ("rotate", "attend", "chain")}


def decode_layers(x: Array, layers: LlamaLayers, *, position: int) -> Array:
    """For each layer x + attention(rmsnorm(x)), then x + swiglu(rmsnorm(x)), for the token at a position   (Touvron et
    al. 2023).

    x: (D,). The caches are filled up to the position, whose rows are written.
    """
    path = isa.current()
    program = _programs.get(layers)
    if program is None or program.path is not path or program.threads != pool.threads():
        program = _programs[layers] = _Program(layers, path)
    if x.shape != (program.width,) or x.dtype is not dtypes.float32 or not 0 <= position < program.capacity:
        got, expected = f"{x.shape} at {position}", f"({program.width},) at 0 to {program.capacity - 1}"
        raise ShapeError("decode_layers", "no place for this token", got=got, expected=expected)
    y = x.device.empty(x.shape, x.dtype)
    program.run(x, y, position)
    return y


class _Program:
    """The launches of a step. It holds addresses, not arrays: those live as long as the layers it was made for."""

    def __init__(self, layers: LlamaLayers, path: isa.Isa) -> None:
        self.path, self.native, self.threads = path, _native(path), pool.threads()
        self.code = passes(layers.weights[0].dtype, layers.operand_dtype, path)
        capacity, kv_heads, self.d = layers.keys[0].shape
        self.capacity = min(capacity, layers.cos.shape[0])
        self.width, self.inner, self.row = layers.norms[0].shape[0], layers.weights[0].shape[0], kv_heads * self.d
        self.hidden, self.itemsize = layers.weights[4].shape[0], layers.weights[0].dtype.itemsize
        _check(layers, self.width, self.inner, self.row, self.hidden)
        self.position = array("q", [0])
        self._allocate(layers)
        launches: list[Launch] = []
        for i in range(len(layers.keys)):
            launches += self._layer(layers, i)
        self._blocks = [block for _, block, _ in launches]
        # the launches that read or write the step's own x and y
        self.first, self.residual, self.last = self._blocks[0], self._blocks[5], self._blocks[-1]
        self.chain = array("q", [pool.native_run(), len(launches)])
        for address, block, items in launches:
            self.chain.extend((address, block.buffer_info()[0], items, 1))

    def run(self, x: Array, y: Array, position: int) -> None:
        self.position[0] = position
        self.first[PREPARE.index("x")] = self.residual[PRODUCT.index("residual")] = x.address
        self.last[segment_word(0, "y")] = y.address
        pool.run(self.native["chain"], self.chain.buffer_info()[0], 1, 1)

    def _allocate(self, layers: LlamaLayers) -> None:
        """Memory of the intermediate results; `at` has their addresses."""
        longest = max(self.width, self.inner, self.hidden)
        self.scores_row = 4 * -(-self.capacity // _LANES) * _LANES
        sizes = dict.fromkeys(("x", "normed", "sum", "hidden"), 4 * longest)
        sizes |= {"q": 4 * self.inner, "o": 4 * self.inner, "k": 4 * self.row, "v": 4 * self.row}
        sizes |= {"digits": digits_ir.digits_bytes(longest), "scores": self.scores_row * (self.inner // self.d)}
        sizes = {name: (n + 63) & -64 for name, n in sizes.items()}
        self._scratch = layers.keys[0].device.allocate(sum(sizes.values()))
        self.at: dict[str, int] = {}
        address = self._scratch.address
        for name, n in sizes.items():
            self.at[name], address = address, address + n
        if not (self.code.digits and digits_ir.fits_digits(longest)):
            self.at["digits"] = 0

    def _layer(self, layers: LlamaLayers, i: int) -> list[Launch]:
        w = dict(zip(MATRICES, (a.address for a in layers.weights[7 * i :]), strict=False))
        s = dict(zip(MATRICES, (a.address for a in layers.scales[7 * i :]), strict=False))
        (n0, n1), at = (a.address for a in layers.norms[2 * i : 2 * i + 2]), self.at
        width, inner, row, hidden, eps = self.width, self.inner, self.row, self.hidden, layers.eps
        tables = {"position": self.position.buffer_info()[0], "q": at["q"]}
        caches = {"keys": layers.keys[i].address, "values": layers.values[i].address}

        def product(k: int, results: dict[str, tuple[int, str]], residual: str | None = None) -> Launch:
            lines = [count for count, _ in results.values()]
            block, items = product_words(k, lines, self.itemsize, gated="gate" in results)
            facts = {"x": at["normed"], "digits": at["digits"], "residual": at[residual] if residual else 0}
            for name, value in facts.items():
                block[PRODUCT.index(name)] = value
            for j, (name, (_, y)) in enumerate(results.items()):
                for word, value in (("weight", w[name]), ("scale", s.get(name, 0)), ("y", at[y])):
                    block[segment_word(j, word)] = value
            return self.code.product, block, items

        _, gated, items = product(width, {"gate": (hidden, "hidden"), "up": (hidden, "hidden")})
        return [
            self._prepare("x", width, norm=n0, eps=eps),
            product(width, {"q": (inner, "q"), "k": (row, "k"), "v": (row, "v")}),
            self._rotate(tables | caches | {"cos": layers.cos.address, "sin": layers.sin.address}, layers.interleaved),
            self._attend(tables | caches),
            self._prepare("o", inner),
            product(inner, {"o": (width, "sum")}, residual="x"),
            self._prepare("sum", width, norm=n1, eps=eps),
            (self.code.gated, gated, items),
            self._prepare("hidden", hidden),
            product(hidden, {"down": (width, "x")}, residual="sum"),
        ]

    def _prepare(self, x: str, k: int, *, norm: int = 0, eps: float | None = None) -> Launch:
        block = prepare_words(k, eps=eps)
        facts = {"x": self.at[x], "norm": norm, "out": self.at["normed"], "digits": self.at["digits"]}
        for name, value in facts.items():
            block[PREPARE.index(name)] = value
        return self.code.prepare, block, 1

    def _rotate(self, places: dict[str, int], interleaved: bool) -> Launch:
        facts = places | {"k": self.at["k"], "v": self.at["v"], "interleaved": int(interleaved)}
        facts |= {"heads": self.inner // self.d, "kv_heads": self.row // self.d, "half": self.d // 2}
        return self.native["rotate"], array("q", [facts[name] for name in ROTATE]), 1

    def _attend(self, places: dict[str, int]) -> Launch:
        (scale,) = struct.unpack("<i", struct.pack("<f", math.log2(math.e) / math.sqrt(self.d)))
        facts = places | {name: self.at[name] for name in ("scores", "o")}
        group, kv_heads = self.inner // self.row, self.row // self.d
        facts |= {"scores_row": self.scores_row, "group": group, "d": self.d, "row": self.row, "scale": scale}
        # Query heads that share a key/value head read it together, unless that leaves threads without work.
        parts = max(-(-group // MOST_TOGETHER), min(group, pool.threads() // kv_heads))
        facts["together"] = together = -(-group // parts)
        return self.native["attend"], array("q", [facts[name] for name in ATTEND]), kv_heads * -(-group // together)


_programs: WeakKeyDictionary[LlamaLayers, _Program] = WeakKeyDictionary()


def _check(layers: LlamaLayers, width: int, inner: int, row: int, hidden: int) -> None:
    """Raises ShapeError for arrays that do not fit one another or do not lie as the passes read them."""
    down = (width, hidden)
    shapes = [(inner, width), (row, width), (row, width), (width, inner), down[::-1], down[::-1], down]
    count, (capacity, _, d) = len(layers.keys), layers.keys[0].shape
    groups = (
        ("norms", layers.norms, [(width,)] * 2 * count, dtypes.float32),
        ("weights", layers.weights, shapes * count, layers.weights[0].dtype),
        ("scales", layers.scales, [s[:1] for s in shapes * count] if layers.scales else [], dtypes.float32),
        ("keys", layers.keys, [(capacity, row // d, d)] * count, dtypes.float32),
        ("values", layers.values, [(capacity, row // d, d)] * count, dtypes.float32),
        ("tables", [layers.cos, layers.sin], [(layers.cos.shape[0], d // 2)] * 2, dtypes.float32),
    )
    for name, arrays, expected, dtype in groups:
        if [a.shape for a in arrays] != expected:
            raise ShapeError(
                "decode_layers", f"{name} that do not fit", got=[a.shape for a in arrays], expected=expected
            )
        for a in arrays:
            if not a.is_contiguous or a.dtype is not dtype:
                got, want = f"{a.dtype.name} with strides {a.strides}", f"contiguous {dtype.name}"
                raise ShapeError("decode_layers", f"{name} that do not lie as they should", got=got, expected=want)
    if inner % row or d % 2:
        raise ShapeError("decode_layers", "heads that do not fit", got=f"{inner // d} and {row // d} heads of {d}")

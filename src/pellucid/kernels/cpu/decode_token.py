"""A token of a Llama, from its id to the logits, at the cost of reading the weights once, as one native call.

A program holds the launches of the whole step with every address filled in; it is made once for a model and its caches
and kept as long as they live. A step writes the token, the position and where the logits go and runs it, so it is for
one thread at a time, like the caches. What is small (norms, rotary positions) is a launch of one item, which the caller
runs alone: sharing it would cost more than doing it.
"""

from __future__ import annotations

import math
import struct
from array import array
from functools import cache
from weakref import WeakKeyDictionary

from ...base import dtypes
from ...base.errors import DTypeError, ShapeError
from ...device import Array, pool
from ..llama import MATRICES, Llama
from . import digits_ir, ir, isa, step_ir
from .inference import passes, prepare_words, product_words, segment_word
from .products_ir import PREPARE, PRODUCT
from .step_ir import ATTEND, FOUND, LOOK_UP, MERGE, MOST_TOGETHER, ROTATE, SLICES
from .vectors_ir import Format

_LANES = 16  # at most in a vector of scores

Launch = tuple[int, "array[int]", int]  # address, block, items


@cache
def _native(path: isa.Isa) -> dict[str, int]:
    """Addresses of the passes around the products."""
    engine = ir.compile_functions(step_ir.step_text(Format("float32", path)), path)
    return {name: engine.get_function_address(name) for name in ("look_up", "rotate", "attend", "merge", "chain")}


def decode_token(llama: Llama, *, token: int, position: int) -> Array:
    """Logits behind a token: x = table[token]; for each layer x + attention(rmsnorm(x)), then x + swiglu(rmsnorm(x));
    y = rmsnorm(x) head^T   (Touvron et al. 2023).   y: (V,)

    The caches are filled up to the position, whose rows are written.
    """
    path = isa.current()
    program = _programs.get(llama)
    if program is None or program.path is not path or program.threads != pool.threads():
        program = _programs[llama] = _Program(llama, path)
    if not (0 <= token < program.tokens and 0 <= position < program.capacity):
        expected = f"0 to {program.tokens - 1} at 0 to {program.capacity - 1}"
        raise ShapeError("decode_token", "no place for this token", got=f"{token} at {position}", expected=expected)
    y = llama.table.device.empty((program.results,), dtypes.float32)
    program.run(token, position, y)
    return y


class _Program:
    """The launches of a step. It holds addresses, not arrays: those live as long as the model it was made for."""

    def __init__(self, llama: Llama, path: isa.Isa) -> None:
        self.path, self.native, self.threads = path, _native(path), pool.threads()
        self.code = passes(llama.weights[0].dtype, llama.operand_dtype, path)
        capacity, kv_heads, self.d = llama.keys[0].shape
        self.capacity = min(capacity, llama.cos.shape[0])
        self.tokens, self.results = llama.table.shape[0], llama.weights[-1].shape[0]
        self.width, self.inner, self.row = llama.norms[0].shape[0], llama.weights[0].shape[0], kv_heads * self.d
        self.hidden = llama.weights[4].shape[0]
        _check(llama, self.width, self.inner, self.row, self.hidden)
        self.token, self.position = array("q", [0]), array("q", [0])
        pool.ready()
        self.launch = pool.run
        self._allocate(llama)
        launches = [self._look_up(llama)]
        for i in range(len(llama.keys)):
            launches += self._layer(llama, i)
        launches.append(self._prepare("x", llama.norms[-1], llama.eps))
        launches.append(self._product(llama, {len(llama.weights) - 1: "logits"}))
        self._blocks = [block for _, block, _ in launches]
        self.chain = array("q", [pool.native_run(), len(launches)])
        for address, block, items in launches:
            self.chain.extend((address, block.buffer_info()[0], items, 1))

    def run(self, token: int, position: int, y: Array) -> None:
        self.token[0], self.position[0] = token, position
        self._blocks[-1][segment_word(0, "y")] = y.address
        if self.launch is not pool.run:  # it changes with the workers, which a launch of one item does not start
            pool.ready()
            self.launch = pool.run
        self.launch(self.native["chain"], self.chain.buffer_info()[0], 1, 1)

    def _allocate(self, llama: Llama) -> None:
        """Memory of the intermediate results; `at` has their addresses."""
        longest = max(self.width, self.inner, self.hidden)
        self.scores_row = 4 * -(-self.capacity // _LANES) * _LANES
        sizes = dict.fromkeys(("x", "normed", "sum", "hidden"), 4 * longest)
        sizes |= {"q": 4 * self.inner, "o": 4 * self.inner, "k": 4 * self.row, "v": 4 * self.row}
        self.sums_row = FOUND + 4 * -(-self.d // _LANES) * _LANES
        sizes |= {"sums": self.sums_row * SLICES * (self.inner // self.d)}
        sizes |= {"digits": digits_ir.digits_bytes(longest), "scores": self.scores_row * (self.inner // self.d)}
        sizes = {name: (n + 63) & -64 for name, n in sizes.items()}
        self._scratch = llama.table.device.allocate(sum(sizes.values()))
        self.at = {"logits": 0}  # memory of each step's own
        address = self._scratch.address
        for name, n in sizes.items():
            self.at[name], address = address, address + n
        if not (self.code.digits and digits_ir.fits_digits(longest)):
            self.at["digits"] = 0

    def _layer(self, llama: Llama, i: int) -> list[Launch]:
        q, k, v, o, gate, up, down = range(MATRICES * i, MATRICES * (i + 1))
        (before, between), at, eps = llama.norms[2 * i : 2 * i + 2], self.at, llama.eps
        places = {"position": self.position.buffer_info()[0], "q": at["q"]}
        places |= {"keys": llama.keys[i].address, "values": llama.values[i].address}
        return [
            self._prepare("x", before, eps),
            self._product(llama, {q: "q", k: "k", v: "v"}),
            self._rotate(places | {"cos": llama.cos.address, "sin": llama.sin.address}, llama.interleaved),
            self._attend(places),
            self._merge(),
            self._prepare("o"),
            self._product(llama, {o: "sum"}, residual="x"),
            self._prepare("sum", between, eps),
            self._product(llama, {gate: "hidden", up: "hidden"}, gated=True),
            self._prepare("hidden"),
            self._product(llama, {down: "x"}, residual="sum"),
        ]

    def _look_up(self, llama: Llama) -> Launch:
        scale = 0 if llama.table_scale is None else llama.table_scale.address
        facts = {"table": llama.table.address, "scale": scale, "itemsize": llama.table.dtype.itemsize}
        facts |= {"width": self.width, "x": self.at["x"], "token": self.token.buffer_info()[0]}
        return self.native["look_up"], array("q", [facts[name] for name in LOOK_UP]), 1

    def _product(
        self, llama: Llama, results: dict[int, str], *, residual: str | None = None, gated: bool = False
    ) -> Launch:
        """Products of what was prepared with matrices by their number; each goes where its name says."""
        weights = [llama.weights[j] for j in results]
        lines, (k, size) = [w.shape[0] for w in weights], (weights[0].shape[1], weights[0].dtype.itemsize)
        block, items = product_words(k, lines, size, gated=gated)
        facts = {"x": self.at["normed"], "digits": self.at["digits"], "residual": self.at[residual] if residual else 0}
        for name, value in facts.items():
            block[PRODUCT.index(name)] = value
        for i, (j, y) in enumerate(results.items()):
            scale = llama.scales[j].address if llama.scales else 0
            for word, value in (("weight", weights[i].address), ("scale", scale), ("y", self.at[y])):
                block[segment_word(i, word)] = value
        return self.code.gated if gated else self.code.product, block, items

    def _prepare(self, x: str, norm: Array | None = None, eps: float | None = None) -> Launch:
        block = prepare_words({"o": self.inner, "hidden": self.hidden}.get(x, self.width), eps=eps)
        facts = {"x": self.at[x], "norm": 0 if norm is None else norm.address}
        facts |= {"out": self.at["normed"], "digits": self.at["digits"]}
        for name, value in facts.items():
            block[PREPARE.index(name)] = value
        return self.code.prepare, block, 1

    def _rotate(self, places: dict[str, int], interleaved: bool) -> Launch:
        facts = places | {"k": self.at["k"], "v": self.at["v"], "interleaved": int(interleaved)}
        facts |= {"heads": self.inner // self.d, "kv_heads": self.row // self.d, "half": self.d // 2}
        return self.native["rotate"], array("q", [facts[name] for name in ROTATE]), 1

    def _attend(self, places: dict[str, int]) -> Launch:
        (scale,) = struct.unpack("<i", struct.pack("<f", math.log2(math.e) / math.sqrt(self.d)))
        facts = places | {name: self.at[name] for name in ("scores", "sums")} | {"sums_row": self.sums_row}
        group, kv_heads = self.inner // self.row, self.row // self.d
        facts |= {"scores_row": self.scores_row, "group": group, "d": self.d, "row": self.row, "scale": scale}
        # Query heads that share a key/value head read it together, unless that leaves threads without work.
        parts = max(-(-group // MOST_TOGETHER), min(group, pool.threads() // (kv_heads * SLICES)))
        facts["together"] = together = -(-group // parts)
        return (
            self.native["attend"],
            array("q", [facts[name] for name in ATTEND]),
            kv_heads * -(-group // together) * SLICES,
        )

    def _merge(self) -> Launch:
        facts = {"sums": self.at["sums"], "sums_row": self.sums_row, "o": self.at["o"], "d": self.d}
        facts |= {"heads": self.inner // self.d, "position": self.position.buffer_info()[0]}
        return self.native["merge"], array("q", [facts[name] for name in MERGE]), 1


_programs: WeakKeyDictionary[Llama, _Program] = WeakKeyDictionary()


def _check(llama: Llama, width: int, inner: int, row: int, hidden: int) -> None:
    """Raises ShapeError for arrays that do not fit one another or do not lie as the passes read them."""
    down, head = (width, hidden), (llama.weights[-1].shape[0], width)
    layer = [(inner, width), (row, width), (row, width), (width, inner), down[::-1], down[::-1], down]
    count, (capacity, _, d) = len(llama.keys), llama.keys[0].shape
    shapes, table_scales = [*layer * count, head], [s for s in (llama.table_scale,) if s is not None]
    if llama.table.dtype not in (dtypes.int8, dtypes.bfloat16, dtypes.float32):
        got = llama.table.dtype.name
        raise DTypeError("decode_token", "no table of a Llama", got=got, expected="int8, bfloat16 or float32")
    groups = (
        ("norms", llama.norms, [(width,)] * (2 * count + 1), dtypes.float32),
        ("weights", llama.weights, shapes, llama.weights[0].dtype),
        ("scales", llama.scales, [s[:1] for s in shapes] if llama.scales else [], dtypes.float32),
        ("table", [llama.table], [(llama.table.shape[0], width)], llama.table.dtype),
        ("scales of the table", table_scales, [llama.table.shape[:1]] * len(table_scales), dtypes.float32),
        ("keys", llama.keys, [(capacity, row // d, d)] * count, dtypes.float32),
        ("values", llama.values, [(capacity, row // d, d)] * count, dtypes.float32),
        ("tables", [llama.cos, llama.sin], [(llama.cos.shape[0], d // 2)] * 2, dtypes.float32),
    )
    for name, arrays, expected, dtype in groups:
        if [a.shape for a in arrays] != expected:
            raise ShapeError(
                "decode_token", f"{name} that do not fit", got=[a.shape for a in arrays], expected=expected
            )
        for a in arrays:
            if not a.is_contiguous or a.dtype is not dtype:
                got, want = f"{a.dtype.name} with strides {a.strides}", f"contiguous {dtype.name}"
                raise ShapeError("decode_token", f"{name} that do not lie as they should", got=got, expected=want)
    if inner % row or d % 2:
        raise ShapeError("decode_token", "heads that do not fit", got=f"{inner // d} and {row // d} heads of {d}")

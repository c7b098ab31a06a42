"""A layer of a Llama for one new token, at the cost of reading its weights once: native passes around the attention of
one query.

The passes are planned once for a combination of shapes and dtypes, as products are in `gemm_plan.py`; a call fills in
addresses and launches them. What is small (norms, rotary positions) is a pass of few items that the caller runs alone:
sharing it would cost more than doing it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ...base import dtypes
from ...base.dtypes import DType
from ...base.errors import ShapeError
from ...device import Array, pool
from . import isa, products_ir
from .attention_decode import decode
from .gemm_plan import Step
from .inference import passes, prepare_words, product_words, segment_word
from .products_ir import PREPARE, PRODUCT, ROTATE

_NO_DROPOUT = (0.0, 0, 0, 0)
_NAMES = ("q", "k", "v", "o", "gate", "up", "down")


class _Plan:
    """Everything about a layer but its addresses and the position.

    first: the passes before attention. second: those after it.
    offsets: of the intermediate results, in bytes of scratch.
    """

    def __init__(
        self, x: Array, weights: list[Array], scaled: bool, keys: Array, *, eps: float, interleaved: bool,
        operand: DType | None, path: isa.Isa,
    ) -> None:  # fmt: skip
        self.code = passes(weights[0].dtype, operand, path)
        self.size, self.scaled = weights[0].dtype.itemsize, scaled
        self.width, (_, self.kv_heads, self.d) = x.shape[0], keys.shape
        self.inner, self.hidden = weights[0].shape[0], weights[4].shape[0]
        self.heads, self.row = self.inner // self.d, self.kv_heads * self.d
        longest = max(self.width, self.inner, self.hidden)
        self.digits = self.code.digits and products_ir.fits_digits(longest)
        self.offsets: dict[str, int] = {}
        self.scratch = 0
        for name, nbytes in (
            ("digits", products_ir.digits_bytes(longest)),
            *((name, 4 * longest) for name in ("normed", "o", "sum", "hidden")),
            *(("q", 4 * self.inner), ("k", 4 * self.row), ("v", 4 * self.row), ("lse", 4 * self.heads)),
        ):
            self.offsets[name] = self.scratch
            self.scratch += (nbytes + 63) & -64
        self.first = (
            self._prepare("x", self.width, "norm0", eps),
            self._product(self.width, {"q": "q", "k": "k", "v": "v"}),
            self._rotate(interleaved),
        )
        self.second = (
            self._prepare("o", self.inner),
            self._product(self.inner, {"o": "sum"}, residual="x"),
            self._prepare("sum", self.width, "norm1", eps),
            self._product(self.width, {"gate": "hidden", "up": "hidden"}, gated=True),
            self._prepare("hidden", self.hidden),
            self._product(self.hidden, {"down": "y"}, residual="sum"),
        )

    def _step(self, address: int, words: array[int], items: int, grain: int, places: dict[int, str]) -> Step:
        """A launch; `places`: what the address in a word is of, a result in scratch or an argument."""
        bases = []
        for word, name in places.items():
            words[word] = self.offsets.get(name, 0)
            bases.append((word, "scratch" if name in self.offsets else name))
        return Step(address, words, items, grain, tuple(bases))

    def _prepare(self, x: str, k: int, norm: str | None = None, eps: float | None = None) -> Step:
        places = {"x": x, "out": "normed"} | ({"norm": norm} if norm else {}) | ({"digits": "digits"} if self.digits else {})
        words = prepare_words(k, eps=eps)
        return self._step(self.code.prepare, words, 1, 1, {PREPARE.index(n): p for n, p in places.items()})

    def _product(
        self, k: int, results: dict[str, str], *, residual: str | None = None, gated: bool = False
    ) -> Step:
        """results: where the products with the matrices of these names go."""
        lines = {"q": self.inner, "k": self.row, "v": self.row, "gate": self.hidden, "up": self.hidden}
        words, items = product_words(k, [lines.get(name, self.width) for name in results], self.size)
        places = {PRODUCT.index("x"): "normed"}
        if self.digits:
            places[PRODUCT.index("digits")] = "digits"
        if residual:
            places[PRODUCT.index("residual")] = residual
        for i, (name, y) in enumerate(results.items()):
            at = _NAMES.index(name)
            places |= {segment_word(i, "weight"): f"weight{at}", segment_word(i, "y"): y}
            if self.scaled:
                places[segment_word(i, "scale")] = f"scale{at}"
        address = self.code.gated if gated else self.code.product
        return self._step(address, words, items // 2 if gated else items, 1, places)

    def _rotate(self, interleaved: bool) -> Step:
        words = array("q", bytes(8 * len(ROTATE)))
        facts = {"heads": self.heads, "kv_heads": self.kv_heads, "half": self.d // 2, "interleaved": int(interleaved)}
        for name, value in facts.items():
            words[ROTATE.index(name)] = value
        names = ("q", "k", "v", "cos", "sin", "keys", "values")
        return self._step(self.code.rotate, words, 1, 1, {ROTATE.index(name): name for name in names})


_PLANS = 256  # remembered
_plans: dict[object, _Plan] = {}


def decode_layer(
    x: Array,
    norms: list[Array],
    weights: list[Array],
    scales: list[Array],
    cos: Array,
    sin: Array,
    keys: Array,
    values: Array,
    *,
    position: int,
    eps: float,
    interleaved: bool,
    operand_dtype: DType | None,
) -> Array:
    """x + attention(rmsnorm(x)), then x + swiglu(rmsnorm(x)), for the token at a position   (Touvron et al. 2023).

    x: (D,). norms: the two weights (D,). weights: of q, k, v, o, gate, up and down, as `held_linear` takes them;
    scales: one each, or none at all. keys, values: (capacity, H_kv, d), filled up to the position, whose row is
    written. cos, sin: as `rope` takes them.
    """
    path = isa.current()
    key = (*[(w.shape, w.strides, w.dtype) for w in weights], len(scales), keys.shape, eps, interleaved, operand_dtype, path)
    plan = _plans.get(key)
    if plan is None:
        _check(x, norms, weights, scales, (cos, sin, keys, values))
        if len(_plans) >= _PLANS:
            _plans.clear()
        plan = _plans[key] = _Plan(
            x, weights, bool(scales), keys, eps=eps, interleaved=interleaved, operand=operand_dtype, path=path
        )
    device, d = x.buffer.device, plan.d
    y, scratch = device.empty(x.shape, x.dtype), device.allocate(plan.scratch)
    starts = {"x": x.address, "y": y.address, "scratch": scratch.address}
    for name, arrays in (("norm", norms), ("weight", weights), ("scale", scales)):
        for i, a in enumerate(arrays):
            starts[f"{name}{i}"] = a.address
    for name, a, row in (("cos", cos, d // 2), ("sin", sin, d // 2), ("keys", keys, plan.row), ("values", values, plan.row)):
        starts[name] = a.address + 4 * position * row
    _launch(plan.first, starts)
    q, o, lse = (
        Array(scratch, shape, dtypes.float32, None, plan.offsets[name] // 4)
        for name, shape in (("q", (1, 1, plan.heads, d)), ("o", (1, 1, plan.heads, d)), ("lse", (1, plan.heads, 1)))
    )
    k, v = (Array(a.buffer, (1, position + 1, plan.kv_heads, d), a.dtype, None, a.offset) for a in (keys, values))
    decode(q, k, v, o, lse, d**-0.5, _NO_DROPOUT)
    _launch(plan.second, starts)
    return y


def _launch(steps: tuple[Step, ...], starts: dict[str, int]) -> None:
    for step in steps:
        block = step.words[:]
        for word, base in step.bases:
            block[word] += starts[base]
        pool.run(step.address, block.buffer_info()[0], step.items, step.grain)


def _check(
    x: Array, norms: list[Array], weights: list[Array], scales: list[Array], tables: tuple[Array, ...]
) -> None:
    width, (_, kv_heads, d) = x.shape[0], tables[2].shape
    inner, hidden = weights[0].shape[0], weights[4].shape[0]
    down = (width, hidden)
    expected = [(inner, width), *[(kv_heads * d, width)] * 2, (width, inner), *[down[::-1]] * 2, down]
    found = [w.shape for w in weights]
    if found != expected or inner % max(1, kv_heads * d) or len(scales) not in (0, len(weights)):
        raise ShapeError("decode_layer", "weights that do not fit one another", got=found, expected=expected)
    for a, kind in _with_dtypes(x, norms, weights, scales, tables):
        if not a.is_contiguous or a.dtype is not kind:
            got = f"{a.shape} {a.dtype.name} with strides {a.strides}"
            raise ShapeError("decode_layer", "not a contiguous array of its kind", got=got, expected=kind.name)


def _with_dtypes(
    x: Array, norms: list[Array], weights: list[Array], scales: list[Array], tables: tuple[Array, ...]
) -> Iterator[tuple[Array, DType]]:
    yield from ((a, dtypes.float32) for a in (x, *norms, *scales, *tables))
    yield from ((w, weights[0].dtype) for w in weights)

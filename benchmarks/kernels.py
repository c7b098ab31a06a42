"""Case kernels: kernels at the shapes of nanoGPT's model and of a 100M-parameter one, against this machine's ceilings.

Every kernel is compared with its definition, in float64, within the tolerance of its row before it is timed. The work
(FLOPs, bytes) comes from the same row; `share` is that of the ceiling which binds: the least time that the measured
peak of matrix products and the measured speed of memory allow, over the time taken. Arrays that fit a cache can go
beyond the ceiling of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pellucid.base import dtypes
from pellucid.device import Array, Device, device
from pellucid.kernels.spec import KERNELS, tolerance
from pellucid.train import measure_peak

from .options import Options, Refused
from .report import Row, interleaved, row

LEAST = 2e-3  # s, of one turn
POSITIVE = ("seconds", "rstd")  # arguments that are squares, or roots of them


@dataclass(frozen=True)
class Case:
    """A kernel, the shapes of its arrays by argument, its other arguments. `below`: bound of integer arrays."""

    kernel: str
    shapes: dict[str, tuple[int, ...]]
    settings: dict[str, Any] = field(default_factory=dict)
    below: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Shapes of what makes the work: all but vectors."""
        shown = [s for s in self.shapes.values() if len(s) > 1] or list(self.shapes.values())
        return " ".join(dict.fromkeys("x".join(map(str, s)) or "()" for s in shown))

    @property
    def operands(self) -> str:
        """What matrix products are computed in."""
        rounded = self.settings.get("operand_dtype")
        return "float32" if rounded is None else rounded.name

    @property
    def dtype(self) -> str:
        return "float32" if self.operands == "float32" else f"float32, {self.operands} operands"

    def arguments(self, where: Device, floats: dtypes.DType) -> dict[str, Any]:
        """Arrays on a device and the other arguments; the same numbers at every call, up to their rounding."""
        generator = np.random.default_rng(0)
        found: dict[str, Any] = {}
        for name, shape in self.shapes.items():
            if name in self.below:
                found[name] = where.upload(generator.integers(self.below[name], size=shape), dtypes.int64)
                continue
            host = generator.standard_normal(shape).astype(np.float32)
            if name == "weights":  # of the rows in a mean: signs would cancel, and with them the digits
                host = np.full(shape, 1 / shape[0], np.float32)
            if name == "b" or (name == "weight" and len(shape) == 2):  # a matrix of a layer: results stay near 1
                host *= np.float32(shape[-1] ** -0.5)
            found[name] = where.upload(np.abs(host) + 0.5 if name in POSITIVE or not shape else host, floats)
        for argument in KERNELS[self.kernel].arguments:
            if argument.kind.startswith("arrays"):
                found[argument.name] = [found[argument.name]]
        return found | self.settings


def cases() -> list[Case]:
    norm, loss = {"eps": 1e-5, "result_dtype": None}, {"operand_dtype": None, "gradients": True, "for_weight": True}
    seen = {"causal": True, "dropout": 0.0, "seed": 0, "counter": 0}
    adam = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "step": 10}
    found = [
        Case("layernorm", {"x": (768, 128), "weight": (128,)}, {"bias": None, **norm}),
        Case("gelu", {"x": (768, 512)}, {"approximate": False}),
        Case("gelu_with_slope", {"x": (768, 512)}, {"approximate": False}),
        Case("add", {"a": (768, 128), "b": (768, 128)}),
        Case("rmsnorm", {"x": (2048, 768), "weight": (768,)}, norm),
        Case("swiglu", {"gate": (2048, 1408), "up": (2048, 1408)}),
        Case("swiglu_backward", {"dy": (2048, 1408), "gate": (2048, 1408), "up": (2048, 1408)}),
        Case("softmax", {"x": (512, 4096)}),
        Case("embedding", {"weight": (32000, 768), "ids": (2048,)}, below={"ids": 32000}),
        Case("embedding_backward", {"dy": (2048, 768), "ids": (2048,)}, {"rows": 32000}, below={"ids": 32000}),
    ]
    for b, t, h, kv, d in ((12, 64, 4, 4, 32), (1, 512, 12, 4, 64)):
        shapes = {"q": (b, t, h, d), "k": (b, t, kv, d), "v": (b, t, kv, d)}
        for operands in (None, dtypes.bfloat16):
            found.append(Case("attention", shapes, {"scale": d**-0.5, "operand_dtype": operands, **seen}))
    for operands in (None, dtypes.bfloat16):
        settings = {"bias": None, "operand_dtype": operands, "result_dtype": None}
        found += [
            Case("matmul", {"a": a, "b": b}, settings) for a, b in (((768, 128), (128, 512)), ((512, 768), (768, 768)))
        ]
    for n, d, v in ((768, 128, 65), (512, 768, 8192)):
        shapes = {"x": (n, d), "weight": (v, d), "targets": (n,), "weights": (n,)}
        found.append(Case("lm_head_loss", shapes, loss, below={"targets": v}))
    big = (2048, 1408)
    found.append(Case("adamw_", {"weights": big, "grads": big, "firsts": big, "seconds": big, "scale": ()}, adam))
    return found


def arrays(case: Case, arguments: dict[str, Any], result: Any) -> Iterator[Array]:
    """Everything a call made: its results, and the arguments it wrote."""
    for value in result if isinstance(result, Iterable) else (result,):
        if isinstance(value, Array):
            yield value
    for name in KERNELS[case.kernel].writes:
        written = arguments[name]
        yield from written if isinstance(written, list) else [written]


def check(case: Case, ours: dict[str, Any], result: Any) -> None:
    """Compares a call with the definition in float64."""
    where = device("reference")
    wide = case.arguments(where, dtypes.float64)
    wanted = call(where, case, wide)
    rounded = case.settings.get("operand_dtype") is not None
    allowed = tolerance("mixed" if rounded else KERNELS[case.kernel].tolerance, dtypes.float32)
    pairs = zip(arrays(case, ours, result), arrays(case, wide, wanted), strict=True)
    for number, (mine, true) in enumerate(pairs):
        got, want = (x.device.download(x).astype(np.float64) for x in (mine, true))
        bound = allowed.relative * np.abs(want) + allowed.absolute * max(1.0, np.abs(want).max(initial=0.0))
        if not (np.abs(got - want) <= bound).all():
            worst = np.abs(got - want).max()
            raise Refused(f"{case.kernel} {case.label}: result {number} is off by {worst}; wrong kernels are not timed")


def call(where: Device, case: Case, arguments: dict[str, Any]) -> Any:
    spec = KERNELS[case.kernel]
    positional = [arguments[a.name] for a in spec.arguments if not a.keyword]
    return getattr(where.kernels, case.kernel)(
        *positional, **{a.name: arguments[a.name] for a in spec.arguments if a.keyword}
    )


def bandwidth(where: Device) -> float:
    """Bytes/s of copying an array no cache holds, read and written."""
    x = where.upload(np.zeros(1 << 24, np.float32), dtypes.float32)
    times = interleaved({"copy": lambda: where.kernels.copy(x)}, rounds=5)["copy"]
    return 2 * x.nbytes / min(times)


def ceilings(where: Device) -> dict[str, float]:
    """FLOP/s of matrix products by the name of the operands' dtype, and bytes/s of memory."""
    return {
        "float32": measure_peak(where),
        "bfloat16": measure_peak(where, operand_dtype=dtypes.bfloat16),
        "memory": bandwidth(where),
    }


def run(options: Options) -> list[Row]:
    where = device("cpu")
    before = ceilings(where)
    timed = [(case, *time_case(where, case, options)) for case in cases()]
    # Other work on the machine only ever lowers a ceiling, so the higher of two is nearer to the truth.
    top = {name: max(value, before[name]) for name, value in ceilings(where).items()}
    found = [row("kernels", "copy 64 MiB", "pellucid", [top["memory"] / 1e9], unit="GB/s")]
    for name in ("float32", "bfloat16"):
        found.append(row("kernels", f"matmul, {name}", "pellucid", [top[name] / 1e9], unit="GFLOP/s", shape="1024"))
    for case, times, flops, moved in timed:
        middle = float(np.median(times))
        least = max(flops / top[case.operands], moved / top["memory"])
        more = {"GFLOP/s": flops / middle / 1e9, "GB/s": moved / middle / 1e9, "share": least / middle}
        micro = [1e6 * t for t in times]
        found.append(
            row("kernels", case.kernel, "pellucid", micro, unit="us", shape=case.label, dtype=case.dtype, **more)
        )
    return found


def time_case(where: Device, case: Case, options: Options) -> tuple[list[float], int, int]:
    """Seconds of a call, many times; its FLOPs and bytes. Checked first."""
    arguments = case.arguments(where, dtypes.float32)
    result = call(where, case, arguments)
    check(case, arguments, result)
    spec = KERNELS[case.kernel]
    bound = {a.name: arguments[a.name] for a in spec.arguments}

    def once() -> Any:
        return call(where, case, arguments)

    one = interleaved({"": once}, rounds=3)[""]
    inner = max(1, int(LEAST / min(one)))
    times = interleaved({"": once}, rounds=7 if options.quick else 25, inner=inner)[""]
    return times, spec.flops(bound), spec.bytes(bound, result)

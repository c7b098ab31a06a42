"""Tracing: what every operation did, how long it took, what it kept, and where numbers stopped being finite."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import NonFiniteError
from ..device import Array
from .state import state, traces
from .tensor import Tensor

if TYPE_CHECKING:
    from .op import Op

_PACKAGE = Path(__file__).resolve().parent.parent
_INTERNAL = tuple(str(_PACKAGE / part) for part in ("tape", "ops", "nn"))


@dataclass
class Record:
    """One operation of a traced run. Times in seconds, `kept` in bytes, `caller` as "file:line in function"."""

    name: str
    inputs: tuple[tuple[int, ...] | None, ...]
    output: tuple[int, ...]
    dtype: str
    kept: int
    caller: str
    forward: float
    backward: float | None = None


@dataclass
class Trace:
    """The records of a traced run, in the order the operations ran; printing it gives a table."""

    stop_at_nonfinite: bool = False
    records: list[Record] = field(default_factory=list)
    _by_op: dict[int, Record] = field(default_factory=dict, repr=False)

    def forward(self, op: Op, arrays: list[Array | None], attributes: dict[str, Any]) -> Array:
        """Runs and times an operation's forward."""
        device = next(a for a in arrays if a is not None).device
        device.synchronize()
        start = time.perf_counter()
        out = op.forward(*arrays, **attributes)
        device.synchronize()
        seconds = time.perf_counter() - start
        shapes = tuple(None if a is None else a.shape for a in arrays)
        record = Record(type(op).__name__, shapes, out.shape, out.dtype.name, kept_bytes([op]), _caller(), seconds)
        self.records.append(record)
        if op.recording:
            op.traced = record  # type: ignore[attr-defined]
        if self.stop_at_nonfinite:
            self._check(record, "forward", [a for a in arrays if a is not None], [out])
        return out

    def backward(self, op: Op, dy: Array) -> Any:
        """Runs and times an operation's backward."""
        dy.device.synchronize()
        start = time.perf_counter()
        gradients = op.gradients(dy)
        dy.device.synchronize()
        seconds = time.perf_counter() - start
        record = getattr(op, "traced", None)
        if record is None:
            kept, shapes = kept_bytes([op]), op.input_shapes()
            record = Record(type(op).__name__, shapes, op.output_shape, dy.dtype.name, kept, "before the trace", 0.0)
            self.records.append(record)
        record.backward = (record.backward or 0.0) + seconds
        if self.stop_at_nonfinite:
            self._check(record, "backward", [dy], [g for g in gradients if g is not None])
        return gradients

    def _check(self, record: Record, phase: str, before: list[Array], after: list[Array]) -> None:
        if all(_finite(a) for a in after) or not all(_finite(a) for a in before):
            return
        raise NonFiniteError(
            f"{record.name} {phase}",
            "finite inputs gave a number that is not finite",
            got=f"output {record.output} at {record.caller}",
            hint="lower the learning rate, clip the gradient, or look at this operation's inputs",
        )

    def __str__(self) -> str:
        head = (
            f"{'operation':<20} {'output':<20} {'inputs':<44} {'kept':>10} {'forward':>9} {'backward':>9}  called from"
        )
        lines = [head]
        for r in self.records:
            shapes = " ".join("-" if s is None else "x".join(map(str, s)) or "()" for s in r.inputs)
            output = "x".join(map(str, r.output)) or "()"
            back = "" if r.backward is None else f"{r.backward * 1e6:.0f} us"
            lines.append(
                f"{r.name:<20} {output:<20} {shapes:<44} {r.kept:>10,} {r.forward * 1e6:>6.0f} us {back:>9}  {r.caller}"
            )
        forward, back = sum(r.forward for r in self.records), sum(r.backward or 0.0 for r in self.records)
        total = f"{len(self.records)} operations"
        kept = sum(r.kept for r in self.records)
        lines.append(f"{total:<86} {kept:>10,} {forward * 1e6:>6.0f} us {back * 1e6:>6.0f} us")
        return "\n".join(lines)


@contextmanager
def trace(*, stop_at_nonfinite: bool = False) -> Iterator[Trace]:
    """Records every operation run inside; costs a device synchronisation each.

    stop_at_nonfinite: raise NonFiniteError at the first operation, forward or backward, that turns finite numbers into
    infinity or NaN, naming the operation and the line of the model that called it.
    """
    before = state.trace
    state.trace = found = Trace(stop_at_nonfinite)
    traces.append(found)
    try:
        yield found
    finally:
        state.trace = before
        traces.pop()  # whichever: what counts is how many there are


def kept_bytes(ops: Sequence[Op]) -> int:
    """Bytes that recorded operations hold for backward: each buffer once, leaves (parameters, data) not counted."""
    leaves = {id(x.array.buffer) for op in ops for x in op.inputs if isinstance(x, Tensor)}
    buffers = {id(a.buffer): a.buffer.nbytes for op in ops for a in op.kept()}
    return sum(n for key, n in buffers.items() if key not in leaves)


def describe(ops: Sequence[Op]) -> str:
    """A tape as a table: operation, shapes, bytes kept (a buffer counts at the first operation that keeps it)."""
    seen: set[int] = set()
    leaves = {id(x.array.buffer) for op in ops for x in op.inputs if isinstance(x, Tensor)}
    lines = [f"{'#':>4} {'operation':<20} {'output':<20} {'inputs':<44} {'kept bytes':>12}"]
    total = 0
    for i, op in enumerate(ops):
        kept = 0
        for a in op.kept():
            if id(a.buffer) not in seen and id(a.buffer) not in leaves:
                seen.add(id(a.buffer))
                kept += a.buffer.nbytes
        total += kept
        shapes = " ".join("-" if s is None else "x".join(map(str, s)) or "()" for s in op.input_shapes())
        output = "x".join(map(str, op.output_shape)) or "()"
        lines.append(f"{i:>4} {type(op).__name__:<20} {output:<20} {shapes:<44} {kept:>12,}")
    lines.append(f"{len(ops)} operations, {total:,} bytes kept for backward")
    return "\n".join(lines)


def _finite(array: Array) -> bool:
    if not array.dtype.is_float:
        return True
    return bool(array.device.download(array.device.kernels.all_finite(array)))


def _caller() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INTERNAL):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"

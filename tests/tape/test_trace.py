"""Printing a tape, predicting what it keeps, tracing time, and finding the first number that is not finite."""

from __future__ import annotations

import inspect
import time

import numpy as np
import pytest

from pellucid.base.errors import NonFiniteError
from pellucid.device import Array, HostDevice
from pellucid.device.blocks import size_class
from pellucid.tape import Tensor, Trace, describe, kept_bytes, no_grad, tape, trace

from .toy import Explode, Exponential, Product, Stack, Sum, Total, leaf


def _line() -> int:
    """The line this is called from."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


# --- printing and predicting ------------------------------------------------------------------------------------------


def _model(a: Tensor, b: Tensor) -> Tensor:
    hidden = Exponential.apply(Product.apply(a, b))
    return Total.apply(Product.apply(hidden, hidden))


def test_describe() -> None:
    root = _model(leaf(np.ones((10, 3))), leaf(np.ones((10, 3))))
    blank = ""
    assert describe(tape(root)).splitlines() == [
        f"   # operation            output               inputs{blank:<38}   kept bytes",
        f"   0 Product              10x3                 10x3 10x3{blank:<35}            0",
        f"   1 Exponential          10x3                 10x3{blank:<40}          240",
        f"   2 Product              10x3                 10x3 10x3{blank:<35}            0",
        f"   3 Total                ()                   10x3{blank:<40}            0",
        "4 operations, 240 bytes kept for backward",
    ]


def test_describe_an_empty_tape() -> None:
    assert describe(tape(leaf(1.0))).splitlines()[1:] == ["0 operations, 0 bytes kept for backward"]


def test_kept_bytes_are_predicted_from_saves() -> None:
    """Leaves count nothing, a buffer kept twice counts once, and the device holds that and not one byte more."""
    host = HostDevice("counted", "pellucid.kernels.reference")  # nobody else's memory in its counts
    a, b = leaf(np.ones((100, 8)), device=host), leaf(np.ones((100, 8)), device=host)
    root = _model(a, b)
    costs = {"a": 0, "b": 0, "y": 100 * 8 * 8}  # the first product keeps leaves, the second the exponential again
    ops = tape(root)
    assert [type(op).saves for op in ops] == [("a", "b"), ("y",), ("a", "b"), ()]
    predicted = sum(costs[name] for op in ops for name in type(op).saves)
    assert kept_bytes(ops) == predicted == 6400
    held = host.bytes_in_use
    del root, ops
    assert held - host.bytes_in_use == size_class(predicted) + size_class(8)  # and the result itself


def test_results_that_nobody_saved_are_not_kept() -> None:
    """A sum needs neither its inputs nor its output for backward, so a chain of them holds one result."""
    host = HostDevice("counted", "pellucid.kernels.reference")
    a = leaf(np.ones(1000), device=host)
    before = host.bytes_in_use
    y = a
    for _ in range(50):
        y = Sum.apply(y, a)
    assert host.bytes_in_use - before == size_class(8000)
    assert kept_bytes(tape(y)) == 0
    y.backward(leaf(np.ones(1000), device=host, grad=False))
    assert a.grad is not None
    assert a.grad.tolist() == [51.0] * 1000


def test_kept_names_what_save_was_given() -> None:
    x = leaf([1.0, 2.0])
    op = Exponential.apply(x).op
    assert op is not None
    assert [a.shape for a in op.kept()] == [(2,)]
    with no_grad():
        assert Exponential.apply(x).op is None


# --- tracing ----------------------------------------------------------------------------------------------------------


class Slow(Exponential):
    """e**x after a pause of its own"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        time.sleep(0.02)
        return super().forward(x)

    def backward(self, dy: Array) -> dict[str, Array]:
        time.sleep(0.04)
        return super().backward(dy)


def test_records() -> None:
    a = leaf(np.ones((4, 5)))
    with trace() as found:
        hidden = Slow.apply(a)
        line = _line() - 1
        root = Total.apply(hidden)
        assert [r.backward for r in found.records] == [None, None]
        root.backward()
    slow, total = found.records
    assert (slow.name, slow.inputs, slow.output, slow.dtype, slow.kept) == ("Slow", ((4, 5),), (4, 5), "float64", 160)
    assert slow.caller == f"test_trace.py:{line} in test_records"
    assert slow.forward >= 0.02
    assert slow.backward is not None
    assert slow.backward >= 0.04
    assert total.name == "Total"
    assert total.output == ()
    assert total.kept == 0
    assert total.backward is not None
    assert 0 < total.backward < slow.backward


def test_time_of_a_second_backward_is_added() -> None:
    with trace() as found:
        root = Total.apply(Slow.apply(leaf([1.0])))
        root.backward(keep_tape=True)
        once = found.records[0].backward
        root.backward()
    twice = found.records[0].backward
    assert once is not None
    assert twice is not None
    assert twice >= once + 0.04
    assert len(found.records) == 2


def test_forward_before_the_trace() -> None:
    root = Total.apply(Exponential.apply(leaf([1.0, 2.0])))
    with trace() as found:
        root.backward()
    assert [(r.name, r.caller, r.inputs, r.output) for r in found.records] == [
        ("Total", "before the trace", ((2,),), ()),
        ("Exponential", "before the trace", ((2,),), (2,)),
    ]


def test_traces_nest_and_end() -> None:
    a = leaf([1.0])
    with trace() as outer:
        Sum.apply(a, a)
        with trace() as inner:
            Exponential.apply(a)
        Sum.apply(a, a)
    Sum.apply(a, a)
    assert [r.name for r in outer.records] == ["Sum", "Sum"]
    assert [r.name for r in inner.records] == ["Exponential"]


def test_trace_does_not_change_numbers() -> None:
    def run() -> bytes:
        a = leaf([0.1, 0.2])
        _model(a, a).backward()
        assert a.grad is not None
        return a.grad.device.download(a.grad.array).tobytes()

    plain = run()
    with trace(stop_at_nonfinite=True):
        assert run() == plain


def test_printed_trace() -> None:
    a = leaf(np.ones((10, 3)))
    with trace() as found:
        Total.apply(Exponential.apply(a)).backward()
        line = _line() - 1
        with no_grad():
            Sum.apply(a, a)
    for r, (forward, backward) in zip(found.records, ((1e-6, 2e-6), (3e-6, 4e-6), (5e-6, None)), strict=True):
        r.forward, r.backward = forward, backward
    where, later = (f"test_trace.py:{n} in test_printed_trace" for n in (line, line + 3))
    assert str(found).splitlines() == [
        f"{'operation':<20} {'output':<20} {'inputs':<44} {'kept':>10} {'forward':>9} {'backward':>9}  called from",
        f"{'Exponential':<20} {'10x3':<20} {'10x3':<44} {'240':>10} {'1 us':>9} {'2 us':>9}  {where}",
        f"{'Total':<20} {'()':<20} {'10x3':<44} {'0':>10} {'3 us':>9} {'4 us':>9}  {where}",
        f"{'Sum':<20} {'10x3':<20} {'10x3 10x3':<44} {'0':>10} {'5 us':>9} {'':>9}  {later}",
        f"{'3 operations':<86} {'240':>10} {'9 us':>9} {'6 us':>9}",
    ]


def test_empty_trace_prints() -> None:
    assert str(Trace()).splitlines()[1].startswith("0 operations")


# --- the first number that is not finite ------------------------------------------------------------------------------


def test_nonfinite_forward() -> None:
    lines = []

    def model(a: Tensor) -> Tensor:
        fine = Sum.apply(a, a)
        lines.append(_line() + 1)
        return Exponential.apply(fine)

    with trace(stop_at_nonfinite=True), pytest.raises(NonFiniteError) as caught:
        model(leaf([1.0, 1000.0]))
    assert str(caught.value) == (
        "Exponential forward: finite inputs gave a number that is not finite; got output (2,) at "
        f"test_trace.py:{lines[0]} in model. hint: lower the learning rate, clip the gradient, or look at this "
        "operation's inputs"
    )


def test_nonfinite_backward() -> None:
    a = leaf([1.0, 2.0])
    with trace(stop_at_nonfinite=True):
        y = Explode.apply(Product.apply(a, a))
        line = _line() - 1
        root = Total.apply(y)
        with pytest.raises(NonFiniteError) as caught:
            root.backward()
    assert str(caught.value) == (
        f"Explode backward: finite inputs gave a number that is not finite; got output (2,) at test_trace.py:{line} in "
        "test_nonfinite_backward. hint: lower the learning rate, clip the gradient, or look at this operation's inputs"
    )


def test_nonfinite_inputs_are_not_blamed() -> None:
    a = leaf([np.inf, 1.0])
    with trace(stop_at_nonfinite=True) as found:
        Exponential.apply(Sum.apply(a, a))
    assert len(found.records) == 2


def test_nonfinite_gradients_of_several_inputs() -> None:
    parts = [leaf([1.0]), leaf([2.0])]
    with trace(stop_at_nonfinite=True):
        Total.apply(Stack.apply(*parts)).backward()
    assert all(p.grad is not None for p in parts)


def test_nonfinite_goes_unnoticed_unless_asked() -> None:
    with trace() as found:
        Exponential.apply(leaf([1000.0]))
    assert len(found.records) == 1

"""The tape: what is recorded, how gradients gather, when memory goes, and every refusal."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from opaque import opaque_device

import pellucid
from pellucid.base import dtypes
from pellucid.base.errors import DeviceError, DTypeError, GradientError, PellucidError, ShapeError
from pellucid.device import HostDevice, cpu, reference
from pellucid.tape import Parameter, Tensor, backward, constant, enable_grad, is_one, no_grad, tape

from .toy import Exponential, Product, Stack, Sum, Total, leaf, numbers

# --- gradients --------------------------------------------------------------------------------------------------------


def test_diamond() -> None:
    """y = sum(a a + a b) reaches `a` by three paths, each of which counts once."""
    a, b = leaf([2.0, 3.0]), leaf([5.0, 7.0])
    Total.apply(Sum.apply(Product.apply(a, a), Product.apply(a, b))).backward()
    np.testing.assert_array_equal(numbers(a.grad), [9.0, 13.0])
    np.testing.assert_array_equal(numbers(b.grad), [2.0, 3.0])


def test_shared_middle_is_replayed_once() -> None:
    a = leaf([1.0, 2.0])
    middle = Product.apply(a, a)
    root = Total.apply(Product.apply(Sum.apply(middle, middle), middle))  # 2 a**4
    names = [type(op).__name__ for op in tape(root)]
    assert names == ["Product", "Sum", "Product", "Total"]
    root.backward()
    np.testing.assert_array_equal(numbers(a.grad), [8.0, 64.0])


def test_gradients_accumulate_until_dropped() -> None:
    a = leaf([1.0, 2.0])
    for expected in (1.0, 2.0, 3.0):
        Total.apply(a).backward()
        np.testing.assert_array_equal(numbers(a.grad), [expected, expected])
    a.grad = None
    Total.apply(a).backward()
    np.testing.assert_array_equal(numbers(a.grad), [1.0, 1.0])


def test_accumulation_leaves_the_former_gradient_alone() -> None:
    a, b = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    Total.apply(Sum.apply(a, b)).backward()
    before = b.grad
    Total.apply(a).backward()
    np.testing.assert_array_equal(numbers(a.grad), [2.0, 2.0])
    np.testing.assert_array_equal(numbers(before), [1.0, 1.0])


def test_gradient_lies_like_its_leaf() -> None:
    a = leaf(np.ones((3, 4)))
    Total.apply(a).backward()
    assert a.grad is not None
    assert a.grad.is_contiguous
    assert a.grad.op is None
    assert not a.grad.requires_grad


def test_gradients_share_no_memory() -> None:
    """Not with each other, though a sum hands one array to both of its inputs, and not with the gradient given."""
    a, b, c, given = leaf([1.0, 2.0]), leaf([1.0, 2.0]), leaf([3.0, 4.0]), leaf([5.0, 6.0], grad=False)
    Sum.apply(a, b).backward(given)
    c.backward(given)
    buffers = {id(x.array.buffer) for x in (a.grad, b.grad, c.grad, given) if x is not None}
    assert len(buffers) == 4
    np.testing.assert_array_equal(numbers(c.grad), [5.0, 6.0])


def test_given_gradient() -> None:
    a = leaf([2.0, 3.0])
    Product.apply(a, a).backward(leaf([1.0, 10.0], grad=False))
    np.testing.assert_array_equal(numbers(a.grad), [4.0, 60.0])


def test_leaf_is_its_own_root() -> None:
    a = leaf(3.0)
    a.backward()
    assert a.grad is not None
    assert a.grad.item() == 1.0


def test_only_what_is_wanted() -> None:
    a, b = leaf([2.0]), leaf([3.0], grad=False)
    Total.apply(Product.apply(a, b)).backward()
    np.testing.assert_array_equal(numbers(a.grad), [3.0])
    assert b.grad is None


def test_variadic_inputs() -> None:
    parts = [leaf([1.0]), leaf([2.0, 3.0], grad=False), leaf([4.0])]
    weights = leaf([5.0, 6.0, 7.0, 8.0], grad=False)
    Total.apply(Product.apply(Stack.apply(*parts), weights)).backward()
    np.testing.assert_array_equal(numbers(parts[0].grad), [5.0])
    assert parts[1].grad is None
    np.testing.assert_array_equal(numbers(parts[2].grad), [8.0])


def test_long_chain() -> None:
    """Neither backward nor letting go of 20,000 operations nests calls."""
    a = leaf([1.0])
    y = a
    for _ in range(20_000):
        y = Sum.apply(y, a)
    assert len(tape(y)) == 20_000
    y.backward()
    np.testing.assert_array_equal(numbers(a.grad), [20_001.0])
    z = a
    for _ in range(20_000):
        z = Sum.apply(z, a)
    del z  # never replayed: goes in one piece


# --- what is recorded -------------------------------------------------------------------------------------------------


def test_no_grad_and_enable_grad() -> None:
    a = leaf([1.0])
    assert Sum.apply(a, a).requires_grad
    with no_grad():
        inside = Sum.apply(a, a)
        assert inside.op is None
        assert not inside.requires_grad
        with enable_grad():
            assert Sum.apply(a, a).op is not None
        assert Sum.apply(a, a).op is None
    assert Sum.apply(a, a).op is not None


def test_no_grad_ends_with_an_error() -> None:
    a = leaf([1.0])
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert Sum.apply(a, a).requires_grad


def test_nothing_is_recorded_without_need() -> None:
    a = leaf([1.0], grad=False)
    y = Exponential.apply(a)
    assert y.is_leaf
    assert not y.requires_grad
    assert Exponential.apply(a, always=True).op is not None


def test_nothing_is_recorded_during_backward() -> None:
    a = leaf([1.0])
    Product.apply(a, a).backward()
    assert a.grad is not None
    assert a.grad.op is None


def test_detach_shares_memory_and_stops_the_gradient() -> None:
    a = leaf([2.0])
    y = Product.apply(a, a)
    cut = y.detach()
    assert cut.array.address == y.array.address
    assert cut.is_leaf
    Total.apply(Product.apply(cut, a)).backward()
    np.testing.assert_array_equal(numbers(a.grad), [4.0])


def test_parameters_are_leaves() -> None:
    p = Parameter(leaf([2.0], grad=False))
    assert p.is_leaf
    assert p.requires_grad
    assert p.decay
    assert not Parameter(leaf([2.0], grad=False), decay=False).decay
    Product.apply(p, p).backward()
    np.testing.assert_array_equal(numbers(p.grad), [4.0])


# --- lifetime ---------------------------------------------------------------------------------------------------------


def test_dropped_result_takes_its_tape_along() -> None:
    """By reference counts alone, without the garbage collector."""
    a = leaf(np.ones(1000))
    gc.collect()
    gc.disable()
    try:
        y = Total.apply(Exponential.apply(Product.apply(a, a)))
        ops = [weakref.ref(op) for op in tape(y)]
        kept = weakref.ref(ops[1]().kept()[0].buffer)  # type: ignore[union-attr]
        assert all(r() is not None for r in ops)
        del y
        assert [r() for r in ops] == [None, None, None]
        assert kept() is None
    finally:
        gc.enable()


def test_backward_frees_what_was_kept() -> None:
    a = leaf(np.ones(1000))
    y = Total.apply(Exponential.apply(a))
    op = tape(y)[0]
    kept = weakref.ref(op.kept()[0].buffer)
    y.backward()
    assert kept() is None
    assert op.kept() == []


def test_memory_returns_to_the_device() -> None:
    host = HostDevice("counted", "pellucid.kernels.reference")
    a = leaf(np.ones(1000), device=host)
    constant(host, 1.0, a.dtype)  # what backward starts from is made once and kept
    before = host.bytes_in_use
    for _ in range(3):
        Total.apply(Exponential.apply(Product.apply(a, a))).backward()
        a.grad = None
        assert host.bytes_in_use == before


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_do_not_share_switches() -> None:
    a = leaf([1.0])
    found: list[bool] = []
    with no_grad():
        thread = threading.Thread(target=lambda: found.append(Sum.apply(a, a).requires_grad))
        thread.start()
        thread.join()
    assert found == [True]


def test_threads_replay_their_own_tapes() -> None:
    results: dict[int, float] = {}

    def work(number: int) -> None:
        a = leaf([float(number)])
        for _ in range(50):
            a.grad = None
            y = a
            for _ in range(10):
                y = Sum.apply(y, a)
            y.backward()
            assert a.grad is not None
        results[number] = a.grad.item()  # type: ignore[union-attr]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == dict.fromkeys(range(4), 11.0)


# --- refusals, read whole ---------------------------------------------------------------------------------------------


def _message(kind: type[PellucidError], *arguments: Tensor | None, root: Tensor) -> str:
    with pytest.raises(kind) as caught:
        backward(root, *arguments)
    return str(caught.value)


def test_backward_twice() -> None:
    a = leaf([1.0])
    middle = Product.apply(a, a)
    root = Total.apply(middle)
    root.backward(keep_tape=True)
    root.backward()
    np.testing.assert_array_equal(numbers(a.grad), [4.0])
    said = "backward: a part of the tape was already replayed and freed; got {}. hint: run the forward again, or pass "
    said += "keep_tape=True to the first backward"
    assert _message(GradientError, root=root) == said.format("Total")
    assert _message(GradientError, root=Total.apply(middle)) == said.format("Product")


def test_nothing_to_differentiate() -> None:
    said = (
        "backward: the tensor depends on nothing that requires a gradient. hint: set requires_grad=True on a leaf, "
        "and call outside no_grad"
    )
    assert _message(GradientError, root=leaf(1.0, grad=False)) == said
    with no_grad():
        unrecorded = Total.apply(leaf([1.0]))
    assert _message(GradientError, root=unrecorded) == said


def test_several_elements_need_a_gradient() -> None:
    a = leaf([1.0, 2.0])
    assert _message(ShapeError, root=Sum.apply(a, a)) == (
        "backward: a gradient is needed for a result with several elements; got (2,), expected shape (). hint: reduce "
        "it to a loss, or pass gradient="
    )


def test_gradient_must_fit() -> None:
    root = Product.apply(leaf([1.0, 2.0]), leaf([1.0, 2.0]))
    assert _message(ShapeError, leaf([1.0]), root=root) == (
        "backward: the gradient does not fit the tensor; got (1,), expected (2,)"
    )
    assert _message(DTypeError, leaf([1.0, 1.0], dtype=dtypes.float32), root=root) == (
        "backward: the gradient has another dtype; got float32, expected float64"
    )
    assert _message(DeviceError, leaf([1.0, 1.0], device=cpu), root=root) == (
        "backward: the gradient is on another device; got 'cpu', expected 'reference'"
    )


def test_devices_do_not_mix() -> None:
    with opaque_device() as other, pytest.raises(DeviceError) as caught:
        Sum.apply(leaf([1.0]), leaf([1.0], device=other))
    assert str(caught.value) == (
        "Sum: inputs on different devices; got 'reference' and 'opaque'. hint: move them with .to(device)"
    )


def test_recorded_tensors_stay_off_the_host() -> None:
    with pytest.raises(GradientError) as caught:
        leaf([1.0]).numpy()
    assert str(caught.value) == "numpy: the tensor is part of a recorded computation. hint: call .detach().numpy()"


def test_moving_does_not_cut_the_tape_silently() -> None:
    a = leaf([1.0])
    y = Sum.apply(a, a)
    assert y.to("reference") is y
    moved = a.to("cpu")
    assert moved.device is cpu
    assert moved.is_leaf
    assert moved.requires_grad
    with pytest.raises(GradientError) as caught:
        y.to("cpu")
    assert str(caught.value) == (
        "to: a gradient can't flow back from another device; got a result of Sum. hint: call .detach().to(device), or "
        "move the leaves"
    )


def test_single_numbers() -> None:
    a = leaf([1.0, 2.0])
    with pytest.raises(ShapeError) as caught:
        a.item()
    assert str(caught.value) == "item: not a single number; got (2,), expected one element"
    with pytest.raises(ShapeError) as caught:
        len(leaf(1.0))
    assert str(caught.value) == "len: a tensor of shape () has no length"
    assert (float(leaf(2.5)), int(leaf([[3.0]])), bool(leaf(0.0)), len(a)) == (2.5, 3, False, 2)
    assert leaf(7, dtype=dtypes.int32, grad=False).item() == 7
    assert leaf([[1, 2]], dtype=dtypes.bfloat16, grad=False).tolist() == [[1.0, 2.0]]


def test_the_constant_one_is_known_by_identity() -> None:
    one = constant(reference, 1.0, dtypes.float64)
    assert is_one(one)
    assert constant(reference, 1.0, dtypes.float64) is one
    assert not is_one(constant(reference, 1, dtypes.float64))
    assert not is_one(one.expand((2,)))


def test_a_kept_tape_gives_gradients_of_their_own() -> None:
    x, head = leaf(np.ones((2, 3))), leaf(np.ones((4, 3)))
    loss = pellucid.lm_head_loss(x, head, pellucid.tensor([0, 1], device="reference"))
    loss.backward(keep_tape=True)
    assert head.grad is not None
    first = head.grad.numpy().copy()
    head.grad.numpy()[...] = 7
    head.grad = None
    loss.backward()
    assert np.array_equal(head.grad.numpy(), first)

"""Op: one differentiable operation, its forward and backward side by side; and the tape that replays them.

Running `SomeOp.apply(x, w, eps=...)` runs the forward on the device's kernels and, when any input requires a
gradient, records the Op: the output Tensor points to it and it points to its inputs. The tape of a result is the list
of recorded Ops it depends on, in the order they ran; backward replays that list from the end. Because Ops are held
by what depends on them and by nothing else, a result that is dropped takes its part of the tape with it.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ..base.errors import DeviceError, DTypeError, GradientError, ShapeError
from ..device import Array, Device
from ..device.device import load
from . import written
from .constants import constant
from .state import pauses, state, traces
from .tensor import Tensor

_sequence = itertools.count()
_one_at_a_time = threading.Lock()

Gradients = dict[str, Any]  # input name -> Array, None, or a list of them for a variadic input


class Op:
    """Base of all operations.

    A subclass writes `forward(self, x, w, *, eps)` from Arrays to one Array and `backward(self, dy)` to a dict from
    input names to gradient Arrays; `needs` says which gradients are wanted. `saves` declares the names that `save`
    keeps for backward, which makes the memory a recorded operation holds known in advance.

    `adds_into` names an input whose gradient `backward` can add to one that is there. Where an operation before it in
    this backward pass made the gradient of that leaf, `made_so_far` holds it; `backward` may add to it and return none.
    """

    # What every Op has lies in slots, which cost a third of entries of a dict; subclasses have a dict for the rest.
    __slots__ = ("inputs", "kernels", "made_so_far", "output_shape", "recording", "sequence")

    saves: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ()
    places: ClassVar[dict[str, int]] = {}  # of the inputs, by name
    variadic: ClassVar[bool] = False
    adds_into: ClassVar[str | None] = None

    kernels: Any  # the kernel functions of the inputs' device
    # Once recorded, leaves as they are and results as the Op that made them: the tape keeps no memory but by `save`.
    inputs: tuple[Tensor | Op | None, ...]
    output_shape: tuple[int, ...]
    sequence: int
    recording: bool
    released: bool = False
    made_so_far: Array | None  # see `adds_into`

    def __init_subclass__(cls) -> None:
        positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
        cls.names = tuple(p.name for p in parameters if p.kind in positional)
        cls.places = {name: i for i, name in enumerate(cls.names)}
        cls.variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        cls.apply = classmethod(_first_apply)  # type: ignore[method-assign, assignment]

    requires_grad: ClassVar[bool] = True  # of the output, as of a Tensor
    is_op: ClassVar[bool] = True  # among the inputs of another Op, as opposed to a Tensor

    forward: Any

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # what `save` kept

    def backward(self, dy: Array) -> Gradients:
        """Gradients of the inputs by name, from the gradient of the output."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *inputs: Tensor | None, always: bool = False, **attributes: Any) -> Tensor:
        """Runs the operation on tensors of one device and records it if a gradient can flow through it.

        This is what it does; an Op whose inputs all have names does the same in lines written out (`written`).
        `always` records it even where no input requires a gradient (for operations that reach parameters themselves).
        """
        device = None
        wanted = always
        arrays: list[Array | None] = []
        links: list[Tensor | Op | None] = []
        for x in inputs:
            if x is None:
                arrays.append(None)
                links.append(None)
                continue
            array = x.array
            arrays.append(array)
            if x.requires_grad:
                wanted = True
                links.append(x if x.op is None else x.op)
            else:
                links.append(x)
            there = array.buffer.device
            if device is None:
                device = there
            elif there is not device:
                raise _mixed(cls.__name__, device, there)
        assert device is not None
        op = cls()
        op.kernels = device.kernels
        op.recording = recording = wanted and (not pauses or state.recording)
        op.inputs = inputs
        if not traces or state.trace is None:
            out = op.forward(*arrays, **attributes)
        else:
            out = state.trace.forward(op, arrays, attributes)
        if not recording or not out.dtype.is_float:
            return Tensor(out)
        op.inputs = tuple(links)
        op.output_shape = out.shape
        op.sequence = next(_sequence)
        return Tensor(out, True, op)

    def save(self, **values: Any) -> None:
        """Keeps what backward needs, by the names in `saves`, as attributes of this Op; does nothing when it is not
        being recorded. Written out for each Op."""
        raise NotImplementedError

    def needs(self, name: str) -> bool:
        """Whether the gradient of the input of that name is wanted."""
        x = self.inputs[self.places[name]]
        return x is not None and x.requires_grad

    def kept(self) -> list[Array]:
        """The Arrays this operation holds for backward."""
        values = [getattr(self, name, None) for name in self.saves]
        return [a for v in values for a in (v if isinstance(v, (list, tuple)) else (v,)) if isinstance(a, Array)]

    def input_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """Shapes of the inputs, None where there is none."""
        return tuple(x.output_shape if isinstance(x, Op) else None if x is None else x.shape for x in self.inputs)

    def gradients(self, dy: Array) -> Sequence[Array | None]:
        """`backward` as a sequence in the order of the inputs."""
        found = self.backward(dy)
        if self.variadic:
            return found[self.names[0]]
        return [found.get(name) for name in self.names]

    def release(self) -> None:
        """Lets go of everything kept for backward. Written out for each Op."""
        raise NotImplementedError


def _first_apply(cls: type[Op], *inputs: Tensor | None, **options: Any) -> Tensor:
    """`apply` until it is called: writes out the functions of this Op, which would take too long for all at import."""
    scope = {"state": state, "traces": traces, "pauses": pauses, "sequence": _sequence, "mixed": _mixed}
    with _one_at_a_time:
        scope["new_tensor"] = _tensor_maker()
    apply = written.applying(cls, cls.forward, scope)
    cls.save = written.saving(cls, cls.saves)  # type: ignore[method-assign]
    cls.release = written.releasing(cls, cls.saves)  # type: ignore[method-assign]
    cls.apply = _loop if apply is None else staticmethod(apply)  # type: ignore[method-assign, assignment]
    return cls.apply(*inputs, **options)


_loop = Op.__dict__["apply"]


@cache
def _tensor_maker() -> Callable[[Array, bool, Tensor | None, Op | None], Tensor]:
    """`new_tensor(array, requires_grad, grad, op)` in native code: every result is one."""
    sample = Tensor(object(), True, Op())  # type: ignore[arg-type]
    sample.grad = Tensor(sample.array)
    return load("pellucid.device.objects").constructor(sample, "array", "requires_grad", "grad", "op")


def _mixed(where: str, a: Device, b: Device) -> DeviceError:
    got = f"{a.name!r} and {b.name!r}"
    return DeviceError(where, "inputs on different devices", got=got, hint="move them with .to(device)")


def tape(root: Tensor) -> list[Op]:
    """The recorded operations `root` depends on, in the order they ran."""
    found: dict[int, Op] = {}
    todo = [root.op] if root.op is not None else []
    while todo:
        op = todo.pop()
        if op.sequence in found:
            continue
        if op.released:
            raise GradientError(
                "backward",
                "a part of the tape was already replayed and freed",
                got=type(op).__name__,
                hint="run the forward again, or pass keep_tape=True to the first backward",
            )
        found[op.sequence] = op
        for x in op.inputs:
            if x is not None and x.is_op:
                todo.append(x)  # type: ignore[arg-type]
    return [found[s] for s in sorted(found)]


def backward(root: Tensor, gradient: Tensor | None = None, *, keep_tape: bool = False) -> None:
    """Adds d root / d leaf to the `grad` of every leaf that requires it.

    gradient: the gradient of the final result with respect to `root`, of its shape; 1 where `root` is a single number.
    Raises GradientError if nothing was recorded; ShapeError, DTypeError or DeviceError if the gradient does not fit.
    """
    if not root.requires_grad:
        raise GradientError(
            "backward",
            "the tensor depends on nothing that requires a gradient",
            hint="set requires_grad=True on a leaf, and call outside no_grad",
        )
    if gradient is None:
        if root.array.shape and root.array.size != 1:
            raise ShapeError(
                "backward",
                "a gradient is needed for a result with several elements",
                got=root.shape,
                expected="shape ()",
                hint="reduce it to a loss, or pass gradient=",
            )
        seed = constant(root.array.buffer.device, 1.0, root.array.dtype)
        if root.array.shape:
            seed = seed.expand(root.shape)
    else:
        if gradient.shape != root.shape:
            raise ShapeError(
                "backward", "the gradient does not fit the tensor", got=gradient.shape, expected=root.shape
            )
        if gradient.dtype is not root.dtype:
            raise DTypeError(
                "backward", "the gradient has another dtype", got=gradient.dtype.name, expected=root.dtype.name
            )
        if gradient.device is not root.device:
            got, expected = repr(gradient.device.name), repr(root.device.name)
            raise DeviceError("backward", "the gradient is on another device", got=got, expected=expected)
        seed = gradient.array
    if root.op is None:
        _accumulate(root, seed, True)
        return
    ops = tape(root)
    pending: dict[int, Array] = {root.op.sequence: seed}
    made: dict[int, Tensor] = {}  # leaves whose gradient is this pass's own
    trace = state.trace if traces else None
    recording = state.recording
    try:  # from here on: a signal's handler may raise behind any call
        state.recording = False
        pauses.append(None)
        while ops:
            op = ops.pop()
            dy = pending.pop(op.sequence, None)
            if dy is None:
                continue
            if op.adds_into is not None:
                leaf = made.get(id(op.inputs[op.places[op.adds_into]]))
                op.made_so_far = None if leaf is None or leaf.grad is None else leaf.grad.array
            gradients: Iterable[Array | None]
            if trace is not None:
                gradients = trace.backward(op, dy)
            elif op.variadic:
                gradients = op.gradients(dy)
            else:
                gradients = map(op.backward(dy).get, op.names)
            kept = {id(a.buffer) for a in op.kept()} if keep_tape else ()
            inputs = op.inputs
            for i, dx in enumerate(gradients):
                if dx is None or (x := inputs[i]) is None:
                    continue
                if x.is_op:
                    shape, number = x.output_shape, x.sequence  # type: ignore[union-attr]
                    assert dx.shape == shape, f"{type(op).__name__}: gradient {dx.shape} for {shape}"
                    if number in pending:
                        dx = op.kernels.add(pending[number], dx)
                    pending[number] = dx
                elif x.requires_grad:
                    shape = x.array.shape  # type: ignore[union-attr]
                    assert dx.shape == shape, f"{type(op).__name__}: gradient {dx.shape} for {shape}"
                    shared = dx.buffer is dy.buffer or id(dx.buffer) in kept
                    _accumulate(x, dx, shared)  # type: ignore[arg-type]
                    made[id(x)] = x  # type: ignore[assignment]
            if not keep_tape:
                op.release()
    finally:
        state.recording = recording
        pauses.pop()


def _accumulate(leaf: Tensor, dx: Array, shared: bool) -> None:
    """Adds to the gradient of a leaf, which is then its own contiguous memory: optimizers and users may change it."""
    if leaf.grad is not None:
        dx = leaf.device.kernels.add(leaf.grad.array, dx)
    elif shared or not dx.is_contiguous:
        dx = leaf.device.kernels.copy(dx)
    leaf.grad = Tensor(dx)

"""RecordedStep: a training step whose Python runs for the first steps of a shape and not again.

A step of a small model is a few hundred launches of some microseconds each, with as much Python around them. From the
batch to the norm of the gradient these are the same launches in every step of one shape, so they are recorded once and
replayed (`kernels.cpu.recording`); only the update, whose numbers change from step to step, is Python each time.
"""

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data import TokenBatch
from ..device import Array, HostDevice, pool
from ..device.cpu import tell
from ..device.device import load
from ..models import TransformerLM
from ..models.placed import Checked
from ..nn import Module
from ..optim import Optimizer, clip_scale
from ..tape import Tensor
from ..tape.state import state
from .step import StepResult, finish, train_step

if TYPE_CHECKING:
    from ..kernels.cpu.recording import Recording

MOST_BYTES = 1 << 30  # a step of more takes far longer than its Python
_BEFORE = 2  # steps alike that run as always first: they compile kernels and make what is kept from then on
_BACKEND = "pellucid.kernels.cpu"


class RecordedStep:
    """`train_step(model, optimizer, batch, max_norm=max_norm)`, to the bit, with less Python.

    The third step in a row with one shape of batch is recorded. Later ones are replayed until something that a step
    depends on changes: the shape, an attribute of any module, the modules in a list, the memory of a parameter or
    whether it is trained, the number of threads. No Python of the model runs in a replay: a module of one's own must
    not count its calls, print, or decide by anything but shapes and attributes of modules.

    refusal: why the last step ran as always though others like it came before, None where it did not: kernels other
    than the CPU's, dropout and whatever draws numbers, a mixture of experts, packed rows, a trace, a module that looks
    at numbers, a loss or an optimizer that overrides what is recorded, gradients of the last replay that somebody
    keeps, more memory than `most_bytes`. A recording keeps its memory until something changes, or until `free`; a copy
    of this object begins without one. replayed: steps so far.
    """

    def __init__(
        self, model: TransformerLM, optimizer: Optimizer, *, max_norm: float | None = None, most_bytes: int = MOST_BYTES
    ) -> None:
        self.model, self.optimizer, self.max_norm, self.most_bytes = model, optimizer, max_norm, most_bytes
        self.refusal: str | None = None
        self.replayed = 0
        self._facts: tuple[Any, ...] = ()
        self._alike = 0  # steps with these facts
        self._refused: str | None = None  # of these facts
        self._recording: Recording | None = None
        self._rooms: list[np.ndarray[Any, Any]] = []  # for a batch, where the recording reads it
        self._trained: list[Tensor] = []  # the parameters whose gradients it writes
        self._references: list[int] = []  # to each of its results and its memory, where nobody keeps them
        self._found: tuple[list[Tensor], list[list[Any]]] | None = None  # in the model, as its modules are now
        self._too_large: tuple[int, ...] = ()  # a shape of batches

    def __call__(self, batch: TokenBatch) -> StepResult:
        """One step. Raises what `train_step` does."""
        hindrance = self._hindrance(batch)
        facts = () if hindrance is not None else self._present(batch)
        if facts != self._facts:
            self.free()
            self._facts = facts
        self._alike += 1
        self.refusal = hindrance or self._refused
        self.optimizer.zero_grad()
        if self._alike == _BEFORE and hindrance is None:
            return self._measured(batch)
        if self._recording is not None and _references(self._recording.results) != self._references:
            self.refusal = "somebody keeps gradients of the last replay"
        if self.refusal is not None or self._alike <= _BEFORE:
            return train_step(self.model, self.optimizer, batch, max_norm=self.max_norm)
        checked = self.model.checked(batch.inputs, batch.targets, batch.weights)
        if self._recording is None:
            results = self._record(checked)
        else:
            results = self._replay(self._recording, checked)
        loss, norm, scale = (Tensor(a) for a in results[:3])
        return finish(self.optimizer, StepResult(loss.item(), norm.item(), batch.n_targets), scale)

    def _measured(self, batch: TokenBatch) -> StepResult:
        """A step as always, which tells how much memory one takes."""
        device = self.model.device
        assert isinstance(device, HostDevice)
        most, before = device.peak_bytes, device.bytes_in_use
        device.peak_bytes = before
        try:
            result = train_step(self.model, self.optimizer, batch, max_norm=self.max_norm)
        finally:
            taken = device.peak_bytes - before
            device.peak_bytes = max(most, device.peak_bytes)
        if taken > self.most_bytes:
            self._too_large = batch.inputs.shape
        return result

    def free(self) -> None:
        """Forgets the recording and gives its memory back; the next steps run as always again."""
        recording, self._recording = self._recording, None
        self._rooms, self._trained, self._references = [], [], []
        self._facts, self._alike, self._refused, self._found = (), 0, None, None
        if recording is not None:
            recording.free()

    def __getstate__(self) -> dict[str, Any]:
        return vars(RecordedStep(self.model, self.optimizer, max_norm=self.max_norm, most_bytes=self.most_bytes))

    def _hindrance(self, batch: TokenBatch) -> str | None:
        config, device = self.model.config, self.model.device
        if device.backend != _BACKEND:
            return f"the kernels of {device.name!r} are not recorded"
        if config.dropout > 0:
            return "dropout draws other numbers in each step"
        if config.experts is not None:
            return "the router decides in each step how many tokens an expert gets"
        if batch.inputs.shape == self._too_large:
            return f"it needs more than {self.most_bytes:,} bytes"
        if batch.starts is not None:
            return "documents are packed in another way in each step"
        if getattr(self.model.loss, "__func__", None) is not TransformerLM.loss:
            return "the model has a loss of its own"
        if getattr(self.optimizer.prepare, "__func__", None) is not Optimizer.prepare:
            return "the optimizer prepares gradients in a way of its own"
        return None if state.trace is None else "a trace watches every operation"

    def _present(self, batch: TokenBatch) -> tuple[Any, ...]:
        """What a step depends on beside numbers."""
        known = self.model, self.optimizer, Module.latest_change
        if self._found is None or self._facts[:3] != known:
            self._found = _found(self.model)
        tensors, lists = [*self._found[0], *self.optimizer.parameters.values()], self._found[1]
        modules = [[m for m in one if isinstance(m, Module)] for one in lists]
        memory, trained = [t.array for t in tensors], [t.requires_grad for t in tensors]
        rows = list(self.optimizer.kept_rows.items())
        how = batch.inputs.shape, self.max_norm, pool.threads(), state.recording
        return *known, how, modules, memory, trained, rows

    def _record(self, checked: Checked) -> list[Array]:
        """Loss, norm and scale of a step that runs as always and is recorded."""
        parameters, device = list(self.optimizer.parameters.values()), self.model.device
        placed = checked.on(device)
        assert isinstance(device, HostDevice)

        batch = [x for x in placed if isinstance(x, Tensor)]
        arrays = [x.array for x in batch]

        def compute() -> list[Array]:
            before = _references(arrays, batch)
            loss = self.model.loss_of(placed)
            loss.backward()
            self.optimizer.prepare()
            norm, scale = clip_scale(parameters, self.max_norm)
            if _references(arrays, batch) != before:
                tell("it keeps its batch, whose memory is that of the next")
            return [loss.array, norm.array, scale.array, *(p.grad.array for p in parameters if p.grad is not None)]

        device.trim()  # what steps took that ran as always
        recordings = load(f"{_BACKEND}.recording")
        recording = recordings.Recording.of(compute, device, inputs=arrays, most_bytes=self.most_bytes)
        self.refusal = recording.refusal
        self._refused = None if recording.refusal == recordings.BUSY else recording.refusal
        if recording.refusal is None:
            self._trained = [p for p in parameters if p.grad is not None]
            for p in self._trained:
                p.grad = None
            self._references = _references(recording.results)
            self._rooms = [device.host(a) for a in arrays]
            self._recording = recording
            self._show(recording.results)
        return recording.results

    def _replay(self, recording: Recording, checked: Checked) -> list[Array]:
        """Loss, norm and scale of a step by the recording."""
        for room, array in zip(self._rooms, checked.arrays, strict=True):
            room[...] = array
        recording.replay()
        self._show(recording.results)
        self.replayed += 1
        return recording.results

    def _show(self, results: list[Array]) -> None:
        for parameter, gradient in zip(self._trained, results[3:], strict=True):
            parameter.grad = Tensor(gradient)


def _references(arrays: list[Array], tensors: list[Tensor] | None = None) -> list[int]:
    """How many there are to each of these and to the memory of the Arrays."""
    return [getrefcount(x) for some in (arrays, [a.buffer for a in arrays], tensors or []) for x in some]


def _found(model: Module) -> tuple[list[Tensor], list[list[Any]]]:
    """The tensors of a model and the lists that hold its modules."""
    tensors: list[Tensor] = []
    lists: list[list[Any]] = []
    modules = [model]
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Tensor):
                tensors.append(value)
            elif isinstance(value, list) and any(isinstance(m, Module) for m in value):
                lists.append(value)
        modules.extend(child for _, child in module.children())
    return tensors, lists

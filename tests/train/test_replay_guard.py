"""Recorded steps of models and optimizers that do what no replay could: they run as always, with the same bits."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import pellucid as pl
from pellucid.base import dtypes
from pellucid.base.errors import DeviceError, GradientError, NonFiniteError, ShapeError
from pellucid.base.rng import Generator
from pellucid.data import TokenBatch
from pellucid.device import cpu, pool
from pellucid.device.cpu import watchers
from pellucid.kernels.cpu import launch
from pellucid.kernels.cpu.indices import check_indices
from pellucid.models import TransformerLM
from pellucid.nn import Dropout, LoraConfig, add_lora
from pellucid.optim import AdamW
from pellucid.train import NextToken, RecordedStep, TrainConfig, Trainer, train_step

from .test_replay import CONFIG, adamw, batch, bits, pair

Change = Callable[[pl.Tensor], Any]


class Before(pl.nn.Module):
    """A module behind something of one's own."""

    def __init__(self, inner: Any, change: Change) -> None:
        self.inner, self.change, self.weight = inner, change, inner.weight

    def __call__(self, x: pl.Tensor) -> pl.Tensor:
        return self.inner(self.change(x))


# --- what a module does beside launches -------------------------------------------------------------------------------


def noise() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((9, 32)).astype(np.float32)


def drops() -> Change:
    return Dropout(0.3, generator=Generator(5))


def takes_memory() -> Change:
    rows = iter(noise())
    return lambda x: x + pl.from_dlpack(next(rows))


def adopts_memory() -> Change:
    rows = iter(noise())
    return lambda x: x + pl.Tensor(cpu.adopt(next(rows), dtypes.float32))


def shares_memory() -> Change:
    def change(x: pl.Tensor) -> pl.Tensor:
        y = x * 1.0
        np.from_dlpack(y.detach())[...] = 0.5
        return y

    return change


def another_thread() -> Change:
    threads = ThreadPoolExecutor(1)
    return lambda x: x + threads.submit(lambda y: y * 0.5, x.detach()).result()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (drops, "it draws random numbers, other ones each time"),
        (takes_memory, "Python looks into an array's memory"),
        (adopts_memory, "Python looks into an array's memory"),
        (shares_memory, "Python looks into an array's memory"),
        (another_thread, "another thread computes a part of it"),
    ],
)
def test_a_module_that_no_launch_repeats(make: Callable[[], Change], why: str) -> None:
    plain, recorded, model = pair()
    for m in (model, recorded.model):
        m.model.norm = Before(m.model.norm, make())
    for i in range(6):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.refusal == why
    assert bits(recorded.model) == bits(model)


@pytest.mark.parametrize("change", [lambda ids: ids, lambda ids: ids.reshape(-1)], ids=["whole", "view"])
def test_a_module_that_keeps_its_batch(change: Callable[[pl.Tensor], pl.Tensor]) -> None:
    _, recorded, _ = pair()
    kept: list[pl.Tensor] = []

    def keep(ids: pl.Tensor) -> pl.Tensor:
        kept.append(change(ids))
        return ids

    recorded.model.model.embed_tokens = Before(recorded.model.model.embed_tokens, keep)
    for i in range(6):
        recorded(batch(i))
    assert recorded.refusal == "it keeps its batch, whose memory is that of the next"
    for i, ids in enumerate(kept):
        assert np.array_equal(ids.numpy().reshape(-1), batch(i).inputs.reshape(-1))


def test_dropout_of_attention_alone() -> None:
    plain, recorded, model = pair()
    for m in (model, recorded.model):
        m.model.layers[1].self_attn.dropout = 0.5
    for i in range(6):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.refusal == "it draws random numbers, other ones each time"
    assert bits(recorded.model) == bits(model)


# --- what overrides the parts of a step -------------------------------------------------------------------------------


class Doubled(TransformerLM):
    def loss(self, *args: Any, **options: Any) -> pl.Tensor:
        return super().loss(*args, **options) * 2.0


class Clearing(AdamW):
    """Clears a row of each gradient, another one in each step."""

    def prepare(self) -> None:
        for p in self.parameters.values():
            if p.grad is not None:
                cpu.kernels.fill_(p.grad.array.slice(0, self.steps, self.steps + 1), value=0.0)


def clearing(model: TransformerLM) -> AdamW:
    return Clearing(model.named_parameters(), learning_rate=1e-2)


def test_a_loss_of_the_models_own() -> None:
    one, two = Doubled(CONFIG), Doubled(CONFIG)
    optimizer, recorded = adamw(one), RecordedStep(two, adamw(two), max_norm=1.0)
    for i in range(5):
        assert recorded(batch(i)) == train_step(one, optimizer, batch(i), max_norm=1.0)
    assert recorded.refusal == "the model has a loss of its own"


def test_an_optimizer_that_prepares_in_its_own_way() -> None:
    plain, recorded, model = pair(optimizer=clearing)
    for i in range(5):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.refusal == "the optimizer prepares gradients in a way of its own"
    assert bits(recorded.model) == bits(model)


class Twice(NextToken):
    def loss(self, model: TransformerLM, part: TokenBatch, share: float, /) -> pl.Tensor:
        return super().loss(model, part, 2 * share)


class Batches:
    def batch(self, step: int, /) -> TokenBatch:
        return batch(step)

    def fingerprint(self) -> str:
        return "batches"


def test_a_trainer_takes_an_objective_and_an_optimizer_as_they_are() -> None:
    """An objective that is more than the next token; an optimizer put in another's place on the way."""
    config, model, other = TrainConfig(steps=8, sequences=3, seq_len=8), TransformerLM(CONFIG), TransformerLM(CONFIG)
    trainer = Trainer(model, Batches(), config, objective=Twice())
    trainer.optimizer = clearing(model)
    expected = clearing(other)
    trainer.run()
    for i in range(8):
        expected.learning_rate = config.schedule().rate(i)
        train_step(other, expected, batch(i), max_norm=config.max_norm, objective=Twice())
    assert bits(model) == bits(other)


# --- what changes beside the attributes of modules --------------------------------------------------------------------


def fewer_layers(model: TransformerLM) -> None:
    model.model.layers.pop()


def frozen_memory(model: TransformerLM) -> None:
    p = model.model.norm.weight
    p.array = pl.full(p.shape, 0.5).array


def all_trained(model: TransformerLM) -> None:
    model.unfreeze()


@pytest.mark.parametrize("change", [fewer_layers, frozen_memory, all_trained])
def test_what_no_optimizer_holds_may_change(change: Callable[[TransformerLM], None]) -> None:
    """The base of an adapter."""
    models, optimizers = [TransformerLM(CONFIG), TransformerLM(CONFIG)], []
    for model in models:
        add_lora(model, LoraConfig(2))
        optimizers.append(AdamW(model.named_trained(), learning_rate=1e-2))
    recorded = RecordedStep(models[1], optimizers[1], max_norm=1.0)
    for i in range(8):
        if i == 4:
            for model in models:
                change(model)
        assert recorded(batch(i)) == train_step(models[0], optimizers[0], batch(i), max_norm=1.0)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert p.detach().numpy().tobytes() == q.detach().numpy().tobytes()
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None and q.grad is not None:
            assert p.grad.numpy().tobytes() == q.grad.numpy().tobytes()


def test_another_model_or_optimizer() -> None:
    _, recorded, _ = pair()
    other = TransformerLM(CONFIG)
    for i in range(4):
        recorded(batch(i))
    recorded.optimizer, before = clearing(recorded.model), recorded.replayed
    recorded(batch(4))
    assert recorded.replayed == before
    recorded.model, recorded.optimizer = other, adamw(other)
    fresh = TransformerLM(CONFIG)
    assert recorded(batch(5)).loss == train_step(fresh, adamw(fresh), batch(5)).loss


def test_without_gradients_it_fails_as_always() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    with pl.no_grad(), pytest.raises(GradientError):
        recorded(batch(5))


# --- memory of others -------------------------------------------------------------------------------------------------


def test_gradients_that_somebody_keeps_stay_as_they_are() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    weight = recorded.model.model.norm.weight
    good = cpu.kernels.copy(weight.array)
    cpu.kernels.fill_(weight.array, value=float("inf"))
    with pytest.raises(NonFiniteError):
        recorded(batch(5))
    kept = weight.grad
    assert kept is not None
    values = kept.numpy().copy()
    cpu.kernels.assign_(weight.array, good)
    recorded(batch(6))
    assert recorded.refusal == "somebody keeps gradients of the last replay"
    assert np.array_equal(kept.numpy(), values, equal_nan=True)
    del kept
    recorded(batch(7))
    assert recorded.refusal is None


def test_a_copy_has_no_recording() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    other = copy.deepcopy(recorded)
    for i in range(4, 9):
        assert other(batch(i)) == recorded(batch(i))
    assert bits(other.model) == bits(recorded.model)
    assert (recorded.replayed, other.replayed) == (6, 2)
    with pytest.raises(DeviceError, match="can't be copied"):
        copy.deepcopy(cpu.region())


# --- ends that are no ends --------------------------------------------------------------------------------------------


def test_a_signal_in_the_midst_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded, model = pair()
    record_by, run = launch.record_by, pool.run
    calls: list[object] = []

    def interrupted(recorder: Any) -> None:
        calls.append(recorder)
        if len(calls) == 2:
            raise KeyboardInterrupt
        record_by(recorder)

    for i in range(2):
        assert recorded(batch(i)) == plain(batch(i))
    monkeypatch.setattr(launch, "record_by", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorded(batch(2))
    assert not watchers
    assert pool.run == run
    assert all(one.launch == one.native for one in launch._all)
    for i in range(2, 7):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.replayed == 4
    assert bits(recorded.model) == bits(model)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_fork_while_another_thread_records() -> None:
    """The child has no such thread, and records itself."""

    def child() -> int:
        signal.alarm(60)  # rather than a deadlock
        plain, recorded, model = pair()
        same = all(recorded(batch(i)) == plain(batch(i)) for i in range(5))
        return 0 if same and recorded.replayed == 2 and bits(recorded.model) == bits(model) else 1

    def fork() -> int:
        pid = os.fork()
        if not pid:
            try:
                os._exit(child())
            finally:
                os._exit(2)
        return os.waitpid(pid, 0)[1]

    _, recorded, _ = pair()
    results: list[int] = []

    def change(x: pl.Tensor) -> pl.Tensor:
        if watchers and not results:
            with ThreadPoolExecutor(1) as threads:
                results.append(threads.submit(fork).result())
        return x

    recorded.model.model.norm = Before(recorded.model.model.norm, change)
    for i in range(5):
        recorded(batch(i))
    assert results == [0]
    assert recorded.replayed == 2


def test_indices_of_several_threads_are_told_apart() -> None:
    """None that is outside is missed because another thread has found its own inside."""
    good, bad = pl.tensor(np.zeros(20, np.int64)).array, pl.tensor(np.full(20, 99)).array
    interval, end = sys.getswitchinterval(), threading.Event()

    def others() -> None:
        while not end.is_set():
            check_indices("others", good, 10)

    threads = [threading.Thread(target=others) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(10_000):
            with pytest.raises(ShapeError):
                check_indices("mine", bad, 10)
    finally:
        end.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()


def test_memory_is_given_back_while_another_thread_allocates() -> None:
    """As a recording does: the lists of free blocks are walked under Python's lock."""
    interval, end = sys.getswitchinterval(), threading.Event()

    def allocate_some() -> None:
        for nbytes in (64, 1024, 4096):
            _ = [cpu.allocate(nbytes) for _ in range(200)]

    def others() -> None:
        while not end.is_set():
            allocate_some()

    thread = threading.Thread(target=others)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(1000):
            allocate_some()
            cpu.trim()
    finally:
        end.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_the_first_operations_of_two_threads() -> None:
    code = """if True:
        import sys, threading
        import pellucid as pl
        sys.setswitchinterval(1e-6)
        x, results = pl.full((2,), 1.0), []
        operations = (lambda: x + x, lambda: x * x, lambda: x - x, lambda: x / x)
        threads = [threading.Thread(target=lambda f=f: results.append(f())) for f in operations]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(results) == 4, results
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_step_within_a_step() -> None:
    """A module that trains another model, here or in another thread: neither waits for the other."""
    for threads in (None, ThreadPoolExecutor(1)):
        plain, recorded, model = pair()
        inner = [TransformerLM(CONFIG), TransformerLM(CONFIG)]
        steps = [RecordedStep(m, adamw(m), max_norm=1.0) for m in inner]

        def change(x: pl.Tensor, step: RecordedStep, threads: ThreadPoolExecutor | None = threads) -> pl.Tensor:
            _ = step(batch(5)) if threads is None else threads.submit(step, batch(5)).result(timeout=60)
            return x

        for m, step in zip((model, recorded.model), steps, strict=True):
            m.model.norm = Before(m.model.norm, partial(change, step=step))
        for i in range(6):
            assert recorded(batch(i)) == plain(batch(i))
        assert bits(recorded.model) == bits(model)
        if threads is None:  # a replay does not run what another thread does
            assert bits(inner[0]) == bits(inner[1])
            assert steps[1].replayed > 0

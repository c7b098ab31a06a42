"""Recorded steps: the bits of `train_step`, what ends a recording, what refuses one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pellucid as pl
from pellucid.base.errors import DataError, NonFiniteError
from pellucid.data import TokenBatch
from pellucid.device import cpu, pool
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import SGD, AdamW, Lion, Optimizer
from pellucid.train import RecordedStep, evaluate, train_step

CONFIG = TransformerConfig(61, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=16)
GPT = TransformerConfig(61, d_model=32, n_layers=2, n_heads=4, max_seq_len=16, norm="layernorm", positions="learned",
                        activation="gelu", biases=True, precision="bfloat16", tie_embeddings=False)  # fmt: skip


def batch(seed: int, rows: int = 3, length: int = 9, vocabulary: int = 61) -> TokenBatch:
    return TokenBatch(np.random.default_rng(seed).integers(vocabulary, size=(rows, length)))


def adamw(model: TransformerLM) -> Optimizer:
    return AdamW(model.named_parameters(), learning_rate=1e-2)


def pair(
    config: TransformerConfig = CONFIG, optimizer: Callable[[TransformerLM], Optimizer] = adamw, **options: Any
) -> tuple[Callable[[TokenBatch], Any], RecordedStep, TransformerLM]:
    """A plain step and a recorded one of two models alike, and the model of the plain one."""
    one, two = TransformerLM(config), TransformerLM(config)
    plain_optimizer, recorded = optimizer(one), RecordedStep(two, optimizer(two), max_norm=1.0, **options)
    return lambda b: train_step(one, plain_optimizer, b, max_norm=1.0), recorded, one


def bits(model: TransformerLM) -> dict[str, bytes]:
    return {name: p.detach().numpy().tobytes() for name, p in model.named_parameters()}


@pytest.mark.parametrize("config", [CONFIG, GPT], ids=["llama", "gpt"])
@pytest.mark.parametrize(
    "optimizer",
    [
        adamw,
        lambda model: SGD(model.named_parameters(), learning_rate=0.1, momentum=0.9),
        lambda model: Lion(model.named_parameters(), learning_rate=1e-3),
    ],
    ids=["adamw", "sgd", "lion"],
)
def test_the_bits_of_train_step(config: TransformerConfig, optimizer: Callable[[TransformerLM], Optimizer]) -> None:
    plain, recorded, model = pair(config, optimizer)
    for i in range(8):
        assert recorded(batch(i)) == plain(batch(i))
        assert recorded.refusal is None
    assert recorded.replayed == 5
    assert bits(recorded.model) == bits(model)


def test_masked_and_padded_batches_are_numbers_too() -> None:
    plain, recorded, model = pair()
    for i in range(6):
        rows = [np.random.default_rng(i).integers(61, size=n) for n in (9, 4 + i % 3, 7)]
        mask = np.random.default_rng(i).random((3, 9)) < 0.7
        b = TokenBatch(rows).with_loss_mask(mask)
        assert recorded(b) == plain(b)
    assert recorded.replayed == 3
    assert bits(recorded.model) == bits(model)


def test_the_learning_rate_is_read_in_each_step() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    recorded.optimizer.learning_rate, before = 0.0, bits(recorded.model)
    recorded(batch(5))
    assert bits(recorded.model) == before
    recorded.optimizer.learning_rate = 0.1
    recorded(batch(5))
    assert bits(recorded.model) != before
    assert recorded.replayed == 3


def test_rows_that_stay() -> None:
    def keeping(model: TransformerLM) -> Optimizer:
        optimizer = adamw(model)
        optimizer.keep_rows("model.embed_tokens.weight", 40)
        return optimizer

    plain, recorded, model = pair(optimizer=keeping)
    start = recorded.model.model.embed_tokens.weight.detach().numpy()[:40].copy()
    for i in range(6):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.replayed == 3
    assert np.array_equal(recorded.model.model.embed_tokens.weight.detach().numpy()[:40], start)
    assert bits(recorded.model) == bits(model)


# --- what ends a recording --------------------------------------------------------------------------------------------


def another_mode(step: RecordedStep) -> None:
    step.model.eval()


def other_memory(step: RecordedStep) -> None:
    p = step.model.model.norm.weight
    p.array = cpu.kernels.copy(p.array)


def another_limit(step: RecordedStep) -> None:
    step.max_norm = 0.5


@pytest.mark.parametrize("change", [another_mode, other_memory, another_limit])
def test_a_change_ends_the_recording(change: Callable[[RecordedStep], None]) -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    assert recorded.replayed == 1
    change(recorded)
    expected = TransformerLM(CONFIG)
    optimizer = adamw(expected)
    for i in range(4):
        train_step(expected, optimizer, batch(i), max_norm=1.0)
    change(other := RecordedStep(expected, optimizer, max_norm=1.0))
    for i in range(4, 8):
        assert recorded(batch(i)) == train_step(expected, optimizer, batch(i), max_norm=other.max_norm)
    assert recorded.replayed == 2
    assert bits(recorded.model) == bits(expected)


def test_another_shape_ends_the_recording() -> None:
    plain, recorded, model = pair()
    for i, rows in enumerate([3, 3, 3, 3, 2, 2, 2, 2, 3, 3]):
        assert recorded(batch(i, rows)) == plain(batch(i, rows))
    assert recorded.replayed == 2
    assert bits(recorded.model) == bits(model)


def test_a_parameter_that_is_no_longer_trained() -> None:
    plain, recorded, model = pair()
    for i in range(8):
        if i == 4:
            for m in (model, recorded.model):
                m.model.norm.weight.requires_grad = False
        assert recorded(batch(i)) == plain(batch(i))
    assert bits(recorded.model) == bits(model)


def test_another_number_of_threads(request: pytest.FixtureRequest) -> None:
    plain, recorded, model = pair()
    threads = pool.threads()
    request.addfinalizer(lambda: pool.set_threads(threads))
    for i in range(8):
        if i in (4, 7):
            pool.set_threads(1 if i == 4 else 2)
        assert recorded(batch(i)) == plain(batch(i))
    assert bits(recorded.model) == bits(model)


def test_evaluation_between_steps() -> None:
    plain, recorded, model = pair()
    for i in range(12):
        assert recorded(batch(i)) == plain(batch(i))
        if i % 5 == 4:
            assert evaluate(recorded.model, batch(99)) == evaluate(model, batch(99))
    assert recorded.replayed == 4
    assert bits(recorded.model) == bits(model)


# --- what is not recorded ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"experts": 4, "active_experts": 2}, "router"),
    ],
    ids=["dropout", "experts"],
)
def test_models_that_run_as_always(options: dict[str, Any], why: str) -> None:
    plain, recorded, model = pair(TransformerConfig(61, d_model=32, n_layers=2, n_heads=4, max_seq_len=16, **options))
    for i in range(5):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.refusal is not None
    assert why in recorded.refusal
    assert recorded.replayed == 0
    assert bits(recorded.model) == bits(model)


def test_packed_rows_run_as_always() -> None:
    plain, recorded, _ = pair()
    for i in range(5):
        rows = [[(np.arange(2 + i), [True] * (2 + i)), (np.arange(7 - i), [True] * (7 - i))]]
        assert recorded(TokenBatch.packed(rows)) == plain(TokenBatch.packed(rows))
    assert recorded.refusal == "documents are packed in another way in each step"


def test_a_trace_sees_every_operation() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    with pl.trace() as trace:
        recorded(batch(5))
    assert len(trace.records) > 10
    assert recorded.refusal == "a trace watches every operation"
    recorded(batch(6))
    assert recorded.refusal is None


def test_the_definition_runs_as_always() -> None:
    model = TransformerLM(CONFIG, device="reference")
    step = RecordedStep(model, adamw(model), max_norm=1.0)
    for i in range(4):
        step(batch(i))
    assert step.refusal == "the kernels of 'reference' are not recorded"


def test_a_step_too_large_runs_as_always_and_keeps_nothing() -> None:
    plain, recorded, model = pair(most_bytes=10_000)
    for i in range(5):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.refusal == "it needs more than 10,000 bytes"
    assert recorded.replayed == 0
    assert bits(recorded.model) == bits(model)


class Curious(pl.nn.Module):
    """A norm that looks at a number, or keeps what it is given."""

    def __init__(self, norm: Any, looks: bool) -> None:
        self.norm, self.looks, self.seen = norm, looks, []

    def __call__(self, x: pl.Tensor) -> pl.Tensor:
        if self.looks:
            self.seen.append(float(x.detach()[0, 0, 0].item()))
        else:
            self.seen.append(x.detach())
        return self.norm(x)


@pytest.mark.parametrize(
    ("looks", "why"),
    [(True, "Python looks into an array's memory"), (False, "it keeps memory beyond its results")],
    ids=["looks", "keeps"],
)
def test_a_module_that_does_more_than_launches(looks: bool, why: str) -> None:
    plain, recorded, model = pair()
    for m in (model, recorded.model):
        m.model.norm = Curious(m.model.norm, looks)
    for i in range(5):
        assert recorded(batch(i)) == plain(batch(i))
    assert recorded.refusal == why
    seen, expected = recorded.model.model.norm.seen, model.model.norm.seen
    assert len(seen) == 5
    for a, b in zip(seen, expected, strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))
    assert bits(recorded.model) == bits(model)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_numbers_that_blow_up_change_nothing() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    weight = recorded.model.model.norm.weight.array
    good = cpu.download(weight)
    cpu.kernels.fill_(weight, value=float("inf"))
    before = bits(recorded.model)
    with pytest.raises(NonFiniteError):
        recorded(batch(5))
    assert bits(recorded.model) == before
    cpu.kernels.assign_(weight, cpu.upload(good, weight.dtype))
    assert np.isfinite(recorded(batch(6)).loss)
    assert recorded.replayed == 3


def test_an_id_outside_the_vocabulary_changes_nothing() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    before = bits(recorded.model)
    with pytest.raises(DataError, match="outside the vocabulary"):
        recorded(batch(5, vocabulary=1000))
    assert bits(recorded.model) == before
    recorded(batch(6))
    assert recorded.replayed == 2


# --- memory -----------------------------------------------------------------------------------------------------------


def test_the_memory_is_the_recordings_until_it_is_freed() -> None:
    _, recorded, _ = pair()
    recorded(batch(0))
    gc.collect()
    before = cpu.bytes_in_use
    recorded(batch(1))
    recorded(batch(2))
    assert cpu.bytes_in_use > before + 100_000
    blocks = cpu.blocks_from_system
    for i in range(3, 8):
        recorded(batch(i))
    assert cpu.blocks_from_system <= blocks + 4  # ids, targets, weights: the first replay's own
    recorded.free()
    gc.collect()
    assert cpu.bytes_in_use <= before + 4096
    recorded(batch(9))
    assert recorded.refusal is None


def test_what_others_hold_is_not_written_to() -> None:
    """Arrays made before, while and after a step is recorded keep their numbers through replays."""
    plain, recorded, model = pair()
    held: list[tuple[pl.Tensor, np.ndarray]] = []
    stop, sizes = threading.Event(), (8, 100, 3000, 3 * 8 * 32, 3 * 8 * 61)

    def others() -> None:
        i = 0
        while not stop.is_set():
            x = pl.full((sizes[i % len(sizes)],), float(i))
            held.append((x, x.numpy().copy()))
            del held[: max(0, len(held) - 500)]
            i += 1

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for i in range(40):
            assert recorded(batch(i)) == plain(batch(i))
    finally:
        stop.set()
        thread.join()
    assert recorded.replayed > 30
    for x, expected in held:
        assert np.array_equal(x.numpy(), expected)
    assert bits(recorded.model) == bits(model)


def test_gradients_that_somebody_keeps_outlive_the_recording() -> None:
    _, recorded, _ = pair()
    for i in range(4):
        recorded(batch(i))
    assert recorded._recording is not None
    kept = [pl.Tensor(g) for g in recorded._recording.results[3:]]
    values = [g.numpy().copy() for g in kept]
    recorded.free()
    gc.collect()
    others = [pl.full(g.shape, 7.0) for g in kept]
    for g, value in zip(kept, values, strict=True):
        assert np.array_equal(g.numpy(), value)
    del others


def test_two_models_in_two_threads() -> None:
    results: dict[int, list[Any]] = {}

    def train(seed: int) -> None:
        plain, recorded, model = pair()
        same = [recorded(batch(seed + i)) == plain(batch(seed + i)) for i in range(30)]
        results[seed] = [all(same), recorded.replayed, bits(recorded.model) == bits(model)]

    threads = [threading.Thread(target=train, args=(1000 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1000, 2000]
    for same, replayed, weights in results.values():
        assert same
        assert replayed <= 27
        assert weights

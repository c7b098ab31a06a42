"""The transformer on a device that nobody can look into: the very bits of the reference, and no hidden waiting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from opaque import OpaqueDevice

from pellucid.device import Device, reference
from pellucid.generate import Decoder, Sampler
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import SGD, AdamW
from pellucid.tape import no_grad

_LLAMA = TransformerConfig(
    37, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=24, max_seq_len=12, dropout=0.2, seed=3
)
_GPT2 = TransformerConfig.gpt2(37, d_model=16, n_layers=2, n_heads=2, max_seq_len=12, dropout=0.2, seed=3)
_MIXED = TransformerConfig(
    37,
    d_model=16,
    n_layers=2,
    n_heads=4,
    n_kv_heads=1,
    head_dim=6,
    max_seq_len=12,
    rope_interleaved=True,
    dropout=0.1,
    tie_embeddings=False,
    precision="bfloat16",
    checkpoint_blocks=True,
    seed=4,
)
_EXPERTS = TransformerConfig(
    37, d_model=16, n_layers=2, n_heads=2, d_ff=24, max_seq_len=12, dropout=0.2, experts=3, shared_expert=True, seed=3
)
_CONFIGS = {
    "llama": _LLAMA,
    "gpt2": _GPT2,
    "untied bf16 checkpointed": _MIXED,
    "experts": _EXPERTS,
    "experts bf16 checkpointed": replace(_MIXED, experts=4, moe_layers=(1,)),
}

Bits = dict[str, bytes]


def _ids(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 37, (2, 9))


def _bits(model: TransformerLM, what: str) -> Bits:
    found = {}
    for name, p in model.named_parameters():
        x = p if what == "weights" else p.grad
        assert x is not None, name
        found[f"{what} {name}"] = model.device.download(x.array).tobytes()
    return found


def _train(config: TransformerConfig, device: Device, kind: str) -> Bits:
    """Three steps of two accumulated batches with a mean over weighted tokens, clipped; everything that came of it."""
    model = TransformerLM(config, device=device)
    found = {"logits": device.download(model(_ids(0)).array).tobytes()}
    if kind == "AdamW":
        optimizer = AdamW(model.named_parameters(), learning_rate=0.01)
    else:
        optimizer = SGD(model.named_parameters(), learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    weights = np.where(_ids(7) > 5, 0.05, 0.0)
    for step in range(3):
        model.zero_grad()
        first = model.loss(_ids(3 * step), _ids(3 * step + 1), weights)
        first.backward()
        second = model.loss(_ids(3 * step + 1), _ids(3 * step + 2))
        second.backward()
        norm = optimizer.step(max_norm=0.5)
        for name, x in (("first", first), ("second", second), ("norm", norm)):
            found[f"{name} {step}"] = device.download(x.array).tobytes()
    assert norm.item() > 0.5
    return found | _bits(model, "grad") | _bits(model, "weights")


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("config", _CONFIGS.values(), ids=_CONFIGS)
def test_training(config: TransformerConfig, kind: str, opaque: OpaqueDevice) -> None:
    expected, found = _train(config, reference, kind), _train(config, opaque, kind)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


def _generate(config: TransformerConfig, device: Device) -> tuple[list[int], bytes]:
    model = TransformerLM(config, device=device)
    decoder = Decoder(model)
    decoder.feed([1, 2, 3, 4])
    sampler = Sampler(temperature=0.9, top_k=20, top_p=0.95, repetition_penalty=1.1, seed=11)
    ids = [decoder.next(sampler) for _ in range(3)]
    decoder.feed([5, 6])
    ids += [decoder.next(Sampler.greedy()) for _ in range(3)]
    with no_grad():
        caches = model.new_caches(batch=2)
        model.eval()
        for start, stop in ((0, 4), (4, 5), (5, 9)):
            logits = model.forward_cached(_ids(0)[:, start:stop], caches)
    return ids, device.download(logits.array).tobytes()


@pytest.mark.parametrize("config", _CONFIGS.values(), ids=_CONFIGS)
def test_generation(config: TransformerConfig, opaque: OpaqueDevice) -> None:
    assert _generate(config, opaque) == _generate(config, reference)


@pytest.mark.parametrize("config", _CONFIGS.values(), ids=_CONFIGS)
def test_a_step_never_waits(config: TransformerConfig, opaque: OpaqueDevice) -> None:
    """From ids on the host to updated weights, clipping included, not one download."""
    model = TransformerLM(config, device=opaque)
    optimizer = AdamW(model.named_parameters())
    for step in range(2):
        model.zero_grad()
        model.loss(_ids(step), _ids(step + 1)).backward()
        optimizer.step(max_norm=1.0)
    assert opaque.downloads == 0


def test_a_token_waits_once(opaque: OpaqueDevice) -> None:
    decoder = Decoder(TransformerLM(_LLAMA, device=opaque))
    decoder.feed([1, 2, 3])
    for count in (1, 2, 3):
        decoder.next(Sampler.greedy())
        assert opaque.downloads == count

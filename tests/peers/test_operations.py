"""Operations against PyTorch's autograd: forward and every gradient, over shapes that divide by nothing."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid as pl

from .parity import compare, integers, numbers

torch = pytest.importorskip("torch")
F = torch.nn.functional

devices = pytest.mark.parametrize("device", ["cpu", "reference"])
ROWS = [(1, 1), (3, 63), (7, 100), (2, 5, 33), (1000, 3)]


def attend(q, k, v, causal):
    """PyTorch's attention in our layout, (batch, time, heads, head size); query i sees keys up to i + Tk - Tq."""
    rows, keys = q.shape[1], k.shape[1]
    seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if causal else None
    parts = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*parts, attn_mask=seen, enable_gqa=True).transpose(1, 2)


@devices
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    ("batch", "rows", "keys", "heads", "kv_heads", "width"),
    [(1, 1, 1, 1, 1, 1), (2, 17, 17, 4, 4, 32), (1, 63, 63, 6, 2, 20), (2, 5, 70, 3, 1, 64), (1, 100, 100, 2, 2, 7)],
)
def test_attention(batch, rows, keys, heads, kv_heads, width, causal, device) -> None:
    inputs = [numbers(batch, t, h, width, seed=s) for s, (t, h) in enumerate([(rows, heads)] + 2 * [(keys, kv_heads)])]
    compare(
        lambda q, k, v: pl.attention(q, k, v, causal=causal),
        lambda q, k, v: attend(q, k, v, causal),
        inputs,
        device=device,
    )


@devices
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize(("shape", "offset"), [((1, 1, 1, 2), 0), ((2, 7, 3, 10), 0), ((1, 33, 5, 64), 9)])
def test_rope(shape, offset, interleaved, device) -> None:
    angles = np.arange(shape[1] + offset)[:, None] * 10000.0 ** (-np.arange(shape[3] // 2) / (shape[3] // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    c, s = (pl.tensor(t, device=device) for t in (cos, sin))
    turns = torch.complex(*(torch.tensor(t[offset:], dtype=torch.float64) for t in (cos, sin)))[:, None]

    def theirs(x):
        pairs = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).transpose(-1, -2)
        y = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
        return y.flatten(-2) if interleaved else y.transpose(-1, -2).flatten(-2)

    compare(
        lambda x: pl.rope(x, c, s, offset=offset, interleaved=interleaved),
        theirs,
        [numbers(*shape)],
        kind="rounding",
        device=device,
    )


@devices
@pytest.mark.parametrize("shape", ROWS)
def test_norms(shape, device) -> None:
    width = shape[-1:]
    inputs = [numbers(*shape), numbers(*width, seed=1), numbers(*width, seed=2)]
    compare(
        lambda x, w: pl.rmsnorm(x, w, eps=1e-5), lambda x, w: F.rms_norm(x, width, w, 1e-5), inputs[:2], device=device
    )
    if width == (1,):  # nothing but the bias is left of one number, and rounding is divided by the root of eps
        return
    compare(
        lambda x, w: pl.layernorm(x, w, eps=1e-5),
        lambda x, w: F.layer_norm(x, width, w, eps=1e-5),
        inputs[:2],
        device=device,
    )
    compare(
        lambda x, w, b: pl.layernorm(x, w, b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x, width, w, b, eps=1e-5),
        inputs,
        device=device,
    )


#: Ours, theirs, class of tolerance. The gradient of the tanh form holds 1 - tanh**2, whose digits cancel in float32
#: where tanh is near 1, times a cubic in x.
POINTWISE = {
    "gelu": (lambda x: pl.gelu(x), F.gelu, "transcendental"),
    "gelu, tanh": (lambda x: pl.gelu(x, approximate=True), lambda x: F.gelu(x, approximate="tanh"), "accumulate"),
    "silu": (pl.silu, F.silu, "transcendental"),
    "sigmoid": (pl.sigmoid, torch.sigmoid, "transcendental"),
    "tanh": (pl.tanh, torch.tanh, "transcendental"),
    "relu": (pl.relu, torch.relu, "exact"),
    "exp": (pl.exp, torch.exp, "transcendental"),
}


@devices
@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name, shape, device) -> None:
    ours, theirs, kind = POINTWISE[name]
    compare(ours, theirs, [numbers(*shape, scale=3.0)], kind=kind, device=device)


@devices
@pytest.mark.parametrize("shape", ROWS)
def test_rows(shape, device) -> None:
    x, other = numbers(*shape, scale=3.0), numbers(*shape, seed=1)
    compare(pl.swiglu, lambda gate, up: F.silu(gate) * up, [x, other], kind="transcendental", device=device)
    for axis in (-1, 0):
        compare(lambda x, a=axis: x.softmax(a), lambda x, a=axis: x.softmax(a), [x], device=device)
        compare(lambda x, a=axis: x.log_softmax(a), lambda x, a=axis: x.log_softmax(a), [x], device=device)
        compare(lambda x, a=axis: x.logsumexp(a), lambda x, a=axis: x.logsumexp(a), [x], device=device)


@devices
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (7, 65), (63, 100), (5, 1000)])
def test_losses(rows, classes, device) -> None:
    targets, weights = integers(classes, rows), np.abs(numbers(rows, seed=3)) / rows
    on = pl.tensor(weights, device=device)
    scale = torch.tensor(weights, dtype=torch.float64)

    def weighted(logits, targets):
        return (F.cross_entropy(logits, targets, reduction="none") * scale).sum()

    logits = numbers(rows, classes, scale=3.0)
    compare(pl.cross_entropy, F.cross_entropy, [logits, targets], device=device)
    compare(lambda x, t: pl.cross_entropy(x, t, weights=on), weighted, [logits, targets], device=device)
    states, head = numbers(rows, 33), numbers(classes, 33, seed=1)
    compare(
        pl.lm_head_loss,
        lambda x, w, t: F.cross_entropy(F.linear(x, w), t),
        [states, head, targets],
        device=device,
    )
    compare(
        lambda x, w, t: pl.lm_head_loss(x, w, t, weights=on),
        lambda x, w, t: weighted(F.linear(x, w), t),
        [states, head, targets],
        device=device,
    )


@devices
@pytest.mark.parametrize(
    ("size", "width", "shape"), [(1, 1, (1,)), (65, 33, (4, 7)), (10, 3, (1000,)), (7, 100, (2, 1))]
)
def test_embedding(size, width, shape, device) -> None:
    inputs = [numbers(size, width), integers(size, *shape)]
    compare(pl.embedding, lambda w, ids: F.embedding(ids, w), inputs, device=device)


@devices
@pytest.mark.parametrize(
    ("shape", "outputs"), [((1, 1), 1), ((3, 63), 65), ((2, 5, 33), 7), ((100,), 13), ((65, 129), 257)]
)
def test_linear(shape, outputs, device) -> None:
    inputs = [numbers(*shape), numbers(outputs, shape[-1], seed=1), numbers(outputs, seed=2)]
    compare(pl.linear, F.linear, inputs[:2], device=device)
    compare(pl.linear, F.linear, inputs, device=device)


@devices
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3,), (3,)),
        ((5, 3), (3,)),
        ((3,), (3, 5)),
        ((63, 65), (65, 33)),
        ((2, 1, 5, 7), (3, 7, 4)),
        ((4, 5, 6), (6, 7)),
        ((5, 6), (4, 6, 7)),
        ((1, 5, 6), (4, 6, 7)),
    ],
)
def test_matmul(left, right, device) -> None:
    compare(pl.matmul, torch.matmul, [numbers(*left), numbers(*right, seed=1)], device=device)


@devices
def test_bfloat16_operands(device) -> None:
    """Operands rounded, sums in float32: as far from float64 as PyTorch's own mixed precision allows."""
    x, w, bias = numbers(31, 65), numbers(33, 65, seed=1, scale=65**-0.5), numbers(33, seed=2)
    half = pl.bfloat16
    compare(
        lambda x, w, b: pl.linear(x, w, b, operand_dtype=half),
        F.linear,
        [x, w, bias],
        kind="mixed",
        device=device,
        autocast=True,
    )
    compare(
        lambda a, b: pl.matmul(a, b, operand_dtype=half),
        torch.matmul,
        [x, w.T.copy()],
        kind="mixed",
        device=device,
        autocast=True,
    )
    compare(
        lambda x, w, t: pl.lm_head_loss(x, w, t, operand_dtype=half),
        lambda x, w, t: F.cross_entropy(F.linear(x, w).float(), t),
        [x, w, integers(33, 31)],
        kind="mixed",
        device=device,
        autocast=True,
    )

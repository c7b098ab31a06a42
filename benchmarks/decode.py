"""Cases decode and prefill: generation with a model of the shape of SmolLM2-135M and random weights.

Both compare the logits of the cached path with the definition's before they take a time. The floor of decoding is
reading every weight of a matrix product once a token, at the width of the operands, with the memory bandwidth measured
in this run; that of prefill is its FLOPs at the measured rate of matrix products. `share` is the floor over the time
taken. There is no peer yet: llama.cpp joins with the int8 weights.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from pellucid.base import dtypes
from pellucid.checkpoint import load_into
from pellucid.device import Device, device
from pellucid.generate import Decoder, Sampler
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.tape import no_grad
from pellucid.train import measure_peak

from .options import Refused
from .report import Row, interleaved, row
from .train import Precision, TrainOptions, initial_weights

CONTEXT = 128  # tokens in the cache before the first timed one
PROMPT = 512  # tokens of a prefill
BLOCK = 32  # tokens of a turn
AGREEMENT = {"float32": 1e-4, "bfloat16": 3e-2}  # of logits, as a share of the largest
MODEL = TransformerConfig(
    49152, d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, head_dim=64, d_ff=1536, max_seq_len=2048
)


def build(precision: Precision) -> TransformerLM:
    """The model, its logits compared with the definition's: a whole prompt at once, then the next token alone."""
    config = replace(MODEL, precision=precision)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=CONTEXT + 1)
    weights = initial_weights(config, seed=0)
    definition = TransformerLM(config, device="reference")
    load_into(dict(definition.named_parameters()), weights)
    with no_grad():
        wanted = logits_of(definition, ids)
    del definition
    gc.collect()
    model = TransformerLM(config)
    load_into(dict(model.named_parameters()), weights)
    model.eval()
    with no_grad():
        found = logits_of(model, ids)
    for what, got, want in zip(("prefill", "decode"), found, wanted, strict=True):
        worst = float(np.abs(got - want).max() / np.abs(want).max())
        if not worst <= AGREEMENT[precision]:
            raise Refused(f"{what}: logits are off by {worst:.2g} of the largest; wrong kernels are not timed")
    print(f"  {precision}: logits agree with the definition", file=sys.stderr, flush=True)
    return model


def logits_of(model: TransformerLM, ids: np.ndarray) -> list[np.ndarray]:
    caches = model.new_caches(capacity=len(ids))
    both = [model.forward_cached(part, caches, last_only=True) for part in (ids[:-1], ids[-1:])]
    return [x.numpy().astype(np.float64) for x in both]


def bandwidth(where: Device) -> float:
    """Bytes/s of reading an array no cache holds: the sums of its rows."""
    x = where.upload(np.zeros((256, 1 << 18), np.float32), dtypes.float32)
    times = interleaved({"sum": lambda: where.kernels.sum(x, axes=(1,), keepdims=False)}, rounds=9)["sum"]
    return x.nbytes / min(times)


def weight_bytes(config: TransformerConfig) -> int:
    """Bytes of the weights a token reads, at the width of the operands."""
    return config.matmul_parameters() * (2 if config.precision == "bfloat16" else 4)


def prefill_flops(config: TransformerConfig) -> int:
    """FLOPs of a prompt; the head sees its last token alone."""
    head = 2 * config.vocab_size * config.d_model
    return PROMPT * config.flops_per_token(PROMPT, training=False) - (PROMPT - 1) * head


def run_decode(options: TrainOptions) -> list[Row]:
    """Greedy decoding, a token at a time, after CONTEXT tokens."""
    where, found = device("cpu"), []
    for precision in options.precisions:
        before = bandwidth(where)
        model = build(precision)
        sampler = Sampler.greedy()
        times: list[float] = []
        cpu: list[float] = []
        decoder = Decoder(model)
        for _ in range(2 if options.quick else 8):
            decoder.reset()
            decoder.feed([i % MODEL.vocab_size for i in range(CONTEXT)])
            decoder.next(sampler)
            start, spent = time.perf_counter(), time.process_time()
            for _ in range(BLOCK):
                decoder.next(sampler)
            times.append((time.perf_counter() - start) / BLOCK)
            cpu.append((time.process_time() - spent) / BLOCK)
        # Other work on the machine only ever lowers a ceiling, so the higher of two is nearer to the truth.
        speed = max(before, bandwidth(where))
        floor = weight_bytes(model.config) / speed
        more = {"tokens/s": 1 / median(times), "CPU ms": 1e3 * median(cpu), "share": floor / median(times)}
        found.append(row("decode", "memory read", "pellucid", [speed / 1e9], unit="GB/s", shape="256 MiB"))
        found.append(result("decode", times, f"after {CONTEXT}", precision, floor, more))
        del model, decoder
        gc.collect()
    return found


def run_prefill(options: TrainOptions) -> list[Row]:
    """A prompt of PROMPT tokens into empty caches, up to the logits of its last token."""
    found = []
    for precision in options.precisions:
        operands = dtypes.bfloat16 if precision == "bfloat16" else None
        before = measure_peak("cpu", operand_dtype=operands)
        model = build(precision)
        ids = np.random.default_rng(1).integers(MODEL.vocab_size, size=PROMPT)
        caches = model.new_caches(capacity=PROMPT)

        def once(model: TransformerLM = model, ids: np.ndarray = ids, caches: Any = caches) -> Any:
            for cache in caches:
                cache.truncate(0)
            with no_grad():
                return model.forward_cached(ids, caches, last_only=True).numpy()

        times = interleaved({"": once}, rounds=3 if options.quick else 9)[""]
        peak = max(before, measure_peak("cpu", operand_dtype=operands))
        floor = prefill_flops(model.config) / peak
        more = {"tokens/s": PROMPT / median(times), "share": floor / median(times)}
        found.append(row("prefill", "matrix products", "pellucid", [peak / 1e9], unit="GFLOP/s", dtype=precision))
        found.append(result("prefill", times, f"{PROMPT} tokens", precision, floor, more))
        del model, once, caches
        gc.collect()
    return found


def result(
    case: str, times: list[float], shape: str, precision: Precision, floor: float, more: dict[str, float]
) -> Row:
    what, milli = "token" if case == "decode" else "prompt", [1e3 * t for t in times]
    more = {**more, "floor": 1e3 * floor}
    return row(case, what, "pellucid", milli, unit="ms", shape=f"SmolLM2-135M, {shape}", dtype=precision, **more)

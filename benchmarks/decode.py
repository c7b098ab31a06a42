"""Cases decode and prefill: generation with a model of the shape of SmolLM2-135M and random weights, beside llama.cpp.

The weights are held in int8, bfloat16 or float32; with the first two the operands of products are bfloat16. Both cases
compare the logits of the cached path with the definition's before they take a time. The floor of decoding is reading
every weight of a matrix product once a token, with the memory bandwidth measured in this run; that of prefill is its
FLOPs at the measured rate of matrix products. `share` is the floor over the time taken.

With `--gguf FILE` the model is the one in a file, held in the same widths. Beside int8 llama.cpp then runs the file as
it is and its export as Q8_0; beside the others the export of that width. The kernels are those of the random model, and
not compared again.

llama.cpp runs in a process of its own (`peers.llama_cpp`), in turns with ours, at the same width of weights: its Q8_0
has a scale for 32 weights where our int8 has one for a row, and rounds the inputs of products to int8, which ours does
not.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from pellucid.base import dtypes
from pellucid.checkpoint import load_into, open_model, open_source, write_gguf
from pellucid.device import Device, device
from pellucid.generate import Decoder, Sampler
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.tape import no_grad
from pellucid.train import measure_peak

from .options import Refused
from .peers import llama_cpp
from .report import Row, row
from .train import TrainOptions, Width, initial_weights

CONTEXT = 128  # tokens in the cache before the first timed one
PROMPT = 512  # tokens of a prefill
BLOCK = 32  # tokens of a turn
AGREEMENT = {"float32": 1e-4, "bfloat16": 3e-2, "int8": 3e-2}  # of logits, as a share of the largest
MODEL = TransformerConfig(
    49152, d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, head_dim=64, d_ff=1536, max_seq_len=2048
)


def config_of(width: Width) -> TransformerConfig:
    return replace(MODEL, precision="float32" if width == "float32" else "bfloat16")


def build(width: Width) -> TransformerLM:
    """The model, its logits compared with the definition's: a whole prompt at once, then the next token alone."""
    config = config_of(width)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=CONTEXT + 1)
    weights = initial_weights(config, seed=0)
    definition = TransformerLM(config, device="reference")
    load_into(dict(definition.named_parameters()), weights)
    definition.hold_weights(width)
    with no_grad():
        wanted = logits_of(definition, ids)
    del definition
    gc.collect()
    model = TransformerLM(config)
    load_into(dict(model.named_parameters()), weights)
    model.hold_weights(width)
    with no_grad():
        found = logits_of(model, ids)
    for what, got, want in zip(("prefill", "decode"), found, wanted, strict=True):
        worst = float(np.abs(got - want).max() / np.abs(want).max())
        if not worst <= AGREEMENT[width]:
            raise Refused(f"{what}: logits are off by {worst:.2g} of the largest; wrong kernels are not timed")
    print(f"  {width}: logits agree with the definition", file=sys.stderr, flush=True)
    return model


def logits_of(model: TransformerLM, ids: np.ndarray) -> list[np.ndarray]:
    caches = model.new_caches(capacity=len(ids))
    both = [model.forward_cached(part, caches, last_only=True) for part in (ids[:-1], ids[-1:])]
    return [x.numpy().astype(np.float64) for x in both]


def bandwidth(where: Device) -> float:
    """Bytes/s of reading a matrix no cache holds: its product with a vector."""
    matrix = where.upload(np.zeros((1 << 16, 1 << 10), np.float32), dtypes.float32)
    x, times = where.upload(np.zeros((1, 1 << 10)), dtypes.float32), []
    for _ in range(12):
        start = time.perf_counter()
        where.kernels.held_linear(x, matrix, None, None, operand_dtype=None)
        times.append(time.perf_counter() - start)
    return matrix.nbytes / min(times)


def weight_bytes(model: TransformerLM) -> int:
    """Bytes of the weights a token reads; the scales of int8, 4 bytes a row, left out."""
    return model.config.matmul_parameters() * model.weights_dtype.itemsize


def prefill_flops(config: TransformerConfig) -> int:
    """FLOPs of a prompt; the head sees its last token alone."""
    head = 2 * config.vocab_size * config.d_model
    return PROMPT * config.flops_per_token(PROMPT, training=False) - (PROMPT - 1) * head


def name_of(options: TrainOptions) -> str:
    """What a row calls the model."""
    return "SmolLM2-135M" if options.gguf is None else options.gguf.stem


def opened(options: TrainOptions, width: Width) -> TransformerLM:
    """The model of a run: random, or the one in the file; held in a width."""
    if options.gguf is None:
        return build(width)
    source = open_source(options.gguf)
    precision = config_of(width).precision
    config = replace(source.config, precision=precision, max_seq_len=min(MODEL.max_seq_len, source.config.max_seq_len))
    model = replace(source, config=config).build()
    model.hold_weights(width)
    return model


@contextmanager
def exported(file: Path, width: Width) -> Iterator[Path]:
    """The model of a file as a GGUF file of a width."""
    model = open_model(file).model
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{width}.gguf"
        write_gguf(path, dict(model.named_parameters()), model.config, precision=width)
        del model
        yield path


@contextmanager
def peers_of(options: TrainOptions, width: Width) -> Iterator[dict[str, llama_cpp.Process]]:
    """llama.cpp with a model of the same shape and width, where it was asked for; by what a row calls it."""
    if options.gguf is None or options.peer != "llama.cpp":
        with peer_of(options, width) as peer:
            yield {} if peer is None else {"llama.cpp": peer}
        return
    python, found = options.peer_python or sys.executable, {}
    with exported(options.gguf, width) as file:
        try:
            found["llama.cpp"] = llama_cpp.Process(python, width, options.threads, file=file)
            if width == "int8":
                found["llama.cpp, the file"] = llama_cpp.Process(python, width, options.threads, file=options.gguf)
            yield found
        except RuntimeError as error:
            raise Refused(f"{error}; name an interpreter that has them with --peer-python") from None
        finally:
            for process in found.values():
                process.close()


@contextmanager
def peer_of(options: TrainOptions, width: Width) -> Iterator[llama_cpp.Process | None]:
    """llama.cpp with random weights of the same shape and width, where it was asked for."""
    if options.peer != "llama.cpp":
        yield None
        return
    c = MODEL
    shape = {"layers": c.n_layers, "width": c.d_model, "heads": c.n_heads, "kv_heads": c.kv_heads}
    shape |= {"head": c.head_width, "hidden": c.hidden, "vocabulary": c.vocab_size}
    if shape != llama_cpp.SHAPE:
        raise Refused("llama.cpp has a model of another shape")
    try:
        process = llama_cpp.Process(options.peer_python or sys.executable, width, options.threads)
    except RuntimeError as error:
        raise Refused(f"{error}; name an interpreter that has them with --peer-python") from None
    try:
        yield process
    finally:
        process.close()


def run_decode(options: TrainOptions) -> list[Row]:
    """Greedy decoding, a token at a time, after CONTEXT tokens."""
    where, found = device("cpu"), []
    for width in options.widths:
        before = bandwidth(where)
        model = opened(options, width)
        sampler, decoder = Sampler.greedy(), Decoder(model)
        times: list[float] = []
        cpu: list[float] = []
        others: dict[str, list[float]] = {}
        with peers_of(options, width) as peers:
            for _ in range(2 if options.quick else 10):
                time.sleep(options.pause)
                decoder.reset()
                decoder.feed([i % model.config.vocab_size for i in range(CONTEXT)])
                decoder.next(sampler)
                spent = time.process_time()
                for _ in range(BLOCK):
                    start = time.perf_counter()
                    decoder.next(sampler)
                    times.append(time.perf_counter() - start)
                cpu.append((time.process_time() - spent) / BLOCK)
                for name, peer in peers.items():
                    time.sleep(options.pause)
                    others.setdefault(name, []).extend(peer.ask("decode", CONTEXT, BLOCK))
        # Other work on the machine only ever lowers a ceiling, so the higher of two is nearer to the truth.
        speed = max(before, bandwidth(where))
        floor = weight_bytes(model) / speed
        more = {"tokens/s": 1 / median(times), "CPU ms": 1e3 * median(cpu), "share": floor / median(times)}
        found.append(row("decode", "memory read", "pellucid", [speed / 1e9], unit="GB/s", shape="256 MiB"))
        found += results("decode", times, others, f"{name_of(options)}, after {CONTEXT}", width, floor, more)
        del model, decoder
        gc.collect()
    return found


def run_prefill(options: TrainOptions) -> list[Row]:
    """A prompt of PROMPT tokens into empty caches, up to the logits of its last token."""
    found = []
    for width in options.widths:
        operands = None if width == "float32" else dtypes.bfloat16
        before = measure_peak("cpu", operand_dtype=operands)
        model = opened(options, width)
        ids = np.random.default_rng(1).integers(model.config.vocab_size, size=PROMPT)
        caches = model.new_caches(capacity=PROMPT)
        times: list[float] = []
        others: dict[str, list[float]] = {}
        with peers_of(options, width) as peers:
            for turn in range(1 + (3 if options.quick else 9)):
                time.sleep(options.pause)
                for cache in caches:
                    cache.truncate(0)
                start = time.perf_counter()
                with no_grad():
                    model.forward_cached(ids, caches, last_only=True).numpy()
                seconds = time.perf_counter() - start
                asked = {name: peer.ask("prefill", PROMPT) for name, peer in peers.items()}
                if turn:  # the first one warms up
                    times.append(seconds)
                    for name, other in asked.items():
                        others.setdefault(name, []).extend(other)
        peak = max(before, measure_peak("cpu", operand_dtype=operands))
        floor = prefill_flops(model.config) / peak
        more = {"tokens/s": PROMPT / median(times), "share": floor / median(times)}
        kind = "float32" if operands is None else operands.name
        found.append(row("prefill", "matrix products", "pellucid", [peak / 1e9], unit="GFLOP/s", dtype=kind))
        found += results("prefill", times, others, f"{name_of(options)}, {PROMPT} tokens", width, floor, more)
        del model, caches
        gc.collect()
    return found


def results(
    case: str,
    times: list[float],
    others: dict[str, list[float]],
    shape: str,
    width: Width,
    floor: float,
    more: dict[str, float],
) -> list[Row]:
    """Ours, and each peer's with the ratio of the medians, and of the best times, which other work hardly disturbs."""
    what, size = ("token", 1) if case == "decode" else ("prompt", PROMPT)
    more = {**more, "floor": 1e3 * floor, "best": 1e3 * min(times)}
    if first := next(iter(others.values()), None):
        more |= {"ratio": median(first) / median(times), "best ratio": min(first) / min(times)}
    rows = [row(case, what, "pellucid", [1e3 * t for t in times], unit="ms", shape=shape, dtype=width, **more)]
    for name, other in others.items():
        speed = {"tokens/s": size / median(other), "best": 1e3 * min(other)}
        speed |= {"ours faster by": median(other) / median(times)} if len(others) > 1 else {}
        rows.append(row(case, what, name, [1e3 * t for t in other], unit="ms", shape=shape, dtype=width, **speed))
    return rows

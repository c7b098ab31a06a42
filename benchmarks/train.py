"""Case train: a whole training step (forward, backward, clip, AdamW) of two transformers, ours and the peer's in turns.

Both sides start from the same weights and repeat one batch of random ids, so their first losses, which fall with every
update, are compared before a time is taken. `share` is that of the measured roofline: the FLOPs of the step at the rate
that matrix products of the same operands reached in this run, over the time taken; `over ours` is a peer's time over
ours. CPU seconds are of all threads, and count a thread that waits by spinning. Peak memory (--memory) is that of a
process that trains one side and nothing else, by the program at the end of this file.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from pellucid.base import dtypes
from pellucid.checkpoint import load_into
from pellucid.data import TokenBatch
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.tape import trace
from pellucid.train import RecordedStep, measure_peak

from .nanogpt import say
from .options import Options, Refused
from .report import REPOSITORY, Row, row

CASE = "train"
Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
Width = Literal["int8", "bfloat16", "float32"]
WIDTHS: tuple[Width, ...] = ("int8", "bfloat16", "float32")
RATE, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
CHECKED = 3  # steps
CHECKED_WITHOUT_PEER = 2  # steps of the definition kernels, which take seconds each
AGREEMENT = {"float32": 1e-4, "bfloat16": 1e-2}  # relative, of losses; both sides in the same precision
ALONE = 3  # steps of a process whose memory is measured
SEED = 0

#: The models: Llama's architecture (RMSNorm, rotary positions, grouped-query attention, SwiGLU), tied head.
MODELS = {
    "100m": TransformerConfig(
        32000, d_model=768, n_layers=16, n_heads=12, n_kv_heads=4, head_dim=64, d_ff=1408, max_seq_len=1024
    ),
    "4m": TransformerConfig(
        4096, d_model=256, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=64, d_ff=704, max_seq_len=1024
    ),
}
SHAPES = {"100m": ((1, 512), (4, 512)), "4m": ((8, 256),)}  # sequences and predicted tokens of each

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class TrainOptions(Options):
    """model, shape: one of MODELS, and sequences x tokens; None for all. compiled: PyTorch compiled too. memory: peak
    memory too. precisions: of the matrix products of both sides. widths: of the weights that are decoded with.
    peer_python: the interpreter that runs llama.cpp, None for this one. gguf: file of the model to decode with, None
    for random weights."""

    model: str | None = None
    shape: tuple[int, int] | None = None
    compiled: bool = False
    memory: bool = False
    precisions: tuple[Precision, ...] = PRECISIONS
    widths: tuple[Width, ...] = WIDTHS
    peer_python: str | None = None
    gguf: Path | None = None


def parse_shape(text: str) -> tuple[int, int]:
    """(sequences, tokens) of "4x512", for argparse."""
    most, found = min(m.max_seq_len for m in MODELS.values()), re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None or int(found[2]) > most:
        raise argparse.ArgumentTypeError(f"expected sequences x tokens such as 4x512, tokens up to {most}; got {text}")
    return int(found[1]), int(found[2])


def initial_weights(config: TransformerConfig, *, seed: int) -> Weights:
    """Normal with `weight_std`, projections into the residual stream by 1/sqrt(2 layers) less, norms one. Names and
    layout are those of published Llama checkpoints: matrices (outputs, inputs)."""
    generator = np.random.default_rng(seed)
    c, std = config, config.weight_std
    q, kv = c.n_heads * c.head_width, c.kv_heads * c.head_width

    def normal(rows: int, columns: int, deviation: float = std) -> np.ndarray:
        drawn = generator.standard_normal((rows, columns), np.float32)
        drawn *= np.float32(deviation)
        return drawn

    weights: Weights = {"model.embed_tokens.weight": normal(c.vocab_size, c.d_model)}
    out = std / math.sqrt(2 * c.n_layers)
    for i in range(c.n_layers):
        at = f"model.layers.{i}"
        weights |= {
            f"{at}.input_layernorm.weight": np.ones(c.d_model, np.float32),
            f"{at}.self_attn.q_proj.weight": normal(q, c.d_model),
            f"{at}.self_attn.k_proj.weight": normal(kv, c.d_model),
            f"{at}.self_attn.v_proj.weight": normal(kv, c.d_model),
            f"{at}.self_attn.o_proj.weight": normal(c.d_model, q, out),
            f"{at}.post_attention_layernorm.weight": np.ones(c.d_model, np.float32),
            f"{at}.mlp.gate_proj.weight": normal(c.hidden, c.d_model),
            f"{at}.mlp.up_proj.weight": normal(c.hidden, c.d_model),
            f"{at}.mlp.down_proj.weight": normal(c.d_model, c.hidden, out),
        }
    return weights | {"model.norm.weight": np.ones(c.d_model, np.float32)}


def random_ids(config: TransformerConfig, shape: tuple[int, int]) -> np.ndarray:
    """Ids of one batch: (sequences, tokens + 1)."""
    return np.random.default_rng(SEED).integers(config.vocab_size, size=(shape[0], shape[1] + 1))


class Pellucid:
    """Model and optimizer, from exactly these weights."""

    name = "pellucid"

    def __init__(self, config: TransformerConfig, weights: Weights, *, device: str = "cpu") -> None:
        self.model = TransformerLM(config, device=device)
        load_into(dict(self.model.named_parameters()), weights)
        self.optimizer = AdamW(
            self.model.named_parameters(),
            learning_rate=RATE,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPS,
            weight_decay=DECAY,
        )
        self._step = RecordedStep(self.model, self.optimizer, max_norm=CLIP)

    def step(self, ids: np.ndarray) -> float:
        """One training step; the loss before it, nats/token."""
        return self._step(TokenBatch(ids)).loss


def make_side(name: str, config: TransformerConfig, weights: Weights) -> Any:
    """A side by its name; PyTorch is loaded only where it's asked for."""
    if name == "pellucid":
        return Pellucid(config, weights)
    if name == "jax":
        return import_module("benchmarks.peers.jax_transformer").Jax(config, weights)
    peer = import_module("benchmarks.peers.torch_transformer")
    return peer.PyTorch(config, weights, compiled=name == "torch compiled")


def checked(names: list[str], config: TransformerConfig, ids: np.ndarray) -> dict[str, Any]:
    """The sides, after steps whose losses agree: with the peer's, or the definition's where there is none."""
    weights = initial_weights(config, seed=SEED)
    sides: dict[str, Any] = {}
    losses: dict[str, list[float]] = {}
    count = CHECKED if len(names) > 1 else CHECKED_WITHOUT_PEER
    if len(names) == 1:
        definition = Pellucid(config, weights, device="reference")
        losses["definition"] = [definition.step(ids) for _ in range(count)]
        del definition
        gc.collect()
    for name in names:
        say(f"  {name}: building, and the first {count} losses")
        side = make_side(name, config, weights)
        try:
            losses[name] = [side.step(ids) for _ in range(count)]
        except Exception as error:
            if name != "torch compiled":
                raise
            say(f"  {name}: unavailable: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
            continue
        sides[name] = side
    ours, allowed = losses["pellucid"], AGREEMENT[config.precision]
    for name, found in losses.items():
        if not all(math.isclose(got, want, rel_tol=allowed) for got, want in zip(ours, found, strict=True)):
            raise Refused(f"{CASE}: losses {ours}, {name} has {found}; wrong kernels are not timed")
    say(f"  losses agree within {allowed:g}: {', '.join(f'{loss:.5f}' for loss in ours)}")
    return sides


def measured(sides: dict[str, Any], ids: np.ndarray, options: TrainOptions) -> dict[str, list[tuple[float, float]]]:
    """Seconds and CPU seconds of steps of each side, in turns."""
    rounds = options.iterations or (3 if options.quick else 11)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            time.sleep(options.pause)
            start, cpu = time.perf_counter(), time.process_time()
            sides[name].step(ids)
            times[name].append((time.perf_counter() - start, time.process_time() - cpu))
    return times


def run_one(options: TrainOptions, model: str, shape: tuple[int, int], precision: Precision) -> list[Row]:
    config = replace(MODELS[model], precision=precision)
    ids, tokens, label = random_ids(config, shape), shape[0] * shape[1], f"{model} {shape[0]}x{shape[1]}"
    names = ["pellucid", *([options.peer] if options.peer else [])]
    if options.compiled and options.peer == "torch":
        if lacking := import_module("benchmarks.peers.torch_transformer").lacks_compiler():
            say(f"  torch compiled: unavailable: {lacking}")
        else:
            names.append("torch compiled")
    say(f"{label} {precision}")
    operands = dtypes.bfloat16 if precision == "bfloat16" else None
    peak = measure_peak("cpu", operand_dtype=operands)
    sides = checked(names, config, ids)
    times = measured(sides, ids, options)
    # Other work on the machine only ever lowers a ceiling, so the higher of two is nearer to the truth.
    peak = max(peak, measure_peak("cpu", operand_dtype=operands))
    flops = tokens * config.flops_per_token(shape[1])
    ours = median(wall for wall, _ in times["pellucid"])
    found = [row(CASE, "matrix products", "pellucid", [peak / 1e9], unit="GFLOP/s", shape="1024", dtype=precision)]
    for name, pairs in times.items():
        middle = median(wall for wall, _ in pairs)
        more = {"tokens/s": tokens / middle, "CPU s": median(cpu for _, cpu in pairs), "share": flops / peak / middle}
        if name != "pellucid":
            more["over ours"] = middle / ours
        milli = [1e3 * wall for wall, _ in pairs]
        found.append(row(CASE, "step", name, milli, unit="ms", shape=label, dtype=precision, **more))
    del sides
    gc.collect()
    if options.memory:
        for name in times:
            peak_bytes = memory_alone(name, model, shape, precision, options)
            found.append(row(CASE, "peak memory", name, [peak_bytes / 1e6], unit="MB", shape=label, dtype=precision))
    return found


def run(options: TrainOptions) -> list[Row]:
    found: list[Row] = []
    for model in [options.model] if options.model else MODELS:
        for shape in [options.shape] if options.shape else SHAPES[model]:
            for precision in options.precisions:
                found += run_one(options, model, shape, precision)
    return found


# ---- one side in a process of its own --------------------------------------------------------------------------------


def memory_alone(name: str, model: str, shape: tuple[int, int], precision: Precision, options: TrainOptions) -> int:
    """Peak resident bytes of a process that trains this side alone for a few steps."""
    command = [sys.executable, "-m", "benchmarks.train", name, model, f"{shape[0]}x{shape[1]}", precision]
    environ = os.environ | {"PELLUCID_THREADS": str(options.threads)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{' '.join(command[1:])}: ended with status {done.returncode}")
    return json.loads(done.stdout)["peak_bytes"]


def peak_resident_bytes() -> int:
    """Of this process. Linux's `ru_maxrss` would include the process that started it, so its own status goes first."""
    try:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def per_operation(side: Pellucid, ids: np.ndarray) -> str:
    """Where the time of one step goes: the tracer's records added up by operation and shape of the result."""
    start = time.perf_counter()
    with trace() as traced:
        side.step(ids)
    total = 1e3 * (time.perf_counter() - start)
    sums: dict[str, np.ndarray] = {}
    for r in traced.records:
        key = f"{r.name} | {'x'.join(map(str, r.output)) or '()'}"
        sums[key] = sums.get(key, np.zeros(3)) + np.array([1, 1e3 * r.forward, 1e3 * (r.backward or 0.0)])
    lines = ["| operation | result | count | forward, ms | backward, ms | share |", "| --- " * 6 + "|"]
    for key, (count, forward, backward) in sorted(sums.items(), key=lambda item: -item[1][1:].sum()):
        lines.append(f"| {key} | {count:.0f} | {forward:.1f} | {backward:.1f} | {(forward + backward) / total:.1%} |")
    rest = total - sum(entry[1:].sum() for entry in sums.values())
    return "\n".join([*lines, f"| clip, AdamW, tape, tracer | | | | {rest:.1f} | {rest / total:.1%} |"])


def main() -> None:
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.train", description="Trains one side; prints its peak memory."
    )
    p.add_argument("side", choices=("pellucid", "torch", "torch compiled"))
    p.add_argument("model", choices=MODELS)
    p.add_argument("shape", type=parse_shape)
    p.add_argument("precision", choices=PRECISIONS)
    p.add_argument("--trace", action="store_true", help="print where the time of one more step goes instead")
    given = p.parse_args()
    if given.trace and given.side != "pellucid":
        p.error("--trace is of pellucid")
    if given.side != "pellucid":
        import_module("torch").set_num_threads(int(os.environ.get("PELLUCID_THREADS", os.cpu_count() or 1)))
    config, ids = replace(MODELS[given.model], precision=given.precision), random_ids(MODELS[given.model], given.shape)
    side = make_side(given.side, config, initial_weights(config, seed=SEED))
    losses = [side.step(ids) for _ in range(ALONE)]
    peak = {"losses": losses, "peak_bytes": peak_resident_bytes()}
    print(per_operation(side, ids) if given.trace else json.dumps(peak))


if __name__ == "__main__":
    main()

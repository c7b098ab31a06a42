"""Case nanogpt: the whole CPU recipe, ours and the peer's, in alternating blocks of iterations.

Both start from the same weights and see the same windows at the same learning rates, so their losses are compared
before a time is taken: first over `CHECKED` steps, at the end over the whole validation split. Seconds in all are
building the model, every step, the periodic evaluations and the last one; start-up is the business of other cases.
Beside the time stands the CPU time of all threads: on a busy machine it says more, though threads that wait by
spinning count in it.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .nanogpt_model import Pellucid
from .options import Options, Refused
from .recipe import Batch, Recipe, Weights, characters, initial_weights, random_batches, split, windows
from .report import Row, row

CASE = "nanogpt"
CORPUS = Path("english") / "tinyshakespeare.txt"
CHECKED = 20  # steps
CHECKED_WITHOUT_PEER = 2  # steps of the definition kernels, which take seconds each
AGREEMENT = {"float32": 1e-4, "bfloat16": 1e-2}  # relative, of losses; the peer and the definition stay in float32
SEED = 1337


def peer_class(name: str) -> Any:
    """The peer's model; loading it costs seconds, so only runs that ask for it do."""
    if name == "torch":
        return import_module("benchmarks.peers.nanogpt_torch").PyTorch
    raise Refused(f"no peer of that name: {name}")


def check(recipe: Recipe, weights: Weights, batches: list[Batch], options: Options) -> None:
    """Refuses kernels whose losses differ from the peer's, or from the definition's where there is no peer."""
    if options.peer is None:
        batches = batches[:CHECKED_WITHOUT_PEER]
        other: Any = Pellucid(recipe, weights, device="reference")
    else:
        other = peer_class(options.peer)(recipe, weights)
    ours = Pellucid(recipe, weights, precision=options.precision)
    for i, batch in enumerate(batches):
        got, want = (side.step(batch, rate=recipe.rate(i)) for side in (ours, other))
        if not math.isclose(got, want, rel_tol=AGREEMENT[options.precision]):
            raise Refused(f"{CASE}: step {i}: loss {got}, {other.name} has {want}; wrong kernels are not timed")


def evaluations(recipe: Recipe, parts: tuple[np.ndarray, ...]) -> list[Batch]:
    """The windows of one periodic evaluation, the same at every one: some of each part."""
    found: list[Batch] = []
    for number, part in enumerate(parts):
        stream = random_batches(part, recipe, np.random.default_rng([SEED, number]))
        found += [next(stream) for _ in range(recipe.evaluate_batches)]
    return found


def run(options: Options) -> list[Row]:
    path = options.corpus(CORPUS)
    ids, vocabulary = characters(path.read_text(encoding="utf-8"))
    train, held_out = split(ids)
    recipe = Recipe() if options.iterations is None else Recipe(iterations=options.iterations)
    weights = initial_weights(recipe, len(vocabulary), seed=SEED)
    stream = random_batches(train, recipe, np.random.default_rng([SEED, 2]))
    batches = [next(stream) for _ in range(recipe.iterations)]
    check(recipe, weights, batches[:CHECKED], options)
    say(f"the first losses agree within {AGREEMENT[options.precision]:g}")

    classes = {"pellucid": Pellucid} | ({options.peer: peer_class(options.peer)} if options.peer else {})
    sides: dict[str, Any] = {}
    steps: dict[str, list[float]] = {name: [] for name in classes}
    cpu: dict[str, list[float]] = {name: [] for name in classes}
    total, periodic = dict.fromkeys(classes, 0.0), dict.fromkeys(classes, math.nan)
    for name, make in classes.items():
        with Clock(total, name):
            how: dict[str, Any] = {"precision": options.precision} if name == "pellucid" else {}
            sides[name] = make(recipe, weights, **how)
    held = evaluations(recipe, (train, held_out))
    for number, first in enumerate(range(0, recipe.iterations, options.block)):
        for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            time.sleep(options.pause)
            for i in range(first, min(first + options.block, recipe.iterations)):
                if i % recipe.evaluate_every == 0:
                    with Clock(total, name):
                        losses = [sides[name].loss(batch) for batch in held]
                    periodic[name] = statistics.fmean(losses[recipe.evaluate_batches :])
                with Clock(total, name) as clock:
                    sides[name].step(batches[i], rate=recipe.rate(i))
                steps[name].append(1e3 * clock.seconds)
                cpu[name].append(1e3 * clock.cpu_seconds)
        medians = ", ".join(f"{n} {statistics.median(v[-options.block :]):.1f} ms" for n, v in steps.items())
        held_losses = ", ".join(f"{n} {v:.4f}" for n, v in periodic.items())
        done = min(first + options.block, recipe.iterations)
        say(f"{done} of {recipe.iterations} iterations: {medians}; held out: {held_losses}")
    exact: dict[str, float] = {}
    for name, side in sides.items():
        with Clock(total, name):
            exact[name] = sum(side.loss(b) * b[0].size for b in windows(held_out, recipe.context)) / (len(held_out) - 1)
    dtypes = {name: options.precision if name == "pellucid" else "float32" for name in classes}
    return rows(recipe, len(vocabulary), {"iteration": steps, "iteration, CPU": cpu}, total, exact, dtypes)


def rows(
    recipe: Recipe,
    vocabulary: int,
    steps: dict[str, dict[str, list[float]]],
    total: dict[str, float],
    exact: dict[str, float],
    dtypes: dict[str, str],
) -> list[Row]:
    """ms an iteration and seconds in all of each side; `share` is ours over the peer's."""
    shape = f"{recipe.batch}x{recipe.context} tokens, {recipe.layers}x{recipe.width}, {vocabulary} characters"
    peers = [name for name in total if name != "pellucid"]
    found: list[Row] = []
    for what, of in steps.items():
        middle = {name: statistics.median(values) for name, values in of.items()}
        for name, values in of.items():
            more = {"share": middle[name] / middle[peers[0]]} if name == "pellucid" and peers else {}
            found.append(row(CASE, what, name, values, unit="ms", shape=shape, dtype=dtypes[name], **more))
    for name, seconds in total.items():
        last: dict[str, Any] = {"val_loss": round(exact[name], 6), "iterations": recipe.iterations}
        if name == "pellucid" and peers:
            last["share"] = seconds / total[peers[0]]
        found.append(row(CASE, "in all", name, [seconds], unit="s", shape=shape, dtype=dtypes[name], **last))
    return found


class Clock:
    """Adds the seconds of its block to one entry of a table; keeps them, and the CPU seconds of all threads."""

    def __init__(self, into: dict[str, float], name: str) -> None:
        self.into, self.name = into, name
        self.seconds = self.cpu_seconds = 0.0

    def __enter__(self) -> Clock:
        self._start, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter() - self._start, time.process_time() - self._cpu
        self.into[self.name] += self.seconds


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

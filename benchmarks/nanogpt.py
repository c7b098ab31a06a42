"""Case nanogpt: the whole CPU recipe, ours and the peer's, in alternating blocks of iterations.

Both start from the same weights and see the same windows at the same learning rates, so their losses are compared
before a time is taken: first over `CHECKED` steps, at the end over the whole validation split. Seconds in all are
building the model, every step, the periodic evaluations and the last one; start-up is the business of other cases.
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
AGREEMENT = 1e-4  # relative
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
    ours = Pellucid(recipe, weights)
    for i, batch in enumerate(batches):
        got, want = (side.step(batch, rate=recipe.rate(i)) for side in (ours, other))
        if not math.isclose(got, want, rel_tol=AGREEMENT):
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
    say(f"the first losses agree within {AGREEMENT:g}")

    classes = {"pellucid": Pellucid} | ({options.peer: peer_class(options.peer)} if options.peer else {})
    sides: dict[str, Any] = {}
    steps: dict[str, list[float]] = {name: [] for name in classes}
    total, periodic = dict.fromkeys(classes, 0.0), dict.fromkeys(classes, math.nan)
    for name, make in classes.items():
        with Clock(total, name):
            sides[name] = make(recipe, weights)
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
        medians = ", ".join(f"{n} {statistics.median(v[-options.block :]):.1f} ms" for n, v in steps.items())
        held_losses = ", ".join(f"{n} {v:.4f}" for n, v in periodic.items())
        done = min(first + options.block, recipe.iterations)
        say(f"{done} of {recipe.iterations} iterations: {medians}; held out: {held_losses}")
    exact: dict[str, float] = {}
    for name, side in sides.items():
        with Clock(total, name):
            exact[name] = sum(side.loss(b) * b[0].size for b in windows(held_out, recipe.context)) / (len(held_out) - 1)
    return rows(recipe, len(vocabulary), steps, total, exact)


def rows(
    recipe: Recipe,
    vocabulary: int,
    steps: dict[str, list[float]],
    total: dict[str, float],
    exact: dict[str, float],
) -> list[Row]:
    """ms an iteration and seconds in all of each side; `share` is ours over the peer's."""
    shape = f"{recipe.batch}x{recipe.context} tokens, {recipe.layers}x{recipe.width}, {vocabulary} characters"
    peers = [name for name in steps if name != "pellucid"]
    found: list[Row] = []
    for name, values in steps.items():
        more: dict[str, Any] = {}
        if name == "pellucid" and peers:
            more["share"] = statistics.median(values) / statistics.median(steps[peers[0]])
        found.append(row(CASE, "iteration", name, values, unit="ms", shape=shape, dtype="float32", **more))
    for name, seconds in total.items():
        more = {"val_loss": round(exact[name], 6), "iterations": recipe.iterations}
        if name == "pellucid" and peers:
            more["share"] = seconds / total[peers[0]]
        found.append(row(CASE, "in all", name, [seconds], unit="s", shape=shape, dtype="float32", **more))
    return found


class Clock:
    """Adds the seconds of its block to one entry of a table."""

    def __init__(self, into: dict[str, float], name: str) -> None:
        self.into, self.name, self.seconds = into, name, 0.0

    def __enter__(self) -> Clock:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self.into[self.name] += self.seconds


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

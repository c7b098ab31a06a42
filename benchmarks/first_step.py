"""A program that trains nanoGPT's model for one step and prints the loss: `python -m benchmarks.first_step pellucid`.

What it costs is measured from outside, from the start of its process; it imports nothing that the step does not need.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import numpy as np

from .recipe import Recipe, initial_weights

SIDES = {"pellucid": "nanogpt_model:Pellucid", "torch": "peers.nanogpt_torch:PyTorch"}
VOCABULARY = 65


def main(by: str) -> None:
    if by == "torch":
        import_module("torch").set_num_threads(int(os.environ.get("PELLUCID_THREADS", os.cpu_count() or 1)))
    module, _, name = SIDES[by].partition(":")
    recipe = Recipe()
    side: Any = getattr(import_module(f"benchmarks.{module}"), name)(
        recipe, initial_weights(recipe, VOCABULARY, seed=0)
    )
    ids = np.random.default_rng(0).integers(VOCABULARY, size=(recipe.batch, recipe.context + 1))
    print(side.step((ids[:, :-1], ids[:, 1:]), rate=recipe.rate(0)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

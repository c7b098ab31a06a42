"""A real model end to end: a published checkpoint through the converter tells the story it is known to tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from pellucid.base.config import from_dict
from pellucid.checkpoint import load_into, load_llama2c, load_llama2c_tokenizer
from pellucid.generate import Sampler, generate
from pellucid.models import TransformerConfig, TransformerLM

BOS = 1


def test_the_known_story(corpus_folder: Path) -> None:
    folder = corpus_folder / "models"
    if not (folder / "stories260K.bin").exists():
        pytest.skip("no models/stories260K.bin in the folder of real data")
    config, weights = load_llama2c(folder / "stories260K.bin")
    model = TransformerLM(from_dict(TransformerConfig, config, where="stories260K.bin"))
    load_into(dict(model.named_parameters()), weights)
    assert model.config.parameter_counts().total == 260_032

    known = [int(n) for n in (folder / "stories260K.greedy.txt").read_text().split()]
    assert len(known) == 257
    ids = generate(model, [BOS], max_new_tokens=len(known), sampler=Sampler.greedy())
    assert ids == known
    story = load_llama2c_tokenizer(folder / "tok512.bin").decode([BOS, *ids])
    assert story.startswith("Once upon a time, there was a little girl named Lily. She loved to play outside")

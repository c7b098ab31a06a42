"""Runs that train an adapter: what their checkpoints hold, resumed bit for bit, opened as the merged model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.config import to_dict
from pellucid.base.errors import CheckpointError
from pellucid.checkpoint import latest_checkpoint, load_checkpoint, open_model, save_checkpoint, save_lora
from pellucid.cli import main
from pellucid.data import TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import LoraConfig, add_lora
from pellucid.train import Event, Stepped, TrainConfig, Trainer

MODEL = TransformerConfig(40, d_model=32, n_layers=2, n_heads=2, max_seq_len=16, dropout=0.1, seed=4)
TRAIN = TrainConfig(steps=6, sequences=4, seq_len=16, warmup=2, eval_every=3, eval_batches=1, save_every=2, seed=9)
LORA = LoraConfig(3, alpha=6)
IDS = np.arange(12)[None] % 40


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    # text with something to learn in it: each id is followed by the next but one, mostly
    rng = np.random.default_rng(0)
    ids = np.where(rng.random(2000) < 0.9, np.arange(2000) * 2 % 40, rng.integers(0, 40, 2000))
    TokenFile.write(tmp_path / "tokens.bin", ids)
    return TokenFile.open(tmp_path / "tokens.bin", seed=9)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tensors = dict(TransformerLM(MODEL).named_parameters())
    config = {"architecture": "TransformerLM", "model": to_dict(MODEL)}
    return save_checkpoint(tmp_path / "base", tensors=tensors, config=config, state={})


def trainer(tokens: TokenFile, base: Path, folder: Path, *, held: str | None = None, **options: object) -> Trainer:
    folder.mkdir(exist_ok=True)
    train, held_out = tokens.split(0.9)
    model = open_model(base).model
    if held is not None:
        model.hold_weights(held)
    lora = options.pop("lora", LORA)
    add_lora(model, lora, base=str(base))  # type: ignore[arg-type]
    return Trainer(model, train, TRAIN, held_out=held_out, folder=folder, **options)  # type: ignore[arg-type]


def adapter(t: Trainer) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in t.model.named_trained()}


@pytest.mark.parametrize("held", [None, "int8"])
def test_stopped_and_resumed_as_if_it_had_never_been(
    tokens: TokenFile, base: Path, tmp_path: Path, held: str | None
) -> None:
    straight = trainer(tokens, base, tmp_path / "a", held=held)
    before = straight.model.eval()(IDS).detach().numpy()
    result = straight.run()

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            first.stop()

    first = trainer(tokens, base, tmp_path / "b", held=held, on_event=stop)
    assert first.run().stopped
    # another seed draws another A to begin with, which the checkpoint replaces
    second = trainer(tokens, base, tmp_path / "b", held=held, lora=LoraConfig(3, alpha=6, seed=8))
    assert second.resume()
    assert second.run().held_out_loss == result.held_out_loss
    mine, other = adapter(straight), adapter(second)
    assert mine.keys() == other.keys()
    assert all(np.array_equal(values, other[name]) for name, values in mine.items())
    assert not np.array_equal(straight.model.eval()(IDS).detach().numpy(), before)


def test_its_checkpoints_are_small_and_open_as_the_merged_model(tokens: TokenFile, base: Path, tmp_path: Path) -> None:
    t = trainer(tokens, base, tmp_path / "run")
    t.run()
    newest = latest_checkpoint(tmp_path / "run")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert all(".lora_" in name for name in checkpoint.tensors)
    assert checkpoint.optimizer is not None
    assert len(checkpoint.optimizer) == 2 * len(checkpoint.tensors)
    assert checkpoint.config["base"]["path"] == str(base)
    wanted = t.model.eval()(IDS).detach().numpy()
    opened = open_model(tmp_path / "run")
    opened.model.eval()
    np.testing.assert_allclose(opened.model(IDS).detach().numpy(), wanted, atol=1e-5)
    assert opened.model.adapters is None
    folder = save_lora(t.model, tmp_path / "adapter")
    assert main(["merge", str(base), str(folder), str(tmp_path / "merged"), "--json"]) == 0
    merged = open_model(tmp_path / "merged").model.eval()
    assert np.array_equal(merged(IDS).detach().numpy(), opened.model(IDS).detach().numpy())


def test_the_mean_of_an_adapter_opens_merged_as_well(tokens: TokenFile, base: Path, tmp_path: Path) -> None:
    model = open_model(base).model
    add_lora(model, LORA, base=str(base))
    t = Trainer(model, tokens, replace(TRAIN, ema=0.5), folder=tmp_path)
    t.run()
    assert t.average is not None
    last = model.eval()(IDS).detach().numpy()
    with t.average.in_place():
        wanted = model(IDS).detach().numpy()
    assert not np.allclose(last, wanted, atol=1e-5)
    found = open_model(tmp_path, average=True).model.eval()
    np.testing.assert_allclose(found(IDS).detach().numpy(), wanted, atol=1e-5)


def test_another_base_or_adapter_is_refused(tokens: TokenFile, base: Path, tmp_path: Path) -> None:
    trainer(tokens, base, tmp_path / "run").run()
    newest = latest_checkpoint(tmp_path / "run")
    with pytest.raises(CheckpointError) as caught:
        trainer(tokens, base, tmp_path / "run", lora=LoraConfig(3, alpha=9)).resume()
    assert str(caught.value) == (
        f"{newest}: a checkpoint of an adapter with another alpha; got 9, expected 6. "
        "hint: resume with the run's own configuration"
    )
    with pytest.raises(CheckpointError) as caught:
        trainer(tokens, base, tmp_path / "run", held="int8").resume()
    assert f"{newest}: a checkpoint of an adapter of another base; got " in str(caught.value)
    assert str(caught.value).endswith(f"hint: open {str(base)!r} as it was, held in the same way")
    other = dict(TransformerLM(TransformerConfig(**{**to_dict(MODEL), "seed": 5})).named_parameters())
    save_checkpoint(base, tensors=other, config={"architecture": "TransformerLM", "model": to_dict(MODEL)}, state={})
    with pytest.raises(CheckpointError, match="a checkpoint of an adapter of another base"):
        open_model(tmp_path / "run")


def test_merge_says_what_is_wrong(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", str(base), str(tmp_path / "nothing"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"pellucid merge: {tmp_path / 'nothing'}: no such adapter; got nothing there, "
        "expected a folder with adapter_config.json and adapter_model.safetensors\n"
    )
    assert not (tmp_path / "out").exists()


def test_merge_tells_what_it_did(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = open_model(base).model
    add_lora(model, LORA)
    folder = save_lora(model, tmp_path / "adapter")
    config = {"architecture": "TransformerLM", "model": to_dict(MODEL), "begin_ids": [3], "eos_ids": [5]}
    tensors = dict(open_model(base).model.named_parameters())
    save_checkpoint(base, tensors=tensors, config=config, state={})
    assert main(["merge", str(base), str(folder), str(tmp_path / "out"), "--json"]) == 0
    merged = open_model(tmp_path / "out").source
    assert (merged.begin_ids, merged.eos_ids) == ((3,), (5,))
    told = json.loads(capsys.readouterr().out)
    assert (told["rank"], told["merged"]) == (3, str(tmp_path / "out"))

"""A checkpoint holds everything a run needs: a run that was stopped and continued ends with the same weights, bit
for bit, as one that was not."""

import tempfile
from pathlib import Path

import numpy as np

from pellucid.checkpoint import latest_checkpoint, open_model
from pellucid.data import TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.text import ByteTokenizer
from pellucid.train import Event, Stepped, TrainConfig, Trainer

TOKENIZER = ByteTokenizer()
MODEL = TransformerConfig(256, d_model=32, n_layers=1, n_heads=2, max_seq_len=32, dropout=0.1)
TRAIN = TrainConfig(steps=20, sequences=4, seq_len=32, warmup=2)


def trainer(tokens: TokenFile, folder: Path, stop_after: int | None = None) -> Trainer:
    def on_event(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == stop_after:
            made.stop()  # what Ctrl-C does: finish the step, save, return

    made = Trainer(TransformerLM(MODEL), tokens, TRAIN, folder=folder, tokenizer=TOKENIZER, on_event=on_event)
    return made


with tempfile.TemporaryDirectory() as scratch:
    home = Path(scratch)
    TokenFile.write_documents(home / "tokens.bin", ["the quick brown fox jumps over the lazy dog. " * 50], TOKENIZER)
    tokens = TokenFile.open(home / "tokens.bin")
    for name in ("whole", "parts"):
        (home / name).mkdir()

    trainer(tokens, home / "whole").run()

    result = trainer(tokens, home / "parts", stop_after=7).run()
    print(f"stopped after {result.steps} steps: {latest_checkpoint(home / 'parts').name}")
    continued = trainer(tokens, home / "parts")  # a new process would do just the same
    continued.resume()
    print(f"continued to step {continued.run().steps}")

    whole, parts = open_model(home / "whole"), open_model(home / "parts")
    for (name, a), (_, b) in zip(whole.model.named_parameters(), parts.model.named_parameters(), strict=True):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy()), name
    print("equal weights, bit for bit;", sorted(p.name for p in whole.path.iterdir()))
    del tokens, whole, parts

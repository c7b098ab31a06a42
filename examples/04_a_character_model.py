"""A language model in one screen: text -> ids -> token file -> transformer -> training -> new text."""

import tempfile
from pathlib import Path

from pellucid.data import TokenFile
from pellucid.generate import Sampler, stream
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.text import CharTokenizer
from pellucid.train import Event, Stepped, TrainConfig, Trainer, evaluate_file

TEXT = "the wind went over the sea and the sea went over the stone. " * 200

with tempfile.TemporaryDirectory() as folder:
    # Text becomes ids once; training reads random windows of the file, which is mapped and never loaded.
    tokenizer = CharTokenizer.train(TEXT)
    path = Path(folder) / "tokens.bin"
    TokenFile.write_documents(path, [TEXT], tokenizer)
    tokens, held_out = TokenFile.open(path).split(0.9)
    print(f"{len(tokens):,} tokens of {tokenizer.vocab_size} kinds")

    model = TransformerLM(TransformerConfig(tokenizer.vocab_size, d_model=64, n_layers=2, n_heads=4, max_seq_len=64))
    print("parameters:", model.config.parameter_counts())

    def show(event: Event) -> None:
        if isinstance(event, Stepped) and event.step % 20 == 0:
            print(f"step {event.step:3}: loss {event.loss:.3f}, {event.tokens_per_second:,.0f} tokens/s")

    config = TrainConfig(steps=60, sequences=8, seq_len=64, learning_rate=3e-3, warmup=10)
    Trainer(model, tokens, config, on_event=show).run()
    found = evaluate_file(model, held_out, sequences=8, seq_len=64)
    print(f"held out: loss {found.loss:.3f} nats/token, perplexity {found.perplexity:.2f}")
    assert found.loss < 1.5

    # Ids come one at a time; the stream decoder turns them into whole characters.
    prompt, decoder = "the wind ", tokenizer.stream_decoder()
    print(prompt, end="")
    sampler = Sampler(temperature=0.5, seed=1)
    for token in stream(model, tokenizer.encode(prompt), max_new_tokens=50, sampler=sampler):
        print(decoder.push(token), end="")
    print(decoder.finish())
    del tokens, held_out

"""The options of `pellucid train`: one frozen dataclass, from which flags, TOML keys and presets all come.

What is asked for is settled in one order: a flag wins over the TOML file, the file over the preset, the preset over
the defaults here. The values are then handed to TransformerConfig and TrainConfig, which refuse what is impossible;
their refusals are reworded to name the flags.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..base.config import from_dict
from ..base.errors import ConfigError
from ..base.files import reason
from ..models import TransformerConfig
from ..train import TrainConfig
from .machine import DeviceName, Threads
from .parse import Flag, parse, pick, told
from .presets import PRESETS, Preset, about_presets

Given = tyro.conf.DisallowNone


@dataclass(frozen=True)
class TrainOptions:
    """Everything that can be chosen about a run, by flag, TOML key or preset. None leaves the choice to the program."""

    corpus: Annotated[Path | None, Given, tyro.conf.arg(metavar="PATH", help_behavior_hint="(needed)")] = None
    """Text: UTF-8, .jsonl or .parquet files (field "text"), also .gz or .zst; a folder of such; a token file (.bin)."""
    out: Annotated[Path | None, Given, told("runs/NAME after the corpus, numbered if taken", "PATH")] = None
    """Run folder."""
    tokenizer: str = "auto"
    """byte, char, a tokenizer file, or auto: characters if the corpus has at most 256 different ones, else bytes.
    With --train-tokenizer a kind to train: unigram (what auto means then), bpe, char or byte."""
    train_tokenizer: bool = False
    """Train a tokenizer on the corpus first."""
    tokenizer_vocab: Annotated[int | None, Given, told("4096 for unigram and bpe")] = None
    """Ids of the tokenizer that is trained."""
    init_from: Annotated[Path | None, Given, told("random weights", "MODEL")] = None
    """Begin with the weights of this run, checkpoint or other model, and go on with its tokenizer and its shape."""
    add_tokens: Annotated[tuple[str, ...], told("none", "NAME")] = ()
    """Special tokens the vocabulary of --init-from gets; their rows begin as the mean of the others."""
    new_rows_only: bool = False
    """Train the rows of these tokens and nothing else."""
    held_out: float = 0.1
    """Share of the tokens, at the end of the corpus, that is not trained on but evaluated; 0 for none."""

    family: Literal["llama", "gpt2"] = "llama"
    """llama: RMSNorm, rotary positions, SwiGLU. gpt2: LayerNorm, learned positions, GELU, biases."""
    layers: int = TransformerConfig.n_layers
    """Transformer blocks."""
    heads: int = TransformerConfig.n_heads
    """Attention heads; they divide the width."""
    kv_heads: Annotated[int | None, Given, told("as many as heads")] = None
    """Heads of keys and values; they divide the heads."""
    width: int = TransformerConfig.d_model
    """Features of a token."""
    ff: Annotated[int | None, Given, told("llama 8/3 widths rounded up to 64, gpt2 4 widths")] = None
    """Features inside the feed-forward layer."""
    context: int = TransformerConfig.max_seq_len
    """Longest text the model can look at, in tokens."""
    experts: Annotated[int | None, Given, told("dense layers")] = None
    """Experts in a feed-forward layer, of which a token goes through a few: a larger model in the time of a smaller."""
    active_experts: Annotated[int | None, Given, told("2")] = None
    """Experts a token goes through."""
    moe_layers: Annotated[tuple[int, ...] | None, Given, told("all layers", "NUMBER")] = None
    """Layers with experts, numbered from 0; the others stay dense."""
    moe_ff: Annotated[int | None, Given, told("ff, shared among a token's experts")] = None
    """Features inside an expert."""
    shared_expert: bool = TransformerConfig.shared_expert
    """One more expert, that every token goes through."""
    aux_weight: float = TransformerConfig.aux_weight
    """Weight of the loss that spreads tokens evenly over the experts."""
    z_weight: float = TransformerConfig.z_weight
    """Weight of the loss that keeps a router's logits small."""
    dropout: float = TransformerConfig.dropout
    """Probability of dropping a feature in training; for corpora that are read many times over."""
    biases: Annotated[bool | None, told("the family's")] = None
    """Biases in linear layers and LayerNorm."""
    activation: Annotated[Literal["swiglu", "gelu", "gelu_tanh"] | None, Given, told("the family's")] = None
    """Feed-forward activation; gelu_tanh is GPT-2's approximation of gelu."""
    tie: bool = TransformerConfig.tie_embeddings
    """One table for embedding and head."""
    precision: Annotated[Literal["float32", "bfloat16"] | None, Given, told("what the processor does best")] = None
    """Operands of matrix products; sums and weights are float32 in any case."""
    checkpoint_blocks: bool = TransformerConfig.checkpoint_blocks
    """Compute each block's forward again for its backward: less memory, a third more time."""
    seed: int = TrainConfig.seed
    """Of the initial weights, dropout and the windows."""

    steps: int = TrainConfig.steps
    """Optimizer updates."""
    sequences: int = TrainConfig.sequences
    """Windows of text a step reads; with --tokens-per-step, those it reads at a time."""
    seq_len: Annotated[int | None, Given, told("the context")] = None
    """Tokens predicted in a window."""
    accumulate: int = TrainConfig.accumulate
    """Parts a step is computed in, one after the other: less memory, the same result."""
    tokens_per_step: Annotated[int | None, Given, told("what the windows hold")] = TrainConfig.tokens_per_step
    """Tokens a step predicts at least, in as many parts of --sequences windows as it takes."""
    epochs: Annotated[float | None, Given, told("as many as the steps make")] = None
    """Times the text is read, each window once an epoch; decides the steps."""
    order: Literal["random", "shuffled"] = TrainConfig.order
    """Windows at random offsets, or (shuffled) each once an epoch."""
    learning_rate: float = TrainConfig.learning_rate
    """The highest, after the warm-up."""
    warmup: int = TrainConfig.warmup
    """Steps in which the learning rate rises to it."""
    min_learning_rate: Annotated[float | None, Given, told("a tenth of the highest")] = TrainConfig.min_learning_rate
    """Learning rate at the end."""
    rate_schedule: Literal["cosine", "linear", "constant", "wsd"] = TrainConfig.rate_schedule
    """The way there: along a cosine, straight, not at all, or (wsd) level and straight at last."""
    cooldown: float = TrainConfig.cooldown
    """wsd: share of the steps, the last ones, in which the rate falls."""
    optimizer: Literal["adamw", "sgd", "lion", "muon"] = TrainConfig.optimizer
    """Rule of the update. lion wants a third to a tenth of the learning rate.
    muon is for hidden matrices, the rest is AdamW's."""
    beta1: float = TrainConfig.beta1
    """AdamW, Lion, Muon: memory of the mean gradient."""
    beta2: float = TrainConfig.beta2
    """AdamW, Muon: memory of the mean squared gradient. Lion: of the mean gradient itself."""
    eps: float = TrainConfig.eps
    """AdamW: added to the root of the mean squared gradient."""
    momentum: float = TrainConfig.momentum
    """SGD, Muon: momentum."""
    weight_decay: float = TrainConfig.weight_decay
    """Pull of matrices and tables towards 0, times the learning rate."""
    groups: Annotated[tuple[str, ...], told("all alike", "PATTERN:rate=FACTOR,decay=NUMBER")] = TrainConfig.groups
    """Parameters, by a pattern of their names, with another rate (a factor) or decay; the first that matches counts."""
    freeze: Annotated[tuple[str, ...], told("nothing", "PATTERN")] = TrainConfig.freeze
    """Parameters, by patterns of their names, that stay as they are."""
    train_rows_from: Annotated[int | None, Given, told("everything is trained", "ID")] = TrainConfig.train_rows_from
    """Train only the rows of the tables of tokens from this id on."""
    max_norm: float | None = TrainConfig.max_norm
    """Longest gradient; a longer one is scaled down. None: any length."""
    ema: Annotated[float | None, Given, told("no mean")] = TrainConfig.ema
    """Keep a running mean of the weights with this decay (0.999, say), evaluated and saved beside them."""
    eval_every: int | None = TrainConfig.eval_every
    """Steps between evaluations on held-out text. None: only at the end, which evaluates all of it."""
    eval_batches: int | None = TrainConfig.eval_batches
    """Batches of held-out text in an evaluation before the end. None: all of it."""
    save_every: int | None = TrainConfig.save_every
    """Steps between checkpoints. None: only at the end."""
    sample_every: int | None = TrainConfig.sample_every
    """Steps between texts written by the model. None: only at the end."""
    sample_tokens: int = 200
    """Length of such a text, in tokens."""
    keep: int = TrainConfig.keep
    """Newest checkpoints that are kept."""
    keep_best: bool = TrainConfig.keep_best
    """Save and keep the checkpoint of the lowest held-out loss as well."""
    patience: Annotated[int | None, Given, told("all steps")] = TrainConfig.patience
    """Evaluations in a row without a lower held-out loss, after which the run ends."""


@dataclass(frozen=True)
class TrainCommand(TrainOptions):
    """What only the command line takes."""

    preset: Annotated[Preset | None, Given, told("the defaults here")] = None
    """Start from a set of options; see the table below."""
    config: Annotated[Path | None, Given, told("no file", "TOML")] = None
    """TOML file with any of these options as keys (kv_heads = 2); "none" stands for None."""
    resume: Annotated[Path | None, Given, told("a new run", "RUN")] = None
    """Continue this run folder where it stopped, with its own options."""
    check: Flag = False
    """Only look whether the run is worth starting: data, memory, disk, time, first loss, gradients, learning."""
    no_check: Flag = False
    """Skip this check, which every run of more than ten minutes begins with."""
    threads: Threads = None
    device: DeviceName = "cpu"
    json: Flag = False
    """End with one line of JSON on stdout."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class ResumeCommand:
    """What may stand beside --resume: a run goes on as it was begun."""

    resume: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Run folder to continue."""
    threads: Threads = None
    device: DeviceName = "cpu"
    json: Flag = False
    """End with one line of JSON on stdout."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class _Sources:
    """The options that decide where the others come from."""

    preset: Annotated[Preset | None, Given] = None
    config: Annotated[Path | None, Given] = None
    resume: Annotated[Path | None, Given] = None
    init_from: Annotated[Path | None, Given] = None


HELP = f"""Trains a language model from scratch on text, and evaluates it on the part of the text it held back.

Examples:
  pellucid train --corpus book.txt                        a model of a few million parameters
  pellucid train --corpus book.txt --preset small         a smaller one, sooner
  pellucid train --corpus notes/ --layers 8 --width 512 --heads 8 --steps 5000
  pellucid train --corpus notes/ --train-tokenizer --tokenizer-vocab 8000
  pellucid train --corpus book.txt --preset balanced      a named size, with a vocabulary of its own
  pellucid train --corpus new.txt --init-from runs/book   a new run from old weights, with their tokenizer
  pellucid train --corpus book.txt --check                whether it is worth starting, and what it takes
  pellucid train --config run.toml --seed 1               options from a file; flags win
  pellucid train --resume runs/book                       go on after Ctrl-C, a crash or a power cut

The run folder then holds config.json (every option as resolved), tokenizer.json, tokens.bin (the corpus as ids),
checkpoints/, metrics.jsonl (one line a step) and loss.png. Ctrl-C finishes the step, saves, and says how to resume;
a second Ctrl-C ends at once. A resumed run ends with the same weights, bit for bit, as one that was never stopped.

{about_presets()}"""


def parse_train(arguments: Sequence[str]) -> TrainCommand | ResumeCommand:
    """The options of a `pellucid train` command line.

    Raises ConfigError for options, keys or values that are unknown or contradict each other.
    """
    wants_help = "-h" in arguments or "--help" in arguments
    sources = pick(_Sources, arguments, command="train")
    if sources.resume is not None and not wants_help:
        try:
            return parse(ResumeCommand, arguments, command="train", help=HELP)
        except ConfigError as error:
            name = error.where.removeprefix("--").replace("-", "_")
            if name not in {f.name for f in fields(TrainCommand)}:
                raise
            hint = "leave it out, or start a new run"
            what = f"cannot be combined with {error.where}: a run goes on with its own options"
            raise ConfigError("--resume", what, hint=hint) from None
    toml = {} if sources.config is None else read_toml(sources.config)
    preset = {} if sources.preset is None else PRESETS[sources.preset]
    if sources.init_from is not None or "init_from" in toml:
        _check_shape(arguments, toml, sources.preset)
    return parse(
        TrainCommand, arguments, command="train", help=HELP, default=from_dict(TrainCommand, {**preset, **toml})
    )


SHAPE = (
    *("family", "layers", "heads", "kv_heads", "width", "ff", "context", "biases", "activation", "tie"),
    *("experts", "active_experts", "moe_layers", "moe_ff", "shared_expert"),
    *("tokenizer", "train_tokenizer", "tokenizer_vocab"),
)
"""Options that a model brings with it."""


def _check_shape(arguments: Sequence[str], toml: dict[str, Any], preset: str | None) -> None:
    """Raises ConfigError for an option that says what the model of --init-from has settled."""
    if preset is not None:
        hint = "leave the preset out and give its other options one by one"
        raise ConfigError("--init-from", f"cannot be combined with --preset {preset}: the model has a shape", hint=hint)
    flags = (a[2:].split("=")[0].replace("-", "_") for a in arguments if a.startswith("--"))
    for name in (*flags, *toml):
        if name.removeprefix("no_") in SHAPE:
            flag = f"--{name.replace('_', '-')}"
            what = f"cannot be combined with {flag}: the model has a shape and a tokenizer"
            raise ConfigError("--init-from", what, hint="leave it out, or begin with random weights")


def read_toml(path: Path) -> dict[str, Any]:
    """The options in a TOML file. Raises DataError for an unreadable file, ConfigError for unknown keys and types."""
    try:
        raw = path.read_bytes()  # also from a pipe
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {reason(error)}") from error
    try:
        values = tomllib.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(str(path), f"not a TOML file: {error}") from None
    if empty := [key for key, value in values.items() if value == ""]:
        raise ConfigError(f"{path}.{empty[0]}", "is empty", hint="leave the key out")
    # TOML has no null.
    values = {key: None if value == "none" else value for key, value in values.items()}
    from_dict(TrainOptions, values, where=str(path))
    return values


def model_config(options: TrainOptions, vocab_size: int, *, precision: str) -> TransformerConfig:
    """The model asked for. Raises ConfigError, naming flags."""
    gpt2 = options.family == "gpt2"
    try:
        return TransformerConfig(
            vocab_size,
            d_model=options.width,
            n_layers=options.layers,
            n_heads=options.heads,
            n_kv_heads=options.kv_heads,
            d_ff=options.ff,
            max_seq_len=options.context,
            norm="layernorm" if gpt2 else "rmsnorm",
            positions="learned" if gpt2 else "rope",
            activation=options.activation or ("gelu_tanh" if gpt2 else "swiglu"),
            biases=gpt2 if options.biases is None else options.biases,
            dropout=options.dropout,
            tie_embeddings=options.tie,
            precision=options.precision or precision,  # type: ignore[arg-type]
            checkpoint_blocks=options.checkpoint_blocks,
            seed=options.seed,
            experts=options.experts,
            active_experts=options.active_experts,
            moe_layers=options.moe_layers,
            moe_d_ff=options.moe_ff,
            shared_expert=options.shared_expert,
            aux_weight=options.aux_weight,
            z_weight=options.z_weight,
        )
    except ConfigError as error:
        raise in_flags(error, "model") from None


def train_config(options: TrainOptions) -> TrainConfig:
    """The training asked for. Raises ConfigError, naming flags."""
    length = options.context if options.seq_len is None else options.seq_len
    if length > options.context:
        raise ConfigError("--seq-len", "longer than the context", got=length, expected=f"at most {options.context}")
    if options.epochs is not None and not 0 < options.epochs < float("inf"):
        raise ConfigError("--epochs", "must be positive", got=options.epochs)
    shared = {f.name for f in fields(TrainConfig)} - {"seq_len"}
    try:
        return TrainConfig(seq_len=length, **{name: getattr(options, name) for name in shared})
    except ConfigError as error:
        raise in_flags(error, "training") from None


_FLAGS = {
    "d_model": "--width",
    "n_layers": "--layers",
    "n_heads": "--heads",
    "n_kv_heads": "--kv-heads",
    "d_ff": "--ff",
    "max_seq_len": "--context",
    "head_dim": "width / heads",
    "tie_embeddings": "--tie",
    "active_experts": "--active-experts",
    "moe_layers": "--moe-layers",
    "moe_d_ff": "--moe-ff",
    "shared_expert": "--shared-expert",
    "aux_weight": "--aux-weight",
    "z_weight": "--z-weight",
}


def in_flags(error: ConfigError, where: str) -> ConfigError:
    """The same refusal with the names of flags in place of those of fields."""
    names = _FLAGS | {f.name: f"--{f.name.replace('_', '-')}" for f in fields(TrainConfig) if "_" in f.name}

    def reword(text: str) -> str:
        return re.sub(r"\b[a-z]+_[a-z_]+\b", lambda found: names.get(found[0], found[0]), text)

    hint = "choose numbers that divide" if "multiple" in error.what else error.hint and reword(error.hint)
    return ConfigError(where, reword(error.what), got=error.got, expected=error.expected, hint=hint)

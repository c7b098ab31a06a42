"""The options of `pellucid sft` and `pellucid dpo`, and the training and the adapter they ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..base.errors import ConfigError
from ..models import TransformerConfig
from ..nn import LoraConfig
from ..train import TrainConfig
from .machine import DeviceName, Threads
from .options import in_flags
from .parse import Flag, told

Given = tyro.conf.DisallowNone


@dataclass(frozen=True)
class TuneOptions:
    """What both commands take."""

    dataset: Annotated[Path | None, Given, tyro.conf.arg(metavar="FILE", help_behavior_hint="(needed)")] = None
    """Examples, a JSON object a line (.jsonl, also .gz or .zst), or a .json list of them."""
    init_from: Annotated[Path | None, Given, tyro.conf.arg(metavar="MODEL", help_behavior_hint="(needed)")] = None
    """Model to begin with: run folder, checkpoint folder, Hugging Face folder or GGUF file."""
    out: Annotated[Path | None, Given, told("runs/NAME after the dataset, numbered if taken", "PATH")] = None
    """Run folder."""
    template: str = "auto"
    """Chat template: auto (the model's own), chatml, transcript (plain lines "User:" and "Assistant:"), or a file.
    A file is Jinja, or a tokenizer_config.json."""
    too_long: Literal["error", "skip", "cut"] = "error"
    """An example longer than the window ends the command, is left out, or loses its end."""
    held_out: float = 0.05
    """Share of the examples that is not trained on but evaluated; 0 for none."""
    seq_len: Annotated[int | None, Given, told("the model's context")] = None
    """Tokens of the window."""
    sequences: int = 16
    """Rows, or pairs, a step."""
    accumulate: Annotated[int | None, Given, told("1")] = None
    """Parts a step is computed in: the same result in less memory."""
    epochs: int = 3
    """Times every example is read."""
    steps: Annotated[int | None, Given, told("as many as the epochs take")] = None
    """Steps, in place of epochs."""
    learning_rate: float = 1e-4
    """Highest learning rate."""
    rate_schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How it falls after the warm-up."""
    warmup: int = 100
    """Steps in which it rises."""
    min_learning_rate: Annotated[float | None, Given, told("a tenth of the highest")] = None
    """Where it ends."""
    weight_decay: float = 0.0
    """Pull of matrices and tables towards 0, times the learning rate."""
    max_norm: float | None = 1.0
    """Longest gradient; a longer one is scaled down. None: any length."""
    lora_rank: Annotated[int | None, Given, told("no adapter: every weight is trained", "RANK")] = None
    """Train an adapter of this rank beside every projection instead of the weights (LoRA)."""
    lora_alpha: Annotated[float | None, Given, told("the rank")] = None
    """The adapter's change is alpha / rank times its product."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Hold the frozen weights in this beside an adapter: int8 is a quarter of the memory, and rounds them."""
    precision: Annotated[Literal["float32", "bfloat16"] | None, Given, told("the processor's best")] = None
    """What operands of matrix products are rounded to."""
    checkpoint_blocks: bool = TransformerConfig.checkpoint_blocks
    """Compute each block's forward again for its backward: less memory, a third more time."""
    eval_every: int | None = 100
    """Steps between evaluations on held-out examples. None: only at the end."""
    save_every: int | None = 100
    """Steps between checkpoints. None: only at the end."""
    keep: int = TrainConfig.keep
    """Newest checkpoints that are kept."""
    seed: int = 0
    """Of the order of the examples, of which are held out, and of dropout."""
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

    @property
    def parts(self) -> int:
        """Parts of a step where nobody says."""
        return 1


@dataclass(frozen=True)
class ResumeTuning:
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
class ResumeSource:
    """The option that decides which of the two a command line is."""

    resume: Annotated[Path | None, Given] = None


def train_config(options: TuneOptions, context: int, steps: int) -> TrainConfig:
    """The training asked for, of a model of that context. Raises ConfigError, naming flags."""
    length = context if options.seq_len is None else options.seq_len
    if not 1 <= length <= context:
        raise ConfigError("--seq-len", "does not fit the model", got=length, expected=f"1 to {context} (the context)")
    names = {f.name for f in fields(TrainConfig)} & {f.name for f in fields(TuneOptions)}
    shared = {name: getattr(options, name) for name in names - {"seq_len", "steps", "accumulate"}}
    parts = options.parts if options.accumulate is None else options.accumulate
    try:
        return TrainConfig(
            steps=steps if options.steps is None else options.steps,
            seq_len=length,
            accumulate=parts,
            eval_batches=None,
            **shared,
        )
    except ConfigError as error:
        raise in_flags(error, "training") from None


def lora_config(options: TuneOptions, model: TransformerConfig) -> LoraConfig | None:
    """The adapter asked for, of that model. Raises ConfigError."""
    rank = options.lora_rank
    if rank is None:
        if options.lora_alpha is not None:
            raise ConfigError("--lora-alpha", "without an adapter", got=options.lora_alpha, hint="add --lora-rank")
        if options.weights != "float32":
            hint = "add --lora-rank 16: an adapter is trained beside them"
            raise ConfigError("--weights", "only float32 weights can be trained", got=options.weights, hint=hint)
        return None
    if rank > (largest := _largest_rank(model)):
        hint = "usual ranks are 4 to 64; without --lora-rank every weight is trained"
        what = "above the rank of the smallest projection"
        raise ConfigError("--lora-rank", what, got=rank, expected=f"at most {largest}", hint=hint)
    if options.weights != "float32" and model.experts is not None:
        hint = "leave --weights out"
        raise ConfigError("--weights", "a mixture of experts is held in float32", got=options.weights, hint=hint)
    return LoraConfig(rank, options.lora_alpha, seed=options.seed)


def _largest_rank(model: TransformerConfig) -> int:
    """The smallest side of a projection."""
    inside = [model.hidden] if model.experts is None else [model.hidden, model.expert_hidden]
    return min(model.d_model, model.n_heads * model.head_width, model.kv_heads * model.head_width, *inside)


def less_memory(adapted: bool) -> str:
    """What a run would take less memory with."""
    less = "fewer --sequences, a shorter --seq-len, more --accumulate, --checkpoint-blocks"
    return less if adapted else f"{less}, or an adapter (--lora-rank)"

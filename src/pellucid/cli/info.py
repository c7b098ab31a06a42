"""`pellucid info`: what a path is, told from its content; sizes, parameters, hashes, configuration."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..base.config import to_dict
from ..base.errors import DataError
from ..base.files import read_json, reading
from ..checkpoint import (
    Checkpoint,
    ModelSource,
    Streamed,
    checkpoint_config,
    is_published,
    latest_checkpoint,
    load_checkpoint,
    open_source,
    read_tensors,
)
from ..data import TokenFile
from ..models import TransformerConfig
from ..text import CharTokenizer, Tokenizer, load_tokenizer
from .output import Output
from .parse import Flag, parse
from .runs import CONFIG, TOKENIZER, TOKENS, Run, open_run

HELP = """Says what a file or folder is, and whether it is whole: every checksum is recomputed.

Examples:
  pellucid info runs/book                               a run: its corpus, model, progress
  pellucid info runs/book/checkpoints/step-00001000     a checkpoint
  pellucid info SmolLM2-135M-Instruct                   a model published by others
  pellucid info model.safetensors --tensors             a tensor file, tensor by tensor
  pellucid info runs/book/tokens.bin                    a token file
  pellucid info runs/book/tokenizer.json                a tokenizer"""

_BLOCK = 1 << 20


@dataclass(frozen=True)
class InfoCommand:
    """Options of `pellucid info`."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Run folder, checkpoint folder, published model, .safetensors file, token file or tokenizer file."""
    tensors: Flag = False
    """List every tensor."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(InfoCommand, arguments, command="info", help=HELP)
    facts = describe(options.path, tensors=options.tensors)
    out = Output(options.json)
    out.facts({name.replace("_", " "): _shown(value) for name, value in facts.items()})
    out.result({"path": str(options.path), **facts})
    return 0


def describe(path: Path, *, tensors: bool = False) -> dict[str, Any]:
    """The facts about a path, JSON-able, `kind` first. Raises DataError for what is nothing of ours."""
    if path.is_dir():
        if (path / "state.json").exists():
            return _checkpoint(path, tensors)
        if not (path / TOKENS).exists() and (latest_checkpoint(path) is None) and is_published(path):
            return _published(path, tensors)
        if (path / CONFIG).exists():
            return _run(path, tensors)
        raise DataError(str(path), "neither a run nor a checkpoint", expected="a folder with config.json or state.json")
    if is_published(path):
        return _published(path, tensors)
    with reading(path) as file:
        first = file.read(16)
    if not first:
        raise DataError(str(path), "the file is empty")
    if first[8:9] == b"{" or path.suffix == ".safetensors":
        return _tensor_file(path, tensors)
    if path.suffix == ".model" or (first.lstrip()[:1] == b"{" and _is_tokenizer(path)):
        return _tokenizer_file(path)
    if path.suffix == ".bin" or Path(f"{path}.json").exists():
        return _token_file(path)
    expected = "a run, a checkpoint, a .safetensors file, a token file (.bin) or a tokenizer file"
    raise DataError(str(path), "not a file of a kind known here", got=f"{_bytes(path):,} bytes", expected=expected)


def _is_tokenizer(path: Path) -> bool:
    """Whether a JSON file says what it is, as ours do, or has a model, as Hugging Face's have; a damaged tokenizer.json
    counts."""
    try:
        content = read_json(path, "JSON")
        return isinstance(content.get("type"), str) or isinstance(content.get("model"), dict)
    except DataError:
        return path.name == TOKENIZER


def _run(path: Path, tensors: bool) -> dict[str, Any]:
    found: Run = open_run(path)
    newest = latest_checkpoint(path)
    facts: dict[str, Any] = {
        "kind": "run",
        "corpus": found.config.corpus,
        "held_out": found.config.held_out,
        "steps": f"of {found.config.train.steps:,}",
    }
    if newest is None:
        facts["steps"] = f"0 of {found.config.train.steps:,}: no checkpoint yet"
    else:
        inner = _checkpoint(newest, tensors)
        facts["steps"] = f"{inner['step']:,} of {found.config.train.steps:,}"
        facts["checkpoint"] = str(newest)
        facts |= {name: value for name, value in inner.items() if name not in ("kind", "step", "train")}
    return facts | {"tokens": _token_file(path / TOKENS)["tokens"], "train": to_dict(found.config.train)}


def _checkpoint(path: Path, tensors: bool) -> dict[str, Any]:
    found: Checkpoint = load_checkpoint(path)
    facts: dict[str, Any] = {
        "kind": "checkpoint",
        "architecture": found.config.get("architecture"),
        "weights": "float32" if found.precision == "float32" else f"{found.precision} (read as float32)",
        "step": found.state.get("step"),
        "held_out_loss": found.state.get("held_out_loss"),
    }
    files = sorted(p for p in path.iterdir() if p.is_file())
    if found.config.get("architecture") == "TransformerLM":
        facts |= _model(checkpoint_config(found))
    else:
        facts["config"] = found.config
    if found.tokenizer is not None:
        facts["tokenizer"] = _tokenizer(found.tokenizer)
    facts["bytes"] = sum(_bytes(p) for p in files)
    facts["sha256"] = {p.name: _sha256(p) for p in files}
    facts["resumable"] = found.optimizer is not None
    if "train" in found.state:
        facts["train"] = found.state["train"]
    return facts | (_tensors(found.tensors) if tensors else {})


def _published(path: Path, tensors: bool) -> dict[str, Any]:
    """A model of another format: what is known before its weights are read."""
    found: ModelSource = open_source(path)
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    weights = found.weights
    facts: dict[str, Any] = {
        "kind": f"published model ({found.format})",
        "weights": found.stored or ", ".join(sorted({weights.dtype(name).name for name in weights})),
        **_model(found.config),
        "tokenizer": None if found.tokenizer is None else _tokenizer(found.tokenizer),
        "chat_template": found.chat_template is not None,
        "eos_ids": list(found.eos_ids),
        "without_effect": list(found.ignored) or None,
        "bytes": sum(map(_bytes, files)),
    }
    return facts | (_tensors(weights) if tensors else {})


def _model(config: TransformerConfig) -> dict[str, Any]:
    counts = config.parameter_counts()
    parts = ("embedding", "attention", "feedforward", "norms", "head")
    return {
        "parameters": counts.total,
        "active_parameters": counts.active if counts.active != counts.total else None,
        "parts": {name: getattr(counts, name) for name in parts},
        "flops_per_token": config.flops_per_token(config.max_seq_len, training=False),
        "model": to_dict(config),
    }


def _tensor_file(path: Path, tensors: bool) -> dict[str, Any]:
    found = read_tensors(path)
    facts: dict[str, Any] = {
        "kind": "tensor file (safetensors)",
        "bytes": _bytes(path),
        "count": len(found),
        "parameters": sum(_elements(found.shape(name)) for name in found),
        "formats": ", ".join(sorted({found.dtype(name).name for name in found})),
        "metadata": dict(found.metadata) or None,
        "sha256": _sha256(path),
        "checksum": "verified" if found.sha256 is not None else "none in the file: its numbers can't be checked",
    }
    return facts | (_tensors(found) if tensors else {})


def _tensors(found: Streamed) -> dict[str, Any]:
    return {"tensors": {name: f"{found.dtype(name).name} {list(found.shape(name))}" for name in found}}


def _token_file(path: Path) -> dict[str, Any]:
    found = TokenFile.open(path)
    facts: dict[str, Any] = {"kind": "token file", "tokens": len(found), "bytes": _bytes(path)}
    if found.info is None:
        facts |= {"largest_id": found.check_vocabulary(2**32), "description": "none beside it: tokenizer unknown"}
    else:
        found.verify()
        facts |= {"vocabulary": found.info.vocab_size, "tokenizer": found.info.tokenizer, "checksum": "verified"}
    return facts | {"sha256": _sha256(path)}


def _tokenizer_file(path: Path) -> dict[str, Any]:
    found = load_tokenizer(path)
    return {"kind": "tokenizer", **_tokenizer(found), "bytes": _bytes(path), "sha256": _sha256(path)}


def _tokenizer(found: Tokenizer) -> dict[str, Any]:
    facts: dict[str, Any] = {"type": found.kind, "vocabulary": found.vocab_size, "fingerprint": found.fingerprint()}
    if found.special:
        facts["special"] = dict(found.special)
    if isinstance(found, CharTokenizer):
        text = found.characters
        facts["characters"] = text if len(text) <= 256 else text[:256] + "..."
    return facts


def _shown(value: Any) -> object:
    """A value for people; None stays None and is left out, and so is an option that is off."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_inner(inner)}" for name, inner in value.items() if inner not in (None, [], ()))
    return _inner(value) if value is not None else None


def _inner(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return " ".join(f"{name} {_inner(inner)}" for name, inner in value.items())
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and not value.isprintable() else str(value)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _bytes(path: Path) -> int:
    return path.stat().st_size


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with reading(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()

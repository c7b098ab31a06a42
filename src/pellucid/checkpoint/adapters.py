"""Adapters on disk, alone and without their base, in the layout of PEFT: a folder of a few megabytes.

    adapter_config.json        rank, alpha, which projections
    adapter_model.safetensors  A and B of each, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", ...

An adapter of a Hugging Face base so written is read by `peft.PeftModel.from_pretrained`, and the other way round. What
PEFT can do beyond LoRA's A and B is refused by name. Nothing is attached before every name and shape was compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..base.config import to_dict
from ..base.errors import CheckpointError, ConfigError
from ..base.files import StrPath
from ..nn import HeldMatrix, LoraConfig, Module, add_lora
from ..nn.held import HELD_DTYPES
from ..nn.lora import PROJECTIONS, Adapters, adaptable
from ..nn.low_rank import LowRank
from ..tape import Parameter, Tensor
from .load import load_into
from .storage import current, decode_json, encode_json, read_small, write_bytes, write_folder
from .tensor_file import Plan, TensorFile, read_tensors
from .tensor_format import shown

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
_FINGERPRINT = "base_sha256"
LORA, BASE, WEIGHTS = "lora", "base", "weights"
_PREFIX = "base_model.model."
_MATRICES = {"A": "lora_A.weight", "B": "lora_B.weight"}

# What an adapter of PEFT may ask for beside A and B, and the values that ask for nothing.
_BEYOND: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "megatron_config": (None,),
}


def adapter_tensors(model: Module, name: str | None = None) -> dict[str, Tensor]:
    """A and B of an adapter (None: of the active one) by PEFT's names. Raises ConfigError where there is none."""
    adapters = _of(model, "adapter_tensors")
    found = {}
    for path, pair in adapters.pairs[adapters.named("adapter_tensors", name)].items():
        for attribute, suffix in _MATRICES.items():
            found[f"{_PREFIX}{path}.{suffix}"] = getattr(pair, attribute)
    return found


def save_lora(model: Module, folder: StrPath, *, name: str | None = None, base: str | None = None) -> Path:
    """Writes an adapter (None: the active one) into a folder, in place of the adapter that is there.

    base: what the adapter belongs to, a folder or a name, for whoever reads the folder (None: what `add_lora` was
    told). The weights of the base are not in it, but their fingerprint is.

    Raises ConfigError where there is no such adapter, CheckpointError where the disk is full or refuses or the folder
    holds something else; what was there before is unchanged.
    """
    adapters = _of(model, "save_lora")
    config = adapters.configs[adapters.named("save_lora", name)]
    where = os.fspath(folder)
    raw = encode_json(_peft_config(config, base or adapters.base), where=f"{where}: config")
    metadata = {"format": "pt", _FINGERPRINT: base_fingerprint(model)}
    plan = Plan(adapter_tensors(model, name), metadata, where=where)
    files: dict[str, Callable[[BinaryIO], object]] = {TENSORS: plan.write, CONFIG: write_bytes(raw)}
    needed = plan.nbytes + len(raw)
    return write_folder(folder, files, needed=needed, belongs=files.__contains__, whose="an adapter's")


def load_lora(model: Module, folder: StrPath, *, name: str = "default") -> LoraConfig:
    """Reads an adapter into the model and makes it the active one: into the adapter attached under that name, if there
    is one, else into a new one as the folder describes it. Returns its configuration.

    Raises CheckpointError for a folder that holds no such adapter, is damaged, asks for more than A and B, or does not
    fit the model or the attached adapter; the model stays as it was.
    """
    where = os.fspath(folder)
    tensors, config = _read(Path(folder))
    attached = None if model.adapters is None else model.adapters.configs.get(name)
    if attached is not None:
        for what, got, expected in (
            ("rank", config.rank, attached.rank),
            ("alpha", config.scale * config.rank, attached.scale * attached.rank),
            ("targets", _names(config.targets), _names(attached.targets)),
        ):
            if got != expected:
                hint = "load it under another name, or attach an adapter like it"
                what = f"another {what} than the adapter attached"
                raise CheckpointError(where, what, got=got, expected=expected, hint=hint)
        load_into(adapter_tensors(model, name), tensors, cast=True, where=where)
    else:
        _check(tensors, model, config, where)
        add_lora(model, config, name=name)
        load_into(adapter_tensors(model, name), tensors, cast=True, where=where)
    return config


def is_base(model: Module, folder: StrPath) -> bool | None:
    """Whether an adapter in a folder was trained on just these weights, held in the same way; None where it does not
    say, as PEFT's don't. Raises CheckpointError for a folder that holds no adapter."""
    stated = _read(Path(folder))[0].metadata.get(_FINGERPRINT)
    return None if stated is None else stated == base_fingerprint(model)


def kept_tensors(model: Module) -> dict[str, Tensor]:
    """What a checkpoint of this model holds: all parameters, or where there are adapters the active one alone."""
    return dict(model.named_parameters()) if model.adapters is None else adapter_tensors(model)


def lora_details(model: Module) -> dict[str, Any]:
    """What the configuration of such a checkpoint says: the adapter, and which base it is a change of."""
    adapters = _of(model, "lora_details")
    config = adapters.configs[adapters.named("lora_details")]
    base = {"path": adapters.base, "sha256": base_fingerprint(model)}
    for part in _weights(model).values():
        if isinstance(part, HeldMatrix):  # all of them alike
            base[WEIGHTS] = part.dtype.name
    return {LORA: to_dict(config), BASE: base}


def check_base(model: Module, details: Mapping[str, Any], *, where: str) -> None:
    """Raises CheckpointError where `lora_details` of a checkpoint are not those of the model: another adapter, or
    another base. The seed of the first A says nothing about one that was trained."""
    saved, mine = _details(details, where), lora_details(model)
    for name, expected in saved[LORA].items():
        if name != "seed" and (got := mine[LORA].get(name)) != expected:
            hint = "resume with the run's own configuration"
            what = f"a checkpoint of an adapter with another {name}"
            raise CheckpointError(where, what, got=got, expected=expected, hint=hint)
    got, expected = mine[BASE]["sha256"], saved[BASE].get("sha256")
    if got != expected:
        hint = f"open {shown(str(saved[BASE].get('path')))} as it was, held in the same way"
        what = "a checkpoint of an adapter of another base"
        raise CheckpointError(where, what, got=got[:12], expected=str(expected)[:12], hint=hint)


def base_path(details: Mapping[str, Any], *, where: str) -> str:
    """Where the base of such a checkpoint is. Raises CheckpointError where it does not say."""
    path = _details(details, where)[BASE].get("path")
    if not isinstance(path, str):
        raise CheckpointError(where, "an adapter of a base that it does not name", hint="open the base, then load_lora")
    return path


def base_weights(details: Mapping[str, Any], *, where: str) -> str | None:
    """What the base's weights were held in, None for parameters. Raises CheckpointError for what weights can't be."""
    found = _details(details, where)[BASE].get(WEIGHTS)
    if found is not None and found not in [d.name for d in HELD_DTYPES]:
        expected = ", ".join(d.name for d in HELD_DTYPES)
        raise CheckpointError(where, "a base held in no known type", got=shown(repr(found)), expected=expected)
    return found


def _details(details: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for name in (LORA, BASE):
        if not isinstance(details.get(name), Mapping):
            raise CheckpointError(where, f"not the configuration of an adapter: no {name}")
    return details


def base_fingerprint(model: Module) -> str:
    """SHA-256 of the base's weights, their names and how they are held, in hexadecimal. It is computed once for a model
    that has adapters: the base does not change under them."""
    adapters = model.adapters
    if adapters is not None and adapters.fingerprint is not None:
        return adapters.fingerprint
    found = _fingerprint(model)
    if adapters is not None:
        adapters.fingerprint = found
    return found


def untouched_base(model: Module) -> str:
    """The base's fingerprint, of its weights as they are now. Raises CheckpointError where it is not what it was when
    it was asked for first: a run that trained an adapter has moved what should stay."""
    found, before = _fingerprint(model), base_fingerprint(model)
    if found != before:
        what, hint = "weights of the base have changed under the adapter", "open the base again"
        raise CheckpointError("base", what, got=found[:12], expected=before[:12], hint=hint)
    return found


def _fingerprint(model: Module) -> str:
    digest = hashlib.sha256()
    for path, part in sorted(_weights(model).items()):
        arrays = [part.array] if isinstance(part, Tensor) else [a for a in (part.values, part.scale) if a is not None]
        for array in arrays:
            digest.update(f"{path} {array.dtype.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array.device.host(array)).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _weights(module: Module, prefix: str = "") -> dict[str, Tensor | HeldMatrix]:
    """Every weight of the base by name: what is in no adapter."""
    found: dict[str, Tensor | HeldMatrix] = {}
    for name, value in vars(module).items():
        if isinstance(value, Parameter | HeldMatrix):
            found[prefix + name] = value
    for name, child in module.children():
        if not isinstance(child, LowRank):
            found |= _weights(child, f"{prefix}{name}.")
    return found


def _of(model: Module, where: str) -> Adapters:
    if model.adapters is None:
        raise ConfigError(where, "the model has no adapter", hint="add_lora attaches one")
    return model.adapters


def _peft_config(config: LoraConfig, base: str | None) -> dict[str, Any]:
    alpha = config.scale * config.rank
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "target_modules": list(config.targets or ()),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }


def _read(folder: Path) -> tuple[TensorFile, LoraConfig]:
    """The tensors and what they are, of a folder that is one adapter."""
    where, folder = os.fspath(folder), current(folder)
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing there"
        raise CheckpointError(where, "no such adapter", got=got, expected=f"a folder with {CONFIG} and {TENSORS}")
    for name in (CONFIG, TENSORS):
        if not (folder / name).exists():
            hint = "give the folder that save_lora or PEFT wrote"
            if name == TENSORS and (folder / "adapter_model.bin").exists():
                hint = "save it as safetensors: a pickle can run anything"
            raise CheckpointError(where, f"not an adapter: no {name}", hint=hint)
    at = os.fspath(folder / CONFIG)
    content = decode_json(read_small(at), where=at)
    if content.get("peft_type") != "LORA":
        raise CheckpointError(at, "another kind of adapter", got=shown(str(content.get("peft_type"))), expected="LORA")
    for key, nothing in _BEYOND.items():
        if (value := content.get(key)) not in nothing:
            raise CheckpointError(at, f"asks for {key}, which is not supported", got=shown(repr(value)))
    rank, alpha = content.get("r"), content.get("lora_alpha", content.get("r"))
    if type(rank) is not int or not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise CheckpointError(at, "r and lora_alpha are not numbers", got=shown(f"{rank!r} and {alpha!r}"))
    tensors = read_tensors(folder / TENSORS)
    present = {name.removesuffix(f".{suffix}").rpartition(".")[2] for name in tensors for suffix in _MATRICES.values()}
    targets = tuple(t for t in PROJECTIONS if t in present)
    if not targets:
        got = ", ".join(shown(name) for name in list(tensors)[:1]) or "no tensors"
        raise CheckpointError(tensors.path, "no change of a projection is in it", got=got, expected="...lora_A.weight")
    try:
        return tensors, LoraConfig(rank, alpha=float(alpha), targets=targets)
    except ConfigError as error:
        raise CheckpointError(at, error.what, got=error.got, expected=error.expected) from error


def _check(tensors: TensorFile, model: Module, config: LoraConfig, where: str) -> None:
    """Compares names and shapes with what the adapter would be. Raises CheckpointError."""
    try:
        layers = adaptable(model, config.targets)
    except ConfigError as error:
        raise CheckpointError(where, error.what, got=error.got, expected=error.expected) from error
    wanted: dict[str, tuple[int, ...]] = {}
    for path, layer in layers.items():
        outputs, inputs = layer.weight.shape
        wanted[f"{_PREFIX}{path}.{_MATRICES['A']}"] = (config.rank, inputs)
        wanted[f"{_PREFIX}{path}.{_MATRICES['B']}"] = (outputs, config.rank)
    hint = "load it into the base it was trained on"
    for what, names in (("missing", set(wanted) - set(tensors)), ("unexpected", set(tensors) - set(wanted))):
        if names:
            got, expected = f"{what} {shown(min(names))}", f"{len(wanted)} tensors"
            raise CheckpointError(where, "the adapter does not fit the model", got=got, expected=expected, hint=hint)
    for name, shape in wanted.items():
        if tensors.shape(name) != shape:
            what = f"tensor {shown(name)} does not fit the model"
            raise CheckpointError(where, what, got=tensors.shape(name), expected=shape, hint=hint)
        if not tensors.dtype(name).is_float:
            what = f"tensor {shown(name)} is not of floats"
            raise CheckpointError(where, what, got=tensors.dtype(name).name, expected="float32")


def _names(targets: tuple[str, ...] | None) -> str:
    return ", ".join(targets or ())

"""Checkpoints: tensors on disk, whole runs on disk, and models of others."""

from .adapters import (
    adapter_tensors,
    base_fingerprint,
    check_base,
    is_base,
    kept_tensors,
    load_lora,
    lora_details,
    save_lora,
    untouched_base,
)
from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .keep import keep_model
from .llama2c import Llama2cVocabulary, load_llama2c, load_llama2c_tokenizer
from .load import Streamed, load_into, load_streamed
from .locks import lock_folder
from .open import FORMATS, AdaptedSource, checkpoint_config, is_published, open_model, open_source
from .parity import Parity, parity
from .published.gguf_write import Companions, write_gguf
from .published.hub_write import write_hub
from .runs import checkpoint_path, latest_checkpoint, prune_checkpoints
from .source import Format, ModelSource, OpenedModel
from .tensor_file import TensorFile, read_tensors, write_tensors

__all__ = [
    "FORMATS",
    "AdaptedSource",
    "Checkpoint",
    "Companions",
    "Format",
    "Llama2cVocabulary",
    "ModelSource",
    "OpenedModel",
    "Parity",
    "Streamed",
    "TensorFile",
    "adapter_tensors",
    "base_fingerprint",
    "check_base",
    "checkpoint_config",
    "checkpoint_path",
    "is_base",
    "is_published",
    "keep_model",
    "kept_tensors",
    "latest_checkpoint",
    "load_checkpoint",
    "load_into",
    "load_llama2c",
    "load_llama2c_tokenizer",
    "load_lora",
    "load_streamed",
    "lock_folder",
    "lora_details",
    "open_model",
    "open_source",
    "parity",
    "prune_checkpoints",
    "read_tensors",
    "save_checkpoint",
    "save_lora",
    "untouched_base",
    "write_gguf",
    "write_hub",
    "write_tensors",
]

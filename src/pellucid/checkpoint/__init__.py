"""Checkpoints: tensors on disk, whole runs on disk, and models of others."""

from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .keep import keep_model
from .llama2c import Llama2cVocabulary, load_llama2c, load_llama2c_tokenizer
from .load import Streamed, load_into, load_streamed
from .locks import lock_folder
from .open import FORMATS, checkpoint_config, is_published, model_from, open_model, open_source
from .parity import Parity, parity
from .published.gguf_write import Companions, write_gguf
from .published.hub_write import write_hub
from .runs import checkpoint_path, latest_checkpoint, prune_checkpoints
from .source import Format, ModelSource, OpenedModel
from .tensor_file import TensorFile, read_tensors, write_tensors

__all__ = [
    "FORMATS",
    "Checkpoint",
    "Companions",
    "Format",
    "Llama2cVocabulary",
    "ModelSource",
    "OpenedModel",
    "Parity",
    "Streamed",
    "TensorFile",
    "checkpoint_config",
    "checkpoint_path",
    "is_published",
    "keep_model",
    "latest_checkpoint",
    "load_checkpoint",
    "load_into",
    "load_llama2c",
    "load_llama2c_tokenizer",
    "load_streamed",
    "lock_folder",
    "model_from",
    "open_model",
    "open_source",
    "parity",
    "prune_checkpoints",
    "read_tensors",
    "save_checkpoint",
    "write_gguf",
    "write_hub",
    "write_tensors",
]

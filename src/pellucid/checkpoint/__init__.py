"""Checkpoints: tensors on disk, whole runs on disk, and models of others."""

from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .llama2c import Llama2cVocabulary, load_llama2c, load_llama2c_tokenizer
from .load import load_into
from .locks import lock_folder
from .runs import checkpoint_path, latest_checkpoint, prune_checkpoints
from .tensor_file import TensorFile, read_tensors, write_tensors

__all__ = [
    "Checkpoint",
    "Llama2cVocabulary",
    "TensorFile",
    "checkpoint_path",
    "latest_checkpoint",
    "load_checkpoint",
    "load_into",
    "load_llama2c",
    "load_llama2c_tokenizer",
    "lock_folder",
    "prune_checkpoints",
    "read_tensors",
    "save_checkpoint",
    "write_tensors",
]

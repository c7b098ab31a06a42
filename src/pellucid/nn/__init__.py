"""Layers: modules with named parameters, built from operations."""

from .attention import KVCache, SelfAttention
from .experts import MixtureOfExperts, Routing
from .held import HeldMatrix
from .layers import Dropout, Embedding, GELUFeedForward, LayerNorm, Linear, RMSNorm, SwiGLU
from .lora import LoraConfig, add_lora, merge_lora, refuse_adapters, set_adapter, unload_lora
from .module import Module

__all__ = [
    "Dropout",
    "Embedding",
    "GELUFeedForward",
    "HeldMatrix",
    "KVCache",
    "LayerNorm",
    "Linear",
    "LoraConfig",
    "MixtureOfExperts",
    "Module",
    "RMSNorm",
    "Routing",
    "SelfAttention",
    "SwiGLU",
    "add_lora",
    "merge_lora",
    "refuse_adapters",
    "set_adapter",
    "unload_lora",
]

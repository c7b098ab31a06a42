"""Layers: modules with named parameters, built from operations."""

from .attention import KVCache, SelfAttention
from .layers import Dropout, Embedding, GELUFeedForward, LayerNorm, Linear, RMSNorm, SwiGLU
from .module import Module

__all__ = [
    "Dropout",
    "Embedding",
    "GELUFeedForward",
    "KVCache",
    "LayerNorm",
    "Linear",
    "Module",
    "RMSNorm",
    "SelfAttention",
    "SwiGLU",
]

"""Layers: modules with named parameters, built from operations."""

from .attention import KVCache, SelfAttention
from .experts import MixtureOfExperts, Routing
from .layers import Dropout, Embedding, GELUFeedForward, LayerNorm, Linear, RMSNorm, SwiGLU
from .module import Module

__all__ = [
    "Dropout",
    "Embedding",
    "GELUFeedForward",
    "KVCache",
    "LayerNorm",
    "Linear",
    "MixtureOfExperts",
    "Module",
    "RMSNorm",
    "Routing",
    "SelfAttention",
    "SwiGLU",
]

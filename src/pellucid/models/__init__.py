"""Models built from the layers."""

from .config import ParameterCounts, TransformerConfig
from .transformer import TransformerLM

__all__ = ["ParameterCounts", "TransformerConfig", "TransformerLM"]

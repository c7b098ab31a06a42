"""Models: one configuration and the decoder-only transformer language model it describes."""

from .config import ParameterCounts, TransformerConfig
from .grow import grow_vocabulary
from .routing import RoutingReport
from .transformer import TransformerLM

__all__ = ["ParameterCounts", "RoutingReport", "TransformerConfig", "TransformerLM", "grow_vocabulary"]

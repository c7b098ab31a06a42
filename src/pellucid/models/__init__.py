"""Models: one configuration and the decoder-only transformer language model it describes."""

from .config import ParameterCounts, TransformerConfig
from .rope import RopeScaling
from .routing import RoutingReport
from .transformer import TransformerLM

__all__ = ["ParameterCounts", "RopeScaling", "RoutingReport", "TransformerConfig", "TransformerLM"]

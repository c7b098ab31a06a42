"""Generation: samplers, the decoder that keeps its cache between turns, and streams of ids."""

from .decoder import Decoder, generate, stream
from .sampler import Sampler

__all__ = ["Decoder", "Sampler", "generate", "stream"]

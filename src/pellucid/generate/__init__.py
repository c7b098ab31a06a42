"""Generation: samplers, the decoder and its streams."""

from .decoder import Decoder, generate, stream
from .sampler import Sampler

__all__ = ["Decoder", "Sampler", "generate", "stream"]

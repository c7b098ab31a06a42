"""Generation: samplers, the decoder that keeps its cache between turns, streams of ids and of text, conversations."""

from .conversation import Conversation, Turn, load_conversation, turn_ends
from .decoder import Decoder, generate, stream
from .sampler import Sampler
from .text import Text

__all__ = [
    "Conversation",
    "Decoder",
    "Sampler",
    "Text",
    "Turn",
    "generate",
    "load_conversation",
    "stream",
    "turn_ends",
]

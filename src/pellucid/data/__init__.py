"""From files to batches: documents, token files and token batches."""

from .batch import TokenBatch
from .sources import TEXT_SUFFIXES, Continued, Documents, documents, holds_several
from .token_file import TokenFile
from .token_writer import Encoded, TokenFileInfo

__all__ = [
    "TEXT_SUFFIXES",
    "Continued",
    "Documents",
    "Encoded",
    "TokenBatch",
    "TokenFile",
    "TokenFileInfo",
    "documents",
    "holds_several",
]

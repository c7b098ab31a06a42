"""From files to batches: documents, token files and token batches."""

from .batch import TokenBatch
from .sources import TEXT_SUFFIXES, Continued, documents
from .token_file import TokenFile
from .token_writer import TokenFileInfo

__all__ = ["TEXT_SUFFIXES", "Continued", "TokenBatch", "TokenFile", "TokenFileInfo", "documents"]

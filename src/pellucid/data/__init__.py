"""From files to batches: documents, token files, token batches, and questions with choices."""

from .batch import TokenBatch
from .questions import Question, read_questions
from .sources import TEXT_SUFFIXES, Continued, Documents, documents, holds_several
from .token_file import TokenFile
from .token_writer import Encoded, TokenFileInfo

__all__ = [
    "TEXT_SUFFIXES",
    "Continued",
    "Documents",
    "Encoded",
    "Question",
    "TokenBatch",
    "TokenFile",
    "TokenFileInfo",
    "documents",
    "holds_several",
    "read_questions",
]

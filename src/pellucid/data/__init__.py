"""From files to batches: documents, token files, token batches, and questions with choices."""

from .batch import TokenBatch
from .examples import Examples, ExamplesInfo
from .instructions import Dialogue, Preference, conversations, preferences
from .packing import PackedRows, pack
from .questions import Question, read_questions
from .repeats import Copies, asked, copies, overlap, repeated, run_length
from .shuffle import Shuffled
from .sources import TEXT_SUFFIXES, Continued, Documents, documents, holds_several
from .token_file import TokenFile
from .token_writer import Encoded, TokenFileInfo

__all__ = [
    "TEXT_SUFFIXES",
    "Continued",
    "Copies",
    "Dialogue",
    "Documents",
    "Encoded",
    "Examples",
    "ExamplesInfo",
    "PackedRows",
    "Preference",
    "Question",
    "Shuffled",
    "TokenBatch",
    "TokenFile",
    "TokenFileInfo",
    "asked",
    "conversations",
    "copies",
    "documents",
    "holds_several",
    "overlap",
    "pack",
    "preferences",
    "read_questions",
    "repeated",
    "run_length",
]

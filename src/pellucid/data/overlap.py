"""How much of a text repeats itself, or stands in another: by hashes of every run of n ids, a sample of them kept.

A hash is kept if it is a multiple of a number, so that the same runs are kept wherever they stand, in one text or two,
and a paragraph that was moved by a token is found as well   (Manber 1994, "Finding similar files").
"""

from __future__ import annotations

import numpy as np

from .token_file import TokenFile

_MOST = 2_000_000  # hashes kept
_BLOCK = 1 << 20  # tokens
_BASE, _MIX, _WORD = 0x9E3779B97F4A7C15, np.uint64(0xBF58476D1CE4E5B9), 2**64


def run_hashes(tokens: TokenFile, length: int, *, every: int) -> np.ndarray:
    """The hashes, uint64, of the runs of `length` ids that are kept: about one in `every`. length: a power of two."""
    assert length & (length - 1) == 0, "runs are doubled"
    kept = []
    for begin in range(0, len(tokens), _BLOCK):
        found = tokens.ids[begin : begin + _BLOCK + length - 1].astype(np.uint64) + np.uint64(1)
        power, width = _BASE, 1
        while width < length and len(found) > width:
            # The hash of a run of 2 w is that of its first half times base**w plus that of its second; modulo 2**64.
            found = found[:-width] * np.uint64(power) + found[width:]
            power, width = power * power % _WORD, 2 * width
        if width < length:
            break
        found = (found ^ (found >> np.uint64(29))) * _MIX
        kept.append(found[(found >> np.uint64(32)) % np.uint64(every) == 0])
    return np.concatenate(kept) if kept else np.empty(0, np.uint64)


def sampling(tokens: TokenFile) -> int:
    """One hash in how many is kept of a text of this length."""
    return max(1, -(-len(tokens) // _MOST))


def repeated_share(hashes: np.ndarray) -> float:
    """Of the runs, the share that stood in the text before: 0 to 1."""
    return 0.0 if not len(hashes) else 1 - len(np.unique(hashes)) / len(hashes)


def contained_share(hashes: np.ndarray, others: np.ndarray) -> float:
    """The share of `hashes` that is among `others` as well: 0 to 1."""
    return 0.0 if not len(hashes) else float(np.isin(hashes, others).mean())

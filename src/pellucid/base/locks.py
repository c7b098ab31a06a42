"""The operating system's file lock, taken without waiting. It ends with its process, however that ends."""

from __future__ import annotations

import errno

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def try_lock(handle: int) -> bool:
    """Takes the lock of an open file or folder until `handle` is closed; False if another process holds it.

    Raises:
        OSError: the file system has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "no file locks on this system")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

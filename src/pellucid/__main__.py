"""`python -m pellucid` is the command line, the same as the `pellucid` program."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m pellucid.cli` is the command line, the same as the `pellucid` program."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())

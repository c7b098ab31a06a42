"""nanoGPT's CPU recipe for Shakespeare by characters (Karpathy 2022), on any text: `07_nanogpt.py input.txt`.

4 layers, width 128, context 64, 2000 steps of 12 x 64 characters; a loss of about 1.88 on the held-out tenth of
tinyshakespeare, in about a minute on two cores. Further arguments are options of `pellucid train`:
`07_nanogpt.py input.txt --steps 5000 --seed 1`.
"""

import sys

from pellucid.cli import main

if len(sys.argv) < 2:
    sys.exit(f"usage: {sys.argv[0]} TEXT [OPTIONS OF pellucid train]")
sys.exit(main(["train", "--preset", "nanogpt", "--corpus", *sys.argv[1:]]))

"""Benchmarks: what Pellucid costs, beside what its peers cost, in one run. `python -m benchmarks --list` names them."""

"""Kernels: the only code that touches the elements of an Array. A sub-package for each backend, a row of `spec` a kernel."""

__all__: list[str] = []

"""Kernels: the only code that touches the elements of an Array. A sub-package for each backend; `spec` lists them."""

__all__: list[str] = []

"""Kernels: the only code that touches the elements of an Array. One sub-package a backend, all with the functions of `spec`."""

__all__: list[str] = []

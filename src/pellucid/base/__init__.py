"""Base: errors, number formats, shape arithmetic, random streams, settings, configuration, files."""

__all__: list[str] = []

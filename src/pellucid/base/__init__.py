"""Base: errors, number formats, shape arithmetic, random streams, settings, configuration, files. No numbers flow here."""

__all__: list[str] = []

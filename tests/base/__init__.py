"""The base layer: errors, settings, number formats, shapes, random numbers."""

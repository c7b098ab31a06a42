"""Pellucid."""

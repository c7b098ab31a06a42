"""What a `tokenizer_config.json` says about chat: the template among its values, and the names of special tokens."""

from __future__ import annotations


def named_default(value: object) -> str | None:
    """The template, or of several named ones that named "default"."""
    if isinstance(value, list):
        value = next((v.get("template") for v in value if isinstance(v, dict) and v.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def token_text(value: object) -> str | None:
    """A special token of a configuration: its text, or an object that holds it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None

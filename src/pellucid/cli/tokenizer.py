"""`pellucid tokenizer ACTION`: train a tokenizer, use one, look into one, compare several."""

from __future__ import annotations

import difflib
import importlib

from ..base.errors import ConfigError

ACTIONS = {
    "train": "make a tokenizer from text",
    "encode": "text to ids",
    "decode": "ids to text",
    "info": "what a tokenizer holds, and what it makes of a text",
    "compare": "several tokenizers on one text",
}
_MODULES = {
    "train": "tokenizer_train",
    "encode": "tokenizer_use",
    "decode": "tokenizer_use",
    "info": "tokenizer_info",
    "compare": "tokenizer_info",
}

HELP = f"""usage: pellucid tokenizer ACTION [OPTIONS]

Turns text into the ids a model reads, and back.

actions:
{chr(10).join(f"  {name:<8} {what}" for name, what in ACTIONS.items())}

Examples:
  pellucid tokenizer train --corpus books/ --vocab 8000
  pellucid tokenizer encode tokenizer.json "some text"
  pellucid tokenizer info tokenizer.json books/

`pellucid tokenizer ACTION --help` explains an action."""


def run(arguments: list[str]) -> int:
    """Runs the action; returns the exit status."""
    action = next((a for a in arguments[:1]), "--help")
    if action in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if action not in ACTIONS:
        close = difflib.get_close_matches(action, ACTIONS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the actions are {', '.join(ACTIONS)}"
        raise ConfigError(action, "unknown action", hint=hint)
    module = importlib.import_module(f"{__package__}.{_MODULES[action]}")
    return getattr(module, action)(arguments[1:])

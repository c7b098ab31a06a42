"""The public interface changes only together with its snapshot."""

from __future__ import annotations

import difflib

from . import interface
from .source import exported, modules


def test_interface_matches_its_snapshot() -> None:
    accepted = interface.SNAPSHOT.read_text(encoding="utf-8")
    current = interface.interface()
    changes = list(
        difflib.unified_diff(accepted.splitlines(), current.splitlines(), "accepted", "current", lineterm="")
    )
    cure = "the public interface changed; if it should, run `make interface` and note it in CHANGELOG.md"
    assert not changes, "\n".join([cure, *changes])


def test_every_package_lists_its_public_names() -> None:
    wrong = []
    for module in modules().values():
        if module.is_package:
            names = exported(module)
            if names is None:
                wrong.append(f"{module.where}: no literal __all__")
            elif len(set(names)) != len(names):
                wrong.append(f"{module.where}: a name twice in __all__")
    assert not wrong, "\n".join(wrong)


def test_public_names_exist() -> None:
    wrong = []
    for module in modules().values():
        for name in (exported(module) if module.is_package else None) or ():
            home, node = interface.find(module, name)
            if node is None and home == "dynamic":
                wrong.append(f"{module.where}: {name} is in __all__ and nowhere defined")
    assert not wrong, "\n".join(wrong)

"""The public interface as text: every name in a package's `__all__`, with its signature, read from the source.

`interface.txt` beside this file holds the accepted state, so a change of the interface shows in the diff. A name that a
package takes from another package is listed where it is defined and as a pointer where it is passed on. Of the kernel
backends only the reference is listed: the others have its signatures, which a test of the kernels holds.
`python -m tests.repo.interface --write` (or `make interface`) rewrites the file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from .source import Module, exported, modules

SNAPSHOT = Path(__file__).with_name("interface.txt")
BACKENDS = ("pellucid.kernels.cpu", "pellucid.kernels.cuda")
LONGEST_VALUE = 60

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def interface() -> str:
    """The whole interface, a block for each package that exports something."""
    blocks = []
    for module in modules().values():
        names = exported(module) if module.is_package else None
        if names and not module.name.startswith(BACKENDS):
            lines = [line for name in sorted(names) for line in describe(module, name)]
            blocks.append("\n".join([module.name, *(f"    {line}" for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def describe(package: Module, name: str) -> Iterator[str]:
    """The lines of one exported name."""
    home, node = find(package, name)
    if node is None:
        yield f"{name}: {home}"
    elif owner(home) != package.name:
        yield f"{name} = {home}.{defined(node)}"
    elif isinstance(node, ast.ClassDef):
        yield f"class {name}({', '.join(ast.unparse(base) for base in node.bases)})".replace("()", "")
        yield from (f"    {line}" for line in members(node))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield f"{name}{signature(node)}"
    else:
        yield f"{name}{constant(node)}"


def owner(home: str) -> str:
    """The nearest package whose `__init__` lists public names, seen from the module `home`."""
    while home:
        module = modules().get(home)
        if module is not None and module.is_package and exported(module) is not None:
            return home
        home = home.rpartition(".")[0]
    return ""


def find(module: Module, name: str) -> tuple[str, Definition | None]:
    """Follows imports from `module` to where `name` is defined: that module's name and the definition. Without a
    definition in the source, what it is instead: "module", "foreign", or "dynamic" where nothing defines it."""
    for node in reversed(module.tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return module.name, node
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return module.name, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    base = module.resolve(node)
                    if f"{base}.{alias.name}" in modules():
                        return f"module {base}.{alias.name}", None
                    if base in modules():
                        return find(modules()[base], alias.name)
                    return f"foreign {base}.{alias.name}", None
    if f"{module.name}.{name}" in modules():
        return f"module {module.name}.{name}", None
    return "dynamic", None


def defined(node: Definition) -> str:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target)
    return node.name


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def constant(node: ast.Assign | ast.AnnAssign) -> str:
    """A constant's type where it is written, else its value, shortened."""
    if isinstance(node, ast.AnnAssign):
        value = f" = {short(node.value)}" if node.value is not None else ""
        return f": {ast.unparse(node.annotation)}{value}"
    return f" = {short(node.value)}"


def short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def members(node: ast.ClassDef) -> Iterator[str]:
    """Public fields, properties and methods of a class in the order of the source, with the special methods that have
    a signature of their own."""
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if item.name.startswith("_") and item.name not in ("__init__", "__call__"):
                continue
            marks = [ast.unparse(mark) for mark in item.decorator_list]
            if any(mark.endswith((".setter", ".deleter")) for mark in marks):
                yield f"{item.name} (settable)"
            elif "property" in marks or "cached_property" in marks:
                returns = f": {ast.unparse(item.returns)}" if item.returns else ""
                yield f"{item.name}{returns} (property)"
            else:
                kind = next((f"{mark} " for mark in marks if mark in ("classmethod", "staticmethod")), "")
                yield f"{kind}{item.name}{signature(item)}"
        elif isinstance(item, ast.AnnAssign):
            name = ast.unparse(item.target)
            if not name.startswith("_"):
                yield f"{name}{constant(item)}"
        elif isinstance(item, ast.Assign):
            name = defined(item)
            if not name.startswith("_"):
                yield f"{name}{constant(item)}"


def main(arguments: list[str]) -> int:
    if arguments != ["--write"]:
        print("usage: python -m tests.repo.interface --write", file=sys.stderr)
        return 2
    SNAPSHOT.write_text(interface(), encoding="utf-8")
    print(f"wrote {SNAPSHOT}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The package as text: its modules, what each imports and where. Read with `ast`; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src"
ROOT = "pellucid"


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is the module or the name in it, in full; `nested` where it stands in a function."""

    target: str
    line: int
    nested: bool


@dataclass(frozen=True)
class Module:
    """One file of the package. `name` is the dotted name; a package's `__init__` has the package's name."""

    path: Path
    name: str

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def layer(self) -> str:
        """The first part below the root: "ops" for pellucid.ops.matmul; "" for the root itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    @property
    def where(self) -> str:
        return str(self.path.relative_to(REPOSITORY))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.where)

    def resolve(self, node: ast.ImportFrom) -> str:
        """The full name of the module that `from ... import` names."""
        if node.level == 0:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def imports(self) -> Iterator[Import]:
        """Every import statement, and every call of `import_module` or `__import__` with a literal name."""
        for node, nested in walk(self.tree, False):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, nested)
            elif isinstance(node, ast.ImportFrom):
                base = self.resolve(node)
                for alias in node.names:
                    yield Import(base if alias.name == "*" else f"{base}.{alias.name}", node.lineno, nested)
            elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
                argument = node.args[0] if node.args else None
                literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                yield Import(argument.value if literal else "?", node.lineno, nested)  # type: ignore[union-attr]


def walk(node: ast.AST, nested: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below `node`, each with whether it stands inside a function."""
    for child in ast.iter_child_nodes(node):
        yield child, nested
        inside = nested or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from walk(child, inside)


def called(node: ast.Call) -> str:
    """The last part of the name of what is called: "print" for print(...) and for builtins.print(...)."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


@lru_cache(maxsize=1)
def modules() -> dict[str, Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((SOURCE / ROOT).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(path, name)
    return found


def exported(module: Module) -> list[str] | None:
    """The names in `__all__`, or None where it is missing or not a literal list or tuple of strings."""
    for node in module.tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__" and isinstance(node, (ast.Assign, ast.AnnAssign)):
            if isinstance(node.value, (ast.List, ast.Tuple)):
                names = [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
                return names if len(names) == len(node.value.elts) else None
            return None
    return None

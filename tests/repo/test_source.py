"""Source rules: the layers, and the parts of the house style that a program can read."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess

import pytest

from .source import REPOSITORY, ROOT, Module, called, modules, walk

LEVELS = {
    "base": 0,
    "device": 1,
    "kernels": 2,
    "tape": 3,
    "text": 3,
    "data": 4,
    "ops": 4,
    "nn": 5,
    "optim": 5,
    "models": 6,
    "checkpoint": 7,
    "train": 8,
    "generate": 8,
    "serve": 9,
    "cli": 10,
}
FRONT = ("", "__main__")  # the root names what is public and may import every layer
PEERS = ("torch", "transformers", "tokenizers", "jax", "sentencepiece")
# A device finds the backend it computes with by name, at the first kernel; a tokenizer its compiled loops; a corpus the
# optional packages of its format.
LOADERS = (f"{ROOT}.device.device", f"{ROOT}.text.native", f"{ROOT}.data.optional")
BROAD = ("BaseException", "Exception")
LONGEST_MODULE = 500
LONGEST_EXAMPLE = 60
SHORTEST_ABSTRACT = 40  # characters

# Joined here, so that this file does not contain what it forbids.
ELSEWHERE = [
    r"(?<![\w.*~])/" + r"work/",
    r"(?<![\w.*~])/" + r"home/\w",
    "/opt/" + "pypi",
    "pypi" + r"\.org",
    "pythonhosted" + r"\.org",
    "registry" + r"\.npmjs",
    "deb" + r"\.debian",
]


def check(wrong: list[str]) -> None:
    assert not wrong, "\n".join(wrong)


def layer_of(target: str) -> str | None:
    """The layer an import reaches: None for another distribution."""
    parts = target.split(".")
    return (parts[1] if len(parts) > 1 else "") if parts[0] == ROOT else None


def may_load_late(module: Module) -> bool:
    """Imports inside a function are for loading a kernel backend and a CLI command."""
    return module.layer == "cli" or module.name in LOADERS


def test_the_package_was_found() -> None:
    assert ROOT in modules()
    assert f"{ROOT}.base.errors" in modules()


def test_layers_import_only_lower_layers() -> None:
    wrong = []
    for module in modules().values():
        if module.layer in FRONT:
            continue
        if module.layer not in LEVELS:
            wrong.append(f"{module.where}: {module.layer!r} has no level")
            continue
        for item in module.imports():
            target = layer_of(item.target)
            if target is None or target == module.layer:
                continue
            # A name of the root is a re-export of some layer: importing it turns the order round.
            if LEVELS.get(target, 99) >= LEVELS[module.layer]:
                wrong.append(f"{module.where}:{item.line}: {module.layer} imports {item.target}")
    check(wrong)


def test_imports_stand_at_the_top() -> None:
    check(
        [
            f"{module.where}:{item.line}: imports {item.target} inside a function"
            for module in modules().values()
            if not may_load_late(module)
            for item in module.imports()
            if item.nested
        ]
    )


def test_no_peer_is_imported() -> None:
    check(
        [
            f"{module.where}:{item.line}: imports {item.target}"
            for module in modules().values()
            for item in module.imports()
            if item.target.split(".")[0] in PEERS
        ]
    )


def test_modules_are_short() -> None:
    lengths = {module.where: module.text.count("\n") for module in modules().values()}
    check([f"{where}: {n} lines, at most {LONGEST_MODULE}" for where, n in lengths.items() if n > LONGEST_MODULE])


def test_every_module_opens_with_an_abstract() -> None:
    wrong = []
    for module in modules().values():
        abstract = ast.get_docstring(module.tree) or ""
        if len(abstract) < SHORTEST_ABSTRACT:
            wrong.append(f"{module.where}: no abstract of at least {SHORTEST_ABSTRACT} characters")
    check(wrong)


def test_only_the_cli_prints() -> None:
    wrong = []
    for module in modules().values():
        if module.layer == "cli":
            continue
        for node, _ in walk(module.tree, False):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                wrong.append(f"{module.where}:{node.lineno}: print")
            elif isinstance(node, ast.Attribute) and node.attr == "stdout" and ast.unparse(node) == "sys.stdout":
                wrong.append(f"{module.where}:{node.lineno}: sys.stdout")
    check(wrong)


def test_the_environment_is_read_in_one_place() -> None:
    wrong = []
    for module in modules().values():
        if module.name == f"{ROOT}.base.settings":
            continue
        for node, _ in walk(module.tree, False):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
                wrong.append(f"{module.where}:{node.lineno}: {ast.unparse(node)}")
        for item in module.imports():
            if item.target in ("os.environ", "os.environb", "os.getenv"):
                wrong.append(f"{module.where}:{item.line}: {item.target}")
    check(wrong)


def test_no_error_is_swallowed() -> None:
    """A handler of everything must do something: raise, return another error, record it."""
    wrong = []
    for module in modules().values():
        for node, _ in walk(module.tree, False):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else BROAD[0]
                if caught in BROAD and all(
                    isinstance(s, (ast.Pass, ast.Continue, ast.Break)) or is_ellipsis(s) for s in node.body
                ):
                    wrong.append(f"{module.where}:{node.lineno}: catches {caught} and does nothing")
            elif isinstance(node, ast.Call) and called(node) == "suppress":
                everything = [a for a in node.args if ast.unparse(a) in BROAD]
                wrong.extend(f"{module.where}:{node.lineno}: suppresses {ast.unparse(a)}" for a in everything)
    check(wrong)


def is_ellipsis(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def test_examples_are_numbered_and_short() -> None:
    wrong = []
    for path in sorted((REPOSITORY / "examples").glob("*.py")):
        lines = path.read_text(encoding="utf-8").count("\n")
        if not re.fullmatch(r"\d\d_\w+\.py", path.name):
            wrong.append(f"examples/{path.name}: not named NN_what.py")
        if lines >= LONGEST_EXAMPLE:
            wrong.append(f"examples/{path.name}: {lines} lines, under {LONGEST_EXAMPLE} expected")
    check(wrong)


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of one particular machine and no package registry's host in any file that belongs to the project."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout, so the project's files are not known")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split("\0")
    forbidden = re.compile("|".join(ELSEWHERE))
    wrong = []
    for name in filter(None, listed):
        path = REPOSITORY / name
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            if found := forbidden.search(line):
                wrong.append(f"{name}:{number}: {found.group()}")
    check(wrong)

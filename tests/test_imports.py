"""Import rules: which package may import which, checked for every module, lazy imports included."""

import ast
from functools import cache
from pathlib import Path

import pytest

import regard

HOME = Path(regard.__file__).parent
FILES = sorted(HOME.rglob("*.py"))

# What each package or top-level module may import from regard, besides itself.
ALLOWED: dict[str, set[str]] = {
    package: set(others.split())
    for package, others in {
        "errors": "",
        "config": "files errors",
        "registry": "errors",
        "files": "errors",
        "threads": "",
        "console": "",
        "masks": "",
        "ops": "masks errors",
        "attention": "ops masks registry errors config",
        "layers": "attention ops masks registry errors config",
        "models": "layers attention ops masks registry files errors config",
        "data": "files threads errors config",
        "decoding": "models layers attention ops masks errors config",
        "inspection": "models layers attention masks files errors",
        "pipelines": "decoding data models attention ops masks files errors config",
        "evaluation": "pipelines inspection decoding data models layers attention masks files errors config",
        "interop": "pipelines decoding data models layers attention masks files errors config",
        "training": "interop evaluation pipelines inspection decoding data models layers attention ops masks registry "
        "files threads console errors config",
    }.items()
}
UNRESTRICTED = {"serving", "cli"}
"""May import everything; nothing imports them."""
EXCEPTIONS: dict[str, set[str]] = {
    "ops": {"regard.masks"},  # kernels take masks and layouts
    "__init__": {"*"},  # public names, loaded lazily
    "__main__": {"regard.cli", "regard.threads"},
}
WITHOUT_TORCH = {"errors", "config", "registry", "files", "threads", "console", "cli", "__init__"}
"""Imported by every command, so torch is imported only inside their functions."""


def module_name(path: Path) -> str:
    parts = path.relative_to(HOME.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    return path.relative_to(HOME).parts[0].removesuffix(".py")


@cache
def imports(path: Path, top_level_only: bool = False) -> frozenset[str]:
    """The full names of all modules that a file imports, anywhere in it or only when it is itself imported."""
    found: set[str] = set()
    package = [HOME.name, *path.relative_to(HOME).parent.parts]

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and top_level_only:
            return
        if isinstance(node, ast.If) and top_level_only and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:  # `from regard.ops import linear` imports the module regard.ops.linear
                submodule = f"{module}.{alias.name}"
                found.add(submodule if submodule in MODULES else module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(found)


MODULES = {module_name(path): path for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_imports_follow_the_rules(path: Path) -> None:
    package = package_of(path)
    if package in UNRESTRICTED:
        return
    exceptions = EXCEPTIONS.get(package, set())
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "regard" or len(parts) == 1 or parts[1] == package or "*" in exceptions or name in exceptions:
            continue
        assert parts[1] in ALLOWED[package], f"{module_name(path)} may not import {name}"


def test_every_rule_is_used() -> None:
    used: dict[str, set[str]] = {package: set() for package in ALLOWED}
    for path in FILES:
        for name in imports(path):
            parts = name.split(".")
            if package_of(path) in used and parts[0] == "regard" and len(parts) > 1:
                used[package_of(path)].add(parts[1])
    assert {package: allowed - used[package] for package, allowed in ALLOWED.items() if allowed - used[package]} == {}


def test_rules_have_no_cycle() -> None:
    reached: set[str] = set()
    while rest := ALLOWED.keys() - reached:
        free = {package for package in rest if ALLOWED[package] <= reached}
        assert free, f"cycle among {rest}"
        reached |= free


def test_objectives_do_not_depend_on_tasks() -> None:
    names = {name for path in FILES if "objectives" in path.parts for name in imports(path)}
    assert "regard.training.task" in names
    assert not [name for name in names if name.startswith("regard.training.tasks")]


def test_modules_have_no_import_cycle() -> None:
    state: dict[str, str] = {}

    def visit(module: str, chain: tuple[str, ...]) -> None:
        if state.get(module) == "done":
            return
        assert state.get(module) != "open", " -> ".join([*chain, module])
        state[module] = "open"
        for name in sorted(imports(MODULES[module])):
            if name in MODULES and name != module:
                visit(name, (*chain, module))
        state[module] = "done"

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize(
    "path", [path for path in FILES if package_of(path) in WITHOUT_TORCH], ids=lambda path: str(path.relative_to(HOME))
)
def test_start_up_does_not_import_torch(path: Path) -> None:
    assert not {name for name in imports(path, top_level_only=True) if name.split(".")[0] == "torch"}


def test_imports_are_found_in_functions_and_relative_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "HOME", tmp_path)
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "x.py"
    path.write_text(
        "import regard.training.run\nfrom regard import cli\nfrom regard.errors import UserError\n"
        "def f():\n    if True:\n        from regard.layers import X\n"
    )
    assert imports(path) == {"regard.training.run", "regard.cli", "regard.errors", "regard.layers"}

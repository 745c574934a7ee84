"""Attention kinds, models, objectives and tasks by name, and the extensions that add to them.

An extension is a Python file or package that calls `regard.register`. The command line imports those of `--import`.
Those of the environment variable REGARD_IMPORT, and installed packages with an entry point, are imported when a name is
unknown. A model folder only states which extensions it needs: nothing that a folder names is ever imported.
"""

import difflib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from regard.errors import UserError

EXTENSIONS = "extensions"
"""Key under which config.json and the recipe of a run state the extensions that they need."""
ENTRY_POINTS = "regard.extensions"
"""Group of the entry points of packages that are extensions."""
VARIABLE = "REGARD_IMPORT"
"""Environment variable with further extensions, separated as in PATH. Worker processes inherit it."""
Registered = TypeVar("Registered", bound=type)
Extensions = dict[str, dict[str, str]]
"""File or package of each class of an extension, by what it is, such as "attention kind", and by its name."""
_REGISTRIES: dict[str, "Registry[Any]"] = {}
_FILES: dict[Path, ModuleType] = {}


class Registry(dict[str, Registered]):
    """Classes by the name under which recipes and model folders refer to them, in the order of registration.

    `noun` states what the classes are, for errors; `name_of` returns the name of a class.
    """

    def __init__(self, noun: str, name_of: Callable[[Registered], str]) -> None:
        super().__init__()
        self.noun, self.name_of = noun, name_of
        _REGISTRIES[noun] = self

    def add(self, cls: Registered) -> Registered:
        """Register a class. A class with the same name is replaced if it is defined in the same file."""
        name = self.name_of(cls)
        other = self.get(name, cls)
        if (_file_of(other), other.__qualname__) != (_file_of(cls), cls.__qualname__):
            owner = _origin(other) or "regard"
            raise UserError(f"{cls.__name__}: {owner} already has the {self.noun} {name}; choose another name")
        self[name] = cls
        return cls

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            _import_installed()
        return super().__contains__(name)

    def __missing__(self, name: str) -> Registered:
        if name not in self:
            raise KeyError(name)
        return self[name]

    def explain(self, name: object, known: Iterable[str] | None = None) -> str:
        """Return the part of an error message that lists the known names, by default all, instead of an unknown one."""
        known = list(self if known is None else known)
        is_new = isinstance(name, str) and name not in self and not difflib.get_close_matches(name, known, 1)
        return f"one of {', '.join(known)}" + ("; give an extension that has it with --import" if is_new else "")


def name_of_settings(settings: Any) -> str:
    """Return the name of a settings class with a field such as `kind: Literal["local"] = "local"`."""
    field = settings.model_fields.get("kind")
    if field is None or not isinstance(field.default, str):
        raise UserError(f'{settings.__name__}: lacks its name; declare kind: Literal["my-kind"] = "my-kind"')
    return field.default


def register(cls: Registered) -> Registered:
    """Make a class available to recipes, model folders and commands by its name. To be used as a decorator.

    Args:
        cls: A subclass of `KindSettings`, `Model`, `ObjectiveSettings` or `Task`.

    Raises:
        UserError: It is none of these, it lacks a name, or the name belongs to another class.
    """
    registry: Registry[Registered] | None = getattr(cls, "registry", None)
    if registry is None:
        bases = "KindSettings, Model, ObjectiveSettings and Task"
        raise UserError(f"{cls.__name__}: only subclasses of {bases} can be registered")
    return registry.add(cls)


# Which extensions a model needs


def find_extensions(classes: Iterable[type]) -> Extensions:
    """Return the extensions that define these classes; those of regard itself and unregistered ones are left out."""
    found: Extensions = {}
    for cls in classes:
        registry: Registry[type] | None = getattr(cls, "registry", None)
        origin = _origin(cls)
        if registry is not None and origin is not None:
            found.setdefault(registry.noun, {})[registry.name_of(cls)] = origin
    return found


def check_extensions(needed: object, where: object) -> None:
    """Check that all classes that `find_extensions` returned for a model are registered."""
    for noun, name, origin in list_extensions(needed):
        if noun in _REGISTRIES and name not in _REGISTRIES[noun]:
            remedy = "give it with --import" if _is_file(origin) else "install it"
            raise UserError(
                f"{where}: needs the {noun} {name} of {origin}; {remedy}, or import it before you load the model"
            )


def list_extensions(needed: object) -> Iterator[tuple[str, str, str]]:
    """Yield what each class is, its name, and its file or package, from `Extensions` as they are read from a file."""
    for noun, names in needed.items() if isinstance(needed, Mapping) else ():
        for name, origin in names.items() if isinstance(names, Mapping) else ():
            yield noun, name, str(origin)


def _origin(cls: type) -> str | None:
    """Return the name of the file or package that defines a class; None for regard itself."""
    package = cls.__module__.partition(".")[0]
    if package == "regard":
        return None
    for path, module in _FILES.items():
        if module.__name__ == cls.__module__:
            return "/".join(path.parts[-2:]) if path.stem == "__init__" else path.name
    return Path(_file_of(cls)).name if package == "__main__" else package


def _file_of(cls: type) -> str:
    """Return the file that defines a class, or its module if there is none, as in a notebook."""
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__


# Imports


def import_extensions(names: Iterable[str]) -> None:
    """Import files and packages, in this process and, when they need them, in processes that it starts.

    Args:
        names: Paths of Python files, and names of modules.
    """
    inherited = os.environ.get(VARIABLE, "").split(os.pathsep)
    names = [str(Path(name).absolute()) if _is_file(name) else name for name in names]
    for name in names:
        _import(name)
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(filter(None, [*inherited, *names])))


@cache
def _import_installed() -> None:
    """Import the extensions of REGARD_IMPORT and the installed ones, once."""
    installed = [entry.value for entry in entry_points(group=ENTRY_POINTS)]
    for name in [*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)), *installed]:
        _import(name)


def _import(name: str) -> None:
    try:
        if _is_file(name):
            _import_file(Path(name).resolve())
        else:
            import_module(name)
    except Exception as error:
        raise UserError(_explain(name, error)) from error


def _import_file(path: Path) -> None:
    if path in _FILES:
        return
    spec = spec_from_file_location(f"regard_import_{len(_FILES)}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = _FILES[path] = module  # classes look up their annotations there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module.__name__], _FILES[path]
        raise


def _explain(name: str, error: Exception) -> str:
    """Return one sentence about an error that an import raised, with the line in the extension."""
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return f"--import {name}: no such module; give a file that ends in .py, or an installed package"
    if isinstance(error, FileNotFoundError) and not Path(name).exists():
        return f"{name}: no such file"
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    path = str(Path(name).resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f"{name}, line {lines[-1]}" if lines else name
    return f"{where}: {error if isinstance(error, UserError) else repr(error)}"


def _is_file(name: str) -> bool:
    return name.endswith(".py")

"""Import the public names of a package when they are first used, so that importing it costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from muster.errors import public


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, from modules and the names each defines.

    The table reads like import statements; the module "." stands for the package, its names for submodules.
    Submodules are found without being named, too (`tune.schedulers.X`); naming one lists it in `__all__`.
    Type checkers do not see it: they take the names from `from m import Thing as Thing` under TYPE_CHECKING.

    Example:
        __getattr__, __dir__, __all__ = lazy_names(__name__, {".things": ["Thing"], ".": ["part"]})
    """
    homes = {name: module for module, names in modules.items() for name in names}
    for name, module in homes.items():
        if hasattr(known := sys.modules.get(module), name):  # else every fork of this process looks for it
            setattr(sys.modules[package], name, getattr(known, name))

    @public
    def load(name: str) -> object:
        if name not in homes and not _is_module(package, name):
            raise AttributeError(f"module {package!r} has no attribute {name!r}{_hint(name, homes)}")
        if homes.get(name, ".") == ".":
            return importlib.import_module(f".{name}", package)
        value = getattr(importlib.import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(homes), sorted(homes)


def _is_module(package: str, name: str) -> bool:
    try:
        return not name.startswith("_") and find_spec(f"{package}.{name}") is not None
    except ImportError:  # the "package" is a module, and has no submodules
        return False


def _hint(name: str, known: Mapping[str, str]) -> str:
    if name.startswith("_"):
        return ""  # asked by Python or a tool, not by a user
    from muster.base.text import did_you_mean

    near = did_you_mean(name, known)
    return f": {near}" if near else ""

"""Imports the public names of a package when they are first used, so that importing it costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package, from modules and the names each defines.

    The table reads like import statements; the module "." stands for the package, its names for submodules.
    Type checkers do not see it: they take the names from `from m import Thing as Thing` under TYPE_CHECKING.

    Example:
        __getattr__, __dir__, __all__ = lazy_names(__name__, {".things": ["Thing"], ".": ["part"]})
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == ".":
            return importlib.import_module(f".{name}", package)
        value = getattr(importlib.import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(homes), sorted(homes)

"""Imports the public names of a package when they are first used, so that importing it costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package: public name -> the module that defines it, or that it is.

    Example:
        __getattr__, __dir__ = lazy_names(__name__, {"Thing": ".things", "part": f"{__name__}.part"})
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name], package)
        value = module if homes[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(homes)

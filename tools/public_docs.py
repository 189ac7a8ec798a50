"""List public members without a docstring, and public callables that do not describe their parameters.

    python tools/public_docs.py

Public is what the API reference shows: the exports of the modules in MODULES, and their public methods and
properties that are defined in muster. A class may describe the parameters of its constructor in its own
docstring. A method that overrides a documented one inherits its docstring.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

MODULES = (
    "muster.tune",
    "muster.tune.schedulers",
    "muster.tune.search",
    "muster.tune.stopper",
    "muster.tune.logger",
    "muster.tune.search.tpe",
    "muster.tune.search.optuna",
    "muster.tune.search.hyperopt",
    "muster.tune.search.bayesopt",
    "muster.tune.search.nevergrad",
    "muster.tune.search.zoopt",
    "muster.tune.search.ax",
    "muster.tune.search.bohb",
    "muster.tune.integration.lightgbm",
    "muster.air.session",
    "muster.air.integrations.mlflow",
    "muster.air.integrations.wandb",
    "muster.air.integrations.comet",
    "muster.train",
    "muster.autoscaler",
    "muster.autoscaler.sdk",
    "muster.testing",
    "muster.errors",
)
FEW = 1  # a single parameter that the first line names needs no section


def exports(module: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        value = getattr(module, name, None)
        is_ours = getattr(value, "__module__", "").startswith("muster")
        if is_ours and (inspect.isclass(value) or inspect.isroutine(value)):
            yield name, value


def members(owner: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
            yield name, inner


def lacks_docstring(owner: type | None, name: str, value: Any) -> bool:  # noqa: ANN401
    if (value.fget if isinstance(value, property) else value).__doc__:
        return False
    bases = owner.__mro__[1:] if owner else ()
    return not any(getattr(vars(base).get(name), "__doc__", None) for base in bases)


def lacks_args(owner: type | None, name: str, value: Any) -> bool:  # noqa: ANN401
    """Return whether a callable has parameters that no docstring describes."""
    if (
        isinstance(value, property)
        or dataclasses.is_dataclass(value)
        or (isinstance(value, type) and issubclass(value, BaseException))
    ):
        return False
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return False
    named = [
        each
        for each in signature.parameters.values()
        if each.name not in ("self", "cls") and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    if len(named) <= FEW:
        return False
    bases = owner.__mro__ if owner else ()
    texts = [value.__doc__ or "", *(getattr(vars(base).get(name), "__doc__", None) or "" for base in bases)]
    if inspect.isclass(value):
        texts.append(value.__init__.__doc__ or "")
    text = "\n".join(texts)
    return "Args:" not in text and not all(f"`{each.name}`" in text or each.name in text for each in named)


def problems() -> tuple[list[str], list[str]]:
    undocumented, undescribed, seen = [], [], set()
    for module_name in MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue  # a search library that is not installed
        for name, value in exports(module):
            if id(value) in seen:
                continue
            seen.add(id(value))
            places = [(None, name, value)]
            if inspect.isclass(value):
                places += [(value, inner, member) for inner, member in members(value)]
            for owner, inner, member in places:
                where = f"{value.__module__}.{value.__qualname__}" + (f".{inner}" if owner else "")
                if lacks_docstring(owner, inner, member):
                    undocumented.append(where)
                elif lacks_args(owner, inner, member):
                    undescribed.append(where)
    return undocumented, undescribed


def main() -> None:
    for title, listed in zip(("without docstring", "without Args"), problems(), strict=True):
        sys.stdout.write(f"{len(listed)} {title}\n" + "".join(f"  {place}\n" for place in listed))


if __name__ == "__main__":
    main()

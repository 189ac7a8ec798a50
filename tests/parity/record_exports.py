"""Write ray_exports.json: the names that Ray Tune 2.60 offers, and the parameters of its public callables.

Run it with an interpreter that has ray[tune]==2.60.0: `python tests/parity/record_exports.py`. Ray is read
from outside only: module names, public names, signatures. No source is read.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import warnings
from pathlib import Path

ROOTS = ("ray.tune", "ray.air")
ALONE = ("ray.train",)  # without what is below: trainers
NOT_FOR_USERS = (".tests", ".examples", "._")
# Elsewhere they are imports.
HAVE_CONSTANTS = ("ray.tune.constants", "ray.tune.result", "ray.tune.search.repeater")
TARGET = Path(__file__).with_name("ray_exports.json")


def modules():
    yield from (*ROOTS, *ALONE)
    for root in ROOTS:
        path = importlib.import_module(root).__path__
        for found in pkgutil.walk_packages(path, root + ".", onerror=lambda name: None):
            if not any(part in found.name for part in NOT_FOR_USERS):
                yield found.name


def public_names(module):
    """Return what the module exports; without such a list: what it defines, and its constants."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(name for name, value in vars(module).items() if _is_own(module, name, value))


def _is_own(module, name, value):
    if name.startswith("_") or inspect.ismodule(value):
        return False
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__module__ == module.__name__
    return name.isupper() and module.__name__ in HAVE_CONSTANTS


def described(value):
    if inspect.isclass(value):
        return {"kind": "class", "parameters": parameters(value), "methods": methods(value)}
    if callable(value):
        return {"kind": "function", "parameters": parameters(value)}
    is_prose = isinstance(value, str) and " " in value  # messages are theirs; ours say it in our words
    if isinstance(value, (str, int, float, type(None))) and not is_prose:
        return {"kind": "constant", "value": value}
    return {"kind": "constant"}


def methods(kind):
    """Return public methods that Ray itself defines, with their parameters; properties have none."""
    found = {}
    for name in dir(kind):
        if name.startswith("_"):
            continue
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is None or not owner.__module__.startswith("ray."):
            continue
        value = getattr(kind, name)
        found[name] = parameters(value) if callable(value) else None
    return found


def parameters(value):
    """Return parameters as in a `def`; a default that is not a literal is shown as the name of its type."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    plain = [
        each.replace(
            annotation=each.empty,
            default=each.default if each.default is each.empty else _literal(each.default),
        )
        for each in signature.parameters.values()
    ]
    return str(inspect.Signature(plain))[1:-1]


def _literal(default):
    if isinstance(default, (int, float)) and default in (float("inf"), float("-inf")):
        return repr(default)
    if isinstance(default, (str, int, float, type(None), dict, list, tuple)):
        return default
    return f"<{type(default).__name__}>"


def main():
    warnings.simplefilter("ignore")
    record = {}
    for name in sorted(modules()):
        try:
            module = importlib.import_module(name)
        except Exception as error:
            record[name] = {"not_importable": type(error).__name__}
            continue
        names = {}
        for each in public_names(module):
            try:
                names[each] = described(getattr(module, each))
            except Exception as error:
                names[each] = {"kind": "unreachable", "error": type(error).__name__}
        record[name] = names
    import ray

    lines = [f" {json.dumps(name)}: {_block(names)}" for name, names in record.items()]
    body = ",\n".join(lines)
    TARGET.write_text(f'{{"ray": "{ray.__version__}", "modules": {{\n{body}\n}}}}\n', encoding="utf-8")


def _block(names):
    """One line per name: short, and a change shows as one line."""
    inner = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(about, sort_keys=True)}" for name, about in names.items()
    )
    return f"{{\n{inner}\n }}" if inner else "{}"


if __name__ == "__main__":
    main()

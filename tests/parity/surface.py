"""Compare Ray's public surface, as recorded, with ours: names and parameters.

Read by tests/tune/test_public_surface.py. `record_exports.py` made the recording.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from enum import EnumMeta
from pathlib import Path

RECORDING = Path(__file__).with_name("ray_exports.json")


def recorded() -> dict[str, dict[str, dict]]:
    """Return Ray's module -> public name -> kind, parameters and methods."""
    return json.loads(RECORDING.read_text(encoding="utf-8"))["modules"]


def our_name(module: str) -> str:
    return "muster" + module.removeprefix("ray")


def differences(module: str, names: dict[str, dict]) -> dict[str, str]:
    """Return `module`, `module:name` or `module:name.member` -> what is missing or incompatible."""
    try:
        ours = importlib.import_module(our_name(module))
    except ImportError as error:
        return {module: f"not importable: {error}"}
    found: dict[str, str] = {}
    for name, about in names.items():
        place = f"{module}:{name}"
        try:
            value = getattr(ours, name)
        except (AttributeError, ImportError):  # ImportError: a name that says why it is left out
            found[place] = "missing"
        else:
            found |= _compared(place, value, about)
    return found


def _compared(place: str, ours: object, about: dict) -> dict[str, str]:
    found = {}
    if about["kind"] == "constant":
        if "value" in about and ours != about["value"]:
            found[place] = f"is {ours!r}, in Ray {about['value']!r}"
        return found
    complaint = incompatible(about["parameters"], ours)
    if complaint:
        found[place] = complaint
    for member, theirs in about.get("methods", {}).items():
        complaint = _member(ours, member, theirs)
        if complaint:
            found[f"{place}.{member}"] = complaint
    return found


def _member(kind: object, name: str, theirs: str | None) -> str | None:
    if not hasattr(kind, name):
        is_attribute = theirs is None and name in _own_attributes(kind)
        return None if is_attribute else "missing"
    value = getattr(kind, name)
    if theirs is None or not callable(value):
        return None if theirs is None else "not callable"
    if isinstance(inspect.getattr_static(kind, name), staticmethod):  # called on an object it is the same
        theirs = theirs.removeprefix("self").removeprefix(", ")
    return incompatible(theirs, value)


def _own_attributes(kind: object) -> set[str]:
    """What instances have though the class does not show it: arguments of the constructor, annotations."""
    told = set()
    for base in getattr(kind, "__mro__", ()):
        told |= set(getattr(base, "__annotations__", {}))
    try:
        return told | set(inspect.signature(kind).parameters)
    except (TypeError, ValueError):
        return told


def incompatible(theirs: str | None, ours: object) -> str | None:
    """Return why a call that Ray accepts would not do the same here; None when every such call works."""
    if theirs is None or isinstance(ours, EnumMeta):  # each Python has its own signature of an Enum
        return None
    try:
        parameters = inspect.signature(ours).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    wanted = ast.parse(f"def f({theirs}): pass").body[0].args  # type: ignore[attr-defined]
    takes_any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    takes_any_place = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    if wanted.kwarg and not takes_any_name and not wanted.kwarg.arg.startswith("_"):
        return f"takes no **{wanted.kwarg.arg}"
    if wanted.vararg and not takes_any_place:
        return f"takes no *{wanted.vararg.arg}"
    places = [
        n for n, each in parameters.items() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    for index, each in enumerate(wanted.args):
        in_place = index < len(places) and places[index] == each.arg
        if not in_place and not takes_any_place and not each.arg.startswith("_"):
            return f"{each.arg!r} is not parameter {index + 1}"
    for name, default in _defaults(wanted).items():
        complaint = _parameter(name, default, parameters, takes_any_name)
        if complaint:
            return complaint
    known = {each.arg for each in (*wanted.args, *wanted.kwonlyargs)}
    demanded = [
        name
        for name, each in parameters.items()
        if each.default is each.empty
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        and (name not in known or _defaults(wanted)[name] is not _NONE)
    ]
    return f"demands {', '.join(demanded)}" if demanded else None


_NONE = object()


def _defaults(wanted: ast.arguments) -> dict[str, object]:
    """Parameter -> default, `_NONE` for one that must be given."""
    positional = [*([_NONE] * (len(wanted.args) - len(wanted.defaults))), *wanted.defaults]
    pairs = [
        *zip(wanted.args, positional, strict=True),
        *zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True),
    ]
    return {
        each.arg: _NONE if value is _NONE or value is None else ast.literal_eval(value)  # type: ignore[arg-type]
        for each, value in pairs
    }


def _parameter(name: str, default: object, parameters, takes_any_name: bool) -> str | None:
    if name.startswith("_"):
        return None
    if name not in parameters:
        return None if takes_any_name else f"takes no {name!r}"
    ours = parameters[name].default
    is_literal = default is not _NONE and not str(default).startswith("<")
    if is_literal and ours != default and not (ours is None and default in ((), [], {})):
        return f"{name}={ours!r}, in Ray {default!r}"
    return None

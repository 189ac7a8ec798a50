"""Checks plain data against a msgspec type, one value at a time, so that every error names its key and line.

`msgspec.convert` alone reports `[...]` for the keys of a mapping and is not precise where users make
mistakes. The types stay the only description: this walks them and leaves each single value to msgspec.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import inspect

from muster.config.document import Document, Path_, printable
from muster.errors import ConfigError

T = TypeVar("T")

MAX_NAMES = 40  # in one error
ABSURD = 1e15  # no count, duration, price or quantity of a cluster is above this


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A Section is the base of the mappings in our files; unknown keys are errors unless any is taken."""

    takes_any_key: ClassVar[bool] = False
    kept_in: ClassVar[str] = ""  # the field, not a key of the file, that holds the mapping as it was written

    @classmethod
    def foreign_keys(cls, given: Mapping[str, Any]) -> frozenset[str]:
        """Returns keys that mean something of their own in this mapping: they are kept, and not checked."""
        return frozenset()


def checked(document: Document, path: Path_, value: object, kind: type[T]) -> T:
    """Returns `value` as `kind`; ConfigError has file, line, key path and what to write instead."""
    converted: T = _Checker(document).value(path, value, inspect.type_info(kind))
    return converted


def nearest(key: str, valid: Iterable[str]) -> str:
    """Returns `did you mean 'max_workers'?`, or which keys there are."""
    names = sorted(valid)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {shortened(close[0])}?"
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(map(printable, names[:MAX_NAMES]))
    return f"valid here: {listed}{more}" if names else "nothing is defined here"


class _Checker:
    def __init__(self, document: Document) -> None:
        self._document = document

    def value(self, path: Path_, value: Any, info: inspect.Type) -> Any:  # noqa: ANN401 - plain data
        if isinstance(info, inspect.UnionType):
            return self._union(path, value, info)
        if isinstance(info, inspect.StructType):
            return self._struct(path, value, info)
        if isinstance(info, inspect.DictType):
            return self._dict(path, value, info)
        if isinstance(info, inspect.VarTupleType):
            return self._sequence(path, value, info)
        return self._leaf(path, value, info)

    def _union(self, path: Path_, value: Any, info: inspect.UnionType) -> Any:  # noqa: ANN401
        """Handles `X | None`, and `X | tuple[X, ...]`: one or many."""
        others = [kind for kind in info.types if not isinstance(kind, inspect.NoneType)]
        if value is None and len(others) < len(info.types):
            return None
        lists = [kind for kind in others if isinstance(kind, inspect.VarTupleType)]
        return self.value(path, value, lists[0] if lists and isinstance(value, list) else others[0])

    def _struct(self, path: Path_, value: Any, info: inspect.StructType) -> Any:  # noqa: ANN401
        given = self._mapping(path, value)
        kept_in = getattr(info.cls, "kept_in", "")
        left_out = {kept_in, *(info.cls.foreign_keys(given) if issubclass(info.cls, Section) else ())}
        fields = {field.encode_name: field for field in info.fields if field.name not in left_out}
        self._refuse_unknown(path, given, info.cls, fields)
        for name, field in fields.items():
            if field.required and name not in given:
                raise self._document.error(path, f"{name!r} is missing; add it")
        values = {
            fields[key].name: self.value((*path, key), inner, fields[key].type)
            for key, inner in given.items()
            if key in fields
        }
        return info.cls(**values, **({kept_in: dict(given)} if kept_in else {}))

    def _refuse_unknown(
        self, path: Path_, given: Mapping[str, Any], cls: type, fields: Iterable[str]
    ) -> None:
        if getattr(cls, "takes_any_key", False):
            return
        valid = set(fields)
        for key in given:
            if key not in valid:
                raise self._document.error((*path, key), f"unknown key; {nearest(key, valid)}")

    def _dict(self, path: Path_, value: Any, info: inspect.DictType) -> dict[str, Any]:  # noqa: ANN401
        given = self._mapping(path, value)
        return {key: self.value((*path, key), inner, info.value_type) for key, inner in given.items()}

    def _sequence(self, path: Path_, value: Any, info: inspect.VarTupleType) -> tuple[Any, ...]:  # noqa: ANN401
        if not isinstance(value, list):
            raise self._document.error(
                path, f"must be a list, not {shortened(value)}; write each item after '- '"
            )
        return tuple(self.value((*path, index), inner, info.item_type) for index, inner in enumerate(value))

    def _mapping(self, path: Path_, value: Any) -> dict[str, Any]:  # noqa: ANN401
        if not isinstance(value, dict):
            raise self._document.error(
                path, f"must be a mapping, not {shortened(value)}; write 'key: value' lines"
            )
        for key in value:
            if not isinstance(key, str):
                raise self._document.error(
                    (*path, str(key)), f"the key {shortened(key)} must be text; put it in quotes"
                )
        return value

    def _leaf(self, path: Path_, value: Any, info: inspect.Type) -> Any:  # noqa: ANN401
        if isinstance(info, inspect.IntType | inspect.FloatType):
            self._sane_number(path, value, info)
        if isinstance(info, inspect.LiteralType) and value not in info.values:
            raise self._refusal(path, value, info, "")
        try:
            return msgspec.convert(value, type=_annotation(info))
        except msgspec.ValidationError as problem:
            raise self._refusal(path, value, info, str(problem)) from None

    def _sane_number(self, path: Path_, value: Any, info: inspect.IntType | inspect.FloatType) -> None:  # noqa: ANN401
        """Numbers of a cluster are finite and, unless their type allows it, not negative."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        lowest = info.ge if info.ge is not None else info.gt if info.gt is not None else 0
        highest = info.le if info.le is not None else ABSURD
        if lowest <= value <= highest and not (info.gt is not None and value == lowest):
            return  # NaN fails every comparison
        above = "above" if info.gt is not None else "at least"
        raise self._document.error(
            path, f"{shortened(value)} must be {above} {lowest:,g} and at most {highest:,g}"
        )

    def _refusal(self, path: Path_, value: Any, info: inspect.Type, problem: str) -> ConfigError:  # noqa: ANN401
        if isinstance(info, inspect.EnumType | inspect.LiteralType):
            names = _choices(info)
            hint = nearest(str(value), names)
            return self._document.error(path, f"{shortened(value)} is not one of {', '.join(names)}; {hint}")
        wanted = _WANTED.get(type(info), problem)
        message = f"must be {wanted}, not {shortened(value)}"
        if isinstance(value, str) and _is_number(value):
            message += f"; YAML reads this as text, write {float(value):.15g}"
        elif isinstance(info, inspect.StrType) and isinstance(value, bool | int | float):
            message += "; put it in quotes"
        return self._document.error(path, message)


_PLAIN: dict[type[inspect.Type], Any] = {
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BoolType: bool,
    inspect.AnyType: Any,
    inspect.LiteralType: str,  # of texts; which ones was checked before
}
_WANTED: dict[type[inspect.Type], str] = {
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
}


def _annotation(info: inspect.Type) -> Any:  # noqa: ANN401 - a typing form
    """Returns the type that a leaf of the inspection stands for; ranges were checked before."""
    return info.cls if isinstance(info, inspect.EnumType) else _PLAIN[type(info)]


def _choices(info: inspect.EnumType | inspect.LiteralType) -> list[str]:
    if isinstance(info, inspect.LiteralType):
        return [str(each) for each in info.values]
    return [str(member.value) for member in info.cls]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def shortened(value: object) -> str:
    """Returns a value for an error: its text in quotes, and not all of it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    try:
        text = repr(value)
    except ValueError:  # Python does not write out numbers of thousands of digits
        return "a number of absurd size"
    return text if len(text) <= 60 else f"{text[:57]}..."

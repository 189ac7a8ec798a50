"""Check plain data against a msgspec type, one value at a time, so that every error names its key and line.

`msgspec.convert` alone reports `[...]` for the keys of a mapping and is not precise where users make
mistakes. The types stay the only description: this walks them and leaves each single value to msgspec.

FileRules adds what one kind of provider says about its cluster files. This package knows no provider by name:
`providers.kind` finds the rules of a `provider.type`, and a ClusterConfig carries those it was read by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from msgspec import inspect

from muster.base.text import did_you_mean
from muster.config.document import Document, Path_, printable
from muster.errors import ConfigError

if TYPE_CHECKING:
    from muster.config.schema import ClusterConfig

T = TypeVar("T")

MAX_NAMES = 40  # in one error
ABSURD = 1e15  # no count, duration, price or quantity of a cluster is above this


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The base of the mappings in our files; unknown keys are errors unless any is taken."""

    takes_any_key: ClassVar[bool] = False
    kept_in: ClassVar[str] = ""  # the field, not a key of the file, that holds the mapping as it was written

    not_keys: ClassVar[frozenset[str]] = frozenset()  # fields that a file cannot set


def checked(
    document: Document, path: Path_, value: object, kind: type[T], untyped: frozenset[Path_] = frozenset()
) -> T:
    """Return `value` as `kind`; ConfigError has file, line, key path and what to write instead.

    The values of `untyped` keys are only kept as written (`kept_in`).
    """
    converted: T = _Checker(document, untyped).value(path, value, inspect.type_info(kind))
    return converted


def nearest(key: str, valid: Iterable[str]) -> str:
    """Return `did you mean 'max_workers'?`, or which keys there are."""
    names = sorted(valid)
    if near := did_you_mean(key, names):
        return near
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(map(printable, names[:MAX_NAMES]))
    return f"valid here: {listed}{more}" if names else "nothing is defined here"


class _Checker:
    def __init__(self, document: Document, untyped: frozenset[Path_]) -> None:
        self._document, self._untyped = document, untyped

    def value(self, path: Path_, value: Any, info: inspect.Type) -> Any:  # noqa: ANN401 - plain data
        if isinstance(info, inspect.UnionType):
            # Handles `X | None`, and `X | tuple[X, ...]`: one or many.
            others = [kind for kind in info.types if not isinstance(kind, inspect.NoneType)]
            if value is None and len(others) < len(info.types):
                return None
            lists = [kind for kind in others if isinstance(kind, inspect.VarTupleType)]
            return self.value(path, value, lists[0] if lists and isinstance(value, list) else others[0])
        if isinstance(info, inspect.StructType):
            return self._struct(path, value, info)
        if isinstance(info, inspect.DictType):
            given = self._mapping(path, value)
            return {key: self.value((*path, key), inner, info.value_type) for key, inner in given.items()}
        if isinstance(info, inspect.VarTupleType):
            return self._sequence(path, value, info)
        return self._leaf(path, value, info)

    def _struct(self, path: Path_, value: Any, info: inspect.StructType) -> Any:  # noqa: ANN401
        given = self._mapping(path, value)
        kept_in = getattr(info.cls, "kept_in", "")
        left_out = {kept_in, *getattr(info.cls, "not_keys", ())}
        fields = {
            field.encode_name: field
            for field in info.fields
            if field.name not in left_out and (*path, field.encode_name) not in self._untyped
        }
        for key in () if getattr(info.cls, "takes_any_key", False) else given:
            if key not in fields:
                raise self._document.error((*path, key), f"unknown key; {nearest(key, fields)}")
        for name, field in fields.items():
            if field.required and name not in given:
                raise self._document.error(path, f"{name!r} is missing; add it")
        values = {
            fields[key].name: self.value((*path, key), inner, fields[key].type)
            for key, inner in given.items()
            if key in fields
        }
        return info.cls(**values, **({kept_in: dict(given)} if kept_in else {}))

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
            # Ranges were checked before.
            return msgspec.convert(
                value, type=info.cls if isinstance(info, inspect.EnumType) else _PLAIN[type(info)]
            )
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
            members = [one.value for one in info.cls] if isinstance(info, inspect.EnumType) else info.values
            names = [str(one) for one in members]
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


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def shortened(value: object) -> str:
    """Return a value for an error: its text in quotes, and not all of it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    try:
        text = repr(value)
    except ValueError:  # Python does not write out numbers of thousands of digits
        return "a number of absurd size"
    return text if len(text) <= 60 else f"{text[:57]}..."


MEMORY_SHARE = 0.7  # Ray keeps the rest for its object store


class MachineSize(msgspec.Struct, frozen=True):
    """What a machine type of a cloud has; `accelerators` count in units of `resource`."""

    cpus: int
    memory_mib: int
    resource: str = ""  # GPU, neuron_cores, ...; "": no accelerators
    accelerators: int = 0
    accelerator_type: str = ""  # as Ray's nodes report it


class FileRules:
    """Defaults, completion and checks of the cluster files of one kind. A kind overrides what is special."""

    defaults: ClassVar[dict[str, Any]] = {}  # top-level keys
    provider_defaults: ClassVar[dict[str, Any]] = {}  # keys of `provider`
    own_keys: ClassVar[frozenset[str]] = frozenset()  # of `provider`, see schema.KIND_KEYS
    needs_node_types = True
    machine_key: ClassVar[tuple[str, ...]] = ()  # where a node_config names its machine type
    completes_resources = False  # resources that an entry gives are completed by those of its machine type
    asks_for_sizes = False  # the cloud describes machine types that the table lacks
    overrides_resources = True  # nodes offer what the file says, not what they find
    head_is_extra = False  # min_workers of the head's type does not include the head
    notices = ""  # whose metadata service announces interruptions; "": nobody's

    def check(self, document: Document, config: ClusterConfig) -> None:
        """Check the file as it was written. Raises ConfigError."""

    def complete(self, document: Document, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data with the keys that follow from `provider`, before the defaults."""
        return dict(data)

    def size_of(self, machine_type: str) -> MachineSize | None:
        """Return the size of a machine type, from a table; None: unknown."""
        return None

    def added_accelerators(self, node_config: Mapping[str, Any]) -> Iterable[tuple[str, int, str]]:
        """Return resource, count and type of accelerators that a node_config adds to its machine type."""
        return ()

    def memory_shares(self, config: ClusterConfig) -> Mapping[str, float]:
        """Return the memory of node types whose nodes share one computer."""
        return {}

    def existing(self, config: ClusterConfig, node_type: str) -> int | None:
        """Return how many machines of a type exist; None where they are launched on demand."""
        return None

    def machine_type(self, node_config: Mapping[str, Any]) -> str:
        """Return the machine type; "" when the kind has no such names or the config has none."""
        found: Any = node_config if self.machine_key else ""
        for step in self.machine_key:
            found = found.get(step) if isinstance(found, Mapping) else None
        return found if isinstance(found, str) else ""

    def machine_resources(
        self, node_config: Mapping[str, Any], described: Mapping[str, MachineSize] = {}
    ) -> dict[str, int]:
        """Return what Ray finds on a machine of this config; {} when its type is unknown.

        A description by the cloud is newer than the table.
        """
        name = self.machine_type(node_config)
        size = described.get(name) or self.size_of(name)
        if size is None:
            return {}
        found = {"CPU": size.cpus, "memory": int(size.memory_mib * 2**20 * MEMORY_SHARE)}
        own = (size.resource, size.accelerators, size.accelerator_type)
        for resource, count, kind in (own, *self.added_accelerators(node_config)):
            if count:
                found.update({resource: found.get(resource, 0) + count, f"accelerator_type:{kind}": 1})
        return found


PLAIN_RULES = FileRules()

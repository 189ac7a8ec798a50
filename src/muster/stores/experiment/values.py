"""Encode values of users as msgpack; what is not data becomes a pickle beside it, never inside it.

NaN, infinities, tuples, large integers and odd keys come back as they were; numpy's scalars and arrays come
back as Python's numbers and lists. Reading never unpickles by itself: see `Pickled` and `unpickled`.
"""

from __future__ import annotations

import enum
import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.msgpack import Ext

from muster.base import by_value
from muster.base.untrusted import text_of

SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_STR = frozenset({str})
LARGE = 65_536  # bytes of an array
_CONFIGS = frozenset({"config", "evaluated_params"})
large_arrays: WeakValueDictionary[bytes, Any] = WeakValueDictionary()  # of configurations, by their hash
_TUPLE, _PICKLE, _BIG, _TEXT, _PAIRS, _ARRAY = 1, 2, 3, 4, 5, 6  # codes of extension types; never renumber
_ENCODER = msgspec.msgpack.Encoder()
TOO_ODD = (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError)


class Pickled(Struct, frozen=True):
    """A Pickled value is not data. `load` runs any code in the pickle: only for files that are trusted."""

    content: bytes
    shown: str  # its repr, for users

    def load(self) -> Any:  # noqa: ANN401 - anything
        return pickle.loads(self.content)

    def __repr__(self) -> str:
        return f"<pickled {self.shown}>"


def encode(value: object, *, is_config: bool = False) -> tuple[bytes, bytes | None]:
    """Return the data and its pickles, if any. Never fails: what cannot be pickled is described.

    Large arrays in configurations are left out: the store keeps one copy of each in `large_arrays`.
    """
    try:
        if is_plain(value):
            return _ENCODER.encode(value), None
    except TOO_ODD:
        pass  # beyond 64 bits, half of a surrogate pair, a list inside itself: rare, worth the slow way
    packer = _Packer(is_config)
    data = _ENCODER.encode(packer.packed(value))
    return data, _ENCODER.encode(packer.pickles) if packer.pickles else None


def decode(data: bytes, pickles: bytes | None = None, *, trust: bool = False) -> Any:  # noqa: ANN401
    """Return what `encode` was given; pickled values as `Pickled`, or loaded from a trusted file."""
    if pickles is None:
        return (_TRUSTED_DECODER if trust else _PLAIN_DECODER).decode(data)
    known = [Pickled(content, shown) for content, shown in msgspec.msgpack.decode(pickles)]
    values = [_loaded(each) if trust else each for each in known]
    return msgspec.msgpack.Decoder(ext_hook=_reader(values, trust)).decode(data)


def is_plain(value: object) -> bool:
    """Return whether msgpack keeps the value as it is."""
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind is dict:
        return _is_plain_dict(value)  # type: ignore[arg-type]  # mypy does not follow `kind`
    return kind is list and all(map(is_plain, value))  # type: ignore[call-overload]  # as above


def _is_plain_dict(value: dict[Any, Any]) -> bool:
    if not _STR.issuperset(map(type, value)):
        return False
    # Runs for every result: nearly all values are scalars, and a list of the others is quickly made.
    return all(map(is_plain, [item for item in value.values() if type(item) not in SCALARS]))


class _Packer:
    """Walks once over a value that is not plain, and collects the pickles."""

    def __init__(self, is_config: bool) -> None:
        self._is_config = is_config
        self.pickles: list[tuple[bytes, str]] = []
        self._inside: list[int] = []  # the containers around the current value

    def packed(self, value: Any) -> Any:  # noqa: ANN401 - a user's value
        kind = type(value)
        if kind is int:
            return value if -(2**63) <= value < 2**64 else Ext(_BIG, str(value).encode())
        if kind is str:
            return _text(value)
        if kind in SCALARS:
            return value
        # A named tuple or an enum member is more than the items it holds.
        is_special = isinstance(value, enum.Enum) or hasattr(value, "_fields")
        if isinstance(value, Mapping | list | tuple) and not is_special:
            return self._container(value)
        if (
            type(value).__name__ == "ndarray"
            and type(value).__module__ == "numpy"
            and not value.dtype.hasobject
        ):
            return self._array(value)
        plain = _from_numpy(value)
        return self._pickled(value) if plain is value else self.packed(plain)

    def _container(self, value: Any) -> Any:  # noqa: ANN401
        if id(value) in self._inside or len(self._inside) > 100:
            return self._pickled(value)  # inside itself, or nested without end
        self._inside.append(id(value))
        try:
            if isinstance(value, Mapping):
                if all(type(key) is str and _text(key) is key for key in value):
                    return {key: self._item(key, inner) for key, inner in value.items()}
                pairs = [(self.packed(key), self.packed(inner)) for key, inner in value.items()]
                return Ext(_PAIRS, _ENCODER.encode(pairs))
            items = [self.packed(item) for item in value]
            return Ext(_TUPLE, _ENCODER.encode(items)) if isinstance(value, tuple) else items
        finally:
            self._inside.pop()

    def _array(self, value: Any) -> Ext:  # noqa: ANN401 - numpy's
        content, digest = value.tobytes(), b""
        if self._is_config and len(content) >= LARGE:
            digest, content = hashlib.sha256(content).digest(), b""
            large_arrays[digest] = value
        return Ext(_ARRAY, _ENCODER.encode((value.dtype.str, value.shape, content, digest)))

    def _item(self, key: str, item: Any) -> Any:  # noqa: ANN401
        outer, self._is_config = self._is_config, self._is_config or key in _CONFIGS
        packed, self._is_config = self.packed(item), outer
        return packed

    def _pickled(self, value: object) -> Ext:
        try:
            content = by_value.dumps(value)
        except Exception as error:  # noqa: BLE001 - a user's `__reduce__` may raise anything
            content = pickle.dumps(f"<{text_of(value)[:200]} could not be pickled: {text_of(error)[:200]}>")
        self.pickles.append((content, text_of(value)[:200]))
        return Ext(_PICKLE, _ENCODER.encode(len(self.pickles) - 1))


def _from_numpy(value: Any) -> Any:  # noqa: ANN401
    """Return numbers and lists for those of numpy, and for similar types; other values unchanged."""
    convert = getattr(value, "tolist", None)
    if type(value).__module__.partition(".")[0] == "numpy" and callable(convert):
        plain = convert()
        return value if type(plain) is type(value) else plain
    return value


def _text(value: str) -> str | Ext:
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _loaded(pickled: Pickled) -> Any:  # noqa: ANN401
    try:
        return pickled.load()
    except Exception:  # noqa: BLE001 - its class may be gone or renamed: the rest must stay readable
        return pickled


def _array(kind: str, shape: list[int], content: bytes, digest: bytes, *, as_list: bool) -> Any:  # noqa: ANN401
    import numpy as np

    data = large_arrays.get(digest) if digest else np.frombuffer(bytearray(content), np.uint8)
    if data is None:
        return f"<an array of {kind}, {shape}>"
    array = data.view(kind).reshape(shape)
    return array.tolist() if as_list else array


def _reader(pickles: Sequence[Any], trust: bool = False) -> Callable[[int, memoryview], Any]:
    """Return how extension types are read, given the pickles that belong to them."""

    def read(code: int, data: memoryview) -> Any:  # noqa: ANN401
        if code == _BIG:
            return int(bytes(data))
        if code == _TEXT:
            return bytes(data).decode("utf-8", "surrogatepass")
        if code == _ARRAY:
            return _array(*msgspec.msgpack.decode(data), as_list=not trust)
        inner = decoder.decode(data)
        if code == _TUPLE:
            return tuple(inner)
        if code == _PAIRS:
            return dict(inner)
        if code == _PICKLE and isinstance(inner, int) and inner < len(pickles):
            return pickles[inner]
        raise ValueError(f"unknown value, code {code}")

    decoder = msgspec.msgpack.Decoder(ext_hook=read)
    return read


_PLAIN_DECODER = msgspec.msgpack.Decoder(ext_hook=_reader(()))
_TRUSTED_DECODER = msgspec.msgpack.Decoder(ext_hook=_reader((), trust=True))

"""Define ObjectRef, the handle on a stored value or on the result of a task.

`put` stores values as `tune.with_parameters` does: in files that an experiment keeps until it is finished.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from muster.ray_api.exceptions import GetTimeoutError, ObjectLostError, RayTaskError

if TYPE_CHECKING:
    from muster.tune.trainable.stored_object import StoredObject

R = TypeVar("R")
_ID_BYTES = 28
_NOTHING = object()
changed = threading.Condition()  # guards tasks and their pool; notified when one ends


def wait_for(is_true: Callable[[], bool], timeout: float | None) -> bool:
    """Wait until a condition holds that the end of a task may make true; return whether it does."""
    with changed:
        return changed.wait_for(is_true, timeout)


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Return a Future of what the call returns in a thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)

    threading.Thread(target=run, name="ray-future", daemon=True).start()
    return future


class PendingResult(Protocol):
    """What a ref needs of the task that makes its value."""

    def is_done(self) -> bool: ...

    def result(self, index: int, timeout: float | None) -> Any: ...  # noqa: ANN401 - the user's value


class BaseID:
    """Bytes that name something of Ray's, with the methods of Ray's ids."""

    def __init__(self, id: bytes = b"") -> None:
        self._id = id or os.urandom(_ID_BYTES)

    @classmethod
    def from_random(cls) -> BaseID:
        return cls(os.urandom(_ID_BYTES))

    @classmethod
    def nil(cls) -> BaseID:
        return cls(b"\xff" * _ID_BYTES)

    def is_nil(self) -> bool:
        return self._id == b"\xff" * len(self._id)

    def binary(self) -> bytes:
        return self._id

    def hex(self) -> str:
        return self._id.hex()

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseID) and other._id == self._id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"


class ObjectRef(BaseID, Generic[R]):
    """Handle on a value; pickles of it hold the value's file, or wait for the task that makes the value."""

    def __init__(
        self,
        id: bytes = b"",
        *,
        stored: StoredObject | None = None,
        task: PendingResult | None = None,
        index: int = 0,
    ) -> None:
        super().__init__(id)
        self._stored, self._task, self._index = stored, task, index
        self._inner: tuple[StoredObject, ...] = ()  # of refs inside the value, which must live as long
        self._value: Any = _NOTHING

    def __reduce__(self) -> tuple[Any, ...]:
        stored = self.stored()
        if _seen[-1:]:
            _seen[-1].update(dict.fromkeys((stored, *self._inner)))
        return _restored, (self._id, stored, self._inner)

    def stored(self) -> StoredObject:
        """Return the value's file, which other processes can read; waits for a task."""
        if self._stored is None:
            self._store(self.load())
        assert self._stored is not None
        return self._stored

    def _store(self, value: object) -> None:
        from muster.tune.trainable.stored_object import StoredObject

        _seen.append({})
        try:
            self._stored = StoredObject(value, "ray.put")
        finally:
            self._inner = tuple(_seen.pop())

    def is_ready(self) -> bool:
        return self._task is None or self._task.is_done()

    def load(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - the user's value
        """Return the value; raise what its task raised, or GetTimeoutError."""
        if self._value is not _NOTHING:
            return self._value
        if self._task is not None:
            self._value = self._task.result(self._index, timeout)
        elif self._stored is not None:
            self._value = self._stored.load()
        else:
            raise ObjectLostError(f"{self!r}: was freed, or ray.shutdown() removed it")
        return self._value

    def free(self) -> None:
        self._stored, self._task, self._value = None, None, _NOTHING

    def future(self) -> Future[Any]:
        """Return a Future of the value, which a thread waits for."""
        return in_thread(self.load)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self.future()).__await__()


ObjectID = ObjectRef
_seen: list[dict[StoredObject, None]] = []  # what is pickled inside a value that is being stored
_put: list[ObjectRef[Any]] = []  # of this process; `ray.shutdown` frees them


def _restored(id: bytes, stored: StoredObject, inner: tuple[StoredObject, ...]) -> ObjectRef[Any]:
    ref: ObjectRef[Any] = ObjectRef(id, stored=stored)
    ref._inner = inner
    return ref


def put(value: Any, *, _owner: object = None, _tensor_transport: str = "object_store") -> ObjectRef[Any]:  # noqa: ANN401 - Ray's signature
    """Store a value for trials and tasks, and return its handle.

    Args:
        value: Anything that can be pickled, except an ObjectRef.
    """
    del _owner, _tensor_transport
    if isinstance(value, ObjectRef):
        raise TypeError("ray.put(ref): the value is stored already; pass the ref itself, or ray.get(ref)")
    ref: ObjectRef[Any] = ObjectRef()
    ref._store(value)
    _put.append(ref)
    return ref


def free_all() -> None:
    """Free what this process has put; experiments keep what they need in their directories."""
    for ref in _put:
        ref.free()
    _put.clear()


def get(
    object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]],
    *,
    timeout: float | None = None,
    _use_object_store: bool = False,
) -> Any:  # noqa: ANN401 - the user's values
    """Return the value of a ref, or the list of values of a list of refs.

    Args:
        object_refs: One ref or a list of them.
        timeout: Seconds to wait; None: as long as it takes.

    Raises:
        RayTaskError: The task raised; the error is of that type too.
        GetTimeoutError: A value was not there in time.
    """
    del _use_object_store
    if isinstance(object_refs, ObjectRef):
        return _value_of(object_refs, timeout)
    if not isinstance(object_refs, list | tuple):
        raise ValueError(f"ray.get({object_refs!r}): needs an ObjectRef or a list of ObjectRefs")
    if timeout is not None and not wait_for(lambda: all(ref.is_ready() for ref in object_refs), timeout):
        raise GetTimeoutError(f"ray.get: not every result was there after {timeout:g} s")
    return [_value_of(ref, None) for ref in object_refs]


def _value_of(ref: ObjectRef[Any], timeout: float | None) -> Any:  # noqa: ANN401
    if not isinstance(ref, ObjectRef):
        raise ValueError(f"ray.get: {ref!r} is not an ObjectRef")
    try:
        return ref.load(timeout)
    except RayTaskError as error:
        raise error.as_instanceof_cause() from error.cause


def wait(
    ray_waitables: list[ObjectRef[Any]],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
    """Wait until some of the refs have a value; return those that have one, and the others.

    Args:
        ray_waitables: Different refs.
        num_returns: How many to wait for; the first list has at most so many.
        timeout: Seconds to wait; None: as long as it takes.
    """
    del fetch_local
    if not isinstance(ray_waitables, list):
        raise TypeError(f"ray.wait({ray_waitables!r}): needs a list of ObjectRefs")
    if len(set(ray_waitables)) != len(ray_waitables):
        ray_waitables = list(dict.fromkeys(ray_waitables))
        num_returns = min(num_returns, len(ray_waitables))
    if not 0 < num_returns <= len(ray_waitables):
        raise ValueError(f"ray.wait(num_returns={num_returns}): must be from 1 to {len(ray_waitables)}")
    wait_for(lambda: sum(ref.is_ready() for ref in ray_waitables) >= num_returns, timeout)
    ready = [ref for ref in ray_waitables if ref.is_ready()][:num_returns]
    return ready, [ref for ref in ray_waitables if ref not in ready]

"""CallWatch stands between a check and the provider: limits the time of calls, checks answers, keeps ids.

A provider under test may raise, hang, or return anything. A call that hangs is left behind with its thread,
an answer of a wrong shape is a broken promise, and the ids of new machines are remembered, so that they can
be ended whatever happens later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from typing import Any

from muster.base.clock import Clock
from muster.base.untrusted import describe
from muster.host.call_threads import ThreadPool
from muster.providers.v1.failures import provider_call

CALL_S = 120.0


class PromiseBroken(AssertionError):
    """Says what the provider did, and what every provider promises."""

    def __init__(self, did: str, promise: str) -> None:
        self.did, self.promise = did, promise
        super().__init__(f"{did}\n  The promise: {promise}")


class ClustersMixed(PromiseBroken):
    """A cluster shows machines of another: nothing more may be tried with it."""


def promised(kept: bool, did: str, promise: str) -> None:
    """Raise PromiseBroken unless the promise was kept."""
    if not kept:
        raise PromiseBroken(did, promise)


class NoMoreCalls(Exception):
    """Ends a check that was interrupted, or that has taken too long."""


class CallWatch:
    """Makes the calls of one run, each on a thread that it may keep forever.

    A check calls a WatchedProvider. `call` refuses when the check is over; `limited` runs the provider's
    method on a thread and waits. That thread notes the ids of new and ended nodes, also after the wait.
    """

    def __init__(self, clock: Clock, call_limit_s: float = CALL_S) -> None:
        self.clock, self.call_limit_s = clock, call_limit_s
        self.objects: dict[str, list[WatchedProvider]] = {}  # cluster -> every object made for it
        self.made: dict[str, dict[str, None]] = {}  # cluster -> ids that create calls returned, not ended yet
        self.before: dict[str, frozenset[str]] = {}  # cluster -> what was listed before anything was made
        self._threads = ThreadPool("provider-call")
        self._creates: list[Future[Any]] = []  # every call that may have made a machine
        self._lock = threading.Lock()
        self._end_at = float("inf")
        self._why = ""

    @property
    def made_any(self) -> bool:
        """Return whether a create call was made at all."""
        return bool(self._creates)

    def watched(self, provider: Any, cluster_name: str) -> WatchedProvider:  # noqa: ANN401 - duck typed
        """Return the provider with every call watched."""
        made = WatchedProvider(provider, cluster_name, self)
        self.objects.setdefault(cluster_name, []).append(made)
        return made

    def allow_until(self, end_at: float, why: str) -> None:
        """Refuse calls after a moment of `clock.monotonic()`; those of `limited` are made at any time."""
        self._end_at, self._why = end_at, why

    def call(self, text: str, job: Callable[[], Any], *, is_create: bool = False) -> Any:  # noqa: ANN401
        """Make a call of a check; raise what it raises, or PromiseBroken when it takes too long."""
        if self.clock.monotonic() >= self._end_at:
            raise NoMoreCalls(self._why)
        return self.limited(text, job, is_create=is_create)

    def limited(self, text: str, job: Callable[[], Any], *, is_create: bool = False) -> Any:  # noqa: ANN401
        """Make a call although the check may have ended."""
        future = self._threads.submit(lambda: provider_call(job))
        if is_create:
            self._creates.append(future)
        if not wait((future,), self.call_limit_s).done:
            raise PromiseBroken(
                f"{text} has not returned after {self.call_limit_s:g} s",
                "every call returns; one that waits for a slow cloud gives up and raises",
            )
        return future.result()

    def note_made(self, cluster_name: str, answer: object) -> None:
        """Remember the ids that a create call returned."""
        if isinstance(answer, Mapping):
            with self._lock:
                found = {one: None for one in answer if isinstance(one, str) and one}
                self.made.setdefault(cluster_name, {}).update(found)

    def note_ended(self, cluster_name: str, node_ids: object) -> None:
        """Forget what a terminate call has ended."""
        ids = (node_ids,) if isinstance(node_ids, str) else node_ids
        if isinstance(ids, Sequence):
            with self._lock:
                for node_id in ids:
                    self.made.get(cluster_name, {}).pop(node_id, None)

    def leave_alone(self, cluster_name: str, node_ids: Sequence[str]) -> None:
        """Remember nodes that the checks have not made, and must not end."""
        self.before[cluster_name] = frozenset(node_ids)

    def wait_for_creates(self) -> bool:
        """Wait for create calls under way, as long as one may take; returns whether all have ended."""
        return not wait(self._creates, self.call_limit_s).not_done

    def close(self) -> None:
        self._threads.close()


class WatchedProvider:
    """A provider whose calls are watched; it has exactly the methods of the provider."""

    def __init__(self, provider: Any, cluster_name: str, watch: CallWatch) -> None:  # noqa: ANN401 - duck typed
        self.bare, self.cluster_name = provider, cluster_name
        self._watch = watch

    @property  # type: ignore[misc] # that of an object can be set
    def __class__(self) -> type:
        """Return the provider's class: which methods it overrides matters to callers."""
        return type(self.bare)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - duck typed
        found = provider_call(lambda: getattr(self.bare, name))
        if not callable(found):
            return found
        return lambda *arguments, **named: self._make(self._watch.call, name, *arguments, **named)

    def ending(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - those of the provider
        """Make a call although the check has ended: to look for its nodes, and to end them."""
        return self._make(self._watch.limited, name, *arguments)

    def _make(self, make: Callable[..., Any], name: str, /, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        text, is_create = call_text(name, arguments, named), name.startswith("create_node")

        def noted() -> object:
            answer = getattr(self.bare, name)(*arguments, **named)
            if is_create:
                self._watch.note_made(self.cluster_name, answer)
            elif name.startswith("terminate_node") and arguments:
                self._watch.note_ended(self.cluster_name, arguments[0])
            return answer

        return checked_answer(name, text, make(text, noted, is_create=is_create))


def call_text(name: str, arguments: Sequence[object], named: Mapping[str, object]) -> str:
    """Return a call as a reader would write it, with long arguments cut."""
    words = [*map(_brief, arguments), *(f"{key}={_brief(value)}" for key, value in named.items())]
    return f"{name}({', '.join(words)})"


def _brief(value: object) -> str:
    return "{...}" if isinstance(value, dict) and len(value) > 2 else describe(value)


def _is_ids(value: object) -> bool:
    if not isinstance(value, Sequence | Set) or isinstance(value, str | bytes):
        return False
    return all(isinstance(one, str) and one for one in value)


def _is_tags(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(tag, str) for key, tag in value.items()
    )


def _is_address(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value))


def _is_made(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(one, str) for one in value))


_IDS = "returns a list of ids, each a text"
_MADE = "returns None, or a dict whose keys are the ids of the nodes it made"
_SHAPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "non_terminated_nodes": (_is_ids, _IDS),
    "nodes_for_teardown": (_is_ids, _IDS),
    "node_tags": (_is_tags, "returns a dict of text to text"),
    "is_running": (lambda value: isinstance(value, bool), "returns True or False"),
    "is_terminated": (lambda value: isinstance(value, bool), "returns True or False"),
    "internal_ip": (_is_address, "returns an address as a text, or None while there is none"),
    "external_ip": (_is_address, "returns an address as a text, or None while there is none"),
    "get_node_id": (lambda value: isinstance(value, str), "returns the id of a node, or raises ValueError"),
    "create_node": (_is_made, _MADE),
    "create_node_with_resources": (_is_made, _MADE),
    "create_node_with_resources_and_labels": (_is_made, _MADE),
}


def checked_answer(name: str, text: str, answer: Any) -> Any:  # noqa: ANN401 - the provider's
    """Return the answer; raise PromiseBroken for one of a wrong shape."""
    fits, promise = _SHAPES.get(name, (None, ""))
    if fits is not None and not fits(answer):
        raise PromiseBroken(f"{text} returned {describe(answer)}", f"{name} {promise}")
    return answer

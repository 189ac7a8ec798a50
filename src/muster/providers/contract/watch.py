"""CallWatch stands between a check and the provider: limits the time of calls, checks answers, keeps ids.

A provider under test may raise, hang, or return anything. A call that hangs is left behind with its thread,
an answer of a wrong shape is a broken promise, and the ids of new machines are remembered, so that they can
be ended whatever happens later.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from muster.base.clock import Clock
from muster.base.foreign import shown
from muster.providers.v1.failures import provider_call

CALL_S = 120.0


class PromiseBroken(AssertionError):
    """A PromiseBroken says what the provider did, and what every provider promises."""

    def __init__(self, did: str, promise: str) -> None:
        self.did, self.promise = did, promise
        super().__init__(f"{did}\n  The promise: {promise}")


class ClustersMixed(PromiseBroken):
    """A ClustersMixed means that a cluster shows machines of another: nothing more may be tried with it."""


def promised(kept: bool, did: str, promise: str) -> None:
    """Raises PromiseBroken unless the promise was kept."""
    if not kept:
        raise PromiseBroken(did, promise)


class NoMoreCalls(Exception):
    """A NoMoreCalls ends a check that was interrupted, or that has taken too long."""


Job = Callable[[], Any]


class CallThreads:
    """A CallThreads runs each call on a thread that is idle or new; a hung call costs its thread.

    Threads are used again rather than ended: a process that a provider starts may die with its thread.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[tuple[Job, Future[Any]] | None]] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, job: Job) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="provider-call", daemon=True).start()
        inbox.put((job, future))
        return future

    def _serve(self, inbox: queue.SimpleQueue[tuple[Job, Future[Any]] | None]) -> None:
        while (item := inbox.get()) is not None:
            job, future = item
            result, error = None, None
            try:
                result = job()
            except BaseException as raised:  # noqa: BLE001 - raised again where the call was made
                error = raised
            with self._lock:
                is_done = self._closed
                if not is_done:
                    self._idle.append(inbox)
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
            if is_done:
                return

    def close(self) -> None:
        """Ends the idle threads, and each other one after its call."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for inbox in idle:
            inbox.put(None)


class CallWatch:
    """A CallWatch makes the calls of one run."""

    def __init__(self, clock: Clock, call_limit_s: float = CALL_S) -> None:
        self.clock, self.call_limit_s = clock, call_limit_s
        self.objects: dict[str, list[WatchedProvider]] = {}  # cluster -> every object made for it
        self.made: dict[str, dict[str, None]] = {}  # cluster -> ids that create calls returned, not ended yet
        self.made_any = False  # whether a create call was made at all
        self.before: dict[str, frozenset[str]] = {}  # cluster -> what was listed before anything was made
        self._threads = CallThreads()
        self._under_way: list[Future[Any]] = []  # calls that may still make a machine
        self._lock = threading.Lock()
        self._end_at = float("inf")
        self._why = ""

    def watched(self, provider: Any, cluster_name: str) -> WatchedProvider:  # noqa: ANN401 - duck typed
        """Returns the provider with every call watched."""
        made = WatchedProvider(provider, cluster_name, self)
        self.objects.setdefault(cluster_name, []).append(made)
        return made

    def allow_until(self, end_at: float, why: str) -> None:
        """Refuses calls after a moment of `clock.monotonic()`; those of `limited` are made at any time."""
        self._end_at, self._why = end_at, why

    def call(self, name: str, text: str, job: Job) -> Any:  # noqa: ANN401 - what the provider returns
        """Makes a call of a check; raises what it raises, or PromiseBroken when it takes too long."""
        if self.clock.monotonic() >= self._end_at:
            raise NoMoreCalls(self._why)
        return self.limited(name, text, job)

    def limited(self, name: str, text: str, job: Job) -> Any:  # noqa: ANN401
        future = self._threads.submit(lambda: provider_call(job))
        if name.startswith("create_node"):
            with self._lock:
                self.made_any = True
                self._under_way = [*(one for one in self._under_way if not one.done()), future]
        try:
            return future.result(self.call_limit_s)
        except FutureTimeout:
            if future.done():
                return future.result()  # which raises the provider's own TimeoutError, if it is one
            raise PromiseBroken(
                f"{text} has not returned after {self.call_limit_s:g} s",
                "every call returns; one that waits for a slow cloud gives up and raises",
            ) from None

    def note_made(self, cluster_name: str, answer: object) -> None:
        """Remembers the ids that a create call returned."""
        if isinstance(answer, Mapping):
            with self._lock:
                found = {one: None for one in answer if isinstance(one, str) and one}
                self.made.setdefault(cluster_name, {}).update(found)

    def note_ended(self, cluster_name: str, node_ids: object) -> None:
        """Forgets what a terminate call has ended."""
        ids = (node_ids,) if isinstance(node_ids, str) else node_ids
        if isinstance(ids, Sequence):
            with self._lock:
                for node_id in ids:
                    self.made.get(cluster_name, {}).pop(node_id, None)

    def leave_alone(self, cluster_name: str, node_ids: Sequence[str]) -> None:
        """Remembers nodes that the checks have not made, and must not end."""
        self.before[cluster_name] = frozenset(node_ids)

    def wait_for_creates(self) -> bool:
        """Waits for create calls under way, as long as one may take; returns whether all have ended."""
        end = self.clock.monotonic() + self.call_limit_s
        while any(not one.done() for one in self._under_way):
            if self.clock.monotonic() >= end:
                return False
            self.clock.sleep(0.02)
        return True

    def close(self) -> None:
        self._threads.close()


class WatchedProvider:
    """A WatchedProvider is a provider whose calls are watched; it has exactly the methods of the provider."""

    def __init__(self, provider: Any, cluster_name: str, watch: CallWatch) -> None:  # noqa: ANN401 - duck typed
        self.bare, self.cluster_name = provider, cluster_name
        self._watch = watch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - duck typed
        found = provider_call(lambda: getattr(self.bare, name))
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - those of the provider
            text = call_text(name, arguments, named)
            answer = self._watch.call(name, text, lambda: self._noted(name, found, arguments, named))
            return checked_answer(name, text, answer)

        return call

    def ending(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - those of the provider
        """Makes a call although the check has ended: to look for its nodes, and to end them."""
        text, found = call_text(name, arguments, {}), getattr(self.bare, name)
        answer = self._watch.limited(name, text, lambda: self._noted(name, found, arguments, {}))
        return checked_answer(name, text, answer)

    def _noted(
        self,
        name: str,
        found: Callable[..., object],
        arguments: Sequence[Any],
        named: Mapping[str, Any],
    ) -> object:
        """Makes a call and notes its effect, on its own thread: it may end after it was given up."""
        answer = found(*arguments, **named)
        if name.startswith("create_node"):
            self._watch.note_made(self.cluster_name, answer)
        elif name.startswith("terminate_node") and arguments:
            self._watch.note_ended(self.cluster_name, arguments[0])
        return answer


def call_text(name: str, arguments: Sequence[object], named: Mapping[str, object]) -> str:
    """Returns a call as a reader would write it, with long arguments cut."""
    words = [*map(_brief, arguments), *(f"{key}={_brief(value)}" for key, value in named.items())]
    return f"{name}({', '.join(words)})"


def _brief(value: object) -> str:
    return "{...}" if isinstance(value, dict) and len(value) > 2 else shown(value)


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
    """Returns the answer; raises PromiseBroken for one of a wrong shape."""
    fits, promise = _SHAPES.get(name, (None, ""))
    if fits is not None and not fits(answer):
        raise PromiseBroken(f"{text} returned {shown(answer)}", f"{name} {promise}")
    return answer

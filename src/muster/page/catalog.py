"""Knows which experiments and clusters the page may show, by keys that say nothing about paths.

No request names a file: a key is looked up here, in what the user started the page with, or in the default
directories.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from muster.base.clock import Clock
from muster.errors import MusterError, StoreError
from muster.page.cluster_source import ClusterSource
from muster.page.experiment_session import ExperimentSession, open_session
from muster.page.remote_files import RemoteFiles
from muster.stores.experiment.reader import STORE_NAME, copy_of, experiments_below

MAX_LISTED = 200
LIST_BUDGET_S = 0.8  # for values that need a look into the experiments; the next request goes on
MAX_OPEN = 24  # sessions kept


@dataclass
class _Known:
    """A _Known is one experiment of the list."""

    key: str
    path: str
    name: str
    problem: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    row_of: float = -1.0  # modification time that `row` stands for


def key_of(text: str) -> str:
    """Returns the key of a path or a cluster's name."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


class Catalog:
    """A Catalog opens experiments on request and keeps them open; safe to call from several threads."""

    def __init__(
        self,
        *,
        clock: Clock,
        experiments: Sequence[str] = (),
        roots: Sequence[str] = (),
        clusters: Callable[[], Sequence[ClusterSource]] = tuple,
    ) -> None:
        self._clock = clock
        self._roots = tuple(roots)
        self._clusters = clusters
        self._given = tuple(experiments)
        self._known: dict[str, _Known] = {}
        self._sessions: dict[str, ExperimentSession] = {}
        self._remotes: dict[str, RemoteFiles] = {}  # by the directory of the copy
        self._copies: list[tempfile.TemporaryDirectory[str]] = []
        self._lock = threading.Lock()
        self._look()

    def experiment(self, key: str) -> ExperimentSession | None:
        """Returns an open experiment; None for an unknown key; raises MusterError when it cannot be read."""
        with self._lock:
            session = self._sessions.get(key)
            known = self._known.get(key)
            if session is not None or known is None:
                return session
            session = open_session(known.path, clock=self._clock, remote=self._remotes.get(known.path))
            self._sessions[key] = session
            session.name = known.name
            while len(self._sessions) > MAX_OPEN:
                self._sessions.pop(next(iter(self._sessions))).close()
            return session

    def keys(self) -> list[str]:
        """Returns the keys of what was named, experiments first."""
        named = [key_of(f"cluster {one.name}") for one in self._clusters()]
        return [*self._known, *named]

    def cluster(self, key: str) -> ClusterSource | None:
        return next((one for one in self._clusters() if key_of(f"cluster {one.name}") == key), None)

    def listing(self) -> dict[str, Any]:
        """Returns all experiments, newest first, and all clusters."""
        with self._lock:
            self._look()
            known = sorted(self._known.values(), key=lambda one: -_changed_at(one.path))[:MAX_LISTED]
        deadline = self._clock.monotonic() + LIST_BUDGET_S
        rows = [self._row(one, deadline) for one in known]
        clusters = [self._cluster_row(one) for one in self._clusters()]
        return {"experiments": rows, "clusters": clusters, "now": self._clock.now()}

    def close(self) -> None:
        with self._lock:
            for session in self._sessions.values():
                session.close()
            for copy in self._copies:
                copy.cleanup()

    def _look(self) -> None:
        """Finds experiments; those that were named stay, even when they cannot be read."""
        for given in self._given:
            self._add_given(given)
        for root in self._roots:
            for place in experiments_below(os.path.abspath(os.path.expanduser(root))):
                self._known.setdefault(key_of(place), _Known(key_of(place), place, os.path.basename(place)))

    def _add_given(self, given: str) -> None:
        if "://" in given and not given.startswith("file://"):
            key = key_of(given)
            if key not in self._known:
                name = given.rstrip("/").rpartition("/")[2]
                self._known[key] = _Known(key, self._copied(given), name)
            return
        place = os.path.abspath(os.path.expanduser(given.removeprefix("file://")))
        self._known.setdefault(key_of(place), _Known(key_of(place), place, os.path.basename(place)))

    def _copied(self, url: str) -> str:
        """Returns a directory with a copy of the store of a remote experiment, as it is now."""
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # it has no types

        from muster.stores.storage import Storage

        try:
            filesystem, inner = url_to_fs(url)
        except (ValueError, ImportError, OSError) as error:
            raise StoreError(f"{url} cannot be read ({error})") from error
        storage = Storage(str(inner), filesystem)
        copy = copy_of(storage, url)
        self._copies.append(copy)
        self._remotes[os.path.abspath(copy.name)] = RemoteFiles(storage, copy.name)
        return copy.name

    def _row(self, known: _Known, deadline: float) -> dict[str, Any]:
        changed = _changed_at(known.path)
        if known.row_of != changed and self._clock.monotonic() < deadline:
            known.row, known.row_of = self._fresh_row(known), changed
        return {
            "key": known.key,
            "name": known.name,
            "changed": changed,
            "is_read": known.row_of >= 0,
        } | known.row

    def _fresh_row(self, known: _Known) -> dict[str, Any]:
        try:
            session = self.experiment(known.key)
            if session is None:
                return {}
            session.refresh()
            with session.lock:
                summary = session.summary()
                metric = summary["metric"]
                found = session.table.numbers([metric]).get(metric)
            values = found[np.isfinite(found)] if found is not None else np.zeros(0)
            best = (
                None
                if not len(values)
                else float(np.min(values) if summary["mode"] == "min" else np.max(values))
            )
            keys = ("counts", "of", "state", "metric", "mode", "problem")
            return {**{key: summary[key] for key in keys}, "best": best}
        except MusterError as error:
            return {"problem": str(error), "state": "unreadable"}

    def _cluster_row(self, source: ClusterSource) -> dict[str, Any]:
        row: dict[str, Any] = {"key": key_of(f"cluster {source.name}"), "name": source.name}
        try:
            view = source.view()
        except MusterError as error:
            return row | {"problem": str(error)}
        alive = sum(1 for one in view.machines if one.paid_from is not None and one.paid_until is None)
        return row | {
            "is_up": view.is_up,
            "machines": alive,
            "spent": view.spent,
            "per_hour": view.per_hour,
            "problem": view.problem,
        }


def _changed_at(path: str) -> float:
    newest = 0.0
    for name in (STORE_NAME, f"{STORE_NAME}-wal"):
        try:
            newest = max(newest, os.stat(os.path.join(path, name)).st_mtime)
        except OSError:
            continue
    return newest

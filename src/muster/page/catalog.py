"""Know which experiments and clusters the page may show, by keys that say nothing about paths.

No request names a file: a key is looked up here, in what the user started the page with, or in the default
directories.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.base.clock import Clock
from muster.errors import MusterError, StoreError
from muster.host.file_lock import holder_of
from muster.page.cluster_source import ClusterSource
from muster.page.experiment_session import ExperimentSession, open_session
from muster.page.remote_files import RemoteFiles
from muster.stores.experiment.reader import STORE_NAME, copy_of, experiments_below, is_experiment
from muster.trials.spend import COST_KEY

if TYPE_CHECKING:
    from muster.stores.storage import Storage

MAX_LISTED = 200
LIST_BUDGET_S = 0.8  # for values that need a look into the experiments; the next request continues
MAX_OPEN = 24  # sessions kept
DEPTH = 3  # of directories that are looked into for experiments


@dataclass
class _Known:
    """One experiment of the list."""

    key: str
    path: str
    name: str
    address: str = ""  # the URL of a remote one
    problem: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    row_of: tuple[float, float, bool] | None = None  # the state of its files that `row` stands for


def key_of(text: str) -> str:
    """Return the key of a path or a cluster's name."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


class Catalog:
    """Opens experiments on request and keeps them open; safe to call from several threads."""

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
        self._looked_at: set[str] = set()  # URLs
        self._lock = threading.Lock()
        self._look()

    def experiment(self, key: str) -> ExperimentSession | None:
        """Return an open experiment; None for an unknown key; raise MusterError when it cannot be read."""
        with self._lock:
            session = self._sessions.get(key)
            known = self._known.get(key)
            if session is not None or known is None:
                return session
            known.path = known.path or os.path.abspath(self._copied(known.address))
            remote = self._remotes.get(known.path)
            session = open_session(known.path, clock=self._clock, address=known.address, remote=remote)
            self._sessions[key] = session
            while len(self._sessions) > MAX_OPEN:
                self._sessions.pop(next(iter(self._sessions))).close()
            return session

    @property
    def experiments(self) -> Sequence[str]:
        """The keys of the experiments that are known."""
        return tuple(self._known)

    def keys(self) -> list[str]:
        """Return the keys of what was named, experiments first."""
        named = [key_of(f"cluster {one.name}") for one in self._clusters()]
        return [*self._known, *named]

    def cluster(self, key: str) -> ClusterSource | None:
        return next((one for one in self._clusters() if key_of(f"cluster {one.name}") == key), None)

    def listing(self) -> dict[str, Any]:
        """Return all experiments, newest first, and all clusters."""
        with self._lock:
            self._look()
            known = sorted(self._known.values(), key=lambda one: -_changed_at(one.path)[0])[:MAX_LISTED]
        deadline = self._clock.monotonic() + LIST_BUDGET_S
        rows = sorted((self._row(one, deadline) for one in known), key=lambda row: -row["changed"])
        clusters = [self._cluster_row(one) for one in self._clusters()]
        return {"experiments": rows, "clusters": clusters, "now": self._clock.now()}

    def close(self) -> None:
        with self._lock:
            for session in self._sessions.values():
                session.close()
            for copy in self._copies:
                copy.cleanup()

    def _look(self) -> None:
        """Find experiments; those that were named stay, even when they cannot be read."""
        for given in self._given:
            self._add_given(given)
        for root in self._roots:
            top = os.path.abspath(os.path.expanduser(root))
            for place in _places_below(top, DEPTH):
                name = os.path.relpath(place, top)
                self._known.setdefault(key_of(place), _Known(key_of(place), place, name))

    def _add_given(self, given: str) -> None:
        if "://" in given and not given.startswith("file://"):
            if given not in self._looked_at:
                self._looked_at.add(given)
                for url in self._remote_experiments(given):
                    key, name = key_of(url), url.rstrip("/").rpartition("/")[2]
                    self._known[key] = _Known(key, "", name, address=url)
            return
        place = os.path.abspath(os.path.expanduser(given.removeprefix("file://")))
        self._known.setdefault(key_of(place), _Known(key_of(place), place, os.path.basename(place)))

    @staticmethod
    def _remote_experiments(url: str) -> list[str]:
        """Return the addresses of an experiment, or of those right below a directory; StoreError if none."""
        storage = _storage(url)
        if storage.exists(STORE_NAME):
            return [url]
        names = [name for name in storage.listing() if storage.below(name).exists(STORE_NAME)]
        if not names:
            raise StoreError(
                f"{url} is not an experiment directory, and holds none ({STORE_NAME} not found)",
                fix="give the address of fit(), <storage_path>/<name>, or the directory above it",
            )
        return [f"{url.rstrip('/')}/{name}" for name in names[:MAX_LISTED]]

    def _copied(self, url: str) -> str:
        """Return a directory with a copy of the store of a remote experiment, as it is now."""
        storage = _storage(url)
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
            "changed": changed[0],  # until the facts are read
            "is_read": known.row_of is not None,
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
                held = session.table.numbers([metric, *summary["constraints"]])
                found = held.get(metric, np.zeros(0))
                changed = session.table.newest_time()
                costs = session.table.numbers([COST_KEY]).get(COST_KEY)
            finite = allowed = np.isfinite(found)
            for name, bound in summary["constraints"].items():
                allowed = allowed & (held.get(name, np.inf) <= bound)
            values = found[allowed if allowed.any() else finite]
            best = float(values.min() if summary["mode"] == "min" else values.max()) if len(values) else None
            keys = ("counts", "of", "state", "metric", "mode", "problem", "raised", "address")
            cost = None if costs is None else float(np.nansum(costs))
            at = {} if changed is None else {"changed": changed}
            return {**{key: summary[key] for key in keys}, "best": best, "cost": cost, **at}
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


def has_experiments(place: str) -> bool:
    """Return whether a directory holds experiments that the list would show."""
    return next(_places_below(place, DEPTH), None) is not None


def _places_below(place: str, depth: int) -> Iterator[str]:
    """Yield the experiments below a directory; trials and what is hidden are not looked into."""
    yield from experiments_below(place)
    with suppress(OSError):
        for name in sorted(os.listdir(place)) if depth > 1 else ():
            inner = os.path.join(place, name)
            if not name.startswith(".") and os.path.isdir(inner) and not is_experiment(inner):
                yield from _places_below(inner, depth - 1)


def _storage(url: str) -> Storage:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # it has no types

    from muster.stores.storage import Storage

    try:
        filesystem, inner = url_to_fs(url)
    except (ValueError, ImportError, OSError) as error:
        raise StoreError(f"{url} cannot be read ({error})") from error
    return Storage(str(inner), filesystem)


def _changed_at(path: str) -> tuple[float, float, bool]:
    """Return when the store and its log were written, and whether somebody runs the experiment.

    A look at an experiment touches the log: that is a reason to read it again, and no date to show.
    """
    times = [0.0, 0.0]
    for place, name in enumerate((STORE_NAME, f"{STORE_NAME}-wal")):
        with suppress(OSError):
            times[place] = os.stat(os.path.join(path, name)).st_mtime
    return times[0], times[1], holder_of(Path(path, STORE_NAME)) is not None

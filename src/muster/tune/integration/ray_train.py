"""Define callbacks for trials that call a trainer of Ray Train: report its results, place its workers.

Ray Train calls them in a separate process, on the node of the trial. So TuneReportCallback sends each result
to the trial's process, over a socket that only this user can open, and waits until the tuner has answered.
TrialGroupCallback needs no call of the user: the trial's process names it in RAY_TRAIN_CALLBACKS.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from muster.host.machine import environment
from muster.session.session import Session, TrialStopped, current

__all__ = ["TuneReportCallback"]

_LOOK_S = 1.0  # how often the server checks whether the trial has ended
_FREE_TRIES, _FREE_EVERY_S = 6, 0.5  # what an ended trial held is free by then


def _class_of_ray(module: str, name: str) -> type:
    """Return a class of Ray Train; this module can be imported where Ray Train is not installed, too."""
    try:
        found: type = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return object
    return found


class TuneReportCallback(_class_of_ray("ray.train", "UserCallback")):  # type: ignore[misc]
    """Reports what the worker of rank 0 reports: metrics, and where its checkpoint is.

    Make it inside the function of a trial: `ray.train.RunConfig(callbacks=[TuneReportCallback()])`.
    """

    def __init__(self) -> None:
        from ray import cloudpickle

        # The class goes by value, because its process may lack this package; what it names would go with it.
        module: Any = sys.modules[__name__]
        cloudpickle.register_pickle_by_value(module)
        self._path = module.ReportServer().path

    def after_report(self, run_context: Any, metrics: Sequence[Mapping[str, Any]], checkpoint: Any) -> None:  # noqa: ANN401 - Ray's
        """Send the result to the trial; raises, which ends the training, when the trial is to end."""
        from ray import cloudpickle

        result = dict(metrics[0])
        if checkpoint is not None:
            result["checkpoint_path"] = checkpoint.path
        try:
            with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as stream:
                connection.connect(self._path)
                cloudpickle.dump(result, stream)
                stream.flush()
                why_not = pickle.load(stream)
        except (OSError, EOFError):  # the trial has ended
            why_not = ""
        if why_not is not None:
            if not why_not:
                logging.disable()  # a stop is not an error, and this process has nothing more to say
            raise RuntimeError(why_not or "the trial has been stopped")

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:  # noqa: ANN401
        """Do nothing: `fit()` raises, which ends the trial, unless Ray Train tries again."""


_CALLBACKS = "ray.train.v2._internal.execution.callback"


class TrialGroupCallback(_class_of_ray(_CALLBACKS, "WorkerGroupCallback")):  # type: ignore[misc]
    """Places the workers of Ray Train in the placement group of the trial, where they have room there.

    Ray Train reserves a second group for them. Trials that hold all resources would wait for it forever.
    """

    def __init__(self) -> None:
        from ray import cloudpickle
        from ray.util import get_current_placement_group

        module: Any = sys.modules[__name__]
        cloudpickle.register_pickle_by_value(module)  # as above
        self._bundles, self._may_wait = module.trial_reservation()
        self._group = get_current_placement_group() if self._bundles else None
        self._places: list[int] = []

    def before_worker_group_start(self, worker_group_context: Any) -> None:  # noqa: ANN401 - Ray's
        """Choose a bundle for each worker; raises, which ends the training, if they could wait forever."""
        each, count = worker_group_context.resources_per_worker, worker_group_context.num_workers
        if self._group is None:
            return
        places = places_for(each, count, self._bundles)
        if places is not None:
            self._use(places)
        elif not self._may_wait and not _is_free({name: amount * count for name, amount in each.items()}):
            raise RuntimeError(
                f"{count} workers of Ray Train, each with {each}, do not fit into what is free, nor into the "
                f"placement group of the trial {self._bundles}: reserve them with tune.with_resources(trial, "
                f"tune.PlacementGroupFactory({[self._bundles[0], *[dict(each)] * count]})), or set "
                "max_concurrent_trials"
            )

    def _use(self, places: list[int]) -> None:
        """Make Ray Train start its workers there; this process serves one trainer only."""
        from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
        from ray.train.v2._internal.execution.worker_group.placement_group_handle import (
            DefaultPlacementGroupHandle,
        )
        from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

        if not self._places:
            handle, start = DefaultPlacementGroupHandle(self._group), WorkerGroup._create_workers

            def start_in_places(workers: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
                options.setdefault("placement_group_bundle_indices", self._places)
                return start(workers, *args, **options)

            handle.shutdown = lambda: None  # the group is the trial's, which may continue
            WorkerGroup._create_placement_group = lambda *_: handle
            WorkerGroup._create_workers = start_in_places
            PlacementGroupCleanerCallback.after_worker_group_start = lambda *_: None
        self._places = places


def trial_reservation() -> tuple[list[dict[str, float]], bool]:
    """Return the bundles of the trial, and whether its workers may wait for room beside them."""
    session = current()
    bundles = [] if session is None else session.context.get_trial_resources().described()[0]
    return bundles, bool(environment().get("MUSTER_WORKERS_MAY_WAIT"))


def places_for(
    each: Mapping[str, float], count: int, bundles: Sequence[Mapping[str, float]]
) -> list[int] | None:
    """Return a bundle for each worker, by Ray's numbers; None when they do not fit.

    The first bundle is the trial's own. An empty one has no number.

    Example:
        >>> places_for({"CPU": 1}, 2, [{"CPU": 1}, {"CPU": 2}]), places_for({"CPU": 1}, 1, [{}, {"CPU": 1}])
        ([1, 1], [0])
    """
    own = 1 if bundles and bundles[0] else 0
    left = [*[{}] * own, *(dict(bundle) for bundle in bundles[1:])]
    places: list[int] = []
    for _ in range(count):
        fits = (n for n, room in enumerate(left) if all(room.get(k, 0) >= v - 1e-9 for k, v in each.items()))
        place = next((n for n in fits if n >= own), None)
        if place is None:
            return None
        left[place] = {name: amount - each.get(name, 0) for name, amount in left[place].items()}
        places.append(place)
    return places


def _is_free(wanted: Mapping[str, float]) -> bool:
    """Return whether the cluster has that free, now or in a moment."""
    import ray

    for _ in range(_FREE_TRIES):
        free = ray.available_resources()
        if all(free.get(name, 0) >= amount for name, amount in wanted.items()):
            return True
        threading.Event().wait(_FREE_EVERY_S)
    return False


class ReportServer:
    """Reports what a callback sends, in a thread of the trial, until the trial ends."""

    def __init__(self) -> None:
        session = current()
        if session is None:
            raise RuntimeError(
                "TuneReportCallback was made outside of a trial: make it inside the function of a trial, "
                "which calls the trainer's fit()"
            )
        self._session: Session = session
        self._folder = tempfile.mkdtemp(prefix="muster-train-")  # only this user may enter it
        self.path = os.path.join(self._folder, "socket")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        threading.Thread(target=self._serve, name="muster-train", daemon=True).start()

    def _serve(self) -> None:
        with self._server:
            while current() is self._session:
                if select.select([self._server], [], [], _LOOK_S)[0]:
                    connection, _ = self._server.accept()
                    with contextlib.suppress(OSError), connection, connection.makefile("rwb") as stream:
                        self._answer(stream)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self, stream: Any) -> None:  # noqa: ANN401 - a socket's file
        """Report one result; the answer is None, or why there is no next one, empty for a stop."""
        why_not: str | None = None
        try:
            self._session.report(pickle.load(stream))
        except TrialStopped:
            why_not = ""  # the workers end, fit() raises, and the trial with it
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a result is the trial's error
            why_not = f"{type(error).__name__}: {error}"
        pickle.dump(why_not, stream)
        stream.flush()

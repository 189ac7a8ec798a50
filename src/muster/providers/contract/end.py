"""End the machines that checks have made, whatever state the provider is in, and names what is left.

Only machines of the clusters of a run are ended: what was listed before a check began, and what carries the
name of another cluster, is left alone also where a provider mixes clusters up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster.base.text import counted
from muster.base.untrusted import error_text
from muster.cluster.model import FailureKind
from muster.providers.contract.subject import ProviderSubject
from muster.providers.contract.watch import PromiseBroken, WatchedProvider
from muster.providers.v1.failures import kind_of
from muster.providers.v1.tags import TAG_RAY_NODE_NAME

END_CALLS = 2.0  # ending the machines of a line may take as long as so many calls
AGAIN_S = 10.0  # a machine that is still listed is terminated again after this long
FIRST_LOOK_S, LAST_LOOK_S = 0.02, 1.0  # between two looks

Report = Callable[[str], None]


@dataclass(frozen=True)
class LeftMachines:
    """What could not be ended in one cluster; no ids where it could not be listed."""

    node_ids: tuple[str, ...]
    why: str


def end_machines(
    subject: ProviderSubject,
    report: Report = lambda text: None,
    *,
    patience_s: float | None = None,
    of_earlier_runs: bool = False,
) -> dict[str, LeftMachines]:
    """End the machines of all clusters of a subject; return those that it could not end."""
    watch = subject.watch
    watch.allow_until(float("-inf"), "the check has ended")
    if not watch.made_any and not of_earlier_runs:
        return {}
    creates_ended = watch.wait_for_creates()
    limit_s = END_CALLS * watch.call_limit_s if patience_s is None else patience_s
    end_at = subject.clock.monotonic() + limit_s
    left: dict[str, LeftMachines] = {}
    for name in list(watch.objects):
        end = ClusterEnd(subject, name, report)
        problem = end.run(end_at) or end.remove_resources()
        if problem is None and not creates_ended:
            problem = LeftMachines((), "a create call has not returned: it may still make machines")
        if problem is not None:
            left[name] = problem
    return left


class ClusterEnd:
    """Terminates and lists again, through every object of a cluster, until nothing is listed."""

    def __init__(self, subject: ProviderSubject, name: str, report: Report) -> None:
        self._subject, self._watch, self._clock = subject, subject.watch, subject.clock
        self._name, self._report = name, report
        self._objects = list(subject.watch.objects[name])
        self._due: dict[str, float] = {}  # id -> when it is terminated (again)
        self._given_up: set[str] = set()  # ids that no list shows and that cannot be terminated
        self._why, self._reported = "", 0

    def run(self, end_at: float) -> LeftMachines | None:
        """Return None when nothing of the cluster is listed any more."""
        pause_s = 0.0  # after the first time
        while True:
            listed = self._look()
            # What create calls returned and no list shows: a list may be late, or an id wrong.
            made = self._watch.made.get(self._name, {})
            unlisted = [one for one in list(made) if one not in (listed or ()) and one not in self._given_up]
            if not listed and not unlisted and listed is not None:
                return None
            if self._clock.monotonic() >= end_at:
                return LeftMachines(tuple(listed or unlisted), self._why or "still listed")
            count = len(listed or ()) + len(unlisted)
            if count != self._reported:
                self._report(f"terminating {counted(count, 'machine')} of {self._name}")
            self._reported = count
            for node_id in [*(listed or ()), *unlisted]:
                if self._due.get(node_id, 0.0) <= self._clock.monotonic() < end_at:
                    self._terminate(node_id, is_listed=node_id not in unlisted)
            self._clock.sleep(pause_s)
            pause_s = max(FIRST_LOOK_S, min(LAST_LOOK_S, pause_s * 2))

    def remove_resources(self) -> LeftMachines | None:
        """Remove what a class makes beside machines, where it says how."""
        provider = self._objects[-1]
        try:
            if hasattr(provider.bare, "cleanup_cluster_resources"):
                provider.ending("cleanup_cluster_resources")
        except Exception as error:  # noqa: BLE001 - told, as for machines
            return LeftMachines((), f"cleanup_cluster_resources() failed: {_told(error)}")
        return None

    def _look(self) -> list[str] | None:
        """Return what any object lists of ours; None when no new object can list either."""
        lists = [self._living(one) for one in self._objects]
        if None in lists or not lists:
            lists = [*(ids for ids in lists if ids is not None), self._with_a_new_object()]
            if lists[-1] is None:
                return None
        return list(dict.fromkeys(node_id for ids in lists for node_id in ids or ()))

    def _with_a_new_object(self) -> list[str] | None:
        """List with a new object, as the old one may be broken beyond repair."""
        try:
            fresh = self._subject.object_for_ending(self._name)
        except Exception as error:  # noqa: BLE001 - told where machines are left
            self._why = f"the constructor failed: {_told(error)}"
            return None
        self._objects.append(fresh)
        return self._living(fresh)

    def _living(self, provider: WatchedProvider) -> list[str] | None:
        """Return what is listed and ours; None when the list fails."""
        try:
            listed = provider.ending("non_terminated_nodes", {})
        except Exception as error:  # noqa: BLE001 - tried again until the time is up
            self._why = f"the list failed: {_told(error)}"
            return None
        return [node_id for node_id in listed if self._is_ours(provider, node_id)]

    def _is_ours(self, provider: WatchedProvider, node_id: str) -> bool:
        """Return whether a check made it: it was not there before, and no tag names another cluster."""
        if node_id in self._watch.before.get(self._name, ()):
            return False
        try:
            name = provider.ending("node_tags", node_id).get(TAG_RAY_NODE_NAME)
        except Exception:  # noqa: BLE001 - a machine without readable tags came after the check began
            return True
        return name in (None, "", f"ray-{self._name}-worker")

    def _terminate(self, node_id: str, *, is_listed: bool) -> None:
        """End a machine through the first object that can."""
        is_known = True
        for provider in reversed(self._objects):
            self._due[node_id] = self._clock.monotonic() + AGAIN_S
            try:
                provider.ending("terminate_node", node_id)
            except PromiseBroken as late:
                self._why = late.did
                return  # the other objects would hang as well
            except Exception as error:  # noqa: BLE001 - told when it is still there in the end
                self._why = f"terminate_node({node_id!r}) failed: {_told(error)}"
                self._due[node_id] = 0.0
                is_known = is_listed or kind_of(error) is FailureKind.THROTTLED
            else:
                return
        if not is_known:
            self._given_up.add(node_id)  # an id that create_node has made up


def _told(error: Exception) -> str:
    return error.did if isinstance(error, PromiseBroken) else error_text(error)


def left_text(name: str, left: LeftMachines) -> str:
    """Return one line for users: what is left, where, and why."""
    if not left.node_ids:
        return f"cluster {name}: machines may be left ({left.why})"
    return f"cluster {name}: left are {', '.join(left.node_ids)} ({left.why})"

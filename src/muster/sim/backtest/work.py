"""Infer the work of a cluster from its history: what was asked for, when, and how long it ran.

A runtime reports what waits and what each node has in use, but not which request runs where. Arrivals of
requests that waited are observed; starts and ends are inferred from use that rises and falls. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from muster.base.resources import EMPTY, Resources
from muster.cluster.model import Demand
from muster.stores.history.past import PastGang, PastMoment

RETURN_S = 180.0  # work of a lost node that waits again within this time is the same work
LAG_S = 8.0  # between a report that something waits no longer and the use of its node
UNKNOWN_S = 60.0  # how long work runs of which nothing is known

Units = dict[str, int]


@dataclass
class Work:
    """One request; times are seconds since the epoch."""

    like: Demand
    arrived: float
    started: float | None = None
    ended: float | None = None  # without a start: when it was withdrawn
    is_arrival_seen: bool = False  # it was seen waiting
    is_end_seen: bool = False
    interruptions: int = 0

    @property
    def duration_s(self) -> float | None:
        return None if self.started is None or self.ended is None else max(0.0, self.ended - self.started)


@dataclass
class GangOfWork:
    """A gang; its start and its end are observed, by the labels of nodes."""

    gang_id: str
    gang: PastGang
    arrived: float
    started: float | None = None
    ended: float | None = None
    is_end_seen: bool = False
    interruptions: int = 0
    held: dict[str, Resources] = field(default_factory=dict)  # machine -> its bundles there
    unheld: list[Resources] = field(default_factory=list)  # bundles whose use was not reported yet


@dataclass
class WorkTrace:
    """All work of a history, and what of it was guessed."""

    works: list[Work] = field(default_factory=list)
    gangs: list[GangOfWork] = field(default_factory=list)
    constraints: list[tuple[float, dict[Demand, int]]] = field(default_factory=list)
    withdrawn: int = 0  # requests that waited and were served by nothing that was seen
    unexplained: int = 0  # rises of use by something that never waited
    absorbed: int = 0  # requests that are not told apart from those that ran before on their machine

    @property
    def interruptions(self) -> int:
        alone, together = (sum(one.interruptions for one in each) for each in (self.works, self.gangs))
        return alone + together

    def waits_s(self) -> list[float]:
        """Return how long each request waited, as far as it was served."""
        every = [(one.arrived, one.started) for one in self.works]
        every += [(one.arrived, one.started) for one in self.gangs]
        return sorted(started - arrived for arrived, started in every if started is not None)

    def lengths(self) -> Mapping[Demand, float]:
        """Return the median duration of each shape."""
        found: dict[Demand, list[float]] = {}
        for work in self.works:
            if work.duration_s is not None:
                found.setdefault(work.like, []).append(work.duration_s)
        return {like: median(lengths) for like, lengths in found.items()}


@dataclass
class _Line:
    """Requests of one shape that wait, oldest first.

    A runtime reports that something waits no longer, and the use of its node, at moments that differ by some
    seconds, in either order. `due` has when requests stopped to wait of which no use has risen yet, `early`
    when a use rose for requests that are still reported to wait.
    """

    queue: deque[Work] = field(default_factory=deque)
    due: deque[float] = field(default_factory=deque)
    early: deque[float] = field(default_factory=deque)
    reported: int = 0

    @property
    def ready(self) -> int:
        return min(len(self.due), len(self.queue))

    def report(self, count: int, at: float) -> int:
        """Take the number that waits now; returns how many have arrived."""
        while self.early and at - self.early[0] > LAG_S:
            self.early.popleft()
        for _ in range(min(len(self.early), max(0, self.reported - count))):
            self.early.popleft()
        self.reported = count
        change = count - len(self.early) - (len(self.queue) - len(self.due))
        self.due.extend([at] * min(-change, len(self.queue) - len(self.due)))
        return max(0, change)

    def take(self) -> Work:
        self.due.popleft()
        return self.queue.popleft()

    def take_early(self, at: float) -> Work | None:
        """Return one that is still reported to wait; None when none is."""
        if len(self.queue) <= len(self.due):
            return None
        self.early.append(at)
        return self.queue.popleft()


class WorkFinder:
    """Reads one moment after the other."""

    def __init__(self) -> None:
        self.trace = WorkTrace()
        self._lines: dict[Demand, _Line] = {}
        self._open: dict[str, list[Work]] = {}  # machine -> what runs there, oldest first
        self._lost: list[tuple[float, Work]] = []
        self._used: dict[str, Resources] = {}
        self._gangs: dict[str, GangOfWork] = {}  # that wait or run
        self._lingering: list[tuple[float, str, Resources]] = []  # use of gangs that have just ended
        self._constraints: dict[Demand, int] = {}
        self._at = 0.0
        self._is_first = True
        self._uneven: set[str] = set()  # machines whose use is not explained to the last

    def step(self, moment: PastMoment) -> None:
        """Explain what has changed since the moment before."""
        if moment.is_after_gap:
            self.finish(self._at)
        self._at = moment.at
        for like in self._lines:  # what is still due now has replaced something, before this moment
            self._replace_unseen(like, LAG_S)
        self._lose_nodes(moment)
        self._lingering = [one for one in self._lingering if moment.at - one[0] <= LAG_S]
        self._queue(moment)
        rises = {name: self._unexplained_use(name, moment) for name in moment.used}
        self._follow_gangs(moment, rises)
        for name, change in rises.items():
            if any(change.values()):
                self._explain(name, change)
        self._used, self._is_first = dict(moment.used), False
        if moment.constraints != self._constraints:
            self._constraints = dict(moment.constraints)
            self.trace.constraints.append((moment.at, self._constraints))

    def finish(self, at: float) -> WorkTrace:
        """End everything that runs or waits, as far as it is known."""
        for like in self._lines:
            self._replace_unseen(like, -1.0)
        for works in self._open.values():
            for work in works:
                self._end(work, at, is_seen=False)
        for gang in self._gangs.values():
            gang.ended = at if gang.started is not None else None
            self.trace.gangs.append(gang)
        for line in self._lines.values():
            self.trace.withdrawn += len(line.queue)
            self.trace.works.extend(line.queue)
        self._open, self._gangs, self._lines, self._used, self._lost = {}, {}, {}, {}, []
        self._is_first = True
        self.trace.works.sort(key=lambda work: work.arrived)
        self.trace.gangs.sort(key=lambda gang: gang.arrived)
        return self.trace

    # -- what waits --------------------------------------------------------------------------------

    def _lose_nodes(self, moment: PastMoment) -> None:
        """Work of a node that went may come back; an idle node had none."""
        for name in [one for one in self._used if one not in moment.used]:
            for work in self._open.pop(name, []):
                self._lost.append((moment.at, work))
        for lost_at, work in [one for one in self._lost if moment.at - one[0] > RETURN_S]:
            self._lost.remove((lost_at, work))
            self._end(work, lost_at, is_seen=True)

    def _queue(self, moment: PastMoment) -> None:
        """Queue what arrived, and notes how many of each shape wait no longer."""
        for like in {**self._lines, **moment.waiting}:
            line = self._lines.setdefault(like, _Line())
            for _ in range(line.report(moment.waiting.get(like, 0), moment.at)):
                line.queue.append(self._returned(like) or Work(like, moment.at, is_arrival_seen=True))

    def _returned(self, like: Demand) -> Work | None:
        """Work of a lost node starts again from nothing."""
        for entry in self._lost:
            if entry[1].like.shape == like.shape:
                self._lost.remove(entry)
                work = entry[1]
                work.like, work.started, work.interruptions = like, None, work.interruptions + 1
                return work
        return None

    # -- gangs -------------------------------------------------------------------------------------

    def _follow_gangs(self, moment: PastMoment, rises: dict[str, Units]) -> None:
        for gang_id, gang in moment.gangs.items():
            known = self._gangs.get(gang_id)
            if known is None:
                self._gangs[gang_id] = GangOfWork(gang_id, gang, moment.at)
            elif known.started is not None:  # its node was lost: it waits again
                known.started, known.interruptions = None, known.interruptions + 1
                self._release(known, moment, rises)
        for gang_id, known in list(self._gangs.items()):
            machines = moment.placed.get(gang_id, ())
            if machines and known.started is None:
                known.started = moment.at
                known.unheld = [like.shape for like, count in known.gang.bundles for _ in range(count)]
            if machines and known.unheld and moment.at - (known.started or 0.0) <= LAG_S:
                self._hold(known, machines, rises)
            elif not machines and gang_id not in moment.gangs:
                del self._gangs[gang_id]
                self._end_gang(known, moment, rises)

    def _end_gang(self, gang: GangOfWork, moment: PastMoment, rises: dict[str, Units]) -> None:
        if gang.started is None:
            self.trace.withdrawn += 1
        else:
            gang.ended, gang.is_end_seen = moment.at, True
            self._release(gang, moment, rises)
        self.trace.gangs.append(gang)

    def _hold(self, gang: GangOfWork, machines: Iterable[str], rises: dict[str, Units]) -> None:
        """Take the bundles out of the rises of the machines that carry the gang's label."""
        for shape in tuple(gang.unheld):
            name = next((one for one in machines if _holds(rises.get(one, {}), shape)), None)
            if name is not None:
                _take(rises[name], shape)
                gang.unheld.remove(shape)
                gang.held[name] = gang.held.get(name, EMPTY).plus(shape)

    def _release(self, gang: GangOfWork, moment: PastMoment, rises: dict[str, Units]) -> None:
        """Its use may be reported for some seconds more: until then it is nobody else's."""
        for name, held in gang.held.items():
            if name not in moment.used:
                continue
            change = rises.setdefault(name, {})
            if all(change.get(resource, 0) >= 0 for resource in held):
                self._lingering.append((moment.at, name, held))
            else:
                _take(change, held, times=-1)
        gang.held = {}

    # -- single requests ---------------------------------------------------------------------------

    def _unexplained_use(self, name: str, moment: PastMoment) -> Units:
        """Return the use of a machine without what is known to run there: above 0 something began."""
        left = dict(moment.used[name])
        is_same = self._used.get(name) == moment.used[name] and name not in self._uneven
        if is_same and not any(one[1] == name for one in self._lingering):
            return {}
        for work in self._open.get(name, ()):
            _take(left, work.like.shape)
        for gang in self._gangs.values():
            if name in gang.held:
                _take(left, gang.held[name])
        for entry in [one for one in self._lingering if one[1] == name]:
            if _holds(left, entry[2]):
                _take(left, entry[2])
            else:
                self._lingering.remove(entry)
        return {resource: units for resource, units in left.items() if units}

    def _explain(self, name: str, change: Units) -> None:
        """Find which requests began and ended on a machine, so that what runs there is what it uses."""
        likes = [like for like, line in self._lines.items() if line.ready]
        likes.sort(key=lambda like: like.shape.key, reverse=True)
        ends = dict.fromkeys(work.like.shape for work in self._open.get(name, []) if work.started != self._at)
        story = _filled(change, [(like.shape, self._lines[like].ready) for like in likes])
        for shape, is_begin in story or _shortest_story(change, [one.shape for one in likes], list(ends)):
            if is_begin:
                begun = next(one for one in likes if one.shape == shape)
                if self._lines[begun].ready:
                    self._begin(name, change, begun)
            else:
                oldest = next((one for one in self._open[name] if one.like.shape == shape), None)
                if oldest is not None:
                    _take(change, shape, times=-1)
                    self._open[name].remove(oldest)
                    self._end(oldest, self._at, is_seen=True)
        self._explain_roughly(name, change, likes)
        rest = Resources({resource: units for resource, units in change.items() if units > 0})
        for like in self._known_parts(rest) if rest else ():
            _take(change, like.shape)
            self._start(name, self._early(like))
        self._uneven.discard(name)
        if any(change.values()):
            self._uneven.add(name)

    def _early(self, like: Demand) -> Work:
        """Return the work of a rise that nothing is due for: one that is said to wait, else a new one."""
        line = self._lines.get(like)
        work = None if line is None or self._is_first else line.take_early(self._at)
        self.trace.unexplained += work is None
        return Work(like, self._at) if work is None else work

    def _explain_roughly(self, name: str, change: Units, likes: list[Demand]) -> None:
        """Begin what explains a rise of something rare, ends the oldest, and begin what still fits."""
        for resource in sorted(change, key=lambda one: one == "CPU"):
            for like in likes if resource != "CPU" else ():
                units = like.shape.units(resource)
                while units and change[resource] >= units and self._lines[like].ready:
                    self._begin(name, change, like)
        self._end_works(name, change)
        for like in likes:
            while self._lines[like].ready and _holds(change, like.shape):
                self._begin(name, change, like)

    def _begin(self, name: str, change: Units, like: Demand) -> None:
        _take(change, like.shape)
        self._start(name, self._lines[like].take())

    def _known_parts(self, rest: Resources) -> list[Demand]:
        """Split a rise that nothing waited for into shapes that are known, else takes it as one request."""
        known = {like.shape: like for like in self._lines}
        shapes = sorted(known, key=lambda shape: shape.key, reverse=True)
        parts = _filled(dict(rest), [(shape, MAX_PARTS) for shape in shapes])
        return [known[shape] for shape, _ in parts] or [Demand(shape=rest)]

    def _end_works(self, name: str, change: Units) -> None:
        fallen = {resource: -units for resource, units in change.items() if units < 0}
        works = self._open.get(name, [])
        if not fallen or not works:
            return
        exact = [one for one in works if dict(one.like.shape.positive()) == fallen]
        for work in exact[:1] or list(works):
            if work.started != self._at and _holds(fallen, work.like.shape) and any(fallen.values()):
                _take(fallen, work.like.shape)
                _take(change, work.like.shape, times=-1)
                works.remove(work)
                self._end(work, self._at, is_seen=True)

    def _replace_unseen(self, like: Demand, after_s: float) -> None:
        """Some wait no longer, but no use rose: each took the place of one that ended, or was withdrawn.

        Where all of a shape go at once, they were withdrawn. Where only some do, something ran in their
        place that is not told apart from what ran there before: they are part of that.
        """
        line, going = self._lines[like], []
        while line.ready and self._at - line.due[0] > after_s:
            at = line.due[0]
            work = line.take()
            if not self._replace_same(work, at) and not self._replace_others(work, at):
                going.append((at, work))
        is_withdrawn = len(going) > 2 and not line.queue
        for at, work in going:
            if is_withdrawn:
                self.trace.withdrawn += 1
                work.ended = at
                self.trace.works.append(work)
            else:
                self.trace.absorbed += 1

    def _replace_same(self, new: Work, at: float) -> bool:
        same = [
            (work.started, name, work)
            for name, works in self._open.items()
            for work in works
            if work.like.shape == new.like.shape and work.started is not None and work.started < at
        ]
        if not same:
            return False
        _, name, old = min(same, key=lambda one: one[:2])
        self._open[name].remove(old)
        self._end(old, at, is_seen=True)
        self._start(name, new, at)
        return True

    def _replace_others(self, new: Work, at: float) -> bool:
        """Look for a machine whose oldest requests leave exactly the room that this one needs."""
        wanted = dict(new.like.shape.positive())
        for name, works in self._open.items():
            left, going = dict(wanted), []
            for work in works:
                if any(left.values()) and (work.started or 0.0) < at and _holds(left, work.like.shape):
                    _take(left, work.like.shape)
                    going.append(work)
            if going and not any(left.values()):
                for work in going:
                    works.remove(work)
                    self._end(work, at, is_seen=True)
                self._start(name, new, at)
                return True
        return False

    def _start(self, name: str, work: Work, at: float | None = None) -> None:
        work.started = self._at if at is None else at
        self._open.setdefault(name, []).append(work)

    def _end(self, work: Work, at: float, *, is_seen: bool) -> None:
        work.ended, work.is_end_seen = at, is_seen
        self.trace.works.append(work)


def _holds(room: Mapping[str, int], shape: Resources) -> bool:
    needed = [(name, units) for name, units in shape.items() if units]
    return bool(needed) and all(room.get(name, 0) >= units for name, units in needed)


def _take(room: Units, shape: Resources, times: int = 1) -> None:
    for name, units in shape.items():
        room[name] = room.get(name, 0) - times * units


MAX_PARTS = 64  # requests that begin on one machine between two looks
MAX_STEPS = 4  # begins and ends on one machine between two looks; more are not told apart
MAX_TRIES = 400


def _filled(change: Units, begins: list[tuple[Resources, int]]) -> list[tuple[Resources, bool]]:
    """Return begins, of each shape at most so many, that make up a rise exactly; [] when none do."""
    if any(units < 0 for units in change.values()):
        return []
    return [(shape, True) for shape in _fill(dict(change), begins, [0]) or ()]


def _fill(left: Units, begins: list[tuple[Resources, int]], tries: list[int]) -> list[Resources] | None:
    if not any(left.values()):
        return []
    tries[0] += 1
    if not begins or tries[0] > MAX_TRIES:
        return None
    (shape, most), *others = begins
    needed = [(name, units) for name, units in shape.items() if units]
    fits = min((left.get(name, 0) // units for name, units in needed), default=0)
    for count in range(min(most, fits), -1, -1):
        _take(left, shape, count)
        rest = _fill(left, others, tries)
        _take(left, shape, -count)
        if rest is not None:
            return [*[shape] * count, *rest]
    return None


def _shortest_story(
    change: Units, begins: list[Resources], ends: list[Resources]
) -> list[tuple[Resources, bool]]:
    """Return the fewest begins (True) and ends that make up a change of use; [] when none is found."""
    tries = [0]
    moves = [(shape, True) for shape in begins] + [(shape, False) for shape in ends]
    for depth in range(1, MAX_STEPS + 1):
        found = _search(dict(change), moves, depth, tries)
        if found is not None:
            return found
    return []


def _search(
    left: Units, moves: list[tuple[Resources, bool]], depth: int, tries: list[int]
) -> list[tuple[Resources, bool]] | None:
    wrong = next((name for name, units in left.items() if units), None)
    if wrong is None:
        return []
    tries[0] += 1
    if not depth or tries[0] > MAX_TRIES:
        return None
    for shape, is_begin in moves:
        if not shape.units(wrong):
            continue
        _take(left, shape, 1 if is_begin else -1)
        rest = _search(left, moves, depth - 1, tries)
        _take(left, shape, -1 if is_begin else 1)
        if rest is not None:
            return [(shape, is_begin), *rest]
    return None

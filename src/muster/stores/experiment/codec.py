"""Encode facts as bytes, for both experiment stores and their readers. Paths are stored relative.

A batch is one msgpack array of [kind, trial id, body]; a body is an array, its first item the time. Reports
with the same keys that follow each other are one item of it: the keys once, and the values column by column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from muster.session.session import PreemptionInfo
from muster.stores.experiment import values
from muster.trials.events import (
    CheckpointSaved,
    ExperimentEnded,
    ExperimentResumed,
    Fact,
    LimitsChanged,
    SearchExhausted,
    TrialAdmitted,
    TrialCharged,
    TrialCreated,
    TrialDecided,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialMoved,
    TrialNoticed,
    TrialPriced,
    TrialReported,
    TrialStarted,
    TrialStopRequested,
    TrialSuspended,
)
from muster.trials.model import CheckpointRef

# In files: never renumber. A digest must distinguish these without decoding the content.
CREATED, STARTED, REPORTED, SAVED, EXITED, EXHAUSTED = range(1, 7)
REPORTED_SAVED = 7  # a report with a checkpoint
UNSAVED = 8  # an answer to a save, without a checkpoint
FAILED = 9  # an exit with a failure
ADMITTED, ENDED = 10, 11
RESIZED = 12  # an admission with resources that a scheduler changed
_REPORTS = 13  # several reports; only in batches
RESUMED = 14
NOTICED, MOVED = 15, 16  # the machine of a trial will be taken; its trial was moved when that time was over
DECIDED = 17
PRICED, CHARGED, SUSPENDED = 18, 19, 20
STOP_REQUESTED, LIMITED = 21, 22  # by the user
_FEW, _TWICE = 8, 2  # fewer reports, or fewer of each trial, are stored one by one: that is cheaper
_ONE, _EACH, _SHARED = range(3)  # forms of a column: a constant, a value per report, objects and their places
_OF_NUMBERS = frozenset(  # nothing of the user's in them
    {EXITED, ADMITTED, EXHAUSTED, ENDED, RESUMED, MOVED, PRICED, CHARGED, SUSPENDED, STOP_REQUESTED, LIMITED}
)
_ENCODER = msgspec.msgpack.Encoder()
_BATCH = msgspec.msgpack.Decoder(list[tuple[int, str, Raw]])


class StoredFact(NamedTuple):
    """One fact as it is written."""

    kind: int
    trial_id: str
    body: bytes
    pickles: bytes | None
    reports: int = 1  # of the trial, this one the last of them; for a report only


class ExperimentLocation:
    """Where the experiment is now: a moved directory finds its checkpoints again."""

    def __init__(self, *roots: str) -> None:
        """Paths are returned below the first location; the others are different spellings of it."""
        self._root = roots[0].rstrip("/")
        self._prefixes = tuple(f"{root.rstrip('/')}/" for root in dict.fromkeys(roots))

    def inside(self, path: str) -> str:
        """Return a path as stored: `./trial/checkpoint_000001`, or unchanged when it lies elsewhere."""
        for prefix in self._prefixes:
            if path.startswith(prefix):
                return f"./{path[len(prefix) :]}"
        return path

    def outside(self, stored: str) -> str:
        """Return a path as an engine can use it."""
        return f"{self._root}/{stored[2:]}" if stored.startswith("./") else stored


def pack(fact: Fact, place: ExperimentLocation) -> StoredFact:
    """Encode a fact; every value of a user can be encoded, see `values`."""
    if type(fact) is TrialReported and fact.checkpoint is None:  # most facts are such
        return StoredFact(REPORTED, fact.trial_id, *values.encode([fact.at, fact.result, None]))
    if type(fact) in _AS_FIELDS:
        kind = _AS_FIELDS[type(fact)]
        body = [getattr(fact, name) for name in fact.__struct_fields__ if name != "trial_id"]
    else:
        kind, body = _PACKERS[type(fact)](fact, place)
    if kind in _OF_NUMBERS:
        return StoredFact(kind, getattr(fact, "trial_id", ""), _ENCODER.encode(body), None)
    data, pickles = values.encode(body, is_config=kind == CREATED)
    return StoredFact(kind, fact.trial_id, data, pickles)  # type: ignore[union-attr]  # those without are above


def unpack(stored: StoredFact, place: ExperimentLocation, *, trust: bool = False) -> Fact:
    """Decode a fact; ValueError when the bytes are not a fact."""
    try:
        body = values.decode(stored.body, stored.pickles, trust=trust)
        return _UNPACKERS[stored.kind](stored.trial_id, body, place)
    except (TypeError, KeyError, IndexError, AttributeError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a fact: {error!r}") from error


class PackedBatch(NamedTuple):
    """Everything that one append writes."""

    data: bytes
    pickles: bytes | None  # by position in the batch
    stored: list[StoredFact]  # the same for digests: of the reports of a trial, the last one may be enough


def pack_batch(facts: Iterable[Fact], place: ExperimentLocation) -> PackedBatch:
    """Encode facts in their order."""
    items: list[tuple[int, str, Raw]] = []
    stored: list[StoredFact] = []
    pickles: dict[int, bytes] = {}
    for run in _runs(facts):
        last = {fact.trial_id: fact for fact in run} if len(run) >= _FEW else {}
        table = _table(run) if 0 < _TWICE * len(last) <= len(run) else None
        if table is not None:
            items.append((_REPORTS, "", Raw(table)))
            counts = Counter([fact.trial_id for fact in run])
            stored += [pack(fact, place)._replace(reports=counts[each]) for each, fact in last.items()]
            continue
        for one in [pack(fact, place) for fact in run]:
            if one.pickles is not None:
                pickles[len(items)] = one.pickles
            items.append((one.kind, one.trial_id, Raw(one.body)))
            stored.append(one)
    return PackedBatch(_ENCODER.encode(items), _ENCODER.encode(pickles) if pickles else None, stored)


def _runs(facts: Iterable[Fact]) -> Iterator[list[Any]]:
    """Yield facts in their order: reports with the same keys together, every other fact by itself."""
    run: list[Fact] = []
    keys: list[str] = []
    for fact in facts:
        if type(fact) is TrialReported and fact.checkpoint is None:
            names = list(fact.result)
            if run and names != keys:
                yield run
                run = []
            keys = names
            run.append(fact)
            continue
        if run:
            yield run
            run = []
        yield [fact]
    if run:
        yield run


def _table(run: Sequence[TrialReported]) -> bytes | None:
    """Return reports with the same keys in one piece; None when there is more in them than plain data."""
    keys = list(run[0].result)
    columns = zip(*[fact.result.values() for fact in run])  # noqa: B905 - equally long
    try:
        if not values.is_plain(dict.fromkeys(keys)):
            return None
        packed = [_column(tuple([fact.trial_id for fact in run])), (_EACH, [fact.at for fact in run])]
        for column in columns:
            found = _column(column)
            if found is None:
                return None
            packed.append(found)
        return _ENCODER.encode((len(run), keys, packed))
    except values.TOO_ODD:
        return None


def _column(column: tuple[Any, ...]) -> tuple[Any, ...] | None:
    first, kinds = column[0], set(map(type, column))
    if kinds <= values.SCALARS:
        # Equal floats may differ in sign (0.0), equal numbers of two types do.
        is_constant = len(kinds) == 1 and type(first) is not float and column.count(first) == len(column)
        return (_ONE, first) if is_constant else (_EACH, column)
    objects = {id(value): value for value in column}  # a config is the same object in many results
    if not all(map(values.is_plain, objects.values())):
        return None
    places = dict(zip(objects, range(len(objects)), strict=True))
    return (_SHARED, tuple(objects.values()), [places[id(value)] for value in column])


def unpack_batch(data: bytes, pickles: bytes | None) -> Iterable[StoredFact]:
    """Decode a batch; ValueError when the bytes are not a batch."""
    beside: dict[int, bytes] = msgspec.msgpack.decode(pickles) if pickles is not None else {}
    for position, (kind, trial_id, body) in enumerate(_BATCH.decode(data)):
        if kind == _REPORTS:
            yield from _reports(body)
        else:
            yield StoredFact(kind, trial_id, bytes(body), beside.get(position))


def _reports(table: bytes | Raw) -> Iterator[StoredFact]:
    try:
        count, keys, packed = msgspec.msgpack.decode(table)
        columns = [_values_of(count, *each) for each in packed]
        for trial_id, at, *row in zip(*columns, strict=True):
            body = _ENCODER.encode([at, dict(zip(keys, row, strict=True)), None])
            yield StoredFact(REPORTED, trial_id, body, None)
    except (TypeError, IndexError) as error:
        raise ValueError(f"not reports: {error!r}") from error


def _values_of(count: int, form: int, content: Any, places: Sequence[int] = ()) -> Sequence[Any]:  # noqa: ANN401
    if form == _SHARED:
        return [content[place] for place in places]
    return [content] * count if form == _ONE else content


def checkpoint_of(value: Sequence[Any] | None, place: ExperimentLocation) -> CheckpointRef | None:
    """Return a checkpoint from the body of a fact."""
    if value is None:
        return None
    path, index, metrics = value
    return CheckpointRef(path=place.outside(path), index=index, metrics=metrics)


def failure_of(value: Sequence[Any] | None) -> TrialFailure | None:
    """Return a failure from the body of an exit."""
    if value is None:
        return None
    kind, message, traceback, exception = value
    return TrialFailure(
        kind=TrialFailureKind(kind), message=message, traceback=traceback, exception=exception
    )


def _checkpoint(ref: CheckpointRef | None, place: ExperimentLocation) -> list[Any] | None:
    return None if ref is None else [place.inside(ref.path), ref.index, ref.metrics]


def _created(fact: TrialCreated, _: ExperimentLocation) -> tuple[int, list[Any]]:
    texts = (fact.experiment_tag, fact.trial_name, fact.relative_logdir)
    extra = [fact.resources, fact.why] if fact.why else [] if fact.resources is None else [fact.resources]
    return CREATED, [fact.at, fact.config, fact.evaluated_params, *texts, *extra]


def _reported(fact: TrialReported, place: ExperimentLocation) -> tuple[int, list[Any]]:
    kind = REPORTED if fact.checkpoint is None else REPORTED_SAVED
    return kind, [fact.at, fact.result, _checkpoint(fact.checkpoint, place)]


def _saved(fact: CheckpointSaved, place: ExperimentLocation) -> tuple[int, list[Any]]:
    kind = UNSAVED if fact.checkpoint is None else SAVED
    return kind, [fact.at, _checkpoint(fact.checkpoint, place), fact.message]


def _exited(fact: TrialExited, _: ExperimentLocation) -> tuple[int, list[Any]]:
    kind = EXITED if fact.failure is None else FAILED
    why = fact.failure
    failure = None if why is None else [why.kind.value, why.message, why.traceback, why.exception]
    return kind, [fact.at, failure, fact.is_done, fact.reusable]


def _admitted(fact: TrialAdmitted, _: ExperimentLocation) -> tuple[int, list[Any]]:
    kind = ADMITTED if fact.resources is None else RESIZED
    if fact.repeats:
        return kind, [fact.at, fact.resources, True]
    return kind, [fact.at] if fact.resources is None else [fact.at, fact.resources]


def _noticed(fact: TrialNoticed, _: ExperimentLocation) -> tuple[int, list[Any]]:
    return NOTICED, [fact.at, None if fact.info is None else list(fact.info)]


_PACKERS: Mapping[type, Callable[[Any, ExperimentLocation], tuple[int, list[Any]]]] = {
    TrialCreated: _created,
    TrialReported: _reported,
    CheckpointSaved: _saved,
    TrialExited: _exited,
    TrialAdmitted: _admitted,
    TrialNoticed: _noticed,
}
# Facts whose body is all their fields but the trial id, in the order of the class.
_AS_FIELDS: Mapping[type, int] = {
    TrialStarted: STARTED,
    SearchExhausted: EXHAUSTED,
    ExperimentEnded: ENDED,
    ExperimentResumed: RESUMED,
    TrialMoved: MOVED,
    TrialDecided: DECIDED,
    TrialPriced: PRICED,
    TrialCharged: CHARGED,
    TrialSuspended: SUSPENDED,
    TrialStopRequested: STOP_REQUESTED,
    LimitsChanged: LIMITED,
}


def _read_created(trial_id: str, body: list[Any], _: ExperimentLocation) -> TrialCreated:
    at, config, params, tag, name, logdir, *extra = body
    return TrialCreated(
        trial_id=trial_id,
        at=at,
        config=config,
        evaluated_params=params,
        experiment_tag=tag,
        trial_name=name,
        relative_logdir=logdir,
        resources=extra[0] if extra else None,
        why=extra[1] if len(extra) > 1 else "",
    )


def _read_reported(trial_id: str, body: list[Any], place: ExperimentLocation) -> TrialReported:
    at, result, checkpoint = body
    return TrialReported(trial_id=trial_id, at=at, result=result, checkpoint=checkpoint_of(checkpoint, place))


def _read_saved(trial_id: str, body: list[Any], place: ExperimentLocation) -> CheckpointSaved:
    at, checkpoint, message = body
    return CheckpointSaved(
        trial_id=trial_id, at=at, checkpoint=checkpoint_of(checkpoint, place), message=message
    )


def _read_exited(trial_id: str, body: list[Any], _: ExperimentLocation) -> TrialExited:
    at, failure, is_done, reusable = body
    return TrialExited(
        trial_id=trial_id, at=at, failure=failure_of(failure), is_done=is_done, reusable=reusable
    )


def _read_admitted(trial_id: str, body: list[Any], _: ExperimentLocation) -> TrialAdmitted:
    resources, repeats = body[1] if len(body) > 1 else None, len(body) > 2 and body[2]
    return TrialAdmitted(trial_id=trial_id, at=body[0], resources=resources, repeats=repeats)


def _read_noticed(trial_id: str, body: list[Any], _: ExperimentLocation) -> TrialNoticed:
    at, info = body
    return TrialNoticed(trial_id=trial_id, at=at, info=None if info is None else PreemptionInfo(*info))


def _fields_reader(fact: Any) -> Callable[[str, list[Any], ExperimentLocation], Fact]:  # noqa: ANN401 - a class
    names = fact.__struct_fields__

    def read(trial_id: str, body: list[Any], _: ExperimentLocation) -> Fact:
        content = [trial_id, *body] if "trial_id" in names else body
        made: Fact = fact(**dict(zip(names, content, strict=True)))
        return made

    return read


_UNPACKERS: Mapping[int, Callable[[str, list[Any], ExperimentLocation], Fact]] = {
    CREATED: _read_created,
    REPORTED: _read_reported,
    REPORTED_SAVED: _read_reported,
    SAVED: _read_saved,
    UNSAVED: _read_saved,
    EXITED: _read_exited,
    FAILED: _read_exited,
    ADMITTED: _read_admitted,
    RESIZED: _read_admitted,
    NOTICED: _read_noticed,
    **{kind: _fields_reader(fact) for fact, kind in _AS_FIELDS.items()},
}

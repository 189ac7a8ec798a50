"""Encodes facts as bytes, for both experiment stores and their readers. Paths are stored relative.

A batch is one msgpack array of [kind, trial id, body]; a body is an array, its first item the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from muster.stores.experiment import values
from muster.trials.events import (
    CheckpointSaved,
    ExperimentEnded,
    Fact,
    SearchExhausted,
    TrialAdmitted,
    TrialCreated,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef

# In files: never renumber. A digest must distinguish these without decoding the content.
CREATED, STARTED, REPORTED, SAVED, EXITED, EXHAUSTED = range(1, 7)
REPORTED_SAVED = 7  # a report with a checkpoint
UNSAVED = 8  # an answer to a save, without a checkpoint
FAILED = 9  # an exit with a failure
ADMITTED, ENDED = 10, 11
_OF_NUMBERS = frozenset({EXITED, ADMITTED, EXHAUSTED, ENDED})  # nothing of the user's in them
_ENCODER = msgspec.msgpack.Encoder()
_BATCH = msgspec.msgpack.Decoder(list[tuple[int, str, Raw]])


class StoredFact(NamedTuple):
    """A StoredFact is one fact as it is written."""

    kind: int
    trial_id: str
    body: bytes
    pickles: bytes | None


class ExperimentLocation:
    """An ExperimentLocation is where the experiment is now: a moved directory finds its checkpoints again."""

    def __init__(self, *roots: str) -> None:
        """Paths are returned below the first location; the others are different spellings of it."""
        self._root = roots[0].rstrip("/")
        self._prefixes = tuple(f"{root.rstrip('/')}/" for root in dict.fromkeys(roots))

    def inside(self, path: str) -> str:
        """Returns a path as stored: `./trial/checkpoint_000001`, or unchanged when it lies elsewhere."""
        for prefix in self._prefixes:
            if path.startswith(prefix):
                return f"./{path[len(prefix) :]}"
        return path

    def outside(self, stored: str) -> str:
        """Returns a path as an engine can use it."""
        return f"{self._root}/{stored[2:]}" if stored.startswith("./") else stored


def pack(fact: Fact, place: ExperimentLocation) -> StoredFact:
    """Encodes a fact; every value of a user can be encoded, see `values`."""
    kind, body = _PACKERS[type(fact)](fact, place)
    if kind in _OF_NUMBERS:
        return StoredFact(kind, getattr(fact, "trial_id", ""), _ENCODER.encode(body), None)
    data, pickles = values.encode(body)
    return StoredFact(kind, fact.trial_id, data, pickles)  # type: ignore[union-attr]  # those without are above


def unpack(stored: StoredFact, place: ExperimentLocation, *, trust: bool = False) -> Fact:
    """Decodes a fact; ValueError when the bytes are not a fact."""
    try:
        body = values.decode(stored.body, stored.pickles, trust=trust)
        return _UNPACKERS[stored.kind](stored.trial_id, body, place)
    except (TypeError, KeyError, IndexError, AttributeError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a fact: {error!r}") from error


def pack_batch(facts: Sequence[StoredFact]) -> tuple[bytes, bytes | None]:
    """Encodes everything that one append writes: the data, and the pickles by position in the batch."""
    data = _ENCODER.encode([(kind, trial_id, Raw(body)) for kind, trial_id, body, _ in facts])
    pickles = {position: each.pickles for position, each in enumerate(facts) if each.pickles is not None}
    return data, _ENCODER.encode(pickles) if pickles else None


def unpack_batch(data: bytes, pickles: bytes | None) -> Iterable[StoredFact]:
    """Decodes a batch; ValueError when the bytes are not a batch."""
    beside: dict[int, bytes] = msgspec.msgpack.decode(pickles) if pickles is not None else {}
    for position, (kind, trial_id, body) in enumerate(_BATCH.decode(data)):
        yield StoredFact(kind, trial_id, bytes(body), beside.get(position))


def checkpoint_of(value: Sequence[Any] | None, place: ExperimentLocation) -> CheckpointRef | None:
    """Returns a checkpoint from the body of a fact."""
    if value is None:
        return None
    path, index, metrics = value
    return CheckpointRef(path=place.outside(path), index=index, metrics=metrics)


def failure_of(value: Sequence[Any] | None) -> TrialFailure | None:
    """Returns a failure from the body of an exit."""
    if value is None:
        return None
    kind, message, traceback, exception = value
    return TrialFailure(
        kind=TrialFailureKind(kind), message=message, traceback=traceback, exception=exception
    )


def _checkpoint(ref: CheckpointRef | None, place: ExperimentLocation) -> list[Any] | None:
    return None if ref is None else [place.inside(ref.path), ref.index, ref.metrics]


def _failure(failure: TrialFailure | None) -> list[Any] | None:
    if failure is None:
        return None
    return [failure.kind.value, failure.message, failure.traceback, failure.exception]


def _created(fact: TrialCreated, _: ExperimentLocation) -> tuple[int, list[Any]]:
    texts = (fact.experiment_tag, fact.trial_name, fact.relative_logdir)
    return CREATED, [fact.at, fact.config, fact.evaluated_params, *texts]


def _started(fact: TrialStarted, _: ExperimentLocation) -> tuple[int, list[Any]]:
    return STARTED, [fact.at, fact.location, fact.reused]


def _reported(fact: TrialReported, place: ExperimentLocation) -> tuple[int, list[Any]]:
    kind = REPORTED if fact.checkpoint is None else REPORTED_SAVED
    return kind, [fact.at, fact.result, _checkpoint(fact.checkpoint, place)]


def _saved(fact: CheckpointSaved, place: ExperimentLocation) -> tuple[int, list[Any]]:
    kind = UNSAVED if fact.checkpoint is None else SAVED
    return kind, [fact.at, _checkpoint(fact.checkpoint, place), fact.message]


def _exited(fact: TrialExited, _: ExperimentLocation) -> tuple[int, list[Any]]:
    kind = EXITED if fact.failure is None else FAILED
    return kind, [fact.at, _failure(fact.failure), fact.is_done, fact.reusable]


def _exhausted(fact: SearchExhausted, _: ExperimentLocation) -> tuple[int, list[Any]]:
    return EXHAUSTED, [fact.at]


def _admitted(fact: TrialAdmitted, _: ExperimentLocation) -> tuple[int, list[Any]]:
    return ADMITTED, [fact.at]


def _ended(fact: ExperimentEnded, _: ExperimentLocation) -> tuple[int, list[Any]]:
    return ENDED, [fact.at]


_PACKERS: Mapping[type, Callable[[Any, ExperimentLocation], tuple[int, list[Any]]]] = {
    TrialCreated: _created,
    TrialStarted: _started,
    TrialReported: _reported,
    CheckpointSaved: _saved,
    TrialExited: _exited,
    SearchExhausted: _exhausted,
    TrialAdmitted: _admitted,
    ExperimentEnded: _ended,
}


def _read_created(trial_id: str, body: list[Any], _: ExperimentLocation) -> TrialCreated:
    at, config, params, tag, name, logdir = body
    return TrialCreated(
        trial_id=trial_id,
        at=at,
        config=config,
        evaluated_params=params,
        experiment_tag=tag,
        trial_name=name,
        relative_logdir=logdir,
    )


def _read_started(trial_id: str, body: list[Any], _: ExperimentLocation) -> TrialStarted:
    at, location, reused = body
    return TrialStarted(trial_id=trial_id, at=at, location=location, reused=reused)


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


def _read_exhausted(_: str, body: list[Any], __: ExperimentLocation) -> SearchExhausted:
    return SearchExhausted(at=body[0])


def _read_admitted(trial_id: str, body: list[Any], _: ExperimentLocation) -> TrialAdmitted:
    return TrialAdmitted(trial_id=trial_id, at=body[0])


def _read_ended(_: str, body: list[Any], __: ExperimentLocation) -> ExperimentEnded:
    return ExperimentEnded(at=body[0])


_UNPACKERS: Mapping[int, Callable[[str, list[Any], ExperimentLocation], Fact]] = {
    CREATED: _read_created,
    STARTED: _read_started,
    REPORTED: _read_reported,
    REPORTED_SAVED: _read_reported,
    SAVED: _read_saved,
    UNSAVED: _read_saved,
    EXITED: _read_exited,
    FAILED: _read_exited,
    EXHAUSTED: _read_exhausted,
    ADMITTED: _read_admitted,
    ENDED: _read_ended,
}


_AS_IT_IS, _DEFLATED, _WITH_DICTIONARY = b"\0", b"\1", b"\2"
_WORTH_IT = 64  # bytes
DICTIONARY_BYTES = 8192


def squeezed(data: bytes, dictionary: bytes | None = None) -> bytes:
    """Compresses fast rather than well: level 1. A dictionary of similar records helps short ones most."""
    if len(data) < _WORTH_IT:
        return _AS_IT_IS + data
    if dictionary is None:
        return _DEFLATED + zlib.compress(data, 1)
    # A window as long as the dictionary, and small tables: making a large packer takes longer than packing.
    packer = zlib.compressobj(1, zlib.DEFLATED, -13, 5, zlib.Z_DEFAULT_STRATEGY, dictionary)
    return _WITH_DICTIONARY + packer.compress(data) + packer.flush()


def unsqueezed(stored: bytes, dictionary: bytes | None = None) -> bytes:
    """Decompresses; ValueError when the bytes are damaged."""
    how, data = stored[:1], stored[1:]
    try:
        if how == _AS_IT_IS:
            return data
        if how == _DEFLATED:
            return zlib.decompress(data)
        if how == _WITH_DICTIONARY and dictionary is not None:
            return zlib.decompressobj(-15, dictionary).decompress(data)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from error
    raise ValueError(f"stored in an unknown way: {how!r}")

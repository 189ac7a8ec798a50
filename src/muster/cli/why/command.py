"""Which machine, request or node type a person means by a word. Pure: one subject, or an error that helps."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from msgspec import Struct

from muster.autoscaler.status_files import PublishedStatus
from muster.cluster.model import Instance
from muster.cluster.plan import Subject
from muster.errors import ClusterError
from muster.stores.ledger.history import Decision

MACHINE, NODE_TYPE, GANG, DEMAND = "machine", "node type", "gang", "demand"
ALL_DEMAND = frozenset({"demand", "demands", "pending", "waiting"})
_SHORTEST_PREFIX = 3
_MAX_SHOWN = 6


class Known(Struct, frozen=True, kw_only=True):
    """All that there is to answer from."""

    cluster: str
    now: float
    published: PublishedStatus | None
    problem: str
    node_types: tuple[str, ...] = ()  # of the cluster's file
    records: tuple[Instance, ...] = ()  # of the ledger, ended ones included
    decisions: Sequence[Decision] = ()  # newest first


class Meant(Struct, frozen=True, kw_only=True):
    """The subject; `key` is its instance id, type name or gang id."""

    kind: str
    key: str


def meant_by(word: str, known: Known) -> Meant:
    """By name or by the beginning of one; ClusterError names the nearest."""
    if word.lower() in ALL_DEMAND:
        return Meant(kind=DEMAND, key="")
    names = _names(known)
    if word in names:
        return names[word]
    found = {name: meant for name, meant in names.items() if _begins(name, word)}
    if len({(meant.kind, meant.key) for meant in found.values()}) == 1:
        return next(iter(found.values()))
    if found:
        raise ClusterError(f"{word!r} may be {_listed(found)}: give more of it")
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {_listed(close)}?" if close else f"there are {_listed(names)}"
    raise ClusterError(
        f"nothing here is called {word!r}; {hint if names else 'nothing has happened here yet'} "
        f"(`muster why demand` tells about everything that waits)"
    )


def _names(known: Known) -> dict[str, Meant]:
    """Node types first: the shortest words people use."""
    now = known.published
    everything = [*known.records, *(now.instances if now is not None else ())]
    types = [*known.node_types, *(record.node_type for record in everything)]
    names = {name: Meant(kind=NODE_TYPE, key=name) for name in types if name}
    for verdict in now.status.verdicts if now is not None else ():
        if verdict.subject is Subject.NODE_TYPE:
            names[verdict.subject_id] = Meant(kind=NODE_TYPE, key=verdict.subject_id)
        if verdict.subject is Subject.GANG:
            names[verdict.subject_id] = Meant(kind=GANG, key=verdict.subject_id)
    for decision in known.decisions:
        for told in decision.verdicts:
            if told.get("subject") == Subject.GANG.value:
                names.setdefault(told["subject_id"], Meant(kind=GANG, key=told["subject_id"]))
    for record in everything:
        for name in (record.instance_id, record.cloud_id, record.node_id):
            if name:
                names.setdefault(name, Meant(kind=MACHINE, key=record.instance_id))
    return names


def _begins(name: str, word: str) -> bool:
    return len(word) >= _SHORTEST_PREFIX and name.startswith(word)


def _listed(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    return ", ".join(repr(name) for name in shown[:_MAX_SHOWN]) + more

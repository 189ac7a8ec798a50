"""Which machine, request or node type a person means by a word. Pure: one subject, or an error that helps."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from muster.autoscaler.status_files import PublishedStatus
from muster.cluster.model import Instance
from muster.cluster.plan import Subject
from muster.errors import ClusterError
from muster.stores.ledger.history import Decision

if TYPE_CHECKING:
    from muster.autoscaler.known_clusters import KnownCluster


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


DECISIONS = 2000  # looked back at

_EPILOG = """\b
SUBJECT is one of
  demand                 everything that waits, and why
  a machine              as `muster status` shows it; also its node's id, or the provider's
  a node type            why it is bought or not, and the story of its newest machines
  a placement group      by its id
The beginning of an id is enough.

\b
Examples:
  muster why demand
  muster why t-5f4e3d2c1b0a-i2
  muster why big examples/laptop.yaml --json | jq '.machines[].story'
"""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("subject")
@click.argument("cluster", required=False, metavar="[FILE|NAME]")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document.")
def why(subject: str, cluster: str | None, as_json: bool) -> None:
    """Tell why SUBJECT is as it is: the verdict now, and its story from the ledger.

    Without a name of a cluster: the one that is up, when there is only one.
    """
    from muster.autoscaler.known_clusters import clusters_root, find_cluster
    from muster.base.codec import encode_plain
    from muster.cli.console import console, emit
    from muster.cli.status.status_frame import Frame
    from muster.cli.why.command import meant_by
    from muster.cli.why.report import answer, why_page

    known = known_of(find_cluster(cluster, clusters_root(os.environ)))
    meant = meant_by(subject, known)
    report = answer(meant, known)
    if as_json:
        emit(encode_plain(report))
        return
    page = console()
    for part in why_page(report, Frame(width=page.width)):
        page.print(part)


def known_of(cluster: KnownCluster) -> Known:
    """The published status and the ledger of a cluster, whichever of them there is."""
    from muster.base.clock import SystemClock
    from muster.cli.why.command import Known
    from muster.stores.ledger.history import open_history

    now, published = SystemClock().now(), cluster.status()
    known = Known(
        cluster=cluster.name,
        now=now,
        published=published,
        problem="" if published is None else cluster.problem(published, now),
        node_types=cluster.node_types(),
    )
    if not cluster.home.ledger.is_file():
        return known
    from msgspec.structs import replace

    with open_history(cluster.home.ledger) as history:
        return replace(known, records=history.find(), decisions=history.decisions(limit=DECISIONS))

"""`muster why`: the verdict about a machine, a request or a node type, and how it came to be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from muster.autoscaler.known_clusters import KnownCluster
    from muster.cli.why.command import Known

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
    from muster.cli.why.report import answer
    from muster.cli.why.view import why_page

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

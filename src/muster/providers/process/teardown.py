"""Ends everything that the node directory of a cluster knows: workers, head, temporary files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.providers.process.records import NodeDirectory
from muster.providers.process.stop import GRACE_S, Undertaker


@dataclass(frozen=True)
class Stopped:
    """What `stop_everything` did."""

    nodes: tuple[str, ...]  # ended by this call, the head last
    left: Mapping[str, list[int]]  # processes that would not end, by node; normally empty
    temp_dir: str  # removed; "" when there was none


def stop_everything(nodes: Path, clock: Clock, grace_s: float = GRACE_S) -> Stopped:
    """End the workers, then the head, by what is written down of them; remove their temporary directory.

    End the monitor first, or it starts new ones. Repeating it does nothing more.
    """
    directory = NodeDirectory(nodes)
    open_records = [one for one in directory.records() if one.ended_at is None]
    marked = [
        directory.change(one.cloud_id, lambda now: replace(now, state="terminated")) for one in open_records
    ]
    found = [one for one in marked if one is not None]
    heads = [one for one in found if one.is_head]
    undertaker = Undertaker(directory, clock, grace_s)
    left = undertaker.end([one for one in found if one not in heads])
    left.update(undertaker.end(heads))
    ended = [one for one in found if one.cloud_id not in left]
    temp_dir = None if left else directory.remove_temp_root()
    for record in directory.records():
        if record.ended_at is not None:
            directory.forget(record.cloud_id)
    return Stopped(
        nodes=tuple(one.cloud_id for one in sorted(ended, key=heads.__contains__)),
        left=left,
        temp_dir=str(temp_dir or ""),
    )

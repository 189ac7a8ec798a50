"""Check the types of everything that adapters return; the rules check what it means.

Called by the Observer on everything from outside. Records of msgspec do not check their fields when built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from muster.base.resources import Resources
from muster.base.untrusted import call_safely, describe, error_text
from muster.cluster.model import (
    CloudInstance,
    Constraint,
    Demand,
    DriverReport,
    Gang,
    NodeKind,
    NodeReport,
    NodeStatus,
    Notice,
    NoticeKind,
    RuntimeReport,
)
from muster.cluster.states import ResizeStatus

Note = Callable[[str, str], None]  # takes the source and the reason of an item that is left out


def is_sound_machine(key: object, item: object) -> bool:
    """Return whether a listed machine has the types it should."""
    return (
        isinstance(item, CloudInstance)
        and isinstance(key, str)
        and key != ""
        and item.cloud_id == key
        and isinstance(item.kind, NodeKind)
        and isinstance(item.node_type, str)
        and isinstance(item.zone, str)
        and isinstance(item.market, str)
        and (item.resize is None or is_sound_resize(item.resize))
    )


def is_sound_resize(item: object) -> bool:
    """Return whether what is reported of a machine's size has the types it should."""
    return (
        isinstance(item, ResizeStatus)
        and _is_sound_size(item.current)
        and _is_sound_size(item.desired)
        and (item.suggested_maximum is None or _is_sound_size(item.suggested_maximum))
        and isinstance(item.message, str)
    )


def is_sound_node(item: object) -> bool:
    """Return whether a node's report has the types it should."""
    return (
        isinstance(item, NodeReport)
        and isinstance(item.node_id, str)
        and isinstance(item.status, NodeStatus)
        and _is_sound_size(item.total)
        and _is_sound_size(item.available)
        and isinstance(item.idle_s, int | float)
    )


def bare_node(item: NodeReport) -> NodeReport:
    """Return a report with the node's id alone, so that its record does not take it for gone."""
    return NodeReport(node_id=item.node_id, status=NodeStatus.UNSPECIFIED)


def is_sound_demand(item: object) -> bool:
    """Return whether a demand has the types it should."""
    return isinstance(item, Demand) and isinstance(item.count, int) and _is_sound_size(item.shape)


def is_sound_gang(item: object) -> bool:
    """Return whether a gang has the types it should."""
    return (
        isinstance(item, Gang)
        and isinstance(item.options, tuple)
        and all(isinstance(option, tuple) and all(map(is_sound_demand, option)) for option in item.options)
    )


def is_sound_constraint(item: object) -> bool:
    """Return whether a constraint has the types it should."""
    return (
        isinstance(item, Constraint)
        and isinstance(item.demands, tuple)
        and all(map(is_sound_demand, item.demands))
    )


def is_sound_notice(item: object) -> bool:
    """Return whether a notice has the types it should, and times that can be compared."""
    return (
        isinstance(item, Notice)
        and isinstance(item.cloud_id, str)
        and item.cloud_id != ""
        and isinstance(item.kind, NoticeKind)
        and isinstance(item.source, str)
        and all(_is_time(at) for at in (item.deadline, item.at) if at is not None)
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_sound_size(size: object) -> bool:
    """Resources check quantities when they are made; made from units they accept anything."""
    return isinstance(size, Resources) and all(isinstance(n, int) and n >= 0 for n in size.values())


def usable_report(report: RuntimeReport, note: Note) -> RuntimeReport:
    """Return the report without the rows that cannot be used; each of those is passed to `note`."""
    return RuntimeReport(
        version=report.version,
        nodes=_usable_nodes(report.nodes, note),
        demands=_usable("demand", report.demands, is_sound_demand, note),
        gangs=_usable("gang", report.gangs, is_sound_gang, note),
        constraints=_usable("constraint", report.constraints, is_sound_constraint, note),
        drivers=report.drivers if isinstance(report.drivers, DriverReport) else None,
    )


def usable_notices(notices: object, note: Note) -> tuple[Notice, ...]:
    """Return the notices that can be used, the last for each machine."""
    usable = _usable("notice", notices, is_sound_notice, note)
    return tuple({notice.cloud_id: notice for notice in usable}.values())


def listed(what: str, items: object, note: Note) -> tuple[object, ...]:
    """Return the items up to the first error: a poll reports each failure once, so none may be lost."""
    found: list[object] = []
    if not isinstance(items, Iterable) or isinstance(items, str | bytes):
        note(what, f"not a list: {describe(items)}")
        return ()
    try:
        call_safely(lambda: found.extend(items))
    except Exception as error:  # noqa: BLE001 - an adapter's bug must not stop the loop
        note(what, error_text(error))
    return tuple(found)


def _usable_nodes(items: object, note: Note) -> tuple[NodeReport, ...]:
    """A report that names its node but is unusable still shows that the node is listed."""
    given = listed("node", items, note)
    named = [n if is_sound_node(n) or not isinstance(n, NodeReport) else bare_node(n) for n in given]
    for node, kept in zip(given, named, strict=True):
        if kept is not node:
            note("node", f"not usable: {describe(node)}")
    return _usable("node", named, is_sound_node, note)


def _usable(what: str, items: object, is_sound: Callable[[object], bool], note: Note) -> tuple[Any, ...]:
    result = listed(what, items, note)
    if all(map(is_sound, result)):
        return result
    for item in result:
        if not is_sound(item):
            note(what, f"not usable: {describe(item)}")
    return tuple(item for item in result if is_sound(item))

"""Render a StatusReport as a page of tables that fits the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from muster.base.text import ELLIPSIS, clock_time, money, short_duration, short_id, used_of
from muster.cli.console import BAD, GOOD, HEADING, QUIET, more_line
from muster.cli.grid import PageSize, TableGrid, folded
from muster.cli.status.report import NodeRow, PendingRow, StatusReport
from muster.cluster.model import offer_name
from muster.cluster.plan import SERVED, Reason
from muster.cluster.status import OfferStatus

WAITING = "yellow"
_COUNT_INDENT = 9  # count and its gap
_COUNT_GAP = 2
_SPAN = 7  # "90 min" and room
_LEAST_SHAPE = 30
_AROUND = _COUNT_INDENT + _SPAN + 2 * _COUNT_GAP  # count, time and gaps of a line


def pending_section(title: str, pending: Sequence[PendingRow], frame: PageSize) -> Iterator[RenderableType]:
    """Yield the waiting requests; blocked ones come first, because users look for them."""
    rows = sorted(pending, key=lambda row: row.reason in SERVED)
    if not rows:
        return
    shown = rows[: frame.requests]
    count = sum(row.count for row in rows)
    yield Text(f"\n{title}: {count:,} request{'' if count == 1 else 's'}", style=HEADING)
    # What stands after the shape: a gang's id, as short as `muster why` takes it.
    words = {"constraint": "  request_resources"}
    names = [f"  gang {row.short_id}" if row.kind == "gang" else words.get(row.kind, "") for row in shown]
    # The widths of shape and reason; a narrow page has the reason below the shape.
    longest = max(
        len(row.shape or row.subject_id) + len(name) for row, name in zip(shown, names, strict=True)
    )
    reason = max(len(row.reason.value) for row in shown)
    room = frame.width - reason - _AROUND
    widths = min(longest, room if room >= _LEAST_SHAPE else frame.width - _COUNT_INDENT), reason
    beside = sum(widths) + _AROUND + max(len(row.detail) for row in shown) <= frame.width
    for row, name in zip(shown, names, strict=True):
        first, *more = _asks_for(row.shape or row.subject_id, name, widths[0], frame)
        style = WAITING if row.reason in SERVED else BAD
        since = f"  {short_duration(row.for_s):>{_SPAN - 1}}"
        verdict = Text.assemble((f"{row.reason.value:<{widths[1]}}", style), (since, QUIET))
        is_stacked = sum(widths) + _AROUND > frame.width
        line = Text.assemble(f"{row.count:>{_COUNT_INDENT - _COUNT_GAP},}  ", first)
        if not is_stacked:
            line.append_text(Text.assemble(" " * (widths[0] - first.cell_len + _COUNT_GAP), verdict))
        yield line.append(f"  {row.detail}") if beside else line
        for text in (*more, *([verdict] if is_stacked else [])):
            yield Padding(text, (0, 0, 0, _COUNT_INDENT), expand=False)
        if not beside:
            yield from _sentence(row.detail, frame)
    yield from more_line(len(rows) - len(shown))


def _asks_for(shape: str, name: str, width: int, frame: PageSize) -> list[Text]:
    """Return what is requested, in one line or in several; the name of a gang is never cut."""
    if len(shape) + len(name) <= width:
        return [Text.assemble(shape, (name, QUIET))]
    if frame.wrap:
        lines = [Text(line) for line in folded(shape.split(" "), width)]
        return [*lines, Text(name.strip(), style=QUIET)] if name else lines
    return [Text.assemble(f"{shape[: max(0, width - len(name) - 1)]}{ELLIPSIS}", (name, QUIET))]


def _sentence(detail: str, frame: PageSize) -> Iterator[RenderableType]:
    if detail:
        text = Text(
            detail, style=QUIET, no_wrap=not frame.wrap, overflow="fold" if frame.wrap else "ellipsis"
        )
        yield Padding(text, (0, 0, 0, _COUNT_INDENT + _COUNT_GAP), expand=False)


BLOCKED_TYPES = frozenset({Reason.TYPE_BACKED_OFF, Reason.TYPE_NEEDS_USER_ACTION})
_STATE_STYLES = {"busy": GOOD, "idle": "", "running": GOOD, "draining": WAITING, "never came up": BAD}
_STATE_STYLES |= {"setup failed": BAD, "not gone yet": BAD, "stopped": BAD}
_QUIET_REASONS = frozenset({Reason.KEPT_BUSY, Reason.KEPT_HEAD, Reason.KEPT_PENDING, Reason.LEAVING})
_REASON_WORDS = {Reason.KEPT_NEEDED: "needed", Reason.KEPT_MIN_NODES: "kept: minimum"}
_SPARE = ("memory", "object_store_memory")  # shown when in use, or with -v
_FACT = 10  # columns of the names of facts


def status_page(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Yield the page, top to bottom; problems stand above everything else."""
    title = Text.assemble((report.cluster, HEADING), (f"  {report.address}", QUIET))
    updated = f"updated {short_duration(report.age_s)} ago"
    room = frame.width - title.cell_len - len(updated)
    yield title.append(f"{' ' * max(2, room)}{updated}", style=QUIET)
    yield from _warnings(report)
    spend = f"{money(report.price_per_hour)} per hour, {money(report.spent)} so far"
    yield from _fact("machines", machines_line(report), frame)
    used = {name: usage.used for name, usage in report.usage.items()}
    total = {name: usage.total for name, usage in report.usage.items()}
    usage = used_of(used, total, _names(used, total, verbose=frame.verbose))
    yield from _fact("in use", usage or "nothing is known", frame)
    yield from _fact("spend", spend, frame)
    if report.budget:
        yield from _fact("budget", report.budget, frame)
    yield from _nodes(report, frame)
    yield from pending_section("Waiting", report.pending, frame)
    yield from _types(report, frame)
    yield from offers_section(report.offers, report.at, frame)
    grid = TableGrid("at", "~type", "~reason")
    for row in report.failures[: frame.others]:
        grid.add(clock_time(row.at), f"{row.node_type} {row.offer}".rstrip(), Text(row.message, style=BAD))
    yield from grid.section("Failed launches", frame, of=len(report.failures))
    yield from _events(report, frame)
    unusable = TableGrid("~what", "~why")
    for note in report.set_aside[: frame.others]:
        unusable.add(note.source, note.message)
    yield from unusable.section("Set aside", frame, of=len(report.set_aside))


def _fact(name: str, words: str, frame: PageSize) -> Iterator[Text]:
    """Yield a line of the head of the page; a list that is too long for it continues below."""
    *firsts, last = words.split(", ")
    for position, line in enumerate(folded((*(f"{part}," for part in firsts), last), frame.width - _FACT)):
        yield Text(f"{'' if position else name:<{_FACT}}{line}")


def machines_line(report: StatusReport) -> str:
    """Return the number of machines by state, such as `1 head, 2 busy, 1 idle, 1 starting`."""
    counts = Counter("head" if row.is_head else row.state for row in report.nodes)
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or "none"


def _warnings(report: StatusReport) -> Iterator[Text]:
    if report.problem:
        yield Text(report.problem, style=BAD)
    if report.config_problem:
        yield Text(report.config_problem, style=BAD)
    for note in report.notes:
        yield Text(note, style=WAITING)


def _names(used: dict[str, float], total: dict[str, float], *, verbose: bool) -> tuple[str, ...]:
    """CPU and GPU come first; memory is shown when it is in use."""
    first = [name for name in ("CPU", "GPU") if total.get(name)]
    rest = [name for name in sorted(total) if name not in ("CPU", "GPU")]
    return (*first, *(name for name in rest if verbose or name not in _SPARE or used.get(name)))


def _nodes(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """A narrow page leaves out what does not fit, from the right; `muster why` has it all."""
    grid = TableGrid("machine", "~type", "state", ">for", "~in use", ">$/h", "~")
    nodes = [row.node_id for row in report.nodes]
    for row in report.nodes[: frame.machines]:
        used, total = dict(row.used), dict(row.total)
        names = _names(used, total, verbose=frame.verbose)
        kept = tuple(name for name in names if frame.verbose or name != "object_store_memory")
        type_name = f"{row.node_type or '?'} {offer_name(row.zone, row.market)}".rstrip()
        if row.is_head:
            type_name = "head" if row.node_type in ("", "head") else f"{row.node_type} (head)"
        grid.add(
            row.instance_id or short_id(row.node_id, nodes, least=12),
            type_name,
            Text(row.state, style=_STATE_STYLES.get(row.state, WAITING)),
            short_duration(row.for_s),
            tuple(used_of(used, total, (name,)) for name in kept),
            "" if row.price_per_hour is None else money(row.price_per_hour).lstrip("$"),
            Text(_why_node(row), style=QUIET),
        )
    return grid.section("Machines", frame, of=len(report.nodes))


def _why_node(row: NodeRow) -> str:
    if row.reason in _QUIET_REASONS:
        return ""
    if row.reason in (None, Reason.KEPT_NOT_IDLE_LONG_ENOUGH):
        return row.detail
    known = _REASON_WORDS.get(row.reason, row.reason.value) if row.reason else ""
    return f"{known}: {row.detail}" if row.detail else known


def _types(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Types that cannot be launched now; with -v every type that was considered."""
    rows = [row for row in report.node_types if frame.verbose or row.reason in BLOCKED_TYPES]
    grid = TableGrid("~type", "verdict", "~")
    for row in rows[: frame.others]:
        style = BAD if row.reason in BLOCKED_TYPES else ""
        grid.add(row.node_type, Text(row.reason.value, style=style), row.detail)
    return grid.section("Node types", frame, of=len(rows))


def offers_section(offers: Sequence[OfferStatus], at: float, frame: PageSize) -> Iterator[RenderableType]:
    """Yield offers with machines and those that are backed off; with -v all of them."""
    rows = [row for row in offers if frame.verbose or row.machines or row.blocked_until is not None]
    grid = TableGrid("~type", "zone", "market", ">$/h", ">machines", "~")
    for row in rows[: frame.others]:
        most = "" if row.max_machines is None else f" of {row.max_machines}"
        why = ""
        if row.blocked_until is not None:
            next_try = short_duration(max(0.0, row.blocked_until - at))
            why = f"{f'{row.kind}: {row.message}' if row.message else row.kind}; next try in {next_try}"
        grid.add(
            row.node_type,
            row.zone,
            row.market,
            "" if row.price_per_hour is None else money(row.price_per_hour).lstrip("$"),
            f"{row.machines}{most}",
            Text(why, style=BAD),
        )
    return grid.section("Offers", frame, of=len(rows))


def _events(report: StatusReport, frame: PageSize) -> Iterator[RenderableType]:
    """Only the newest are shown."""
    grid = TableGrid("at", "~")
    shown = report.events[: frame.others]
    for row in shown:
        grid.add(clock_time(row.at), Text(row.message, style=WAITING if row.level == "warning" else ""))
    return grid.section("Lately", frame, of=len(shown))

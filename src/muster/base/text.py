"""Format durations, times, money, resources and long names for users. Pure."""

from __future__ import annotations

import time  # only to format a given time
from collections.abc import Iterable, Mapping, Sequence

ELLIPSIS = "…"
_IN_BYTES = frozenset({"memory", "object_store_memory"})


def duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    Example:
        >>> [duration(s) for s in (0.0042, 0.25, 42, 185, 7800, 273_600)]
        ['4.2 ms', '0.25 s', '42 s', '3 min 5 s', '2 h 10 min', '3 d 4 h']
    """
    if abs(seconds) < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {name}"
    return f"{whole} s"


def short_duration(seconds: float | None) -> str:
    """Return a duration as one rounded number, for narrow columns; "" for None.

    Example:
        >>> [short_duration(s) for s in (4, 185, 9000, 345_600, None)]
        ['4 s', '3 min', '2.5 h', '4 d', '']
    """
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def moment(at: float) -> str:
    """Return the local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def padded(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    """Return the cells of a table's row, each as wide as its column; numbers are aligned right.

    Example:
        >>> " ".join(padded(["ab", "1"], [4, 3], [False, True]))
        'ab     1'
    """
    columns = zip(cells, widths, right, strict=False)
    return [cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in columns]


def clock_time(at: float) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def shortened(text: str, room: int) -> str:
    """Return at most `room` characters. Of a nested key the end is kept, of other texts both ends.

    Example:
        >>> shortened("model/encoder/hidden_size", 14), shortened("a_very_long_name_indeed", 12)
        ('…/hidden_size', 'a_very…ndeed')
    """
    if len(text) <= room:
        return text
    parts = text.split("/")
    for first in range(1, len(parts)):
        tail = f"{ELLIPSIS}/{'/'.join(parts[first:])}"
        if len(tail) <= room:
            return tail
    text, head = parts[-1], room // 2
    return f"{text[:head]}{ELLIPSIS}{text[len(text) - (room - head - 1) :]}"


def encodable(text: str) -> str:
    """Return the text with an escape for each half of a surrogate pair, which no file can hold."""
    return text.encode(errors="backslashreplace").decode()


def short_id(name: str, others: Iterable[str], least: int = 8) -> str:
    """Return the beginning of a name that begins no other, so that `muster why` knows what is meant.

    Example:
        >>> short_id("4f00d1aa0042", ["4f00d1aa0043", "4f11"]), short_id("4f00d1aa0042", ["4f11"])
        ('4f00d1aa0042', '4f00d1aa')
    """
    rivals = [other for other in others if other != name]
    for length in range(least, len(name)):
        if not any(other.startswith(name[:length]) for other in rivals):
            return name[:length]
    return name


def decimal(number: float) -> str:
    """Return up to four decimals, without zeros at the end."""
    return f"{number:,.4f}".rstrip("0").rstrip(".")


def money(amount: float) -> str:
    """Return dollars with two decimals, or up to four where cents would hide a small price."""
    if abs(amount) >= 100:
        return f"${amount:,.2f}"
    short, exact = f"{amount:,.2f}", decimal(amount)
    return f"${max(short, exact, key=len)}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "machine"), counted(2, "machine")
        ('1 machine', '2 machines')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def is_internal(resource: str) -> bool:
    """Return whether Ray has made up the resource, for nodes, placement groups or kinds of accelerators.

    Example:
        >>> [is_internal(name) for name in ("CPU", "node:10.0.0.1", "CPU_group_0_4f", "bundle_group_4f")]
        [False, True, True, True]
    """
    return resource.startswith(("node:", "bundle_", "accelerator_type:", "__")) or "_group_" in resource


def used_of(used: Mapping[str, float], total: Mapping[str, float], names: tuple[str, ...]) -> str:
    """Return the use of each named resource.

    Example:
        >>> used_of({"CPU": 1}, {"CPU": 2, "memory": 2e9}, ("CPU", "memory"))
        'CPU 1/2, memory 0/2 GB'
    """
    shares = []
    for name in names:
        if name in total:
            part, whole = used.get(name, 0.0), total[name]
            amounts = f"{part:g}/{whole:g}"
            if name in _IN_BYTES and whole >= 1e6:
                amounts = f"{'<0.01' if 0 < part < 1e7 else f'{part / 1e9:.3g}'}/{whole / 1e9:.3g} GB"
            shares.append(f"{name} {amounts}")
    return ", ".join(shares)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known word; "" when none is near.

    Example:
        >>> did_you_mean("los", ["loss", "accuracy"]), did_you_mean("x", ["loss"])
        ("did you mean 'loss'?", '')
    """
    import difflib  # only where somebody erred

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""

"""Says which versions of Ray muster works with. Pure: called wherever a version is met.

What is older than the oldest tried one is refused. Those between the tried ones, and newer ones, are used
with a warning: a user's image decides which Ray runs, and a cluster that nobody scales is worse than
one that is scaled by an untried pair.
"""

from __future__ import annotations

import re

OLDEST, NEWEST = (2, 48), (2, 60)  # both run in tests/runtimes/ray/versions
RANGE = "2.48 to 2.60"
INSTALL = "install it with: pip install 'muster-ml[ray]'"

Minor = tuple[int, int]


def minor_of(version: str) -> Minor | None:
    """Returns the first two numbers; None for what is no version."""
    found = re.match(r"(\d+)\.(\d+)\.", version)
    return (int(found[1]), int(found[2])) if found else None


def is_usable(version: str) -> bool:
    """Returns whether muster talks to this Ray at all."""
    minor = minor_of(version)
    return minor is not None and minor >= OLDEST and minor[0] == NEWEST[0]


def is_tried(version: str) -> bool:
    """Returns whether the tests run with this minor version."""
    return minor_of(version) in (OLDEST, NEWEST)


def is_same_line(one: str, other: str) -> bool:
    """Returns whether two versions have the same messages between nodes."""
    return minor_of(one) == minor_of(other)


def refusal(version: str) -> str:
    """Returns why an installed Ray cannot be used."""
    return f"Ray {version} is installed, this works with {RANGE}: {INSTALL}"


def warning(version: str) -> str:
    """Returns what to expect of an installed Ray that was never tried."""
    tried = " and ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    return f"Ray {version} is installed; muster was tried with {tried}: look at `muster status` more often"

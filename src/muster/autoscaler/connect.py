"""Finds a cluster's GCS and its token: from the options, the environment, or the files of `muster up`.

Called by `muster monitor`. The token is not copied, only where it lies, unless it was given by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import read_record
from muster.errors import ClusterError

_NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True)
class HeadAddress:
    """A HeadAddress is the address of the head and how to authenticate; its text never shows the token."""

    address: str
    auth: Mapping[str, str] = field(default_factory=dict, repr=False)


def find_head_address(home: ClusterHome, address: str | None, environment: Mapping[str, str]) -> HeadAddress:
    """Returns the head's address. Raises ClusterError when neither options nor files name one."""
    record = read_record(home)
    known = address or environment.get("RAY_ADDRESS") or (record.address if record is not None else "")
    if not known:
        raise ClusterError(
            "the head's address is not known: give --address HOST:PORT of its GCS, or set RAY_ADDRESS; for a "
            "cluster that `muster up` started, --home is enough"
        )
    given = {name: environment[name] for name in _NAMES if environment.get(name)}
    if given:
        return HeadAddress(known, given)
    if record is not None and record.auth:
        return HeadAddress(known, dict(record.auth))
    if home.token.is_file():
        return HeadAddress(known, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home.token)})
    return HeadAddress(known)

"""ProviderSurroundings: what a composition root tells a provider besides its section of the cluster file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.cluster.model import RuntimeReport


@dataclass(frozen=True)
class ProviderSurroundings:
    """Where a provider works. Whatever it needs of time, ids and the environment comes from here."""

    cluster_name: str
    home: Path  # the cluster's directory on this machine
    address: str  # of the GCS; "" where no head runs yet
    clock: Clock
    ids: IdSource
    auth: Mapping[str, str] = field(default_factory=dict)  # RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH
    environment: Mapping[str, str] = field(default_factory=dict)  # what new processes inherit
    runtime: Callable[[], RuntimeReport] | None = None  # what the runtime reports; `readonly` lists from it

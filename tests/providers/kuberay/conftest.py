"""One suite, two servers: the in-memory one always, the real kube-apiserver where its binaries are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kube.api_server import KubeApi, running_api
from tests.kube.world import KubeWorld


@pytest.fixture
def api() -> Iterator[KubeApi]:
    """The in-memory server, for what only it can do: faults."""
    with running_api() as server:
        yield server


@pytest.fixture
def world(api: KubeApi) -> Iterator[KubeWorld]:
    made = KubeWorld(api)
    yield made
    made.close()

"""One suite, two servers: the in-memory one always, the real kube-apiserver where its binaries are.

A test that takes `api` needs faults and counts, which only the in-memory server has, and runs on that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.kube.api_server import KubeApi, running_api
from tests.kube.real_server import RealKubeApi, binaries, running_real_api
from tests.kube.world import KubeWorld
from tests.providers.kuberay.loop import Loop


@pytest.fixture
def api() -> Iterator[KubeApi]:
    """The in-memory server, for what only it can do: faults."""
    with running_api() as server:
        yield server


@pytest.fixture(scope="session")
def real_api() -> Iterator[RealKubeApi]:
    """The real server, one for all tests."""
    with running_real_api() as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_kind" in metafunc.fixturenames:
        is_for_both = "api" not in metafunc.fixturenames and binaries() is not None
        only_memory = metafunc.definition.get_closest_marker("in_memory_server") is not None
        kinds = ["memory", pytest.param("real", marks=pytest.mark.slow)]
        metafunc.parametrize("server_kind", kinds if is_for_both and not only_memory else kinds[:1])


@pytest.fixture
def world(server_kind: str, request: pytest.FixtureRequest) -> Iterator[KubeWorld]:
    server = request.getfixturevalue("api" if server_kind == "memory" else "real_api")
    made = KubeWorld(server)
    yield made
    made.close()
    if isinstance(server, RealKubeApi):
        server.empty()


@pytest.fixture
def loop(world: KubeWorld) -> Callable[..., Loop]:
    """Make the RayCluster of these groups, and the loop over it."""

    def make(*groups, annotations=None, role="kuberay-1.3", **spec):
        options = {"idleTimeoutSeconds": 10}
        world.create(*groups, annotations=annotations or {}, **{"autoscalerOptions": options, **spec})
        return Loop(world, world.provider(role))

    return make

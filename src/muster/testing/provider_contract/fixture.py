"""Provides provider objects, clusters of their own and clear failures, for the tests of ProviderContract."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from muster.base.clock import Clock, SystemClock
from muster.config.node_launch import NodeLaunch
from muster.providers.v1.adapter import V1Adapter, inline_pools
from muster.providers.v1.tags import worker_tags

_numbers = itertools.count(1)


def promised(kept: bool, did: str, promise: str) -> None:
    """Fails with what the provider did and what every provider promises."""
    if not kept:
        raise AssertionError(f"{did}\n  The promise: {promise}")


class ProviderFixture:
    """A ProviderFixture is the base of ProviderContract; subclasses make a provider object."""

    node_type: ClassVar[str] = "contract"
    node_config: ClassVar[Mapping[str, Any]] = {}
    resources: ClassVar[Mapping[str, float]] = {"CPU": 1}
    labels: ClassVar[Mapping[str, str]] = {}
    several: ClassVar[int] = 3  # nodes where more than one is needed
    crowd: ClassVar[int] = 8  # threads at a time, a node each
    starts_within_s: ClassVar[float] = 10.0  # from created to running
    clock: ClassVar[Clock] = SystemClock()

    def make_provider(self, cluster_name: str) -> Any:  # noqa: ANN401 - any v1 class
        """Returns a new object for this cluster; one made later must find the same nodes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_provider(self, cluster_name)")

    @pytest.fixture
    def clusters(self) -> Iterator[Callable[[], str]]:
        """Returns unused names; whatever is left of those clusters is terminated in the end."""
        names: list[str] = []

        def fresh() -> str:
            names.append(f"contract-{next(_numbers)}")
            return names[-1]

        yield fresh
        for name in names:
            provider = self.make_provider(name)
            for node_id in provider.non_terminated_nodes({}):
                provider.terminate_node(node_id)

    @pytest.fixture
    def cluster_name(self, clusters: Callable[[], str]) -> str:
        return clusters()

    @pytest.fixture
    def provider(self, cluster_name: str) -> Any:  # noqa: ANN401
        return self.make_provider(cluster_name)

    def tags(self, provider: Any, request: str = "r-1", **others: str) -> dict[str, str]:  # noqa: ANN401
        """Returns the tags that the autoscaler gives a worker."""
        name = getattr(provider, "cluster_name", "contract")
        return {**worker_tags(name, self.node_type, "hash", request), **others}  # type: ignore[arg-type]

    def create(self, provider: Any, count: int = 1, **tags: str) -> list[str]:  # noqa: ANN401
        """Creates nodes the way the autoscaler does; returns the ids that were not listed before."""
        before = set(provider.non_terminated_nodes({}))
        self.call_create(provider, self.tags(provider, **tags), count)
        return [node_id for node_id in provider.non_terminated_nodes({}) if node_id not in before]

    def call_create(self, provider: Any, tags: dict[str, str], count: int = 1) -> Any:  # noqa: ANN401
        """Calls create, by the newest method the class has."""
        config, sizes = dict(self.node_config), (dict(self.resources), dict(self.labels))
        newest = getattr(provider, "create_node_with_resources_and_labels", None)
        if newest is not None:
            return newest(config, dict(tags), count, *sizes)
        return provider.create_node(config, dict(tags), count)

    def adapter(self, provider: Any, cluster_name: str) -> V1Adapter:  # noqa: ANN401
        """Returns the port around it, with every call made at once and in this thread."""
        launch = NodeLaunch(
            node_type=self.node_type,
            node_config=self.node_config,
            resources=self.resources,
            labels=self.labels,
            launch_hash="hash",
        )
        launches = {self.node_type: launch}
        return V1Adapter(provider, lambda: launches, cluster_name=cluster_name, pools=inline_pools())

    def until(self, holds: Callable[[], bool]) -> bool:
        """Returns whether it holds within `starts_within_s`."""
        end = self.clock.monotonic() + self.starts_within_s
        while not holds():
            if self.clock.monotonic() >= end:
                return False
            self.clock.sleep(0.02)
        return True

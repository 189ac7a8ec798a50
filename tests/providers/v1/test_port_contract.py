"""Everything that sells machines keeps the promises of the port: simulated clouds and adapted v1 classes."""

from __future__ import annotations

import itertools

import pytest
from tests.providers.v1.dict_provider import DictNodeProvider
from tests.providers.v1.file_provider import FileNodeProvider
from tests.providers.v1.scripted import LAUNCHES
from tests.simulation.v1_cloud import SimNodeProvider, V1SimCloud
from tests.support.builders import cluster_spec

from muster.base.clock import ManualClock
from muster.base.rng import Seed
from muster.providers.background_calls import inline_pools
from muster.providers.v1.adapter import V1Adapter
from muster.sim.cluster.cloud import SimCloud
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import catalogue_for
from muster.sim.cluster.world import World
from muster.testing import CloudProviderContract, ProviderContract

names = (f"port-{number}" for number in itertools.count())


def sim(cloud_class, world):
    seed = Seed(5)
    return cloud_class(world, CrashPoints(), Faults.none(), seed.derive("c"), catalogue_for(cluster_spec()))


class TestSimCloud(CloudProviderContract):
    node_type = "cpu-4"

    def open_provider(self):
        self.world = World()
        return sim(SimCloud, self.world)

    def pass_time(self):
        self.world.advance(1.0)


class TestV1SimCloud(TestSimCloud):
    def open_provider(self):
        self.world = World()
        return sim(V1SimCloud, self.world)


class TestAdaptedDictProvider(CloudProviderContract):
    def open_provider(self):
        name = next(names)
        return V1Adapter(DictNodeProvider({}, name), lambda: LAUNCHES, cluster_name=name)


class TestAdaptedDictProviderInline(CloudProviderContract):
    def open_provider(self):
        name = next(names)
        pools = inline_pools()
        return V1Adapter(DictNodeProvider({}, name), lambda: LAUNCHES, cluster_name=name, pools=pools)

    def pass_time(self):
        """All has happened when a call returns."""


class ChoosingProvider(DictNodeProvider):
    """A provider that buys in the zone and on the market that it is given."""

    buys_offers = True


class TestAdaptedProviderThatBuysOffers(TestAdaptedDictProviderInline):
    def open_provider(self):
        name = next(names)
        pools = inline_pools()
        return V1Adapter(ChoosingProvider({}, name), lambda: LAUNCHES, cluster_name=name, pools=pools)


class TestAdaptedFileProvider(CloudProviderContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.place = tmp_path

    def open_provider(self):
        name = next(names)
        provider = FileNodeProvider({"state_dir": str(self.place)}, name)
        return V1Adapter(provider, lambda: LAUNCHES, cluster_name=name)


class AllWorlds(ManualClock):
    """Waiting lets every simulated world continue."""

    def __init__(self):
        super().__init__()
        self.worlds = {}

    def advance(self, seconds):
        super().advance(seconds)
        for cloud in self.worlds.values():
            cloud._world.advance(seconds)


class TestSimNodeProvider(ProviderContract):
    """The simulated cloud as a v1 provider; a cluster is a world of its own."""

    node_type = "cpu-4"
    starts_within_s = 120.0

    @pytest.fixture(autouse=True)
    def _worlds(self):
        self.clock = AllWorlds()

    def make_provider(self, cluster_name):
        worlds = self.clock.worlds
        if cluster_name not in worlds:
            worlds[cluster_name] = sim(V1SimCloud, World())
        return SimNodeProvider(worlds[cluster_name], cluster_name)

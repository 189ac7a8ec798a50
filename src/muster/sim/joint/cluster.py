"""Builds a simulated cluster with spot pools, notices and the forecasts of tuners: the machines' half."""

from __future__ import annotations

from dataclasses import replace

from muster.base.forecast import Forecast
from muster.cluster.model import DriverReport
from muster.cluster.ports import ForecastReport, NoticeReport, Ports
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.joint.cloud import PoolCloud


class ForecastBoard:
    """A ForecastBoard implements the ForecastSource port: the newest forecast of each experiment."""

    def __init__(self) -> None:
        self.newest: dict[str, Forecast] = {}

    def put(self, forecast: Forecast) -> None:
        self.newest[forecast.experiment] = forecast

    def read(self) -> ForecastReport:
        return ForecastReport(forecasts=tuple(self.newest.values()))


class PoolNotices:
    """PoolNotices implement the NoticeSource port with what the cloud announced."""

    def __init__(self, cloud: PoolCloud) -> None:
        self._cloud = cloud

    def read(self) -> NoticeReport:
        return self._cloud.read_notices()


class JointCluster(SimulatedCluster):
    """A JointCluster is a SimulatedCluster that tuners use: they place trials and publish forecasts."""

    cloud_class = PoolCloud
    cloud: PoolCloud

    def _connect(self) -> None:
        self.board = ForecastBoard()
        super()._connect()

    def ports(self) -> Ports:
        return replace(super().ports(), notices=PoolNotices(self.cloud), forecasts=self.board)

    def note_drivers(self, live: int) -> None:
        """Reports how many tuners are connected from now on."""
        before = self.runtime.drivers
        is_fewer = before is not None and live < before.live
        last_end = self.world.now() if is_fewer else (before.last_end if before is not None else 0.0)
        self.runtime.drivers = DriverReport(live=live, last_end=last_end)

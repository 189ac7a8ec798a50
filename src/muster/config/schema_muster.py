"""`muster`: the section of the cluster file for everything that `ray up` does not know."""

from __future__ import annotations

from muster.cluster.model import Backoff, Objective, Timeouts
from muster.config.check import Section
from muster.config.schema_kinds import Bytes, Count, Interval, Port, PositiveCount, Seconds


class LimitsConfig(Section, frozen=True, kw_only=True):
    """How many machines may be on their way at once."""

    max_concurrent: Count = 10
    max_request_retries: Count = 3
    max_launch_batch: PositiveCount = 5  # machines per create call of a provider


class RetentionConfig(Section, frozen=True, kw_only=True):
    """How much of the past the ledger keeps: whichever limit bites first."""

    max_age_s: Seconds = 86_400.0
    max_records: Count = 10_000  # of machines that are gone
    max_decisions: Count = 10_000
    max_decision_bytes: Bytes = 64 * 2**20


class MonitorConfig(Section, frozen=True, kw_only=True):
    """How the monitor runs."""

    interval_s: Interval = 1.0  # between two looks while something changes
    max_interval_s: Interval = 5.0  # while nothing does
    metrics_port: Port | None = None  # None: 44217 when it is free, else any; 0: any

    @property
    def longest_interval_s(self) -> float:
        """Never less than the interval, which may come from elsewhere."""
        return max(self.interval_s, self.max_interval_s)


class MusterConfig(Section, frozen=True, kw_only=True):
    """The section."""

    objective: Objective = Objective.AUTO
    conserve_gpus: bool = True
    timeouts: Timeouts = Timeouts()
    limits: LimitsConfig = LimitsConfig()
    backoff: Backoff = Backoff()
    retention: RetentionConfig = RetentionConfig()
    monitor: MonitorConfig = MonitorConfig()

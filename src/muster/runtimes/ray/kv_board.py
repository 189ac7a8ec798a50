"""Exchange verdicts, prices, forecasts and notices through the cluster's key-value store.

| key | writer | reader |
|---|---|---|
| `verdicts` | monitor | RayEngine: a trial that can never be placed fails at once, with the reason |
| `prices` | monitor | RayEngine: what trials cost, and which nodes are drained to save money |
| `forecast/EXPERIMENT` | RayEngine | monitor: what tuners run and still need |
| `notice/MACHINE` | `host.node_notices` | monitor and RayEngine: what clouds announce about machines |

Nothing here decides anything: whether an entry still holds is the reader's to say. Every call raises an
EngineError when the GCS cannot be reached.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.codec import decode, encode
from muster.base.forecast import Forecast
from muster.base.text import shortened
from muster.cluster.model import Instance, Notice, StopCause
from muster.cluster.plan import Subject, Verdict
from muster.cluster.ports import ForecastReport, NoticeReport, TickResult
from muster.cluster.snapshot import Quarantined
from muster.cluster.states import ON_CLOUD
from muster.host.node_notices import PREFIX as NOTICE_PREFIX
from muster.host.node_notices import SPACE
from muster.runtimes.ray.client import GcsClient

T = TypeVar("T", Forecast, Notice)
VERDICTS, PRICES = "verdicts", "prices"
FRESH_S = 600.0  # prices change seldom; a monitor that is silent for longer may have been replaced
FORECAST_KEPT_S = 3600.0  # a tuner that died leaves its entry, which nobody uses once it is stale
NOTICE_KEPT_S = 7200.0  # after its deadline, or after it was read
LOOK_S = 1.0  # at most so often, between two ticks
_RENEWED = 1 / 3  # of the time for which a forecast holds


class BoardWriter:
    """Write an entry when its content changed, when the store was lost, and before the entry gets stale."""

    def __init__(self, client: GcsClient) -> None:
        self._client = client
        self._written: object = None  # key, content, and the generation of the store that has them
        self._written_at = -math.inf

    def write(self, key: str, value: bytes, content: object, at: float, refresh_s: float) -> None:
        """Write `value`, unless the store has the same content from less than `refresh_s` before `at`."""
        is_known = self._written == (key, content, self._client.generation)
        if not is_known or not 0 <= at - self._written_at < refresh_s:
            self._client.kv_put(key, value, SPACE)
            self._written, self._written_at = (key, content, self._client.generation), at


# -- from the monitor to tuners ---------------------------------------------------------------------


class GangVerdict(Struct, frozen=True, kw_only=True):
    reason: str  # a value of cluster.plan.Reason
    detail: str = ""


class PublishedVerdicts(Struct, frozen=True, kw_only=True):
    """Verdicts on gangs of one tick, `at` seconds since the epoch."""

    at: float = 0.0
    gangs: Mapping[str, GangVerdict] = field(default_factory=dict)  # by placement group id, hex


class PublishedPrices(Struct, frozen=True, kw_only=True):
    """Price per hour in $ by node id, in hex, as of `at` seconds since the epoch."""

    at: float = 0.0
    nodes: Mapping[str, float] = field(default_factory=dict)
    emptied: tuple[str, ...] = ()  # nodes that are drained to save money: Ray passes on until when, not why


class PriceReading(Struct, frozen=True, kw_only=True):
    """What is known of prices, and why there is nothing when that is strange."""

    nodes: Mapping[str, float] = field(default_factory=dict)
    is_published: bool = False  # a monitor publishes prices; those of machines to come, too
    problem: str = ""
    emptied: tuple[str, ...] = ()


class MonitorBoard:
    """Publish the verdicts and prices of every tick; a TickListener of the monitor."""

    verdicts_refresh_s: ClassVar[float] = 10.0  # also shows that the monitor lives
    prices_refresh_s: ClassVar[float] = 60.0

    def __init__(self, client: GcsClient, clock: Clock) -> None:
        self._clock = clock
        self._verdicts, self._prices = BoardWriter(client), BoardWriter(client)

    def on_tick(self, tick: TickResult) -> None:
        if tick.runtime is not None:
            self.write_verdicts(tick.plan.verdicts)
            self.write_prices(tick.records)

    def write_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Write the verdict of each gang: the worst, because they come from "placed" to "infeasible"."""
        at = self._clock.now()
        gangs = {
            verdict.subject_id: GangVerdict(reason=verdict.reason.value, detail=verdict.detail)
            for verdict in verdicts
            if verdict.subject is Subject.GANG
        }
        value = msgspec.json.encode(PublishedVerdicts(at=at, gangs=gangs))
        self._verdicts.write(VERDICTS, value, gangs, at, self.verdicts_refresh_s)

    def write_prices(self, records: Iterable[Instance]) -> None:
        """Write the price of every node whose machine has one, and which nodes are drained to save money."""
        at = self._clock.now()
        live = [record for record in records if record.node_id and record.state in ON_CLOUD]
        nodes = {str(i.node_id): i.price_per_hour for i in live if i.price_per_hour is not None}
        emptied = tuple(str(i.node_id) for i in live if i.stop_cause is StopCause.CONSOLIDATION)
        value = msgspec.json.encode(PublishedPrices(at=at, nodes=nodes, emptied=emptied))
        self._prices.write(PRICES, value, (nodes, emptied), at, self.prices_refresh_s)


def read_verdicts(client: GcsClient) -> PublishedVerdicts:
    """Return the published verdicts; none when no monitor writes them, or one of another version."""
    text = client.kv_get(VERDICTS, SPACE)
    with contextlib.suppress(msgspec.DecodeError):
        return PublishedVerdicts() if text is None else msgspec.json.decode(text, type=PublishedVerdicts)
    return PublishedVerdicts()


def read_prices(client: GcsClient, now: float) -> PriceReading:
    """Return the published prices; none, with the reason, when they are damaged or stale."""
    text = client.kv_get(PRICES, SPACE)
    if text is None:
        return PriceReading()
    try:
        board = msgspec.json.decode(text, type=PublishedPrices)
    except msgspec.DecodeError as error:
        return PriceReading(problem=f"the published prices of nodes cannot be read ({error}): ignored")
    if now - board.at > FRESH_S:
        return PriceReading(
            problem=f"the published prices of nodes are {now - board.at:.0f} s old: ignored; does the "
            "cluster's monitor run, and do the clocks of its machine and of this one agree?"
        )
    sound = {node: price for node, price in board.nodes.items() if math.isfinite(price) and price >= 0}
    odd = sorted(board.nodes.keys() - sound.keys())
    return PriceReading(
        nodes=sound,
        is_published=True,
        emptied=board.emptied,
        problem=f"the price of node {odd[0]} makes no sense: ignored" if odd else "",
    )


# -- from tuners and machines to the monitor --------------------------------------------------------


class ForecastWriter(BoardWriter):
    """Write an experiment's forecast when it says something new, and before the last one gets stale."""

    def write_forecast(self, forecast: Forecast) -> None:
        key = f"{GcsForecastBoard.prefix}{forecast.experiment}"
        renewed_s = forecast.valid_s * _RENEWED
        # The forecast without what moves with the clock alone; rests change every 15 s.
        trials = tuple(
            replace(
                trial, unsaved_s=0.0, rest_s=None if trial.rest_s is None else math.ceil(trial.rest_s / 15.0)
            )
            for trial in forecast.trials
        )
        self.write(key, encode(forecast), replace(forecast, at=0.0, trials=trials), forecast.at, renewed_s)


class Board(Generic[T]):
    """Read all entries below one prefix, and delete those that are long over."""

    prefix: ClassVar[str]

    def __init__(self, client: GcsClient, clock: Clock | None = None) -> None:
        self._client, self._clock = client, clock or SystemClock()
        self._looked_at = -math.inf
        self._version: frozenset[tuple[str, bytes]] = frozenset()

    def decode(self, value: bytes) -> T:
        """Return the entry; ValueError says what is wrong with it."""
        raise NotImplementedError

    def name_and_end(self, entry: T) -> tuple[str, float]:
        """Return the name that stands in the entry's key, and until when the entry is kept."""
        raise NotImplementedError

    def read_entries(self) -> tuple[tuple[T, ...], tuple[Quarantined, ...]]:
        """Return every entry, also stale ones, and what cannot be read."""
        entries: list[T] = []
        damaged: list[Quarantined] = []
        for key, value in sorted(self._look().items()):
            name = key.removeprefix(self.prefix)
            try:
                entry = self.decode(value)
                named, kept_until = self.name_and_end(entry)
                if named != name:
                    raise ValueError(f"it is of {shortened(named, 60)}")
            except (ValueError, KeyError) as error:  # also msgspec's
                source = f"{self.prefix.removesuffix('/')} {shortened(name, 60)}"
                message = f"{shortened(str(error), 200)}: ignored"
                damaged.append(Quarantined(source=source, message=message))
                continue
            if self._clock.now() > kept_until:
                self._client.kv_delete(key, SPACE)
            else:
                entries.append(entry)
        return tuple(entries), tuple(damaged)

    def version(self) -> object:
        """Return a value that changes with the entries; look at most once a second, and never raise."""
        if self._clock.monotonic() - self._looked_at >= LOOK_S:
            try:
                self._look()
            except Exception:  # noqa: BLE001 - the next tick meets the same error and reports it
                self._looked_at = self._clock.monotonic()
        return self._version

    def _look(self) -> dict[str, bytes]:
        values = self._client.kv_with_prefix(self.prefix, SPACE)
        self._looked_at, self._version = self._clock.monotonic(), frozenset(values.items())
        return values


class GcsForecastBoard(Board[Forecast]):
    """The ForecastSource of a monitor."""

    prefix = "forecast/"
    has_any = False  # at the last look

    def decode(self, value: bytes) -> Forecast:
        return decode(value, Forecast)

    def name_and_end(self, entry: Forecast) -> tuple[str, float]:
        kept_s = FORECAST_KEPT_S if entry.trials or entry.coming else 0.0  # nothing: the experiment is over
        return entry.experiment, entry.at + entry.valid_s + kept_s

    def read(self) -> ForecastReport:
        forecasts, damaged = self.read_entries()
        self.has_any = bool(forecasts)
        return ForecastReport(forecasts=forecasts, damaged=damaged)


class GcsNoticeBoard(Board[Notice]):
    """The NoticeSource of a monitor."""

    prefix = NOTICE_PREFIX

    def decode(self, value: bytes) -> Notice:
        return msgspec.json.decode(value, type=Notice)

    def name_and_end(self, entry: Notice) -> tuple[str, float]:
        if entry.at is None:
            raise ValueError("it has no time")
        return entry.cloud_id, max(entry.deadline or 0.0, entry.at) + NOTICE_KEPT_S

    def read(self) -> NoticeReport:
        notices, damaged = self.read_entries()
        return NoticeReport(notices=notices, damaged=damaged)


def notices_of(client: GcsClient, node_ids: Iterable[str]) -> dict[str, Notice]:
    """Return what the clouds announce about the machines of these nodes; damaged notices are left out."""
    cloud_ids, notices = client.cloud_ids(), {}
    for node_id in node_ids:
        cloud_id = cloud_ids.get(node_id)
        text = client.kv_get(f"{NOTICE_PREFIX}{cloud_id}", SPACE) if cloud_id else None
        if text is not None:
            with contextlib.suppress(msgspec.DecodeError):
                notices[node_id] = msgspec.json.decode(text, type=Notice)
    return notices

"""Check that a day killed after any store write or provider call ends with the same cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from tests.series import step
from tests.simulation import crash_matrix
from tests.simulation.crash_matrix import run_day

from muster.base.clock import ManualClock
from muster.sim.cluster.cloud import SimCloud
from muster.sim.cluster.options import RunOptions
from muster.sim.cluster.world import START_OF_DAY, quiet
from muster.stores.ledger.store import SqliteInstanceStore

UNDISTURBED = run_day()


def test_the_undisturbed_day_uses_every_kind_of_effect():
    counts = Counter(UNDISTURBED.kill_points)
    assert UNDISTURBED.complaints == ()
    assert UNDISTURBED.final_state.machines == {"cpu-16": 1, "cpu-4": 3, "head": 1}
    assert set(counts) == crash_matrix.KILL_POINTS
    assert min(counts[name] for name in ("cloud.launch", "cloud.terminate", "drainer.drain")) >= 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_after_any_mark_the_day_ends_with_the_same_cluster():
    moments = range(1, len(UNDISTURBED.kill_points) + 1, step(3))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=quiet) as pool:
        days = dict(zip(moments, pool.map(run_day, moments, chunksize=16), strict=True))
    assert len(days) > 200 // step(3)
    assert {k: day.lives for k, day in days.items() if day.lives != 2} == {}
    assert {k: day.complaints for k, day in days.items() if day.complaints} == {}
    assert {k: day.final_state for k, day in days.items() if day.final_state != UNDISTURBED.final_state} == {}


class Ledgers:
    """Ledgers opens the same ledger file again for every controller."""

    def __init__(self, path: Path) -> None:
        self._path, self._clock = path, ManualClock(now=START_OF_DAY)
        self._open: SqliteInstanceStore | None = None

    def __call__(self) -> SqliteInstanceStore:
        self.close()
        self._open = SqliteInstanceStore(self._path, clock=self._clock)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()


def sample() -> list[int]:
    """Return the first two and the last kill point of every kind."""
    places: dict[str, list[int]] = {}
    for k, name in enumerate(UNDISTURBED.kill_points, start=1):
        places.setdefault(name, []).append(k)
    return sorted({k for ks in places.values() for k in (*ks[:2], ks[-1])})


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fatal", sample())
def test_the_same_holds_on_a_ledger_file_that_is_opened_again(tmp_path, fatal):
    ledgers = Ledgers(tmp_path / "ledger.db")
    day = run_day(fatal, ledgers)
    ledgers.close()
    assert (day.complaints, day.lives, day.final_state) == ((), 2, UNDISTURBED.final_state)


def test_the_matrix_notices_a_cloud_that_buys_twice_for_one_request(monkeypatch):
    launch, options = SimCloud.launch, crash_matrix._options

    def slow() -> RunOptions:
        made = options()
        made.catalogue.api_s = (
            1.5 * crash_matrix.TICK_S
        )  # so that a new controller asks before the machine is listed
        return made

    def forgetful(self: SimCloud, request_id: str, shape: dict[str, int], offers=()) -> None:
        self._seen.clear()
        launch(self, request_id, shape, offers)

    monkeypatch.setattr(crash_matrix, "_options", slow)
    calm = run_day()
    fatal = calm.kill_points.index("cloud.launch") + 1
    assert run_day(fatal).final_state == calm.final_state
    monkeypatch.setattr(SimCloud, "launch", forgetful)
    assert sum(run_day(fatal).final_state.launched.values()) > sum(calm.final_state.launched.values())

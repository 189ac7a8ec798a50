"""A wall clock that is set while an experiment runs, and a driver that is stopped: costs, budgets, deadlines.

The clock is set through a preloaded library that adds what a file says; the machine's clock is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.series import IS_WHOLE

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        COMPILER is None or not sys.platform.startswith("linux"), reason="needs a C compiler, and Linux"
    ),
]
DRIVER = Path(__file__).with_name("clock_driver.py")
PRICE_PER_S = 1.0  # of the machine, as the driver has it
HOUR_S, DAY_S = 3600.0, 86_400.0
SETTINGS = (HOUR_S, -HOUR_S, 30 * DAY_S, -20.0)
SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *ahead_s;

__attribute__((constructor)) static void open_file(void) {
    int fd = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    void *mapped = fd < 0 ? MAP_FAILED : mmap(0, sizeof(double), PROT_READ, MAP_SHARED, fd, 0);
    ahead_s = mapped == MAP_FAILED ? 0 : mapped;
    if (fd >= 0) close(fd);
}

int clock_gettime(clockid_t which, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, which, at);
    if (!failed && ahead_s && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        at->tv_sec += (time_t)*ahead_s;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    at->tv_sec = exact.tv_sec;
    at->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *into) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into) *into = exact.tv_sec;
    return exact.tv_sec;
}
"""


@dataclass
class Run:
    """One driver whose wall clock can be set, from outside, while it runs."""

    folder: Path
    library: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "ahead"
        self.set_clock(0.0)

    def set_clock(self, ahead_s: float) -> None:
        with open(self.file, "r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("d", ahead_s))

    def start(self, **asked: Any) -> None:
        own = {
            "LD_PRELOAD": str(self.library),
            "CLOCK_AHEAD": str(self.file),
            "STARTED_AT": str(time.time()),
            **self.environment,
        }
        given = {"trials": 2, "steps": 20, "step_s": 0.1, **asked}
        for name in ("steps", "told.json"):
            (self.folder / name).unlink(missing_ok=True)
        self.log = open(self.folder / "log", "wb")  # noqa: SIM115 - closed with the driver
        self.driver = subprocess.Popen(
            [sys.executable, DRIVER, self.folder, json.dumps(given)],
            env={**os.environ, **own},
            stdout=self.log,
            stderr=self.log,
        )

    def wait_for_steps(self, count: int) -> None:
        steps, give_up = self.folder / "steps", time.monotonic() + 60.0
        while not steps.exists() or steps.stat().st_size < count:
            assert self.driver.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < give_up
            time.sleep(0.01)

    def wait_for(self, name: str) -> None:
        give_up = time.monotonic() + 60.0
        while not (self.folder / name).exists():
            assert self.driver.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < give_up
            time.sleep(0.01)

    def read(self, name: str) -> float:
        return float((self.folder / name).read_text().rpartition("\n")[0].splitlines()[-1])

    def stop_for(self, seconds: float) -> None:
        os.kill(self.driver.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.driver.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.driver.kill()
        self.driver.wait()
        self.log.close()

    def result(self) -> dict[str, Any]:
        try:
            self.driver.wait(200.0)
        finally:
            self.kill()
        assert self.driver.returncode == 0, (self.folder / "log").read_text()
        told: dict[str, Any] = json.loads((self.folder / "told.json").read_text())
        return told


def compile_shim(folder: Path) -> Path:
    (folder / "shim.c").write_text(SHIM)
    made = folder / "shim.so"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O1", "-o", made, folder / "shim.c"], check=True)
    return made


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def run(tmp_path: Path, library: Path):
    made = Run(tmp_path / "run", library)
    yield made
    with contextlib.suppress(AttributeError):  # it was not started
        made.kill()


def rate() -> float:
    """$ per second of one trial."""
    from muster.host.machine import detected_capacity

    return PRICE_PER_S / detected_capacity()["CPU"]


def set_often(run: Run, settings: tuple[float, ...]) -> None:
    for number, ahead_s in enumerate(settings, start=1):
        run.wait_for_steps(4 * number)
        run.set_clock(ahead_s)


@pytest.mark.parametrize("settings", [SETTINGS, *[(each,) for each in SETTINGS if IS_WHOLE]], ids=str)
def test_costs_and_trial_times_do_not_follow_a_clock_that_is_set(run: Run, settings):
    run.start()
    set_often(run, settings)
    told = run.result()
    assert abs(told["ahead_s"] - settings[-1]) < 120  # the driver saw it
    assert told["counts"] == [20, 20]
    assert told["cost"] == pytest.approx(told["real"], rel=0.01)
    assert all(2.0 <= seconds < told["took_s"] for seconds in told["trained_s"])


@pytest.mark.parametrize("ahead_s", [*SETTINGS] if IS_WHOLE else [-HOUR_S], ids=str)
def test_a_budget_holds_when_the_clock_is_set(run: Run, ahead_s):
    budget = 2.5 * 2 * rate()
    run.start(steps=600, cost_budget=budget)
    set_often(run, (ahead_s,))
    told = run.result()
    assert (told["ended_by"], told["cost"]) == ("budget", pytest.approx(told["real"], rel=0.01))
    assert 0.5 * budget < told["real"] <= budget


@pytest.mark.parametrize("limit", ["deadline_s", "time_budget_s"] if IS_WHOLE else ["deadline_s"])
@pytest.mark.parametrize("ahead_s", [*SETTINGS] if IS_WHOLE else [-20.0], ids=str)
def test_a_deadline_is_a_duration_from_the_start_on(run: Run, ahead_s, limit):
    run.start(steps=600, **{limit: 3.0})
    set_often(run, (ahead_s,))
    told = run.result()
    is_deadline = limit == "deadline_s"
    assert told["ended_by"] == ("deadline" if is_deadline else "")
    assert 1.0 < told["ended_s"] < (3.5 if is_deadline else 3.0 + 10.0)  # half a second: a busy machine


def test_a_resumed_experiment_continues_its_account_by_a_clock_that_was_set_back(run: Run):
    run.start(steps=15)
    run.wait_for_steps(6)
    run.kill()
    run.set_clock(-HOUR_S)
    first = time.monotonic()
    run.start(steps=15, deadline_s=60.0)
    told = run.result()
    assert time.monotonic() - first < 60
    assert (told["ended_by"], told["counts"]) == ("", [15, 15])
    assert told["cost"] < 60 * rate()


@pytest.mark.parametrize("stopped_s", [60.0 if IS_WHOLE else 1.5])
def test_trials_still_cost_while_their_driver_is_stopped(run: Run, stopped_s):
    run.start(trials=1, steps=7)
    run.wait_for_steps(4)
    run.stop_for(stopped_s)
    told = run.result()
    assert told["real"] > stopped_s * rate()
    assert told["cost"] == pytest.approx(told["real"], rel=0.01)


@pytest.mark.parametrize("stopped_s", [60.0 if IS_WHOLE else 2.5])
def test_a_trial_that_ends_while_its_driver_is_stopped_costs_until_its_own_end(run: Run, stopped_s):
    run.start(trials=1, sleeps=True, step_s=0.4, cost_budget=1.7 * rate())
    run.wait_for_steps(1)
    run.stop_for(stopped_s)
    told = run.result()
    assert (told["ended_by"], told["real"] < (stopped_s - 1.0) * rate()) == ("", True)
    assert told["cost"] == pytest.approx(told["real"], abs=0.2 * rate())


@pytest.mark.parametrize("moment_s", [0.3, 0.9, 1.3, 2.1] if IS_WHOLE else [0.6])
def test_a_killed_driver_leaves_no_cost_uncounted_and_charges_half_a_second_more_at_most(run: Run, moment_s):
    run.start(trials=1, steps=1, step_s=100.0)
    run.wait_for("alive")
    time.sleep(moment_s)
    run.kill()
    time.sleep(0.5)
    real = rate() * (run.read("alive") - run.read("began"))
    run.start(trials=1, steps=1, step_s=0.1)
    told = run.result()
    over_s = (told["cost"] - told["real"] - real) / rate()
    assert -0.05 < over_s < 0.6


@pytest.mark.skipif(not IS_WHOLE, reason="takes 10 s for each limit: only `make series` runs it")
@pytest.mark.parametrize("limit", ["cost_budget", "deadline_s"])
def test_a_trial_that_ignores_sigterm_is_killed_within_the_limits(run: Run, limit):
    given = {"cost_budget": 10.0 * rate()}.get(limit, 10.0)
    run.start(trials=1, steps=1, step_s=100.0, stubborn=True, **{limit: given})
    told = run.result()
    assert told["ended_by"] == limit.partition("_")[2 if limit == "cost_budget" else 0]
    assert (told["real"] if limit == "cost_budget" else told["ended_s"]) <= given

"""The program whose clock tests set: an experiment that measures by the kernel's steady clock what it costs.

Usage: python clock_driver.py FOLDER JSON

JSON has trials, steps, step_s and the limits; "engine" is local or ray. FOLDER/steps has a byte for each
step, FOLDER/told.json appears at the end; FOLDER/began and FOLDER/alive hold when a trial got its place, and
when its process was last alive. A folder that has an experiment is resumed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from muster import tune
from muster.engines.process_engine import ProcessEngine
from muster.trials.events import StartTrial

PRICE = 3600.0  # $1 per second of the whole machine, or node
FOLDER, ASKED = Path(sys.argv[1]), json.loads(sys.argv[2])
STEPS = FOLDER / "steps"
real = {"usd": 0.0, "began_at": 0.0, "ended_at": 0.0}
asked: dict[str, float] = {}
held: dict[str, tuple[float, float]] = {}  # since when, and the $ per second


def measure() -> None:
    """Have the engine's own events measured by a clock that nobody can set."""
    priced, finish, submit = ProcessEngine._priced, ProcessEngine._finish, ProcessEngine.submit

    def note_start(self, command):
        if isinstance(command, StartTrial):
            asked[command.trial_id] = time.monotonic()
        return submit(self, command)

    def note_price(self, run, at, usd_per_hour):
        (FOLDER / "began").write_text(f"{time.monotonic()}\n")
        held.setdefault(run.command.trial_id, (time.monotonic(), usd_per_hour / 3600))
        return priced(self, run, at, usd_per_hour)

    def note_end(self, run, **how):
        since, rate = held.pop(run.command.trial_id, (0.0, 0.0))
        if ASKED.get("engine") == "ray":  # a place is held from the start of its process on
            born = FOLDER / f"born-{run.command.trial_id}"
            since = max(asked[run.command.trial_id], float(born.read_text()))
        ends = FOLDER / f"end-{run.command.trial_id}"  # it may have ended while this process was stopped
        until = float(ends.read_text()) if ends.exists() else time.monotonic()
        real["ended_at"] = until
        real["usd"] += rate * (until - since)
        return finish(self, run, **how)

    ProcessEngine._priced, ProcessEngine._finish, ProcessEngine.submit = note_price, note_end, note_start


def born_at() -> float:
    """When this process was started, by the steady clock."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def stay_alive():
    while True:
        with open(FOLDER / "alive", "a") as file:  # by lines: a kill may come at any time
            file.write(f"{time.monotonic()}\n")
        time.sleep(0.01)


class Counts(tune.Trainable):
    """Counts steps that take as long as asked."""

    def setup(self, config):
        self.count = 0
        Path(FOLDER, f"born-{self.trial_id}").write_text(str(born_at()))
        if ASKED.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=stay_alive, daemon=True).start()

    def step(self):
        time.sleep(ASKED["step_s"])
        self.count += 1
        with open(STEPS, "ab") as file:
            file.write(b".")
        return {"count": self.count, "done": self.count >= ASKED["steps"]}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint):
        self.count = int(Path(checkpoint, "count").read_text())


def sleeps(config):
    """Report once; end while its driver is stopped, if that is asked for."""
    tune.report({"count": 1})
    STEPS.write_bytes(b".")
    time.sleep(ASKED["step_s"])
    Path(FOLDER, f"end-{tune.get_context().get_trial_id()}").write_text(str(time.monotonic()))


def limits() -> dict[str, object]:
    given = {name: ASKED[name] for name in ("cost_budget", "time_budget_s") if name in ASKED}
    real["began_at"] = time.monotonic()  # later than main: the modules of a Tuner are loaded now
    if "deadline_s" in ASKED:
        given["deadline"] = datetime.now(timezone.utc) + timedelta(seconds=ASKED["deadline_s"])
    return given


def main() -> None:
    trainable = sleeps if ASKED.get("sleeps") else Counts
    measure()
    began, place = time.monotonic(), FOLDER / "results" / "e"
    if place.exists():
        tuner = tune.Tuner.restore(str(place), trainable, **limits())
    else:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            tune_config=tune.TuneConfig(num_samples=ASKED["trials"], reuse_actors=False, **limits()),
            run_config=tune.RunConfig(
                name="e",
                storage_path=str(FOLDER / "results"),
                price_per_hour=PRICE,
                verbose=0,
                engine=ASKED.get("engine", "local"),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=int(trainable is Counts)),
            ),
        )
    grid = tuner.fit()
    last = [result.metrics for result in grid if "time_total_s" in result.metrics]
    told = {
        "took_s": time.monotonic() - began,
        "ended_s": real["ended_at"] - real["began_at"],  # the last trial
        "real": real["usd"] + sum(rate * (time.monotonic() - since) for since, rate in held.values()),
        "cost": grid.cost_usd,
        "ended_by": grid.ended_by,
        "counts": [metrics["count"] for metrics in last],
        "trained_s": [metrics["time_total_s"] for metrics in last],
        "ahead_s": time.time() - float(os.environ["STARTED_AT"]),
    }
    (FOLDER / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

"""How fast the embedded engine is, as functions that a benchmark can call; run it to see them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

import cloudpickle

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.session import report
from muster.trials.events import ContinueTrial, StartTrial, TrialExited, TrialReported
from muster.trials.placement_group import PlacementGroupFactory

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


def many_reports(config):
    for step in range(config["steps"]):
        report({"loss": 0.1 * step, "step": step})


def one_report(config):
    report({"loss": config["x"]})


def start(trial_id: str, name: str, config: dict, folder: str, **changes) -> StartTrial:
    return StartTrial(
        trial_id=trial_id,
        trial_name=f"{name}_{trial_id}",
        trainable_name=name,
        config=config,
        resources=ONE_CPU,
        trial_dir=os.path.join(folder, trial_id),
        experiment_name="speed",
        **changes,
    )


def scratch() -> tempfile.TemporaryDirectory[str]:
    """In memory where that is possible: ext4 makes directories slowly for seconds after many were deleted."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def engine(*functions, **changes) -> LocalEngine:
    trainables = {f.__name__: cloudpickle.dumps(f) for f in functions}
    return LocalEngine(clock=SystemClock(), trainables=trainables, capacity={"CPU": 2}, **changes)


def pipe_round_trips_per_s(count: int = 20_000) -> float:
    """Two processes, two pipes, 40 bytes there and back."""
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(to_write)
        while data := os.read(to_read, 100):
            os.write(back_write, data)
        os._exit(0)
    os.close(to_read)
    os.close(back_write)
    began = time.perf_counter()
    for _ in range(count):
        os.write(to_write, b"x" * 40)
        os.read(back_read, 100)
    took = time.perf_counter() - began
    os.close(to_write)
    os.close(back_read)
    os.waitpid(pid, 0)
    return count / took


def results_per_s(count: int = 20_000, concurrent: int = 1) -> float:
    """Reports of trials that do nothing else, through poll and submit."""
    with scratch() as folder, engine(many_reports) as running:
        running._resources._free["CPU"] = 10_000 * concurrent  # all at once, whatever this machine has
        for k in range(concurrent):
            running.submit(start(f"t{k}", "many_reports", {"steps": count // concurrent}, folder))
        seen, left, began = 0, concurrent, 0.0
        while left:
            for event in running.poll(10.0):
                if type(event) is TrialReported:
                    began = began or time.perf_counter()
                    seen += 1
                    running.submit(ContinueTrial(trial_id=event.trial_id))
                elif type(event) is TrialExited:
                    assert event.failure is None, event
                    left -= 1
        return (seen - 1) / (time.perf_counter() - began)


def trials_per_s(count: int, *, reuse: bool) -> float:
    """Trials with one report each, two at a time, process start and end included."""
    with scratch() as folder, engine(one_report) as running:
        submitted = ended = 0
        began = 0.0
        while ended < count:
            while submitted < count and submitted - ended < 2:
                command = start(f"t{submitted}", "one_report", {"x": 1.0}, folder, may_reuse=reuse)
                running.submit(command)
                submitted += 1
            for event in running.poll(10.0):
                if type(event) is TrialReported:
                    began = began or time.perf_counter()
                    running.submit(ContinueTrial(trial_id=event.trial_id))
                elif type(event) is TrialExited:
                    assert event.failure is None, event
                    ended += 1
        return (ended - 1) / (time.perf_counter() - began)


def cpu_ms_per_trial(*, reuse: bool, few: int = 100, many: int = 500) -> float:
    """Processor time of all processes per trial; what starting and ending costs once is taken off."""
    begun = _cpu_s()
    trials_per_s(few, reuse=reuse)
    between = _cpu_s()
    trials_per_s(many, reuse=reuse)
    return (_cpu_s() - between - (between - begun)) / (many - few) * 1000


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


FIRST = """
import time
began = time.perf_counter()
import sys, tempfile
import cloudpickle
from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.events import StartTrial
from muster.trials.events import TrialReported
def train(config):
    from muster.session import report
    report({"loss": 1.0})
engine = LocalEngine(clock=SystemClock(), trainables={"train": cloudpickle.dumps(train)})
engine.submit(StartTrial(trial_id="t", trial_name="t", trainable_name="train", config={"x": 1},
    resources=PlacementGroupFactory([{"CPU": 1}]), trial_dir=tempfile.mkdtemp(), experiment_name="e"))
while not any(type(event) is TrialReported for event in engine.poll(10.0)):
    pass
print((time.perf_counter() - began) * 1000)
engine.close()
"""


def first_result_ms() -> float:
    """From the first line of a fresh interpreter to the first result, imports included."""
    ran = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> None:
    pipe = pipe_round_trips_per_s()
    one = results_per_s()
    say(f"raw pipe {pipe:,.0f}/s, one trial {one:,.0f} results/s, ratio {one / pipe:.2f}")
    say(f"16 trials {results_per_s(concurrent=16):,.0f} results/s")
    say(f"reused {trials_per_s(3000, reuse=True):,.0f} trials/s")
    say(f"fresh {trials_per_s(600, reuse=False):,.0f} trials/s")
    say(f"CPU per fresh trial {cpu_ms_per_trial(reuse=False):.2f} ms, all processes")
    say(f"CPU per reused trial {cpu_ms_per_trial(reuse=True, few=500, many=2500):.2f} ms, all processes")
    say(f"first result {min(first_result_ms() for _ in range(3)):,.0f} ms")


if __name__ == "__main__":
    main()

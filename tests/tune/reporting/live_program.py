"""Run in a terminal by test_live.py: a live view over made-up trials, with things that would tear it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

from tests.tune.reporting.examples import finish, run_info, start, step, trial

from muster.base.clock import SystemClock
from muster.tune.config import RunConfig
from muster.tune.reporting import reporter_for

CLOCK = SystemClock()
CHILD = """
import os, sys
input()
print("a trial prints", flush=True)
os.write(int(sys.argv[1]), b"x")
input()
print("after the end", flush=True)
"""


def main(how, go_on):
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    level = 2 if how == "detailed" else 1
    run = RunConfig(verbose=level)
    reporter = reporter_for(run, clock=CLOCK, environment=os.environ)
    printed, child_end = os.pipe()
    with reporter.catching():
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(child_end)],
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=[child_end],
        )
    reporter.begin(run_info(total=6))
    trials = []
    for number in range(6):
        trials.append(trial(number, "PENDING", loss=1.0 / (number + 1)))
        start(reporter, trials, trials[-1])
        step(reporter, trials)
        if number == 1:
            sys.stdout.write("the driver prints\n")
            logging.warning("the driver logs")
            reporter.note("a note")
            child.stdin.write("\n")
            child.stdin.flush()
            os.read(printed, 1)
        while number == 2 and not os.path.exists(go_on):  # the test looks at the screen meanwhile
            step(reporter, trials)
            CLOCK.sleep(0.05)
        finish(reporter, trials, trials[-1])
        step(reporter, trials)
    if how == "abort":
        reporter.abort()
        reporter.abort()
        sys.stdout.write(f"still a terminal: {os.isatty(1)}\n")
    else:
        reporter.end(interrupted=how == "stopped", trials=trials)
    child.stdin.write("\n")
    child.stdin.flush()
    child.wait()
    CLOCK.sleep(0.2)
    sys.stdout.write("the script continues\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

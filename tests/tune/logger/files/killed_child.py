"""Log rows until it is killed; run by test_killed.py with a directory and "process" or "thread"."""

from __future__ import annotations

import sys

from tests.tune.logger.harness import LoggerHarness, make_trial


def main() -> None:
    process_from = 100 if sys.argv[2] == "process" else None
    harness, trial = LoggerHarness(sys.argv[1], flush_every_s=0.001, process_from=process_from), make_trial()
    harness.start(trial)
    iteration, told = 0, process_from is None
    while True:
        iteration += 1
        harness.report(trial, iteration, loss=iteration * 0.37, text="a,\n" * 50)
        forwarder = harness.writer._forwarder
        if not told and forwarder is not None and forwarder.is_in_use:
            print(forwarder._remote.pid, flush=True)  # noqa: T201 - for the test
            told = True


if __name__ == "__main__":
    main()

"""How much of a long series a test runs: a sample in `make test`, the whole of it in `make series`.

A plugin of tests/conftest.py as well: tests that kill drivers note every kill in the fixture `kills`; their
number is printed after each test, and the totals at the end.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

# Any value runs the whole series; values other than 1 kill at other moments.
SEED = os.environ.get("MUSTER_SERIES", "")
IS_WHOLE = bool(SEED)
KILLS = "kills"


def length(sample: int, whole: int) -> int:
    """How many seeds, kills or runs."""
    return whole if IS_WHOLE else sample


def step(sample: int) -> int:
    """Every so many-th of a list is the sample."""
    return 1 if IS_WHOLE else sample


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """One text for each process that was really killed: what kind of experiment it had, and how far it was.

    Kills of a test that fails count too. Properties come back from the processes of xdist.
    """
    noted: list[str] = []
    yield noted
    request.node.user_properties.append((KILLS, noted))


class KillCount:
    """Prints the kills of each test as soon as it is over, and how many there were of each kind."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.totals: Counter[str] = Counter()
        self.tests = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        noted = dict(report.user_properties).get(KILLS)
        if report.when != "teardown" or noted is None:
            return
        self.tests += 1
        self.totals.update(text.partition(":")[0] for text in noted)
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            name = report.nodeid.rpartition("::")[2]
            reporter.ensure_newline()
            reporter.write_line(
                f"{name}: {len(noted)} kills, {self.totals.total()} so far ({'; '.join(noted)})"
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tests:
            each = ", ".join(f"{kind} {count}" for kind, count in sorted(self.totals.items()))
            terminalreporter.write_line(f"Kills: {self.totals.total()} in {self.tests} tests ({each})")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in the processes of xdist: their reports come to us
        config.pluginmanager.register(KillCount(config))

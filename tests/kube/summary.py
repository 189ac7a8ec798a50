"""Say at the end of a run whether the KubeRay provider was tested on a real kube-apiserver."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

FOLDER = "tests/providers/kuberay/"
_REAL = re.compile(r"\[(?:.*-)?real(?:-.*)?\]")


def real_server_line(ran: Iterable[str], why_not: str) -> tuple[str, bool] | None:
    """Return the line, and whether it is good news; None where no test of the provider ran."""
    ours = [name for name in ran if name.startswith(FOLDER)]
    real = sum(_REAL.search(name) is not None for name in ours)
    if not ours:
        return None
    if real:
        return f"kube-apiserver: {real} of {len(ours)} KubeRay tests ran on the real one", True
    return f"kube-apiserver: NOT TESTED, no KubeRay test ran on the real one ({why_not})", False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    outcomes = ("passed", "failed")
    ran = [report.nodeid for outcome in outcomes for report in terminalreporter.stats.get(outcome, ())]
    if not any(name.startswith(FOLDER) for name in ran):
        return
    from tests.kube.real_server import MISSING, binaries

    line = real_server_line(ran, MISSING if binaries() is None else "those tests were left out of this run")
    if line is not None:
        terminalreporter.write_line(line[0], green=line[1], yellow=not line[1], bold=not line[1])

"""Show a check while it runs and its report at the end, as text or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.status import Status
from rich.text import Text

from muster.base.text import duration, money
from muster.cli.console import BAD, GOOD, HEADING, QUIET, complain, console, emit, remark, show
from muster.providers.contract.end import LeftMachines, left_text
from muster.providers.contract.run import CheckResult, ContractReport, CostBound
from muster.providers.contract.subject import Check

_STYLES = {"passed": GOOD, "failed": BAD, "skipped": QUIET, "not run": BAD}
_INDENT = " " * 9


class Page:
    """Prints each line of the contract as soon as its result is known; with JSON, only the end."""

    def __init__(self, class_name: str, run: str, lines: int, *, as_json: bool) -> None:
        self._class_name, self._run, self._lines, self._as_json = class_name, run, lines, as_json
        self._number = 0
        self._terminal = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._status: Status | None = None

    def __enter__(self) -> Page:
        if self._terminal.is_terminal:
            self._status = self._terminal.status("asking the provider to complete the cluster file")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show_plan(self, node_type: str, bound: CostBound, listed: Sequence[Check]) -> None:
        """Show what will be created and the most that it can cost; `listed`: the lines, too."""
        lines = f"{self._lines} line{'s' if self._lines != 1 else ''}"
        text = f"{self._class_name}: {lines} of the contract, with machines of type {node_type}"
        if self._as_json:
            remark(f"{text}\n{bound_text(bound)}")
            return
        show(Text(text, style=HEADING), Text(bound_text(bound)))
        for check in listed:
            show(Text(f"  {check.line}"))

    def begin(self, check: Check) -> None:
        self._number += 1
        if self._status is not None:
            self._status.update(f"{self._number} of {self._lines}: {check.line}")

    def ending(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        elif text.startswith("interrupted"):
            remark(text)

    def done(self, result: CheckResult) -> None:
        if not self._as_json:
            _show_result(result)

    def show_end(self, report: ContractReport, bound: CostBound, how_to_end: str) -> None:
        """Show the sum, and what is left with the command that ends it."""
        if self._as_json:
            emit(json.dumps(self._plain(report, bound), indent=2).encode())
        else:
            for result in report.results:
                if result.status == "not run":
                    _show_result(result)
            show(Text(_sum(report), style=GOOD if report.kept else BAD))
        if report.left or not self._as_json:
            show_left(report.left, how_to_end)

    def _plain(self, report: ContractReport, bound: CostBound) -> dict[str, object]:
        return {
            "provider": self._class_name,
            "run": self._run,
            "kept": report.kept,
            "interrupted": report.interrupted,
            "bound": {
                "machines": bound.machines,
                "machine_hours": round(bound.machine_hours, 3),
                "dollars": bound.dollars,
            },
            "lines": [
                {
                    "name": result.name,
                    "status": result.status,
                    "saw": result.saw,
                    "promise": result.promise,
                    "took_s": round(result.took_s, 3),
                }
                for result in report.results
            ],
            "left": {name: {"ids": list(one.node_ids), "why": one.why} for name, one in report.left.items()},
        }


def bound_text(bound: CostBound) -> str:
    """Return the most that a check can cost, and how that was reckoned."""
    machines = (
        f"at most {bound.machines} machines, {bound.at_once} at a time, each for"
        f" {duration(bound.lives_s)} at most"
    )
    if bound.dollars is None:
        return f"{machines}: {bound.machine_hours:.2g} machine hours; FILE has no price_per_hour for the type"
    return (
        f"{machines}: at most {money(round(bound.dollars, 2))} at {money(bound.price_per_hour or 0)} an hour"
    )


def _show_result(result: CheckResult) -> None:
    show(Text.assemble((f"{result.status:<9}", _STYLES[result.status]), result.line))
    if result.saw:
        show(_below(result.saw, "saw: " if result.status == "failed" else ""))
    if result.promise:
        show(_below(result.promise, "the promise: "))


def _below(text: str, label: str) -> Text:
    """Return a text in lines that begin below the name of the line of the contract."""
    lines = textwrap.wrap(f"{label}{' '.join(text.split())}", console().width - len(_INDENT))
    return Text("\n".join(f"{_INDENT}{line}" for line in lines), style=QUIET)


def _sum(report: ContractReport) -> str:
    counts = [
        f"{report.count(status)} {status}"
        for status in ("passed", "failed", "skipped", "not run")
        if report.count(status)
    ]
    took_s = sum(result.took_s for result in report.results)
    interrupted = "interrupted: " if report.interrupted else ""
    return f"{interrupted}{', '.join(counts)}, in {duration(took_s)}"


def show_left(left: Mapping[str, LeftMachines], how_to_end: str) -> None:
    """Show which machines are left and how to end them."""
    if not left:
        show(Text("nothing is left"))
        return
    for name, one in left.items():
        complain(left_text(name, one))
    remark(f"end them with: {how_to_end} {' '.join(left)} (or with your cloud's own tool)")

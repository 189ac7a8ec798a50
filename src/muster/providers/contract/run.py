"""ContractRun runs the checks against a live provider, and ends every machine that they made.

Called by `muster provider check`. Whatever happens (a broken promise, Ctrl-C, a hung call), the machines of
the run are ended before it returns; what could not be ended is named in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from muster.base.untrusted import error_text
from muster.providers.contract import launches, nodes, tags
from muster.providers.contract.end import END_CALLS, LeftMachines, end_machines
from muster.providers.contract.subject import Check, CheckSizes, DoesNotApply, ProviderSubject
from muster.providers.contract.watch import ClustersMixed, NoMoreCalls, PromiseBroken

CHECKS: tuple[Check, ...] = (*nodes.CHECKS, *tags.CHECKS, *launches.CHECKS)
CHECK_CALLS = 5.0  # a line may take as long as so many calls
MIXED = "clusters are not kept apart: another cluster's machines might be ended"
NOT_ENDED = "machines of an earlier line could not be ended: nothing more is created"
QUIET_S = 2.0  # what was ended is looked for once more after this long: a list may be late

Status = Literal["passed", "failed", "skipped", "not run"]


@dataclass(frozen=True)
class CheckResult:
    """What became of one line of the contract."""

    name: str
    status: Status
    saw: str  # or the reason for skipping it
    promise: str = ""  # of a failed line
    took_s: float = 0.0

    @property
    def line(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class ContractReport:
    """The outcome of a run; `left` has what could not be ended, by cluster."""

    results: tuple[CheckResult, ...]
    left: Mapping[str, LeftMachines] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def kept(self) -> bool:
        """Return whether every line that applies was kept, and nothing is left."""
        bad = any(result.status in ("failed", "not run") for result in self.results)
        return not (bad or self.left or self.interrupted)

    def count(self, status: Status) -> int:
        return sum(result.status == status for result in self.results)


@dataclass(frozen=True)
class CostBound:
    """The most that a run can cost, if the provider makes what it is asked for."""

    machines: int  # in all
    at_once: int
    lives_s: float  # each, at most
    price_per_hour: float | None

    @property
    def machine_hours(self) -> float:
        return self.machines * self.lives_s / 3600

    @property
    def dollars(self) -> float | None:
        return None if self.price_per_hour is None else self.machine_hours * self.price_per_hour


def cost_bound(checks: Sequence[Check], sizes: CheckSizes, price_per_hour: float | None) -> CostBound:
    """Return the bound: each machine ends with its line, and lines and calls have limits."""
    counts = [check.machines(sizes) for check in checks]
    lives_s = (CHECK_CALLS + 1 + END_CALLS) * sizes.call_limit_s  # the last call may begin at the limit
    return CostBound(sum(counts), max(counts, default=0), lives_s, price_per_hour)


class ContractRun:
    """Makes a subject per line, so that a hung line does not disturb the next."""

    def __init__(
        self,
        make_subject: Callable[[], ProviderSubject],
        *,
        begin: Callable[[Check], None] = lambda check: None,
        done: Callable[[CheckResult], None] = lambda result: None,
        ending: Callable[[str], None] = lambda text: None,
        quiet_s: float | None = None,
    ) -> None:
        self._make_subject, self._begin, self._done, self._report = make_subject, begin, done, ending
        self._quiet_s = QUIET_S if quiet_s is None else quiet_s
        self._subjects: list[ProviderSubject] = []
        self._results: list[CheckResult] = []
        self._left: dict[str, LeftMachines] = {}
        self._mixed = False
        self._stuck: dict[
            str, LeftMachines
        ] = {}  # clusters that could not be ended in all the time that there was
        self._clean: set[str] = set()  # clusters of which nothing was listed in the end

    def run(self, checks: Sequence[Check] = CHECKS) -> ContractReport:
        """Return the report; Ctrl-C ends the line under way and nothing else is started."""
        interrupted = False
        try:
            self._run_all(checks)
        except KeyboardInterrupt:
            interrupted = True
            self._ending("interrupted: ending what was made; once more leaves it running")
        except BaseException:  # the one who shows the report has failed: a closed pipe, a full disk
            self._end_everything(again_after_s=self._quiet_s)
            raise
        self._end_everything(again_after_s=self._quiet_s)
        done = {result.name for result in self._results}
        why = "interrupted" if interrupted else MIXED if self._mixed else NOT_ENDED
        self._results += [CheckResult(one.name, "not run", why) for one in checks if one.name not in done]
        for subject in self._subjects:
            subject.close()
        return ContractReport(tuple(self._results), dict(self._left), interrupted)

    def _run_all(self, checks: Sequence[Check]) -> None:
        for check in checks:
            self._begin(check)
            subject = self._make_subject()
            self._subjects.append(subject)
            result = self._one(check, subject)
            self._results.append(result)
            self._done(result)
            if self._end(subject) or self._mixed:
                return

    def _ending(self, text: str) -> None:
        with suppress(OSError):  # machines are ended whether or not anybody can read it
            self._report(text)

    def _end(self, subject: ProviderSubject) -> dict[str, LeftMachines]:
        """End the machines of a line; where that failed before, it only looks whether they have gone."""
        had_time = any(name in self._stuck for name in subject.clusters)
        left = end_machines(subject, self._ending, patience_s=0.0 if had_time else None)
        self._clean.update(name for name in subject.clusters if name not in left)
        for name, one in left.items():  # a look does not show why; the first attempt did
            self._stuck[name] = LeftMachines(one.node_ids, self._stuck.get(name, one).why)
        return {name: self._stuck[name] for name in left}

    def _one(self, check: Check, subject: ProviderSubject) -> CheckResult:
        began, limit_s = subject.clock.monotonic(), CHECK_CALLS * subject.sizes.call_limit_s
        subject.watch.allow_until(began + limit_s, f"the line was not shown within {limit_s:g} s")

        def result(status: Status, saw: str, promise: str = "") -> CheckResult:
            return CheckResult(check.name, status, saw, promise, subject.clock.monotonic() - began)

        try:
            return result("passed", check.show(subject))
        except DoesNotApply as reason:
            return result("skipped", str(reason))
        except PromiseBroken as broken:
            self._mixed = self._mixed or isinstance(broken, ClustersMixed)
            return result("failed", broken.did, broken.promise)
        except NoMoreCalls as late:
            return result("failed", str(late), "calls return in a reasonable time")
        except Exception as error:  # noqa: BLE001 - whatever a provider raises breaks the line, not the run
            is_missing = isinstance(error, NotImplementedError)
            promise = "every provider defines this method" if is_missing else "a call that can be served is"
            return result("failed", f"{error_text(error)}{_place(error)}", promise)

    def _end_everything(self, again_after_s: float) -> None:
        """End what is left of all clusters, and looks once more after a while; Ctrl-C leaves it."""
        try:
            for subject in self._subjects:
                subject.watch.allow_until(float("-inf"), "the run was interrupted")
            if any(subject.watch.made_any for subject in self._subjects):
                self._ending("looking once more for machines that a list may have shown late")
                self._subjects[-1].clock.sleep(again_after_s)
            for subject in self._subjects:
                self._left.update(self._end(subject))
        except KeyboardInterrupt:
            for subject in self._subjects:
                open_clusters = [name for name in subject.clusters if name not in self._clean]
                for name in open_clusters if subject.watch.made_any else ():
                    ids = tuple(subject.watch.made.get(name, ()))
                    self._left.setdefault(name, LeftMachines(ids, "interrupted while it was being ended"))


def _place(error: BaseException) -> str:
    """Return where in the provider's code an error was raised."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if not name.startswith(
            ("muster.providers.contract", "muster.base", "muster.providers.v1", "concurrent")
        ):
            place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


def end_clusters(subject: ProviderSubject, names: Sequence[str]) -> dict[str, LeftMachines]:
    """End the machines of clusters of an earlier run; return those that it could not end."""
    left: dict[str, LeftMachines] = {}
    for name in names:
        try:
            subject.provider(name)
        except Exception as error:  # noqa: BLE001 - the other clusters are ended all the same
            left[name] = LeftMachines((), f"the constructor failed: {error_text(error)}")
    left.update(end_machines(subject, of_earlier_runs=True))
    subject.close()
    return left

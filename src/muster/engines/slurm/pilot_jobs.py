"""PilotJobs submits, lists and cancels the jobs of pilots, in its own thread: Slurm may take long to answer.

Each submission and cancellation is in a file of the experiment before it is sent. A request id in the comment
of a job shows after a crash, or a call without an answer, whether a submission has worked.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import RandomIds
from muster.engines.slurm.pilot import DRIVER_FILE
from muster.errors import EngineError, StoreError
from muster.host.atomic_write import atomic_write
from muster.slurm.jobs import SlurmJob, describe_jobs, duration_s, fix_of
from muster.slurm.wire import SlurmRefused, SlurmUnreachable, SlurmWire

_log = logging.getLogger(__name__)
LEDGER_FILE = "jobs.json"
PILOTS_FILE = "pilots.txt"  # one line for people
COMMENT = "muster:"
UNLISTED = "ENDED"  # not a state of Slurm: a controller that crashes forgets new jobs
FIRST_LOOK_S = 2.0  # after a submission; Slurm has judged a job by then
LOOK_S = 6.0  # sites ask for no more than one `squeue` every few seconds
CALM_LOOK_S = 30.0  # while nothing waits and every pilot is connected
_FAILED_CALLS = 3  # in a row, before an error that nobody knows the cause of counts
FULL_S = 60.0  # until a submission over the site's limit is tried again
_CLOSE_WAITS_S = (1.0, 2.0, 4.0, 8.0, 10.0, 15.0, None)  # for a controller that is being restarted
_KILL_WAIT_S = 30.0  # Slurm's default


class PilotLedger:
    """The file of one experiment that names its key, its requests and its cancellations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / LEDGER_FILE
        found = self._read()
        self.experiment: str = found.get("experiment") or RandomIds().fresh("e")
        self.key: str = found.get("key") or secrets.token_hex(32)
        self.requests: dict[str, str | None] = found.get("requests", {})  # their job, once it is known
        self.cancelled: list[str] = found.get("cancelled", [])

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            fix = "cancel its jobs and delete it"
            raise StoreError(f"{self._file}: cannot be read: {error}", fix=fix) from error
        return found if isinstance(found, dict) else {}

    def write(self) -> None:
        """Make what this object holds survive the end of this process."""
        known = {name: getattr(self, name) for name in ("experiment", "key", "requests", "cancelled")}
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._file, json.dumps(known).encode(), mode=0o600, fsync=True)

    def write_driver(
        self, addresses: Sequence[tuple[str, int]], reconnect_s: float, *, is_over: bool
    ) -> None:
        """Publish where the driver is to the pilots of the same user."""
        known = {"addresses": addresses, "key": self.key, "reconnect_s": reconnect_s, "is_over": is_over}
        atomic_write(self.folder / DRIVER_FILE, json.dumps(known).encode(), mode=0o600)

    def comment(self, request_id: str = "") -> str:
        return f"{COMMENT}{self.experiment}/{request_id}"


class JobsView(Struct, frozen=True, kw_only=True):
    """What Slurm knows of the pilots now."""

    jobs: Mapping[str, SlurmJob]  # alive, by id; those requested and not submitted have an id without digits
    ended: Sequence[SlurmJob] = ()  # since the last view
    refusal: EngineError | None = None  # of a submission, since the last view
    kill_wait_s: float = _KILL_WAIT_S


class PilotJobs:
    """The jobs of one experiment; `on_view` is called in the thread."""

    def __init__(
        self, wire: SlurmWire, ledger: PilotLedger, clock: Clock, on_view: Callable[[JobsView], object]
    ) -> None:
        self._wire, self._ledger, self._clock, self._on_view = wire, ledger, clock, on_view
        self._wake = threading.Condition()
        self._asked: list[tuple[str, list[str], str]] = []  # request id, options, script: not submitted yet
        self._to_cancel: list[str] = []
        self._alive: dict[str, SlurmJob] = {}
        self._is_closed = False
        self._unsure: set[str] = set()  # requests whose submission got no answer
        self._look_at = self._looked_at = self._full_until = clock.monotonic()
        self.is_calm = False  # set by the owner: nothing is expected to change
        # The jobs of an earlier driver are known; until then nobody can tell how many more are needed.
        self.has_looked = not ledger.requests
        self._most_tasks, self._kill_wait_s, self._knows_site = 1000, _KILL_WAIT_S, False
        self._failed_calls = 0  # in a row
        self._warned_of: set[str] = set()  # reasons for which pilots wait
        self._thread = threading.Thread(target=self._run, name="muster-slurm", daemon=True)
        self._thread.start()

    # Called by the engine

    def request(self, count: int, options: Sequence[str], script: str) -> None:
        """Ask for so many more pilots."""
        with self._wake:
            while count > 0:
                tasks = min(count, self._most_tasks)
                request_id = RandomIds().fresh("p")
                self._asked.append((request_id, [*options], script))
                for number in range(tasks):
                    job_id = f"{request_id}_{number}"
                    self._alive[job_id] = SlurmJob(job_id=job_id, state="PENDING", reason="not submitted yet")
                count -= tasks
            self._wake.notify()

    def cancel(self, job_ids: Sequence[str]) -> None:
        with self._wake:
            self._to_cancel += [
                job_id for job_id in job_ids if job_id[0].isdigit()
            ]  # others are not sent yet
            for job_id in job_ids:
                self._alive.pop(job_id, None)
            self._wake.notify()

    def alive(self) -> dict[str, SlurmJob]:
        with self._wake:
            return dict(self._alive)

    def look_soon(self) -> None:
        """Have the list read again as soon as the site's patience allows."""
        with self._wake:
            self._look_at = min(self._look_at, self._looked_at + LOOK_S)
            self._wake.notify()

    def close(self, *, cancels: bool) -> None:
        """Stop looking; cancel every job, or leave them to another driver."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._thread.join()
        (self._ledger.folder / PILOTS_FILE).unlink(missing_ok=True)
        if cancels:
            self._cancel_all()

    # In the thread

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._is_closed:
                    return
                left_s = self._due_at() - self._clock.monotonic()
                if left_s > 0:
                    self._wake.wait(min(left_s, 3600.0))
                    continue
            try:
                self._step(self._clock.monotonic())
                self._failed_calls = 0
            except EngineError as error:
                self._on_trouble(error)
            except Exception as error:  # noqa: BLE001 - the engine's thread reports it; this one must not die
                self._on_trouble(EngineError(f"slurm: {type(error).__name__}: {error}"))

    def _due_at(self) -> float:
        can_submit_at = self._full_until if self._asked and not self._unsure else float("inf")
        return 0.0 if self._to_cancel else min(self._look_at, can_submit_at)

    def _step(self, now: float) -> None:
        if not self._knows_site:
            self._read_site()
        if not self.has_looked:
            self._look()
            self._to_cancel += self._ledger.cancelled  # an earlier driver may not have sent them
        if self._to_cancel:
            self._cancel()
        if self._asked and now >= self._full_until and not self._unsure:
            self._submit()
        if self._clock.monotonic() >= self._look_at:
            self._look()

    def _read_site(self) -> None:
        site = self._wire.config()
        most = site.get("MaxArraySize", "")
        self._most_tasks = int(most) - 1 if most.isdigit() and int(most) > 1 else self._most_tasks
        self._kill_wait_s = duration_s(site.get("KillWait", "").removesuffix(" sec")) or _KILL_WAIT_S
        self._knows_site = True

    def _submit(self) -> None:
        """Submit what is left of the oldest request, which is in the ledger before."""
        request_id, options, script = self._asked[0]
        with self._wake:
            count = len(self._unsent(request_id))
        if not count:
            self._answered(request_id)
            return
        self._ledger.requests[request_id] = None
        self._ledger.write()
        own = (f"--array=0-{count - 1}", f"--comment={self._ledger.comment(request_id)}")
        try:
            job_id = self._wire.sbatch([*own, *options], script)
        except SlurmUnreachable:
            self._unsure.add(request_id)
            self._look_at = self._clock.monotonic()
            raise
        except SlurmRefused as error:
            self._on_refusal(request_id, error)
            return
        self._note_submitted(request_id, job_id)
        self._look_at = self._clock.monotonic() + FIRST_LOOK_S

    def _note_submitted(self, request_id: str, job_id: str) -> None:
        with self._wake:
            for number, job in enumerate(self._answered(request_id)):
                task_id = f"{job_id}_{number}"
                self._alive[task_id] = replace(job, job_id=task_id, reason="")
        self._ledger.requests[request_id] = job_id
        self._ledger.write()

    def _unsent(self, request_id: str = "p-") -> list[str]:
        """Return the pilots that are not submitted: of one request, or all."""
        return [name for name in self._alive if name.startswith(request_id)]

    def _answered(self, request_id: str) -> list[SlurmJob]:
        """Forget a request, and return its pilots."""
        with self._wake:
            self._asked = [each for each in self._asked if each[0] != request_id]
            return [self._alive.pop(name) for name in self._unsent(request_id)]

    def _on_refusal(self, request_id: str, error: SlurmRefused) -> None:
        with self._wake:
            has_jobs = len(self._alive) > len(self._unsent())
        if error.is_full and has_jobs:
            self._full_until = self._clock.monotonic() + FULL_S
            _log.warning("slurm: no more pilots for now: %s", error.sentence)
            return
        self._answered(request_id)
        del self._ledger.requests[request_id]
        self._ledger.write()
        self._publish(refusal=error)

    def _look(self) -> None:
        """Read the list once; jobs that are not in it any more have ended."""
        prefix = self._ledger.comment()
        listed = {job.job_id: job for job in self._wire.squeue() if job.comment.startswith(prefix)}
        self._looked_at, self.has_looked = self._clock.monotonic(), True
        for job in listed.values():
            self._settle(job.comment.removeprefix(prefix), job.array_id)
        self._unsure.clear()  # what is not listed was not submitted: it is sent again with the same id
        with self._wake:
            unsent = {name: self._alive[name] for name in self._unsent()}
            going = {*self._to_cancel, *self._ledger.cancelled}
            alive = {name: job for name, job in listed.items() if not job.has_ended and name not in going}
            absent = [job for name, job in self._alive.items() if name not in alive and name not in unsent]
            gone = [listed.get(job.job_id, replace(job, state=UNLISTED)) for job in absent]
            self._alive = {**alive, **unsent}
            self._look_at = self._looked_at + (CALM_LOOK_S if self.is_calm else LOOK_S)
        self._show(list(alive.values()))
        self._publish(ended=gone)

    def _show(self, jobs: Sequence[SlurmJob]) -> None:
        """Write for the dashboard where pilots are; warn once of each reason for which all of them wait."""
        shown, waiting = describe_jobs(jobs), [job.reason for job in jobs if job.is_waiting]
        reasons = {each for each in waiting if each and not fix_of(each)}
        if reasons - self._warned_of and len(waiting) == len(jobs):
            _log.warning("slurm: pilots: %s", shown)
        self._warned_of |= reasons
        with contextlib.suppress(OSError):  # a full disk is reported by what matters more
            atomic_write(self._ledger.folder / PILOTS_FILE, shown.encode())

    def _settle(self, request_id: str, job_id: str) -> None:
        """Note the job of a submission that got no answer, or that an earlier driver made."""
        if any(each[0] == request_id for each in self._asked):
            self._note_submitted(request_id, job_id)
        elif self._ledger.requests.get(request_id) != job_id:
            self._ledger.requests[request_id] = job_id
            self._ledger.write()

    def _cancel(self) -> None:
        job_ids = list(dict.fromkeys(self._to_cancel))
        self._ledger.cancelled = [*dict.fromkeys([*self._ledger.cancelled, *job_ids])]
        self._ledger.write()
        self._wire.scancel(job_ids)
        with self._wake:
            self._to_cancel = [job_id for job_id in self._to_cancel if job_id not in job_ids]

    def _publish(self, *, ended: Sequence[SlurmJob] = (), refusal: EngineError | None = None) -> None:
        self._on_view(
            JobsView(jobs=self.alive(), ended=ended, refusal=refusal, kill_wait_s=self._kill_wait_s)
        )

    def _on_trouble(self, error: EngineError) -> None:
        """Wait for a controller that does not answer; pilots work without it."""
        self._failed_calls += 1
        if self._failed_calls == 1:
            _log.warning("%s; running pilots continue, muster keeps trying", error)
        is_certain = bool(error.fix) or self._failed_calls >= _FAILED_CALLS
        if is_certain and not isinstance(error, SlurmUnreachable):
            self._publish(refusal=error)
        with self._wake:
            self._look_at = self._clock.monotonic() + LOOK_S
            self._full_until = max(self._full_until, self._look_at)
            if not self._is_closed:
                self._wake.wait(LOOK_S if self._to_cancel else 0.0)

    # At the end, in the thread of the engine

    def _cancel_all(self) -> None:
        """Cancel every array of this experiment that may have jobs; written down first."""
        if not self._ledger.requests:
            return
        known = [job_id for job_id in self._ledger.requests.values() if job_id]
        self._ledger.cancelled = [*dict.fromkeys([*self._ledger.cancelled, *known])]
        self._ledger.write()
        for wait_s in _CLOSE_WAITS_S:
            try:
                jobs = [job for job in self._wire.squeue() if job.comment.startswith(self._ledger.comment())]
                self._wire.scancel(sorted({job.array_id for job in jobs if not job.has_ended}))
                self._ledger.requests, self._ledger.cancelled = {}, []
                self._ledger.write()
                return
            except EngineError as error:
                if wait_s is not None:
                    self._clock.sleep(wait_s)
                    continue
                _log.warning(
                    "%s; pilots leave by themselves, but these jobs may still be queued: scancel %s",
                    *(error, " ".join(known)),
                )


def explain_early_end(job: SlurmJob, folder: Path, python: str) -> EngineError:
    """Return why a pilot has ended before it connected, by what its job printed last."""
    output = folder / f"{job.job_id}.out"
    try:
        lines = output.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    where = f"slurm: pilot {job.job_id} on {job.nodes or 'its node'} ended ({job.state}) before it connected"
    if lines:
        return EngineError(f"{where}: {lines[-1]}", fix=f"see {output}; {python} and muster must run there")
    fix = "choose a RunConfig(storage_path=...) that compute nodes mount"
    return EngineError(f"{where} and left no output in {folder}", fix=fix)

"""SlurmEngine runs trials in pilot jobs of a Slurm cluster.

Trials are first come, first served. The number of pilots follows the trials that the experiment has started
and expects; a pilot that Slurm will end takes no trial that it cannot bring one step further.
"""

from __future__ import annotations

import logging
import platform
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import field

from muster.base.clock import Clock, ahead_s
from muster.base.forecast import Forecast
from muster.base.framing import FrameKind, frame, pack
from muster.base.resources import Resources
from muster.engines.local.engine import ResourcePool
from muster.engines.process_engine import EngineTimeouts, ProcessEngine, order_of, units_of
from muster.engines.slurm import pilot_plan
from muster.engines.slurm.pilot_jobs import UNLISTED, JobsView, PilotJobs, PilotLedger, explain_early_end
from muster.engines.slurm.pilot_pool import PilotHandle, PilotPool, PilotWorker
from muster.engines.worker import failures
from muster.engines.worker.handle import TrialRun
from muster.engines.worker.handshake import Hello, mismatch
from muster.engines.worker.protocol import write_order
from muster.errors import EngineError
from muster.host import machine
from muster.session.session import PreemptionInfo
from muster.slurm.config import SlurmConfig
from muster.slurm.jobs import SlurmJob, fix_of
from muster.slurm.wire import SlurmWire, require_commands
from muster.trials.events import CapacityChanged, TrialFailure, TrialFailureKind
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import EngineTraits
from muster.trials.spend import share_of

_log = logging.getLogger(__name__)
FOLDER = ".slurm"  # in the directory of an experiment
_SOON_S = 0.2  # after the end of a trial: another one may take its place
_SPARES = 2  # processes made ahead of need, per pilot
_SKEW_S = 5.0
_TOO_MANY = 3  # submissions whose pilots end before they connect, one after the other
_THREADS = "OMP_NUM_THREADS"
_TAKEN = frozenset({TrialFailureKind.KILLED, TrialFailureKind.EXITED, TrialFailureKind.NODE_LOST})
# States in which a job has ended through no fault of the pilot.
_NOT_ITS_FAULT = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "CANCELLED", "TIMEOUT", "REQUEUED", "COMPLETING")


class SlurmOptions(EngineTimeouts, frozen=True, kw_only=True):
    """Holds what the user says about pilots, and what few users need to change."""

    config: SlurmConfig = field(default_factory=SlurmConfig)
    env: Mapping[str, str] = {}  # added to the environment of trials
    storage: bytes | None = None  # of remote results, for `get_context().get_storage()`
    price_per_hour: float | None = None  # $ of one pilot; None: not known
    linger_s: float = 5.0  # an idle pilot is kept so long while further trials may come


_DEFAULTS = SlurmOptions()


class SlurmEngine(ProcessEngine):
    """Runs trials in pilots, Slurm jobs that connect back to this process.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    _pool: PilotPool

    def __init__(
        self,
        *,
        clock: Clock,
        directory: Path,
        request: PlacementGroupFactory,
        trainables: Mapping[str, bytes] | None = None,
        options: SlurmOptions = _DEFAULTS,
        wire: SlurmWire | None = None,
    ) -> None:
        """Take the directory of the experiment, which pilots see too, and what one trial needs."""
        super().__init__(clock, options)
        if wire is None:
            require_commands()
        self._config, self._options, self._wire = options.config, options, wire or SlurmWire()
        self._folder = directory.absolute() / FOLDER
        self._most_pilots = options.config.max_pilots
        self._shape = pilot_plan.shape_of(options.config, request)
        self._trainables = dict(trainables or {})
        self._orders: dict[str, bytes] = {}  # of trials whose process has not come yet
        self._steps_s: dict[str, float] = {}  # the last step of each trial
        self._slowest_s = 0.0  # step of all trials
        self._to_come, self._is_complete = 0, False  # trials that will use a pilot, by the forecast
        self._jobs: PilotJobs | None = None
        self._ledger: PilotLedger | None = None
        self._known: dict[str, SlurmJob] = {}  # jobs that Slurm lists as alive
        self._kill_wait_s = 30.0
        self._connected: set[str] = set()  # jobs whose pilot has ever connected
        self._left: set[str] = set()  # jobs whose pilot has gone, which Slurm may not list as ended yet
        self._early_ends: set[str] = set()  # submissions since a pilot has connected
        self._fatal: EngineError | None = None
        self.hands_over = False  # pilots are left to the next driver
        self._whole_pilot = ResourcePool(self._shape)
        self._pool = PilotPool(clock=clock, timeouts=options, owner=self, key=b"")

    # The port

    def capacity(self) -> Mapping[str, float]:
        return {name: amount * self._most_pilots for name, amount in self._shape.items()}

    def traits(self) -> EngineTraits:
        return EngineTraits(has_prices=self._options.price_per_hour is not None, is_shared=True)

    def publish(self, forecast: Forecast) -> None:
        coming = sum(work.count for work in forecast.coming if work.start_s <= self._options.linger_s)
        running = sum(run.worker is not None for run in self._trials.values())
        self._to_come, self._is_complete = running + coming, forecast.is_complete
        self.wake_at(self._clock.monotonic())

    def register(self, name: str, trainable: bytes) -> None:
        """Make a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._trainables[name] = trainable
        for pilot in self._pool.pilots.values():
            self._pool.send(pilot, frame(FrameKind.TRAINABLE, pack((name, trainable))))
            self._pool.retire_unused(pilot)

    def poll(self, timeout_s: float) -> Sequence[Any]:
        events = super().poll(timeout_s)
        if self._fatal is not None and not events:
            raise self._fatal
        return events

    def close(self) -> None:
        jobs, self._jobs = self._jobs, None
        self._waiting = type(self._waiting)()
        self._trials.clear()
        self._events.clear()
        if self._ledger is not None and jobs is not None and not self.hands_over:
            self._ledger.write_driver([], self._config.reconnect_s, is_over=True)
        self._pool.close(hands_over=self.hands_over)
        if jobs is not None:
            jobs.close(cancels=not self.hands_over)

    # Starting

    def _open(self) -> PilotJobs:
        """Listen, and ask Slurm: with the first trial, when the experiment's directory exists."""
        ledger = self._ledger = PilotLedger(self._folder)
        ledger.write()
        self._pool.listener.key = bytes.fromhex(ledger.key)
        _, port = self._pool.listener.listen("")
        hosts = dict.fromkeys((machine.node_ip(), machine.hostname()))
        ledger.write_driver([(host, port) for host in hosts], self._config.reconnect_s, is_over=False)
        wakeups = self._pool.wakeups
        return PilotJobs(
            self._wire, ledger, self._clock, lambda view: wakeups.put(lambda: self._on_view(view))
        )

    def _begin(self, run: TrialRun) -> None:
        if self._jobs is None:
            self._jobs = self._open()
        self._grow_shape(run.command.resources)
        why_not = self._whole_pilot.why_never(run.command.resources)
        if why_not is not None:
            why_not = why_not.replace("this machine", "a pilot").replace("this engine", "a pilot")
            self._finish(run, failure=failures.impossible_failure(why_not))
            return
        if len(self._waiting) or not self._try_start(run):
            self._waiting.add(run)
            self._start_waiting()
        self.wake_at(self._clock.monotonic())

    def _grow_shape(self, request: PlacementGroupFactory) -> None:
        """Make later pilots larger for trials that need more, unless the user has set the size."""
        larger = pilot_plan.shape_of(self._config, request)
        shape = {
            name: max(self._shape.get(name, 0.0), larger.get(name, 0.0)) for name in self._shape | larger
        }
        if shape != self._shape:
            self._shape, self._whole_pilot = shape, ResourcePool(shape)
            self._events.append(CapacityChanged(at=self._clock.now(), capacity=self.capacity()))

    def _try_start(self, run: TrialRun) -> bool:
        """Give a trial resources and a process in some pilot; returns False when it must wait."""
        for pilot in sorted(self._pool.pilots.values(), key=lambda each: (-len(each.runs), each.job_id)):
            if pilot.takes_trials and self._has_time(pilot, run) and self._start_in(pilot, run):
                return True
        return False

    def _has_time(self, pilot: PilotHandle, run: TrialRun) -> bool:
        """Return whether a pilot lasts until the trial's next step has ended and been saved."""
        if pilot.ends_at is None:
            return True
        step_s = self._steps_s.get(run.command.trial_id, self._slowest_s)
        return pilot.ends_at - self._clock.monotonic() > step_s + pilot_plan.MARGIN_S

    def _start_in(self, pilot: PilotHandle, run: TrialRun) -> bool:
        command = run.command
        idle = self._pool.find_idle(command, self._pool.idle_in(pilot)) if command.may_reuse else None
        prefer = idle.key[2] if idle is not None and idle.key is not None else ()
        grant = pilot.resources.take(command.resources, prefer)
        if grant is None:
            return False
        run.grant = grant
        pilot.runs[command.trial_id] = run
        try:
            order = order_of(command, self._env_of(run, pilot), self._options.storage)
            self._orders[command.trial_id] = write_order(order)
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unpicklable_failure("the config cannot be pickled", error))
            return True
        if idle is not None and set(prefer) == set(grant.gpu_ids):
            self._assign(run, idle)
            return True
        # Idle processes may hold memory of GPUs that this trial is about to use.
        for other in self._pool.idle_in(pilot):
            if other.key is not None and not set(grant.gpu_ids).isdisjoint(other.key[2]):
                self._pool.retire(other)
        if pilot.spares:
            self._assign(run, pilot.spares.pop(0))
        else:
            self._pool.fork(pilot, [run])
        self._make_spares(pilot)
        return True

    def _env_of(self, run: TrialRun, pilot: PilotHandle) -> dict[str, str]:
        """Return what differs between trials: their GPUs, and a limit on threads that follows their CPUs."""
        env = dict(self._options.env)
        if run.grant is not None and pilot.resources.capacity.units("GPU"):
            env[pilot.gpu_variable] = ",".join(run.grant.gpu_ids)
        if _THREADS in env:
            env[_THREADS] = str(max(1, int(run.command.resources.head_cpus)))
        return env

    def _make_spares(self, pilot: PilotHandle) -> None:
        count = _SPARES - len(pilot.spares) - sum(run is None for run in pilot.coming.values())
        if count > 0 and pilot.takes_trials:
            self._pool.fork(pilot, [None] * count)

    def _assign(self, run: TrialRun, worker: PilotWorker) -> None:
        pilot = worker.pilot
        self._pool.bind(run, worker, run.grant.gpu_ids if run.grant is not None else ())
        if self._options.price_per_hour is not None:
            share = share_of(Resources(units_of(run.command.resources)), pilot.resources.capacity)
            self._priced(run, self._clock.now(), self._options.price_per_hour * share)
        self._send_order(run, worker, self._orders.pop(run.command.trial_id))
        self.notify(run, pilot.info)

    # Ending

    def _withdraw(self, run: TrialRun) -> None:
        """Take back a request: the process that comes for it becomes a spare."""
        self._waiting.remove(run)
        for pilot in self._pool.pilots.values():
            for token, expected in pilot.coming.items():
                if expected is run:
                    pilot.coming[token] = None

    def _release(self, run: TrialRun) -> None:
        trial_id = run.command.trial_id
        self._orders.pop(trial_id, None)
        self._note_step(run)
        for pilot in self._pool.pilots.values():
            if pilot.runs.pop(trial_id, None) is not None and run.grant is not None:
                pilot.resources.free(run.grant)
                pilot.idle_since = self._clock.monotonic()
                if pilot.info is not None and not pilot.runs:
                    self._pool.order_to_leave(pilot)
        self._to_come -= 1
        self.wake_at(self._clock.monotonic() + _SOON_S)

    def _note_step(self, run: TrialRun) -> None:
        """Note how long the last step of a trial took: its next one will take as long."""
        step_s = run.last_result.get("time_this_iter_s")
        if isinstance(step_s, int | float):
            self._steps_s[run.command.trial_id] = step_s
            self._slowest_s = max(self._slowest_s, step_s)

    def _node_of(self, run: TrialRun) -> Mapping[str, str]:
        return {"node_id": run.worker.pilot.job_id} if isinstance(run.worker, PilotWorker) else {}

    # What becomes of pilots and processes (called by PilotPool)

    def on_pilot(self, pilot: PilotHandle, hello: Hello) -> None:
        self._connected.add(pilot.job_id)
        self._left.discard(pilot.job_id)
        self._early_ends.clear()
        why = mismatch(hello, python=platform.python_version())
        if why is not None:
            self._end_with(EngineError(f"slurm: {why}"))
            return
        skew_s = abs(hello["now"] - (self._clock.now() - ahead_s(self._clock)))
        if skew_s > _SKEW_S:
            text = "slurm: the clock of %s differs from this computer's by %.0f s; have both follow NTP"
            _log.warning(text, pilot.node, skew_s)
        job = self._known.get(pilot.job_id)
        if job is not None and job.left_s is not None:
            pilot.ends_at = self._clock.monotonic() + job.left_s - (hello["age_s"] if job.is_waiting else 0.0)
        cwd = machine.working_directory()
        setup = (list(sys.argv), list(sys.path), self._timeouts.beat_s, dict(self._options.env), cwd)
        self._pool.send(pilot, frame(FrameKind.INIT, pack(setup)))
        for name, blob in self._trainables.items():
            self._pool.send(pilot, frame(FrameKind.TRAINABLE, pack((name, blob))))
        self._start_waiting()
        self._make_spares(pilot)
        self.wake_at(self._clock.monotonic())

    def on_worker(self, worker: PilotWorker, run: TrialRun | None) -> None:
        if run is not None:
            self._assign(run, worker)
        elif worker.pilot.takes_trials:
            worker.pilot.spares.append(worker)
        else:
            self._pool.retire(worker)

    def on_worker_gone(self, worker: PilotWorker, failure: TrialFailure | None) -> None:
        run = worker.run
        if failure is None or (worker.pilot.info is not None and failure.kind in _TAKEN):
            failure = self._preempted(worker.pilot)
            if run is not None and _was_interrupted(run):
                run.failure = failure  # SIGTERM of Slurm has reached the trial's process too
        self._ended(worker, lambda: failure)
        self._start_waiting()

    def on_pilot_gone(self, pilot: PilotHandle, coming: Sequence[TrialRun]) -> None:
        for run in coming:
            if run.command.trial_id in self._trials:
                self._finish(run, failure=self._preempted(pilot))
        self._left.add(pilot.job_id)
        if self._jobs is not None:
            self._jobs.look_soon()
        self.wake_at(self._clock.monotonic())

    def _preempted(self, pilot: PilotHandle) -> TrialFailure:
        why = pilot.info.source if pilot.info is not None else "its connection broke"
        message = f"its pilot (Slurm job {pilot.job_id} on {pilot.node}) ended: {why}"
        return TrialFailure(kind=TrialFailureKind.PREEMPTED, message=message)

    def on_signal(self, pilot: PilotHandle, number: int) -> None:
        """Notify trials; TERM comes shortly before the end, USR2 up to a minute too early."""
        if number == signal.SIGTERM:
            self._announce(pilot, self._kill_wait_s, f"Slurm ends job {pilot.job_id}")
        elif pilot.ends_at is None:
            self._announce(pilot, pilot_plan.NOTICE_S, f"Slurm announces the end of job {pilot.job_id}")

    def _announce(self, pilot: PilotHandle, left_s: float, source: str) -> None:
        now = self._clock.now() - ahead_s(self._clock)
        if pilot.info is not None and pilot.info.left_s(now) <= left_s:
            return
        deadline = now + max(0.0, left_s - pilot_plan.MARGIN_S)
        pilot.info = PreemptionInfo(deadline, "interruption", source, pilot.job_id)
        for run in list(pilot.runs.values()):
            self.notify(run, pilot.info)
        self._pool.retire_unused(pilot)
        if not pilot.runs:
            self._pool.order_to_leave(pilot)
        self.wake_at(self._clock.monotonic())

    # What Slurm says, and how many pilots there are

    def _on_view(self, view: JobsView) -> None:
        now, self._known, self._kill_wait_s = self._clock.monotonic(), dict(view.jobs), view.kill_wait_s
        for job_id, pilot in self._pool.pilots.items():
            job = view.jobs.get(job_id)
            if job is not None and job.is_running and job.left_s is not None:
                pilot.ends_at = now + job.left_s
        self._left = {each for each in self._left if each in view.jobs and not view.jobs[each].is_waiting}
        if view.refusal is not None:
            self._on_refusal(view.refusal)
        for job in view.ended:
            if job.job_id not in self._connected:
                self._on_early_end(job)
        never = [job for job in view.jobs.values() if job.is_waiting and fix_of(job.reason)]
        if never and self._jobs is not None:
            self._jobs.cancel([job.job_id for job in never])
            why = f"slurm: job {never[0].array_id} can never start ({never[0].reason})"
            self._on_refusal(EngineError(why, fix=fix_of(never[0].reason)))
        self.wake_at(now)

    def _on_refusal(self, error: EngineError) -> None:
        if self._pool.pilots or any(job.is_running for job in self._known.values()):
            _log.warning("slurm: no more pilots: %s", error)
            self._most_pilots = max(1, len(self._alive()))
        else:
            self._end_with(error)

    def _on_early_end(self, job: SlurmJob) -> None:
        """Explain a pilot that has ended before it connected; several in a row end the experiment."""
        if job.state in _NOT_ITS_FAULT:
            return
        self._early_ends.add(job.array_id)
        if (self._pool.pilots or job.state == UNLISTED) and len(self._early_ends) < _TOO_MANY:
            return
        self._end_with(explain_early_end(job, self._folder, self._config.python or sys.executable))

    def _end_with(self, error: EngineError) -> None:
        """Have `poll` raise this, as soon as all events have been taken."""
        self._fatal = self._fatal or error

    def _check_more(self, now: float) -> None:
        self._pool.check_deadlines(now)
        if self._jobs is not None and self._fatal is None:
            self._check_limits(now)
            if self._jobs.has_looked:
                self._scale(self._jobs, now)

    def _check_limits(self, now: float) -> None:
        """Notify the trials of pilots that reach their time limit."""
        for run in self._trials.values():
            self._note_step(run)
        for pilot in list(self._pool.pilots.values()):
            if pilot.ends_at is None or pilot.info is not None:
                continue
            before_s = pilot_plan.notice_s(self._config, self._slowest_s)
            if pilot.ends_at - now <= before_s:
                self._announce(pilot, pilot.ends_at - now, f"job {pilot.job_id} reaches its time limit")
            else:
                self.wake_at(pilot.ends_at - before_s)

    def _alive(self) -> list[str]:
        """Return the jobs that have a pilot for further trials, or will have soon.

        A requeued job that Slurm holds back for minutes (BeginTime) is not waited for.
        """
        pilots, known = self._pool.pilots, self._jobs.alive() if self._jobs else {}
        gone = {*pilots, *self._left}
        coming = [each for each, job in known.items() if each not in gone and job.reason != "BeginTime"]
        return [*coming, *(pilot.job_id for pilot in pilots.values() if pilot.takes_trials)]

    def _scale(self, jobs: PilotJobs, now: float) -> None:
        """Submit the pilots that started trials need, release those that no trial will need."""
        alive, pilots = self._alive(), self._pool.pilots
        known = jobs.alive()
        started = Counter(run.command.resources for run in self._trials.values())
        plan = pilot_plan.plan_pilots(
            pilot_plan.PilotNeeds(
                now=now,
                started=pilot_plan.pilots_for(started, self._shape),
                expected=self._expected(),
                most=self._most_pilots,
                alive=len(alive),
                queued=[job_id for job_id in alive if job_id in known and known[job_id].is_waiting],
                unused=[each for each in pilots.values() if not each.runs and each.takes_trials],
                has_waiting=len(self._waiting) > 0,
                linger_s=self._options.linger_s,
                is_complete=self._is_complete,
            )
        )
        jobs.is_calm = len(self._waiting) == 0 and all(job_id in pilots for job_id in alive)
        if plan.missing:
            config, cwd = self._config, machine.working_directory()
            options = pilot_plan.sbatch_options(config, self._shape, self._folder, cwd)
            jobs.request(plan.missing, options, pilot_plan.script_of(config, self._folder, sys.executable))
        if plan.cancel:
            jobs.cancel(plan.cancel)
        for job_id in plan.release:
            self._pool.order_to_leave(pilots[job_id])
        self.wake_at(plan.wake_at)

    def _expected(self) -> int:
        """Return how many pilots the trials of the forecast can use, less those that ended since."""
        kinds = {run.command.resources for run in self._trials.values()}
        return max(
            (pilot_plan.pilots_for({kind: max(0, self._to_come)}, self._shape) for kind in kinds), default=0
        )


def _was_interrupted(run: TrialRun) -> bool:
    """Return whether a trial has reported its end without an error, and not because the engine stopped it."""
    report = run.exit_report
    return report is not None and report.kind is None and not report.is_done and not run.stopping

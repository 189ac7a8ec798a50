"""SlurmProvider is the provider of type `slurm`: machines are jobs whose comment names their launch request.

The loop's thread never waits for Slurm. One `squeue` lists all jobs; a controller that does not answer leaves
the list unknown. A submission is noted on disk before it is sent: one without an answer is looked for before
it is repeated, also by the next monitor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import CloudId, RequestId
from muster.base.text import shortened
from muster.cluster.model import (
    CloudInstance,
    FailureKind,
    LaunchFailure,
    MachineProblem,
    NodeKind,
    Notice,
    NoticeKind,
    Offer,
    TerminateFailure,
)
from muster.cluster.ports import NoticeReport
from muster.cluster.snapshot import ProviderTraits
from muster.providers.background_calls import CallPools, InstanceLister, Requests, TerminationQueue
from muster.providers.machines import Machine, ManagedProvider
from muster.providers.slurm.batch import BatchJob, JobTag, job_name, tag_of
from muster.providers.v1.failures import kind_of, kind_of_text, message_of
from muster.slurm.jobs import SlurmJob, fix_of
from muster.slurm.wire import SlurmRefused, SlurmUnreachable, SlurmWire

logger = logging.getLogger(__name__)

MAX_CANCEL = 500  # jobs of one call
LIST_EVERY_S = 5.0  # sites dislike more; what muster itself changes is listed at once
LATE_S = 60.0  # a submission without an answer may still be worked on for so long
FAILED_S = 240.0  # a job that failed to start is shown for so long, with its reason
AHEAD_SHARE = 0.2  # of a time limit: a node serves for longer than it is drained
SAME_S = 5.0  # times of one end differ by less: Slurm counts in whole seconds
CLOSE_S = 5.0
_NOT_STARTED = frozenset({"FAILED", "BOOT_FAIL"})  # `node_main` fails only before its node has come up


class SubmissionNotes:
    """Remembers, over restarts, which submissions have no known outcome: by an empty file each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, name: str) -> bool:
        return (self._directory / name).exists()

    def note(self, name: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._directory / name).touch()

    def forget(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class SlurmParts:
    """What a provider is made of; tests and the simulator replace some."""

    wire: SlurmWire
    clock: Clock
    pools: CallPools
    notes: SubmissionNotes
    batch: Callable[[JobTag, int], BatchJob]  # raises ProviderMisconfigured for an unknown type
    heads: Callable[[], Sequence[CloudInstance]] = tuple  # the head, where it is on this computer
    head_job: Path | None = None  # the file with the id of the job in which `muster up` has run, if any
    ahead_s: float = 600.0  # how long before a time limit a notice is published
    most_of_array: int = 100  # sites allow 1,000 by default, and some less
    log_line: Callable[[str], str] = lambda job_id: ""  # the last line that a job wrote


class JobEnds:
    """Follows when Slurm takes running jobs: at time limits, and sooner after a preemption with grace."""

    def __init__(self, ahead_s: float) -> None:
        self.near: dict[str, float] = {}  # ends that are near, by the monotonic clock
        self._later: dict[str, float] = {}  # jobs whose end lists show later than before, and since when
        self._ahead_s = ahead_s

    def note(self, jobs: Sequence[SlurmJob], at: float) -> None:
        """Take a list of this time. A later end counts once lists show it for a while: one may be old."""
        near: dict[str, float] = {}
        for job in jobs:
            if job.is_running and job.left_s is not None:
                known, end = self.near.get(job.job_id), at + job.left_s
                if known is not None and self._is_kept(job.job_id, known, end, at):
                    near[job.job_id] = known
                elif job.left_s <= min(self._ahead_s, AHEAD_SHARE * (job.left_s + job.used_s)):
                    near[job.job_id] = end
        self.near = near
        self._later = {name: since for name, since in self._later.items() if name in near}

    def _is_kept(self, name: str, known: float, end: float, at: float) -> bool:
        if end <= known + SAME_S:
            self._later.pop(name, None)
            return end >= known - SAME_S
        return at - self._later.setdefault(name, at) <= LATE_S


class SlurmProvider(ManagedProvider):
    """The jobs of one cluster."""

    def __init__(self, cluster_name: str, parts: SlurmParts) -> None:
        self.cluster_name, self.parts = cluster_name, parts
        self._wire, self._clock, pools = parts.wire, parts.clock, parts.pools
        self._launches: Requests[LaunchFailure] = Requests()
        self._withdrawn: set[RequestId] = set()
        self._sent_at: dict[str, float] = {}  # submissions without a known outcome, by the monotonic clock
        self._settled: set[str] = set()  # jobs of the newest list: cancelled from here, or failed before
        self._ran: set[str] = set()  # jobs of the newest list that a list has shown as running
        self._jobs: tuple[SlurmJob, ...] | None = None  # of the newest list
        self._listed_at = 0.0  # by the monotonic clock
        self._is_stale = False  # muster has changed something since
        self._ends = JobEnds(parts.ahead_s)
        self._terminations = TerminationQueue(
            self.terminate_machines, self._living, pools.terminate, self._clock
        )
        self._lister = InstanceLister(self._list, pools.new_listing, self._clock)

    # -- the autoscaler's port --------------------------------------------------------------------

    def traits(self) -> ProviderTraits:
        return ProviderTraits()  # a job comes up with Ray running

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        return self._lister.read()

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        most = self.parts.most_of_array
        jobs = [
            partial(
                self._submit,
                JobTag(request_id=request_id, node_type=name, part=start // most),
                min(most, count - start),
            )
            for name, count in shape.items()
            for start in range(0, count, most)
        ]
        self._launches.start(request_id, jobs, self.parts.pools.launch)

    def withdraw(self, request_id: RequestId) -> None:
        self._withdrawn.add(request_id)

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self._terminations.take(request_id, cloud_ids, MAX_CANCEL)

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return self._launches.poll()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return self._terminations.requests.poll()

    def under_way(self, request_id: RequestId) -> bool:
        return self._launches.is_open(request_id) or self._terminations.requests.is_open(request_id)

    def notice_source(self) -> SlurmProvider:
        return self

    def read(self) -> NoticeReport:
        """Return when Slurm takes the running jobs: time limits, and shorter ones after a preemption."""
        shift_s = self._clock.now() - self._clock.monotonic()
        kind, source = NoticeKind.MAINTENANCE, "the time limit of its Slurm job"
        return NoticeReport(
            notices=tuple(
                Notice(cloud_id=CloudId(name), kind=kind, deadline=shift_s + end, source=source)
                for name, end in self._ends.near.items()
            )
        )

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Take nothing more, and give calls under way a moment; jobs keep running."""
        self.parts.pools.launch.close(wait_s)
        self.parts.pools.terminate.close(wait_s)
        self._lister.close()

    # -- for commands of users --------------------------------------------------------------------

    def machines(self, kind: NodeKind) -> list[Machine]:
        """Return the workers; a head on this computer is not a machine of Slurm."""
        if kind is not NodeKind.WORKER:
            return []
        listed = [one for one in self._list().values() if one.kind is kind]
        return [Machine(node_id=m.cloud_id, node_type=m.node_type, ip="", tags={}) for m in listed]

    def left_to_tear_down(self, kind: NodeKind) -> list[str]:
        """Return the job of the head, before its workers: its monitor would launch others."""
        file = self.parts.head_job
        is_known = kind is NodeKind.WORKER and file is not None and file.is_file()
        return [job] if file is not None and is_known and (job := file.read_text()) else []

    def clean_up(self) -> None:
        if self.parts.head_job is not None:
            self.parts.head_job.unlink(missing_ok=True)

    def terminate_machines(self, node_ids: Sequence[str]) -> None:
        """Cancel jobs; those that have ended are a success."""
        self._wire.scancel([one for one in node_ids if one[:1].isdigit()])
        self._settled.update(node_ids)
        self._is_stale = True

    def has_own_runner(self) -> bool:
        return True

    # -- listing ----------------------------------------------------------------------------------

    def _mine(self, *, is_fresh: bool = False) -> tuple[SlurmJob, ...]:
        """Return the jobs of this cluster, ended ones included, from a list that is not too old."""
        asked_at, known = self._clock.monotonic(), self._jobs
        is_good = known is not None and not self._is_stale and asked_at - self._listed_at < LIST_EVERY_S
        if known is None or is_fresh or not is_good:
            self._is_stale, name = False, job_name(self.cluster_name)
            try:
                known = tuple(job for job in self._wire.squeue() if job.name == name)
            except Exception:
                self._is_stale = True
                raise
            if self._jobs is None:  # those of an earlier life would hold their type back, fixed or not
                self._settled.update(job.job_id for job in known if job.has_ended)
            self._jobs, self._listed_at = known, asked_at
            self._settled &= {job.job_id for job in known}
            running = {job.job_id for job in known if job.is_running}
            self._ran = running | (self._ran & {job.job_id for job in known})
            self._ends.note(known, asked_at)
        return known

    def _living(self) -> set[str]:
        return {job.job_id for job in self._mine(is_fresh=True) if not job.has_ended}

    def _list(self) -> dict[CloudId, CloudInstance]:
        found = [one for job in self._mine() if (one := self._machine(job)) is not None]
        return {one.cloud_id: one for one in (*self.parts.heads(), *found)}

    def _machine(self, job: SlurmJob) -> CloudInstance | None:
        tag, problem = tag_of(job), self._problem(job)
        if job.is_waiting and job.job_id in self._ran:
            return None  # queued again: its node is gone, and `node_main` ends it when it starts
        is_over = job.has_ended or job.state == "COMPLETING"
        if tag is None or (is_over and (problem is None or job.job_id in self._settled)):
            return None
        return CloudInstance(
            cloud_id=CloudId(job.job_id),
            node_type=tag.node_type,
            is_running=job.is_running,
            request_id=tag.request_id,
            launch_hash=tag.launch_hash,
            problem=problem,
        )

    def _problem(self, job: SlurmJob) -> MachineProblem | None:
        """Return why a job does not start; None while it is on its way, and for one that served."""
        if job.is_waiting and job.reason:
            fix = fix_of(job.reason)
            if fix:
                text = f"job {job.job_id} never starts, Slurm's reason is {job.reason}; {fix}"
                return MachineProblem(kind=FailureKind.CONFIG, message=text)
            text = f"job {job.job_id} is waiting for {job.reason}"
            return MachineProblem(kind=FailureKind.CAPACITY, message=text, has_place=True)
        ended_at = None if job.starts_at is None else job.starts_at + job.used_s
        is_recent = ended_at is None or self._clock.now() - ended_at <= FAILED_S
        if job.state in _NOT_STARTED and is_recent:
            line = self.parts.log_line(job.job_id) or job.reason
            text = f"job {job.job_id} {job.state} before its node came up: {shortened(line, 200)}"
            return MachineProblem(kind=FailureKind.CONFIG, message=text)
        return None

    # -- submitting -------------------------------------------------------------------------------

    def _submit(self, tag: JobTag, count: int) -> None:
        """Submit one part of a request; note a failure for each machine that does not come."""
        failures: list[LaunchFailure] = []
        try:
            if tag.request_id in self._withdrawn or self._is_submitted(tag):
                logger.info("launch %s of %s is not sent again", tag.request_id, tag.node_type)
            else:
                self._send(tag, count)
        except SlurmUnreachable as error:
            logger.warning("launch %s has no answer, and is repeated: %s", tag.request_id, error)
            self._launches.repeat_later(tag.request_id, partial(self._submit, tag, count))
            return
        except Exception as error:  # noqa: BLE001 - comes back as failures
            failures = [_failure(tag, error)] * count
        self.parts.notes.forget(_note_name(tag))
        self._sent_at.pop(_note_name(tag), None)
        self._launches.job_done(tag.request_id, failures)

    def _is_submitted(self, tag: JobTag) -> bool:
        """Return whether an earlier attempt has worked. Raises SlurmUnreachable while nobody knows."""
        name = _note_name(tag)
        was_sent, now = self.parts.notes.has(name), self._clock.monotonic()
        jobs = self._mine(is_fresh=was_sent)
        if any((known := tag_of(job)) and _is_same(known, tag) for job in jobs):
            return True
        # A monitor that was started again does not know when it was sent: it waits from now on.
        if was_sent and now - self._sent_at.setdefault(name, now) <= LATE_S:
            raise SlurmUnreachable("an earlier submission has no answer, and may still be worked on")
        return False

    def _send(self, tag: JobTag, count: int) -> None:
        job, name = self.parts.batch(tag, count), _note_name(tag)
        self.parts.notes.note(name)
        self._sent_at[name] = self._clock.monotonic()
        job_id = self._wire.sbatch(job.options(), job.script())
        self._is_stale = True
        logger.info(
            "submitted job %s: %d of type %s for launch %s", job_id, count, tag.node_type, tag.request_id
        )


def _is_same(known: JobTag, tag: JobTag) -> bool:
    return replace(known, launch_hash="") == replace(tag, launch_hash="")


def _note_name(tag: JobTag) -> str:
    return f"{tag.request_id}.{tag.part}.{tag.node_type}".replace("/", "_")


def _failure(tag: JobTag, error: Exception) -> LaunchFailure:
    kind = kind_of(error)
    if isinstance(error, SlurmRefused):
        is_quota = error.is_full or "policy" in error.sentence
        guess = FailureKind.QUOTA if is_quota else kind_of_text(error.sentence)
        kind = guess if guess in (FailureKind.QUOTA, FailureKind.PERMISSION) else FailureKind.CONFIG
    return LaunchFailure(
        request_id=tag.request_id, node_type=tag.node_type, kind=kind, message=message_of(error)
    )

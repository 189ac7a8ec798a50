"""Simulate a Slurm: a controller that fails, a queue, and jobs as machines.

The port is the real `SlurmProvider`; faults are at its wire. The controller lists what it knows, so lists
lack or invent nothing, but they may be outdated, and a submission without an answer may work later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from tests.simulation.provider_cloud import LatePool, ProviderCloud

from muster.base.ids import CloudId
from muster.base.rng import Stream
from muster.cluster.model import CloudInstance, NodeKind
from muster.cluster.ports import NoticeReport
from muster.config.to_spec import NodeLaunch
from muster.errors import ProviderMisconfigured
from muster.host.call_threads import InlinePool
from muster.providers.background_calls import CallPools
from muster.providers.slurm.batch import BatchJob, JobTag, NodeOrder, job_name, tag_of
from muster.providers.slurm.provider import SlurmParts, SlurmProvider, SubmissionNotes
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.world import World
from muster.slurm.jobs import SlurmJob
from muster.slurm.wire import SlurmRefused, SlurmUnreachable, SlurmWire

CLUSTER = "simulated"
FAULTS: Mapping[str, tuple[float, float]] = {
    "controller_down": (0.005, 0.05),  # per call: no call is answered for a while
    "submit_late": (0.02, 0.2),  # per submission: no answer, and the job is queued a while later
    "list_outdated": (0.02, 0.2),  # per list: it is as it was a moment ago
    "job_waits": (0.05, 0.5),  # per job: it waits for Priority for a while
    "job_stuck": (0.01, 0.1),  # per job: it waits for Priority until the calm
    "job_never_starts": (0.01, 0.1),  # per job: PartitionConfig, until the calm
    "job_fails": (0.02, 0.2),  # per job: it fails before its node comes up
    "time_limit": (0.05, 0.4),  # per job: it ends at its limit
    "requeued": (0.002, 0.02),  # per tick: the node is gone, the job is queued again and ends at its start
}
REFUSALS = (
    "Invalid partition name specified",
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    "Access/permission denied",
    "Requested node configuration is not available",
)
OUTDATED_S = 30.0
MIN_JOB_AGE_S = 300.0
RETRY_S = 10.0


@dataclass
class SimJob:
    """What the controller knows of a job beside its machine."""

    tag: JobTag
    comment: str
    started_at: float | None = None
    ends_at: float | None = None  # its time limit, or the end of its grace
    reason: str = ""
    failed: bool = False
    requeued: bool = False


class MemoryNotes(SubmissionNotes):
    """Files that outlive the process."""

    def __init__(self) -> None:
        super().__init__(Path("/notes"))
        self._names: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._names

    def note(self, name: str) -> None:
        self._names.add(name)

    def forget(self, name: str) -> None:
        self._names.discard(name)


class FaultySlurm(SlurmWire):
    """The wire to the simulated controller."""

    def __init__(self, world: World, crash_points: CrashPoints, faults: Faults, site: SlurmCloud) -> None:
        self.crash_points = crash_points
        self._world, self._faults, self._site = world, faults, site
        self._down_until = 0.0
        self._answers: list[tuple[float, list[SlurmJob]]] = []  # of lists, oldest first

    def _reach(self) -> None:
        faults, now = self._faults, self._world.time
        if faults.hit("controller_down"):
            self._down_until = now + faults.between("controller_down", 5, 120)
        if now < self._down_until and not faults.stopped:
            raise SlurmUnreachable("simulated: unable to contact slurm controller")

    @crash_point("slurm.sbatch")
    def sbatch(self, options: Sequence[str], script: str) -> str:
        self._reach()
        faults = self._faults
        if faults.hit("launch_broken"):
            raise SlurmUnreachable("simulated: the submission broke")
        if faults.hit("launch_refused"):
            sentence = faults.stream("launch_refused").choice(REFUSALS)
            raise SlurmRefused(f"sbatch: {sentence}", sentence=sentence)
        if faults.hit("submit_late"):
            late_s = faults.between("submit_late", 1, 40)
            self._world.after(late_s, lambda: self._site.submit(options))
            raise SlurmUnreachable("simulated: socket timed out")
        job_id = self._site.submit(options)
        if faults.hit("launch_reply_lost"):
            raise SlurmUnreachable("simulated: the answer of the submission was lost")
        return job_id

    def check(self, options: Sequence[str]) -> None: ...

    def time_limits(self) -> Mapping[str, float | None]:
        return {}

    @crash_point("slurm.squeue")
    def squeue(self) -> list[SlurmJob]:
        self._reach()
        try:
            self._site.list_now()  # for its faults alone: the answer is the controller's
        except ConnectionError as error:
            raise SlurmUnreachable(str(error)) from error
        now = self._world.time
        self._answers = [one for one in self._answers if now - one[0] <= OUTDATED_S]
        if self._answers and self._faults.hit("list_outdated"):
            return self._faults.stream("list_outdated").choice(self._answers)[1]
        answer = self._site.queue()
        self._answers.append((now, answer))
        return answer

    @crash_point("slurm.scancel")
    def scancel(self, job_ids: Sequence[str]) -> None:
        self._reach()
        if self._faults.hit("terminate_refused"):
            raise SlurmRefused("scancel: Access/permission denied")
        for job_id in job_ids:
            self._site.cancel(CloudId(job_id))

    def config(self) -> Mapping[str, str]:
        return {}


class SlurmCloud(ProviderCloud):
    """The jobs of one cluster at one site."""

    id_prefix = "1"  # an id of a job begins with a digit
    provider: SlurmProvider

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.jobs: dict[CloudId, SimJob] = {}
        self._notes, self._wire = MemoryNotes(), FaultySlurm(world, crash_points, faults, self)
        self._pool = LatePool(world, faults)
        self.reconnect()

    def stop(self) -> None:
        """End the process that the provider runs in."""
        self._pool.is_dead = True

    def reconnect(self) -> None:
        self.stop()
        self._pool = LatePool(self._world, self._faults)
        parts = SlurmParts(
            wire=self._wire,
            clock=self._world,
            pools=CallPools(launch=self._pool, terminate=InlinePool(), new_listing=InlinePool),
            notes=self._notes,
            batch=self._batch,
            heads=self._heads,
            most_of_array=3,
        )
        self.provider = SlurmProvider(CLUSTER, parts)

    @crash_point("cloud.notices")
    def read(self) -> NoticeReport:
        return self.provider.read()

    def _heads(self) -> list[CloudInstance]:
        heads = (m for m in self.machines.values() if m.kind is NodeKind.HEAD)
        return [machine.shown() for machine in heads if machine.is_listed(self._world.time)]

    def _batch(self, tag: JobTag, count: int) -> BatchJob:
        known = self.sells.types.get(tag.node_type)
        if known is None:
            raise ProviderMisconfigured(f"simulated: no type {tag.node_type}")
        launch = NodeLaunch(node_type=known.name, resources={"CPU": 1.0}, launch_hash=known.launch_hash)
        order = NodeOrder(address="", node_type=known.name, resources={}, labels={}, auth={})
        return BatchJob(
            cluster_name=CLUSTER,
            launch=launch,
            tag=replace(tag, launch_hash=known.launch_hash),
            count=count,
            order=order,
            logs=Path("/logs"),
        )

    # -- the controller ---------------------------------------------------------------------------

    def submit(self, options: Sequence[str]) -> str:
        """Queue the jobs of a submission; return the id of the first."""
        given = dict(option.partition("=")[::2] for option in options)
        comment = given["--comment"]
        tag = tag_of(SlurmJob(job_id="0", state="PENDING", comment=comment))
        assert tag is not None, "as the provider writes it"
        first = ""
        for _ in range(int(given.get("--array", "0-0").rpartition("-")[2]) + 1):
            machine = self.create(tag.node_type, request=tag.request_id)
            machine.launch_hash = tag.launch_hash
            self.jobs[machine.cloud_id] = SimJob(tag, comment, reason="Priority")
            self._queue(machine)
            first = first or machine.cloud_id
        return first

    def _queue(self, machine: CloudMachine) -> None:
        job, faults = self.jobs[machine.cloud_id], self._faults
        wait_s = faults.between("job_waits", 5, 200) if faults.hit("job_waits") else 1.0
        if faults.hit("job_never_starts"):
            job.reason = "PartitionConfig"
        elif faults.hit("job_stuck"):
            job.reason = "Resources"
        else:
            job.reason = "" if wait_s == 1.0 else "Priority"
        self._world.after(wait_s, lambda: self._schedule(machine))

    def _schedule(self, machine: CloudMachine) -> None:
        job = self.jobs[machine.cloud_id]
        if not machine.exists or machine.leaving:
            return
        is_stuck = job.reason in ("PartitionConfig", "Resources") and not self._faults.stopped
        if is_stuck or self._is_full(machine):
            job.reason = job.reason or "QOSMaxJobsPerUserLimit"
            self._world.after(RETRY_S, lambda: self._schedule(machine))
            return
        job.started_at, job.reason = self._world.time, ""
        if job.requeued or self._faults.hit("job_fails"):
            job.failed = not job.requeued
            self.end(machine, "failed")
            return
        if self._faults.hit("time_limit"):
            limit_s = self._faults.between("time_limit", 100, 900)
            job.ends_at = self._world.time + limit_s
            self._world.after(limit_s, lambda: self._time_out(machine))
        self.boot(machine, self.draw_boot_s())

    def _time_out(self, machine: CloudMachine) -> None:
        if self.jobs[machine.cloud_id].ends_at is not None:
            self.end(machine, "timeout")

    def _is_full(self, machine: CloudMachine) -> bool:
        name = machine.node_type
        if self._world.time < self._sold_out_until.get(name, 0.0):
            return True
        started = [m.node_type for m in self.alive() if self._has_started(m)]
        is_full = started.count(name) >= self.sells.capacity.get(name, len(started) + 1)
        return is_full or (self.sells.quota is not None and len(started) >= self.sells.quota)

    def _has_started(self, machine: CloudMachine) -> bool:
        job = self.jobs.get(machine.cloud_id)
        return job is None or job.started_at is not None

    def cancel(self, cloud_id: CloudId) -> None:
        machine = self.machines.get(cloud_id)
        if machine is not None and cloud_id in self.jobs:
            if not self._has_started(machine) and not self._faults.hit("terminate_lost"):
                self.end(machine, "terminated")  # at once
            else:
                self._start_ending(cloud_id)

    def grace(self, machine: CloudMachine, seconds: float) -> None:
        """A job of a higher priority takes the nodes of this one in a while."""
        job = self.jobs[machine.cloud_id]
        if job.started_at is not None:
            job.ends_at = self._world.time + seconds
            self._world.after(seconds, lambda: self.end(machine, "preempted_with_notice"))

    def requeue(self, machine: CloudMachine) -> None:
        """An administrator queues a running job again; the node's program ends when it starts again."""
        job = self.jobs[machine.cloud_id]
        job.started_at, job.ends_at, job.requeued, machine.up = None, None, True, False
        self.on_gone(machine)
        self._world.after(60.0, lambda: self._schedule(machine))

    def end_shortages(self) -> None:
        super().end_shortages()
        for job in self.jobs.values():  # limits end with the faults, or the cluster never rests
            job.ends_at = None

    def queue(self) -> list[SlurmJob]:
        """Return what `squeue` shows now."""
        now = self._world.time
        known = ((m, self.jobs[m.cloud_id]) for m in self.machines.values() if m.cloud_id in self.jobs)
        return [
            self._shown(machine, job)
            for machine, job in known
            if machine.ended_at is None or now - machine.ended_at < MIN_JOB_AGE_S
        ]

    def _shown(self, machine: CloudMachine, job: SimJob) -> SlurmJob:
        now, wall = self._world.time, self._world.now()
        until = now if machine.ended_at is None else machine.ended_at
        return SlurmJob(
            job_id=machine.cloud_id,
            state=_state(machine, job),
            reason=job.reason,
            left_s=None if job.ends_at is None else max(0.0, job.ends_at - now),
            used_s=0.0 if job.started_at is None else until - job.started_at,
            starts_at=None if job.started_at is None else wall - now + job.started_at,
            submitted_at=wall - now + machine.created_at,
            name=job_name(CLUSTER),
            comment=job.comment,
        )


_ENDED = {"terminated": "CANCELLED", "timeout": "TIMEOUT", "machine_dies": "NODE_FAIL"}


def _state(machine: CloudMachine, job: SimJob) -> str:
    if machine.ended_at is not None:
        return "FAILED" if job.failed else _ENDED.get(machine.ended_how, "PREEMPTED")
    if machine.leaving:
        return "COMPLETING"
    return "PENDING" if job.started_at is None else "RUNNING"

"""A Slurm of one list: what is submitted waits, unless a test changes it. Errors are raised once."""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.clock import ManualClock
from muster.config.to_spec import NodeLaunch
from muster.errors import ProviderMisconfigured
from muster.providers.background_calls import inline_pools
from muster.providers.slurm.batch import BatchJob, NodeOrder, job_name
from muster.providers.slurm.provider import SlurmParts, SlurmProvider, SubmissionNotes
from muster.slurm.jobs import SlurmJob


class ScriptedSlurm:
    def __init__(self, clock):
        self.clock, self.jobs, self.calls = clock, {}, []
        self.errors = {}  # by command: raised by the next call
        self.loses_reply = False

    def sbatch(self, options, script):
        self._call("sbatch")
        given = dict(option.partition("=")[::2] for option in options)
        number = len(self.jobs) + 1
        last = int(given.get("--array", "0-0").partition("-")[2])
        names = [str(number)] if not last else [f"{number}_{task}" for task in range(last + 1)]
        for name in names:
            self.jobs[name] = SlurmJob(
                job_id=name, state="PENDING", name=given["--job-name"], comment=given["--comment"]
            )
        if self.loses_reply:
            self.loses_reply = False
            raise self.errors.pop("reply")
        return str(number)

    def squeue(self):
        self._call("squeue")
        return list(self.jobs.values())

    def scancel(self, job_ids):
        self._call("scancel")
        for name in job_ids:
            self.change(name, state="CANCELLED")

    def config(self):
        return {"MaxArraySize": "4"}

    def time_limits(self):
        return {}

    def check(self, options):
        self._call("check")

    def change(self, job_id, **fields):
        if job_id in self.jobs:
            self.jobs[job_id] = replace(self.jobs[job_id], **fields)

    def _call(self, name):
        self.calls.append(name)
        if name in self.errors:
            raise self.errors.pop(name)


class Site:
    """A provider over a scripted Slurm; `restart` is a new monitor."""

    def __init__(self, home):
        self.clock = ManualClock(10_000.0)
        self.wire, self._home = ScriptedSlurm(self.clock), home
        self.log_line = ""
        self.restart()

    def restart(self):
        parts = SlurmParts(
            wire=self.wire,
            clock=self.clock,
            pools=inline_pools(),
            notes=SubmissionNotes(self._home / "sent"),
            batch=self._batch,
            most_of_array=3,
            head_job=self._home / "head_job",
            log_line=lambda job_id: self.log_line,
        )
        self.provider = SlurmProvider("lab", parts)

    def _batch(self, tag, count):
        if tag.node_type != "cpu":
            raise ProviderMisconfigured(f"no type {tag.node_type}")
        order = NodeOrder(address="", node_type="cpu", resources={}, labels={}, auth={})
        launch = NodeLaunch(node_type="cpu", resources={"CPU": 1.0}, launch_hash="h")
        tag = replace(tag, launch_hash="h")
        return BatchJob(cluster_name="lab", launch=launch, tag=tag, count=count, order=order, logs=self._home)

    def listed(self, pass_s=10.0):
        self.clock.advance(pass_s)
        return self.provider.list_instances()

    def stranger(self, job_id, **fields):
        self.wire.jobs[job_id] = SlurmJob(job_id=job_id, state="RUNNING", **fields)


__all__ = ["Site", "job_name"]

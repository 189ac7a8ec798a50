"""Imported lazily: makes the provider of type `slurm` from a cluster file, and checks it before `up`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from muster.base.ids import CloudId
from muster.cluster.model import CloudInstance, NodeKind
from muster.cluster.ports import CloudProvider
from muster.config.node_launch import initialization_commands, worker_setup_commands
from muster.config.schema import ClusterConfig
from muster.config.to_spec import NodeLaunch, node_launches
from muster.errors import EngineError, ProviderMisconfigured
from muster.host.processes import is_alive
from muster.providers.background_calls import thread_pools
from muster.providers.kind import Finding, Launches, ProviderContext, Report
from muster.providers.process.records import NodeDirectory
from muster.providers.slurm.batch import BatchJob, JobTag, NodeOrder, size_options
from muster.providers.slurm.provider import SlurmParts, SlurmProvider, SubmissionNotes
from muster.providers.v1.tags import TAG_RAY_LAUNCH_CONFIG
from muster.slurm.jobs import limit_s
from muster.slurm.wire import SlurmRefused, SlurmWire, require_commands

LAUNCH_THREADS = 2
_TYPES = ("available_node_types",)


def make_provider(config: ClusterConfig, launches: Launches, context: ProviderContext) -> SlurmProvider:
    """Return the provider; the cluster's directory must be on a file system that the nodes share."""
    logs = context.home.resolve() / "slurm"
    own_job, head_job = context.environment.get("SLURM_JOB_ID", ""), logs / "head_job"
    if context.address:  # this is the head's monitor
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        head_job.write_text(own_job)
    parts = SlurmParts(
        wire=SlurmWire(),
        clock=context.clock,
        pools=thread_pools(LAUNCH_THREADS, context.clock),
        notes=SubmissionNotes(logs / "sent"),
        batch=batch_of(config, launches, context, logs),
        heads=lambda: heads_in(context.home / "nodes"),
        head_job=None if own_job else head_job,  # `muster down` in that job must not end itself
        ahead_s=config.muster.notices.ahead_s,
        log_line=NodeDirectory(logs).last_output,
    )
    return SlurmProvider(context.cluster_name, parts)


def batch_of(
    config: ClusterConfig, launches: Launches, context: ProviderContext, logs: Path
) -> Callable[[JobTag, int], BatchJob]:
    """Return what makes the submission of a launch, from the file as it is then."""
    current = context.current or (lambda: config)
    python = config.provider.settings().get("python") or sys.executable

    def batch(tag: JobTag, count: int) -> BatchJob:
        launch, now = launches().get(tag.node_type), current()
        if launch is None:
            raise ProviderMisconfigured(f"node type {tag.node_type!r} is not in available_node_types")
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        return BatchJob(
            cluster_name=context.cluster_name,
            launch=launch,
            tag=replace(tag, launch_hash=launch.launch_hash),
            count=count,
            order=NodeOrder(
                address=context.address,
                node_type=launch.node_type,
                resources=launch.resources,
                labels=launch.labels,
                auth=dict(context.auth),
            ),
            logs=logs,
            setup=(
                *initialization_commands(now, tag.node_type),
                *worker_setup_commands(now, tag.node_type),
            ),
            python=python,
        )

    return batch


def heads_in(nodes: Path) -> list[CloudInstance]:
    """Return the head that `muster up` has started on this computer."""
    if not nodes.is_dir():
        return []
    return [
        CloudInstance(
            cloud_id=CloudId(record.cloud_id),
            node_type=record.node_type,
            kind=NodeKind.HEAD,
            launch_hash=record.tags.get(TAG_RAY_LAUNCH_CONFIG, ""),
            internal_ip="" if record.ports is None else f"{record.ports.ip}:{record.ports.gcs}",
        )
        for record in NodeDirectory(nodes).records()
        if record.is_head and record.state == "running" and is_alive(record.process)
    ]


def check_site(provider: CloudProvider, config: ClusterConfig, report: Report) -> Sequence[Finding]:
    """Return what Slurm refuses of each node type that `up` may launch, without submitting a job."""
    report("asking Slurm whether it accepts the node types")
    wire = SlurmWire()
    wanted = {name: one for name, one in node_launches(config).items() if config.type_max_workers(name) > 0}
    try:
        require_commands()
        limits = wire.time_limits()
        found = {name: refusal_of(wire, launch, limits) for name, launch in wanted.items()}
    except EngineError as error:
        return [Finding(place="", problem=str(error).removesuffix(f"; {error.fix}"), fix=error.fix)]
    fix = "change it to what `sinfo -o '%P %l %D %c %m %G'` shows"
    return [
        Finding(place="Slurm", problem=f"type {name}: {problem}", fix=fix, key=(*_TYPES, name, "node_config"))
        for name, problem in found.items()
        if problem
    ]


def refusal_of(wire: SlurmWire, launch: NodeLaunch, limits: Mapping[str, float | None]) -> str:
    """Return why jobs of a type would never run; "" when they would.

    Most sites accept a time limit above the partition's, and such a job waits forever.
    """
    partition = str(launch.node_config.get("partition") or "")
    wanted_s, most_s = limit_s(str(launch.node_config.get("time") or "")), limits.get(partition)
    if wanted_s is not None and most_s is not None and wanted_s > most_s:
        return f"the time limit is above that of partition {partition}, {most_s / 60:g} minutes"
    try:
        wire.check(size_options(launch))
    except SlurmRefused as error:
        return error.sentence
    return ""

"""Turn a node type into a batch job: options of `sbatch`, script, and the comment that names it. Pure.

A job runs one Ray node. Its comment carries the launch request, so that any monitor finds the job again.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from muster.base.ids import RequestId
from muster.config.to_spec import NodeLaunch
from muster.slurm.config import OURS, gpus_in, job_options, option_name
from muster.slurm.jobs import SlurmJob, limit_s, memory_bytes

NODE_MODULE = "muster.providers.slurm.node_main"
MARK = "muster"  # the first word of a comment of ours


class JobConfig(Struct, frozen=True, kw_only=True):
    """The keys of a type's `node_config`: what a job of this type asks Slurm for."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""  # as `sbatch --time` reads it; "": the partition's default
    gres: str = ""  # "gpu:a100:2"; "": from gpus
    constraint: str = ""
    cpus: int | None = None  # None: those of `resources`
    gpus: int | None = None
    memory: str = ""  # "64G"; "": the site's default
    extra: tuple[str, ...] = ()  # further options, such as --exclusive


def resources_of(config: JobConfig) -> dict[str, float]:
    """Return what Ray counts on a node of this config, for a type that names no resources."""
    gpus = config.gpus if config.gpus is not None else gpus_in(config.gres)
    size = memory_bytes(config.memory)
    return {
        "CPU": float(config.cpus if config.cpus is not None else 1),
        **({"GPU": float(gpus)} if gpus else {}),
        **({"memory": float(int(0.7 * size))} if size else {}),  # Ray keeps the rest for its object store
    }


class JobTag(Struct, frozen=True, kw_only=True):
    """What the comment of a job says."""

    request_id: RequestId
    node_type: str
    launch_hash: str = ""
    part: int = 0  # of a launch that is larger than an array may be


def comment_of(tag: JobTag) -> str:
    """Return the comment; Slurm and shells see one word without special characters but quotes."""
    return f"{MARK}:{msgspec.json.encode(tag).decode()}"


def tag_of(job: SlurmJob) -> JobTag | None:
    """Return what the comment of a job says; None for a job of somebody else."""
    mark, _, text = job.comment.partition(":")
    try:
        return msgspec.json.decode(text, type=JobTag) if mark == MARK else None
    except msgspec.DecodeError:
        return None


def job_name(cluster_name: str) -> str:
    """Return the name that all jobs of a cluster share."""
    return f"{MARK}-{cluster_name}"


class NodeOrder(Struct, frozen=True, kw_only=True):
    """What `node_main` in a job needs to know to start the node."""

    address: str  # of the GCS
    node_type: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    auth: Mapping[str, str]


class BatchJob(Struct, frozen=True, kw_only=True):
    """One submission: `count` equal jobs."""

    cluster_name: str
    launch: NodeLaunch
    tag: JobTag
    count: int
    order: NodeOrder
    logs: Path
    setup: tuple[str, ...] = ()  # commands before the node starts
    python: str = "python3"  # the command that runs Python on a node; may be a container's

    def options(self) -> list[str]:
        """Return the options of `sbatch`; those of the user come last."""
        is_array = self.count > 1
        return [
            f"--job-name={job_name(self.cluster_name)}",
            f"--comment={comment_of(self.tag)}",
            *([f"--array=0-{self.count - 1}"] if is_array else []),
            *size_options(self.launch),
            "--no-requeue",  # a job that starts again would be a machine that nobody launched
            f"--output={self.logs}/{'%A_%a' if is_array else '%j'}.log",
            "--open-mode=append",
        ]

    def script(self) -> str:
        """Return the script: set-up commands, then the node in place of the shell."""
        order = shlex.quote(msgspec.json.encode(self.order).decode())
        lines = (f"# A node of type {self.launch.node_type} of the cluster {self.cluster_name}.", *self.setup)
        body = "\n".join(f"{line} || exit 1" if line[:1] != "#" else line for line in lines)
        return f"#!/bin/bash\n{body}\nexec {self.python} -m {NODE_MODULE} {order}\n"


def size_options(launch: NodeLaunch) -> list[str]:
    """Return the options of a node type alone, which a test submission needs, too."""
    config = msgspec.convert(dict(launch.node_config), JobConfig)
    cpus = config.cpus if config.cpus is not None else math.ceil(launch.resources.get("CPU", 1.0))
    gpus = config.gpus if config.gpus is not None else math.ceil(launch.resources.get("GPU", 0.0))
    gres = config.gres or (f"gpu:{gpus}" if gpus else None)
    return [*job_options(config, cpus=max(1, cpus), memory=config.memory, gres=gres), *config.extra]


_OURS = (*OURS, "--requeue", "--dependency", "-d")


def problems_of(node_config: Mapping[str, Any]) -> Iterator[tuple[Sequence[str | int], str]]:
    """Yield what is wrong with a node_config of the right types: the key below it, and what to write."""
    if str(node_config.get("time") or "") and limit_s(str(node_config["time"])) is None:
        yield ("time",), "is not a time limit; write minutes, hours:minutes:seconds or days-hours"
    memory = str(node_config.get("memory") or "")
    if memory and memory_bytes(memory) is None:
        yield ("memory",), "is not a size; write for example 64G"
    for number, option in enumerate(node_config.get("extra") or ()):
        name = option_name(option)
        if name in _OURS:
            yield ("extra", number), f"muster sets {name} itself; remove it"
        elif not option.startswith("-"):
            yield ("extra", number), "is not an option; write --name=value"

"""Look before anything costs money or breaks: key, programs, and on hosts SSH, ports, clock, disk, versions.

`up` runs it and refuses when something can only fail; the rest are warnings. What a host says becomes a
Probe, and `judged` is a pure function over it; each finding has a fix of one line.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import stat
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from muster.autoscaler.lifecycle.head_file import gcs_port, ray_program
from muster.autoscaler.lifecycle.open import OpenCluster
from muster.base.clock import Clock
from muster.base.untrusted import error_text, message_text
from muster.config.document import Document
from muster.config.load import LEGACY_HEAD, LEGACY_WORKER
from muster.config.node_launch import container_of, initialization_commands
from muster.config.schema import ClusterConfig
from muster.errors import MusterError
from muster.host.call_threads import in_thread
from muster.providers.kind import Finding, HeadPolicy, kind_of
from muster.providers.rack.connections import ssh_host
from muster.providers.rack.host_list import RackHost, rack_hosts
from muster.providers.rack.host_lock import HostReport, look_line, read_report
from muster.remote.container import program_of
from muster.remote.runner import CommandRunner
from muster.remote.ssh import SshRunner
from muster.runtimes.ray.native import NEWEST, RANGE, is_same_line, is_usable

PROBE_S = 30.0
MAX_SKEW_S = 30.0  # more, and leases, tokens and logs of the hosts do not agree
OLDEST_PYTHON = (3, 10)
AT_ONCE = 64


class Probe(Struct, frozen=True, kw_only=True):
    """What one host says; `error` when it says nothing."""

    error: str = ""
    report: HostReport = HostReport()
    skew_s: float = 0.0
    python: str = ""
    ray: str = ""  # its version
    has_rsync: bool = True
    ports: tuple[int, ...] = ()  # of the asked ones, those that are taken
    has_program: bool = True  # of containers
    may_use_program: bool = True
    has_image: bool = True


class ExpectedVersions(Struct, frozen=True, kw_only=True):
    """What a host must have for its part in the cluster."""

    cluster: str
    is_head: bool
    ray: str  # the version here
    has_setup: bool  # commands that may install what is missing
    has_mounts: bool
    in_container: bool
    program: str = ""  # of containers; "": none is needed
    image: str = ""
    may_be_installed: bool = False  # by initialization_commands


def judged(place: str, probe: Probe, expected: ExpectedVersions) -> list[Finding]:
    """Return what is wrong with one host; only the head's own problems are fatal, workers are skipped."""
    fatal = expected.is_head
    if probe.error:
        return [Finding(place=place, problem=probe.error, fix="see that it is on", is_fatal=fatal)]
    found = []
    why_not = probe.report.unusable(expected.cluster)
    if why_not and "this cluster" not in why_not:
        found.append((why_not, "wait until it is free, or take it off the list", fatal))
    if abs(probe.skew_s) > MAX_SKEW_S:
        fix = "set its clock, for example with `timedatectl set-ntp true`"
        found.append((f"its clock is {probe.skew_s:+.0f} s from this computer's", fix, False))
    ours = probe.report.holder is not None and probe.report.holder.cluster == expected.cluster
    for port in () if ours else probe.ports:
        found.append((f"port {port} is taken", "end what listens there, or choose another port", fatal))
    if not probe.has_rsync and expected.has_mounts:
        found.append(("it has no rsync", "`sudo apt install rsync` there", fatal))
    if expected.program:
        found += _container(probe, expected)
    if not expected.in_container:
        found += _versions(probe, expected)
    return [
        Finding(place=place, problem=problem, fix=fix, is_fatal=is_fatal) for problem, fix, is_fatal in found
    ]


def _container(probe: Probe, expected: ExpectedVersions) -> list[tuple[str, str, bool]]:
    """An image of a registry may still be pulled; one that was made on the host may not."""
    program, fatal = expected.program, expected.is_head and not expected.may_be_installed
    if not probe.has_program:
        return [(f"it has no {program}", f"`sudo apt install {program}` there", fatal)]
    if not probe.may_use_program:
        return [(f"its user may not use {program}", f"add the user to the group {program} there", fatal)]
    if not probe.has_image and expected.image.startswith("localhost/"):
        return [(f"the image {expected.image} is not there", "build it there, or fix docker.image", fatal)]
    return []


def _versions(probe: Probe, expected: ExpectedVersions) -> list[tuple[str, str, bool]]:
    """Set-up commands may still install what is missing, so that only a wrong version is certain."""
    found, fatal = [], expected.is_head and not expected.has_setup
    numbers = tuple(map(int, re.findall(r"\d+", probe.python)[:2]))
    if not numbers:
        found.append(("it has no Python", "install Python 3.10 or newer, or do it in setup_commands", fatal))
    elif numbers < OLDEST_PYTHON:
        found.append((f"its Python is {probe.python}", "muster and Ray need 3.10 or newer", fatal))
    wanted = expected.ray or f"{NEWEST[0]}.{NEWEST[1]}.*"
    if not probe.ray:
        fix = f"`pip install ray=={wanted}` there, or do it in setup_commands"
        found.append(("it has no ray where the start commands look for it", fix, fatal))
    elif not is_usable(probe.ray):
        fix = f"`pip install ray=={wanted}` there: muster works with {RANGE}"
        found.append((f"its Ray is {probe.ray}", fix, fatal))
    elif expected.ray and probe.ray != expected.ray:
        fix = f"`pip install ray=={expected.ray}` there: all nodes need the same"
        is_certain = fatal and not is_same_line(probe.ray, expected.ray)
        found.append((f"its Ray is {probe.ray}, here it is {expected.ray}", fix, is_certain))
    return found


def probe_line(lock_dir: str, ray: str, ports: Sequence[int], container: tuple[str, str] = ("", "")) -> str:
    """Return the line that prints a Probe; it changes nothing. `container` is its program and image."""
    program = shlex.quote(ray) if not ray.startswith("~/") else f'"$HOME"/{shlex.quote(ray[2:])}'
    python = f'"$(dirname -- {program})"/python' if "/" in ray else "python3"
    version = "import importlib.metadata as m, sys; print('python=%d.%d.%d' % sys.version_info[:3])"
    version += "\ntry: print('ray=' + m.version('ray'))\nexcept Exception: pass"
    hexed = "|".join(f"{port:04X}" for port in ports) or "none"
    return (
        f"{look_line(lock_dir)}\n"
        f'P={python}; command -v "$P" >/dev/null || P=python3\n'
        f'"$P" -c {shlex.quote(version)} 2>/dev/null\n'
        "command -v rsync >/dev/null && echo rsync=1\n"
        f"{_container_lines(*container)}"
        f"grep -hoE ':({hexed}) [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6 2>/dev/null | "
        "cut -c2-5 | sort -u | sed 's/^/port=/'\ntrue"
    )


def _container_lines(program: str, image: str) -> str:
    if not program:
        return ""
    return (
        f"command -v {program} >/dev/null || echo no_program=1\n"
        f"{program} ps >/dev/null 2>&1 || echo no_rights=1\n"
        f"{program} image inspect {shlex.quote(image)} >/dev/null 2>&1 || echo no_image=1\n"
    )


def read_probe(printed: str, *, now: float) -> Probe:
    """Return what `probe_line` printed."""
    lines = [line.partition("=") for line in printed.splitlines()]
    found = {key: value for key, _, value in lines}
    report = read_report(printed)
    taken = [
        int(value, 16) for key, _, value in lines if key == "port" and re.fullmatch("[0-9A-F]{4}", value)
    ]
    return Probe(
        report=report,
        skew_s=report.now - now,
        python=found.get("python", ""),
        ray=found.get("ray", ""),
        has_rsync="rsync" in found,
        ports=tuple(taken),
        has_program="no_program" not in found,
        may_use_program="no_rights" not in found,
        has_image="no_image" not in found,
    )


def here(config: ClusterConfig, *, needs_ssh: bool = True) -> list[Finding]:
    """Return what is wrong on this computer: programs, key, files to copy."""
    found = []
    for name in ("ssh", "rsync") if needs_ssh else ():
        if shutil.which(name) is None:
            package = "openssh-client" if name == "ssh" else name
            found.append(Finding(place="", problem=f"{name} is missing", fix=f"`sudo apt install {package}`"))
    keys = {config.auth.ssh_private_key, *(host.ssh_private_key for host in config.provider.hosts)}
    for key in sorted(filter(None, keys)) if needs_ssh else ():
        is_made = kind_of(config).makes_key and not Path(key).expanduser().exists()  # by `up`, then
        found += [] if is_made else _key_findings(key)
    for there, local in config.file_mounts.items():
        if not Path(local).expanduser().exists():
            problem = f"file_mounts: {local} (for {there}) is not here"
            found.append(Finding(place="", problem=problem, fix="create it, or remove the entry"))
    return found


def _key_findings(key: str) -> list[Finding]:
    path = Path(key).expanduser()
    try:
        found = path.stat()
    except OSError as error:
        problem = f"the key {key} cannot be read ({(error.strerror or str(error)).lower()})"
        return [Finding(place="", problem=problem, fix="fix auth.ssh_private_key, or make a key")]
    if not stat.S_ISREG(found.st_mode) or not os.access(path, os.R_OK):
        problem = f"the key {key} is not a file that you may read"
        return [Finding(place="", problem=problem, fix="fix auth.ssh_private_key, or its permissions")]
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077 and found.st_uid == os.getuid():
        problem = f"the key {key} can be read by others (mode {mode:o}), so ssh refuses it"
        return [Finding(place="", problem=problem, fix=f"`chmod 600 {shlex.quote(key)}`")]
    return []


def ray_version() -> str:
    """Return the version of Ray on this computer, which need not have it; "" then."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return ""


async def preflight(session: OpenCluster) -> list[Finding]:
    """Return everything that is wrong, this computer's first; hosts are asked side by side."""
    config, kind, report = session.config, session.kind, session.context.report
    if kind.preflight is not None:
        said = await asyncio.to_thread(kind.preflight, session.port, config, lambda step: report("", step))
        found = here(config, needs_ssh=not session.port.has_own_runner())
        return [*found, *(_with_line(one, session.file) for one in said)]
    if kind.head is not HeadPolicy.HOST:
        found = here(config, needs_ssh=not session.port.has_own_runner())
        return [*found, *await _ask_provider(session)]
    found = here(config)
    if any(one.is_fatal for one in found):
        return found  # no host could be reached without them
    session.context.report("", "checking hosts: ports, clocks, disks and versions")
    gate = asyncio.Semaphore(AT_ONCE)
    hosts = rack_hosts(config)
    asked = await asyncio.gather(*(_probe_host(session, host, gate) for host in hosts.values()))
    for host, probe in zip(hosts.values(), asked, strict=True):
        found += judged(host.ip, probe, _expected(config, host.node_type, is_head=host.is_head))
    workers = [ip for ip, host in hosts.items() if not host.is_head]
    usable = set(workers) - {one.place for one in found}
    if workers and not usable:
        found.append(Finding(place="", problem="no worker can be used", fix="see above", is_fatal=False))
    return found


def _with_line(finding: Finding, file: Path) -> Finding:
    if not finding.key:
        return finding
    old = {
        LEGACY_HEAD: ("head_node",),
        LEGACY_WORKER: ("worker_nodes",),
    }  # the types of files in the old form
    line = Document.load(file).line(old.get(finding.key[1], finding.key))
    return replace(finding, place=f"{file}:{line}")


async def _ask_provider(session: OpenCluster) -> list[Finding]:
    """Return what is wrong with a user's own class: whether it lists machines, and what a head says."""
    session.context.report("", "asking the provider for its machines")
    provider = session.config.provider
    name = f"{provider.module or provider.type}.non_terminated_nodes"
    try:
        head = await asyncio.wait_for(in_thread(session.head), PROBE_S)
    except (TimeoutError, asyncio.TimeoutError):
        problem, fix = f"{name} has not answered within {PROBE_S:g} s", "see that your cloud can be reached"
        return [Finding(place="", problem=problem, fix=fix)]
    except Exception as error:  # noqa: BLE001 - a provider may raise anything
        fix = "fix its settings and rights; `muster provider check` tries every call"
        return [Finding(place="", problem=f"{name} failed: {error_text(error)}", fix=fix)]
    if head is None:
        return []
    line = probe_line("/tmp", ray_program(session.config.head_start_ray_commands), ())
    probe = await probed(session.runner(head.node_id), line, session.context.clock)
    found = judged(head.ip, probe, _expected(session.config, session.config.head_type, is_head=True))
    return [replace(one, is_fatal=False) for one in found]  # it runs already, or boots: `up` waits for it


def _expected(config: ClusterConfig, node_type: str, *, is_head: bool) -> ExpectedVersions:
    commands = config.head_setup_commands if is_head else config.worker_setup_commands
    container = container_of(config, node_type, is_head=is_head)
    return ExpectedVersions(
        cluster=config.cluster_name,
        is_head=is_head,
        ray=ray_version(),
        has_setup=bool(commands or config.initialization_commands),
        has_mounts=bool(config.file_mounts or config.cluster_synced_files),
        in_container=bool(config.docker.container_name),
        program="" if container is None else program_of(container),
        image="" if container is None else container.image,
        may_be_installed=bool(initialization_commands(config, node_type)),
    )


async def _probe_host(session: OpenCluster, host: RackHost, gate: asyncio.Semaphore) -> Probe:
    config, clock = session.config, session.context.clock
    commands = config.head_start_ray_commands if host.is_head else config.worker_start_ray_commands
    ports = (gcs_port(commands),) if host.is_head else ()
    wanted = _expected(config, host.node_type, is_head=host.is_head)
    line = probe_line(config.provider.lock_dir, ray_program(commands), ports, (wanted.program, wanted.image))
    pins = session.home.path / "known_hosts"
    pins.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with gate:
        runner = SshRunner(ssh_host(host, pins, is_strict=config.auth.strict_host_keys))
        return await probed(runner, line, clock)


async def probed(runner: CommandRunner, line: str, clock: Clock) -> Probe:
    """Return what a host says; a host that says nothing is a Probe with the reason."""
    try:
        began = clock.now()
        printed = await runner.run(line, timeout_s=PROBE_S)
        return read_probe(printed, now=(began + clock.now()) / 2)
    except (TimeoutError, asyncio.TimeoutError):
        return Probe(error=f"it did not answer within {PROBE_S:g} s")
    except MusterError as error:
        return Probe(error=message_text(error))

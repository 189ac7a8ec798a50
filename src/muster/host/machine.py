"""Report what this machine and this process are like: CPUs, GPUs, memory, environment, address.

The only file of the engines that reads the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a huge number


def environment() -> MutableMapping[str, str]:
    """Return the environment of this process: trials must see the driver's, and their own GPUs."""
    return os.environ  # noqa: TID251 - the one place


def answers_for_ray() -> bool:
    """Return whether `import ray` finds muster in this process (`muster.as_ray`)."""
    return environment().get("MUSTER_AS_RAY", "0") not in ("", "0")


def boot_code(module: str) -> str:
    """Return the text for `python -c` that runs `main` of a module; its first argument is `sys.path`."""
    path = "import sys; sys.path[:] = sys.argv[1].split(chr(10))"
    return f"{path}; from {module} import main; main()"


def gpu_ids() -> tuple[str, ...]:
    """Return the usable GPUs: those of CUDA_VISIBLE_DEVICES when it is set, otherwise all."""
    visible = environment().get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    try:
        count = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return ()
    return tuple(str(number) for number in range(count))


def cpu_count() -> int:
    """Return the processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allow_open_files(count: int) -> int:
    """Raise the soft limit on open files of this process to `count` where it may; returns what it allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return count if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        return soft
    return most


def memory_bytes() -> int:
    """Return physical memory, or the limit of the control group when that is less; 0 when unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(file).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            total = min(total, int(text))
    return total


_declared: list[tuple[Mapping[str, float], Mapping[str, str]]] = [({}, {})]


def declare(capacity: Mapping[str, float], variables: Mapping[str, str]) -> None:
    """Override what is detected of this machine, and add to the environment of child processes."""
    _declared[0] = (dict(capacity), dict(variables))


def detected_capacity() -> dict[str, float]:
    """Return CPU, GPU and memory of this machine, or what was declared of them."""
    found: dict[str, float] = {"CPU": float(cpu_count())}
    if gpus := gpu_ids():
        found["GPU"] = float(len(gpus))
    if memory := memory_bytes():
        found["memory"] = float(memory)
    return {**found, **_declared[0][0]}


def oom_kills() -> int:
    """Return how often the kernel has killed here for lack of memory: a growing counter; 0 when unknown."""
    own = _cgroup_path()
    files = (
        f"/sys/fs/cgroup{own}/memory.events",
        "/sys/fs/cgroup/memory.events",
        "/sys/fs/cgroup/memory/memory.oom_control",
        "/proc/vmstat",
    )
    return sum(_counter(_read(file)) for file in dict.fromkeys(files))


def _counter(text: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return 0


def _cgroup_path() -> str:
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:].strip().rstrip("/")
    return ""


class ProcessActivity(NamedTuple):
    """What a process does at the moment."""

    can_run: bool  # neither stopped nor traced nor stuck in the kernel
    cpu_s: float  # processor time so far
    is_stopped: bool = False  # by a signal (SIGSTOP)
    is_traced: bool = False  # stopped by a debugger


def process_activity(pid: int) -> ProcessActivity | None:
    """Return what a process does; None when it has ended, or this user may not see it."""
    import psutil  # after the first results: importing it takes 10 ms

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status, times = process.status(), process.cpu_times()
    except (psutil.Error, OSError):
        return None
    if status == psutil.STATUS_ZOMBIE:
        return None
    stuck = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_DISK_SLEEP)
    return ProcessActivity(
        status not in stuck,
        times.user + times.system,
        is_stopped=status == psutil.STATUS_STOPPED,
        is_traced=status == psutil.STATUS_TRACING_STOP,
    )


def process_age_s() -> float:
    """Return how long this process has existed; 0 where the system does not say."""
    stat, uptime = _read("/proc/self/stat"), _read("/proc/uptime")
    ticks = int(stat.rpartition(")")[2].split()[19]) if stat else 0
    return max(0.0, float(uptime.split()[0]) - ticks / os.sysconf("SC_CLK_TCK")) if uptime else 0.0


def node_ip() -> str:
    """Return the address at which other machines reach this one; reads the routing table, send nothing."""
    import socket  # here, because the processes of trials do not need it

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def program() -> str:
    """Return what a shell of this user runs this `muster` with: its name, its path, or `python -m muster`.

    An environment that is not activated has its scripts in a directory that the shell does not search.
    """
    import shlex
    import shutil
    import sysconfig

    name, python = os.path.join(sysconfig.get_path("scripts"), "muster"), sys.executable
    found = shutil.which("muster")
    if found is not None and os.path.realpath(found) == os.path.realpath(name):
        return "muster"
    near = os.path.relpath(name, working_directory())
    if os.path.isfile(name):
        return shlex.quote(name if near.startswith(os.pardir) else near)
    return f"{shlex.quote(python)} -m muster"


def working_directory() -> str:
    """Return the current directory; the root when it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.path.sep


def note_working_directory() -> None:
    """Record the driver's directory for trials, which work in their own."""
    environment().setdefault("TUNE_ORIG_WORKING_DIR", working_directory())


def hostname() -> str:
    import socket

    return socket.gethostname()


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of helper and trial processes."""
    return {**environment(), "PL_DISABLE_FORK": "1", **_declared[0][1], **extra}


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's mallopt


def give_memory_back(at_least: int = 1_000_000) -> None:
    """Make this process return large pieces of memory when they are freed, where the C library is glibc's.

    By itself it keeps pieces of up to 32 MB for later, and some for each thread.
    """
    import contextlib
    import ctypes  # for servers only: a trial's start must not wait for it

    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, at_least)
        library.mallopt(_M_ARENA_MAX, 2)

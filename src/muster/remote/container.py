"""Run commands in a container of a machine, with the `docker` or the `podman` command line over there.

`ContainerRunner` wraps the runner of the machine and is used wherever that one is. Files go to a directory of
the machine first: directories of `file_mounts` are mounted from there, all else is copied into the container.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from muster.config.node_launch import Container
from muster.errors import CommandFailed, RemoteError
from muster.remote.runner import COMMAND_S, SYNC_S, CommandRunner, RunWhere
from muster.remote.ssh_command import COMMAND_ID, END_TRAP, checked_names

PULL_S = 3600.0
STAGING = ".muster/mounts"  # in the HOME of the machine: others may write to its /tmp
OBJECT_STORE_SHARE = 0.3  # of the memory that is free, which is what Ray takes for its object store
SHM_MARGIN = 1.1
_CONTAINER_PROGRAMS = ("docker", "podman")
_PROBLEMS = (
    (
        r"permission denied.*docker\.sock|connect to the Docker daemon socket",
        "the user may not use docker there: add it to the group docker in initialization_commands",
    ),
    (
        r"Cannot connect to the Docker daemon|Is the docker daemon running",
        "docker does not run there: start it in initialization_commands",
    ),
    (
        r"(?:docker|podman): (?:command )?not found",
        "{program} is not there: install it in initialization_commands",
    ),
    (
        r"manifest unknown|not found: manifest|pull access denied|requested access to the resource is denied",
        "the image {image} is not in its registry, or needs a login: check docker.image",
    ),
    (r"executable file `?bash", "the image {image} has no bash: Ray's commands need one"),
)


class ContainerRunner(CommandRunner):
    """Implements CommandRunner in a container of the machine that `inner` reaches."""

    def __init__(self, inner: CommandRunner, container: Container, *, login_shell: bool = False) -> None:
        self._inner, self._container, self._login_shell = inner, container, login_shell
        self._program = program_of(container)
        self._home: str | None = None  # of the container
        self._host_home: str | None = None
        self._to_copy: dict[str, bool] = {}  # targets that came before the container did: is a directory

    async def run(
        self,
        command: str,
        *,
        environment: Mapping[str, str] = {},
        secrets: Mapping[str, str] = {},
        where: RunWhere = RunWhere.AUTO,
        **options: Any,  # noqa: ANN401 - passed on
    ) -> str:
        """Run a line of bash; `AUTO` is in the container, except for docker's own commands."""
        if goes_to_container(command, where):
            names = (COMMAND_ID, *checked_names(environment), *checked_names(secrets))
            command = exec_line(self._program, self._container.name, command, names, self._login_shell)
        return await self._inner.run(
            command, environment=environment, secrets=secrets, where=RunWhere.HOST, **options
        )

    async def prepare(self, *, as_head: bool, file_mounts: Mapping[str, str], is_synced: bool) -> bool:
        """Start the container unless it runs with what it needs; returns whether it is a new one."""
        try:
            return await self._prepare(file_mounts, is_synced=is_synced, is_kept=as_head)
        except CommandFailed as error:
            raise explained(error, self._program, self._container.image) from error

    async def sync_up(self, source: str, target: str, *, timeout_s: float = SYNC_S, **options: Any) -> None:  # noqa: ANN401 - passed on
        """Copy a file or a directory into the container, or to where it will be mounted or copied from."""
        is_directory = os.path.isdir(os.path.expanduser(source))
        await self._inner.sync_up(source, await self._staged(target), timeout_s=timeout_s, **options)
        running = await self._running()
        if running is None:
            self._to_copy[target] = is_directory
        else:
            await self._copy_in(target, is_directory, running, timeout_s)

    async def sync_down(self, source: str, target: str, *, timeout_s: float = SYNC_S) -> None:
        """Copy from the container; as in rsync, `/` at the end of `source` means a directory's contents."""
        inside = await self._in_container(source.rstrip("/") or "/")
        folder, name = posixpath.split(inside)
        staged = await self._staged("", "down")
        there = posixpath.join(staged, name)
        pack = self._exec(f"tar -C {shlex.quote(folder)} -cf - -- {shlex.quote(name)}")
        fresh = f"rm -rf -- {shlex.quote(there)} && mkdir -p -- {shlex.quote(staged)}"
        await self._on_host(
            f"set -o pipefail; {fresh} && {pack} | tar -C {shlex.quote(staged)} -xf -", timeout_s
        )
        try:
            await self._inner.sync_down(
                there + ("/" if source.endswith("/") else ""), target, timeout_s=timeout_s
            )
        finally:
            await self._on_host(f"rm -rf -- {shlex.quote(there)}")

    def shell(self, command: str = "", *, forward: Sequence[tuple[int, int]] = ()) -> list[str]:
        """Return the arguments of a process that is the user's terminal in the container."""
        last = f" -c {shlex.quote(command)}" if command else ""
        enter = f"{self._program} exec -it {shlex.quote(self._container.name)} bash --login -i{last}"
        return self._inner.shell(enter, forward=forward)

    async def close(self) -> None:
        await self._inner.close()

    # ---- the container

    async def _prepare(self, file_mounts: Mapping[str, str], *, is_synced: bool, is_kept: bool) -> bool:
        await self._on_host(
            f"command -v {self._program} >/dev/null || {{ echo {self._program}: not found; exit 127; }}"
        )
        await self._on_host(pull_line(self._program, self._container), PULL_S)
        folders = [there for there, here in file_mounts.items() if os.path.isdir(os.path.expanduser(here))]
        mounts = {await self._in_container(there): await self._staged(there) for there in folders}
        running = await self._running()
        if running is not None and mounts.keys() <= running.keys():
            return False
        name = shlex.quote(self._container.name)
        # Killed first: podman's `rm -f` gives it ten seconds to end by itself, which no bash does.
        await self._on_host(
            f"{{ {self._program} kill {name}; {self._program} rm -f {name}; }} >/dev/null 2>&1; true"
        )
        made = " ".join(shlex.quote(path) for path in mounts.values())
        options = await self._detected_options()
        argv = run_arguments(self._program, self._container, mounts, options, is_kept=is_kept)
        await self._on_host((f"mkdir -p -- {made} && " if made else "") + shlex.join(argv))
        running = await self._running() or {}
        for target, is_directory in self._to_copy.items() if is_synced else ():
            await self._copy_in(target, is_directory, running, SYNC_S)
        self._to_copy = {} if is_synced else self._to_copy
        return True

    async def _detected_options(self) -> Sequence[str]:
        """Return what the machine allows: a GPU runtime, and shared memory for the object store."""
        given = " ".join(self._container.run_options)
        found = []
        if self._container.detect_runtime and "--runtime" not in given and not self._container.use_podman:
            runtimes = f"{self._program} info -f '{{{{json .Runtimes}}}}' 2>/dev/null"
            asked = await self._on_host(f"nvidia-smi >/dev/null 2>&1 && {runtimes} || true")
            found += ["--runtime=nvidia"] if '"nvidia' in asked else []
        if self._container.detect_shm_size and "--shm-size" not in given:
            size = shm_bytes(await self._on_host("cat /proc/meminfo 2>/dev/null || true"))
            found += [f"--shm-size={size}b"] if size else []
        return found

    async def _running(self) -> dict[str, str] | None:
        """Return the mounts of the running container, target to source; None: none of this image runs."""
        name = shlex.quote(self._container.name)
        line = f"{self._program} inspect --type container {name} 2>/dev/null || true"
        try:
            [found] = json.loads(await self._on_host(line) or "[]")
            if not found["State"]["Running"] or not _is_of(found, self._container.image):
                return None
            return {mount["Destination"]: mount.get("Source", "") for mount in found.get("Mounts") or ()}
        except (ValueError, KeyError, TypeError):
            return None

    async def _copy_in(
        self, target: str, is_directory: bool, mounts: Mapping[str, str], timeout_s: float
    ) -> None:
        """Copy what was staged into the running container, as its user, unless it is mounted there."""
        inside, staged = await self._in_container(target.rstrip("/")), await self._staged(target)
        if is_directory and inside in mounts:
            return
        here, there = (
            (staged, inside) if is_directory else (posixpath.dirname(staged), posixpath.dirname(inside))
        )
        what = "." if is_directory else posixpath.basename(staged)
        unpack = f"mkdir -p -- {shlex.quote(there)} && tar -C {shlex.quote(there)} -xof -"
        pack = f"tar -C {shlex.quote(here)} -cf - -- {shlex.quote(what)}"
        await self._on_host(f"set -o pipefail; {pack} | {self._exec(unpack)}", timeout_s)

    async def _in_container(self, path: str) -> str:
        """Return a path with the container's HOME in place of `~`."""
        if path != "~" and not path.startswith("~/"):
            return path
        if self._home is None:
            line = home_line(self._program, self._container)
            self._home = (await self._on_host(line)).strip() or "/root"
        return self._home + path[1:]

    async def _staged(self, target: str, way: str = "up") -> str:
        """Return where on the machine a file of the container is put first."""
        if self._host_home is None:
            self._host_home = (await self._on_host('echo "$HOME"')).strip()
        return posixpath.join(self._host_home, STAGING, self._container.name, way, target.strip("/"))

    def _exec(self, line: str) -> str:
        return f"{self._program} exec -i {shlex.quote(self._container.name)} sh -c {shlex.quote(line)}"

    async def _on_host(self, line: str, timeout_s: float = COMMAND_S) -> str:
        return await self._inner.run(line, timeout_s=timeout_s, where=RunWhere.HOST)


def program_of(container: Container) -> str:
    return "podman" if container.use_podman else "docker"


def goes_to_container(command: str, where: RunWhere) -> bool:
    """Return where a command runs.

    Example:
        >>> [goes_to_container(line, RunWhere.AUTO) for line in ("ray start", "docker ps", "")]
        [True, False, False]
    """
    if where is not RunWhere.AUTO:
        return where is RunWhere.CONTAINER
    first = command.split(maxsplit=1)[:1]
    return bool(first) and first[0] not in _CONTAINER_PROGRAMS


def exec_line(program: str, name: str, command: str, variables: Sequence[str], login_shell: bool) -> str:
    """Return the line that runs a command in a container; variables go by name, not by value."""
    passed = " ".join(f"-e {variable}" for variable in variables)
    bash = "bash --login -i" if login_shell else "bash"
    body = f"{END_TRAP}\n{command}" if COMMAND_ID in variables else command
    return f"{program} exec -i {passed} {shlex.quote(name)} {bash} -c {shlex.quote(body)}"


def home_line(program: str, container: Container) -> str:
    """Return the line that prints HOME in the container, or in one that the image would give."""
    name, image, ask = shlex.quote(container.name), shlex.quote(container.image), "sh -c 'echo \"$HOME\"'"
    listed = f"{program} image inspect -f '{{{{range .Config.Env}}}}{{{{println .}}}}{{{{end}}}}' {image}"
    return (
        f"{program} exec {name} {ask} 2>/dev/null || {listed} | sed -n 's/^HOME=//p' | grep . || "
        f"{program} run --rm {image} {ask}"
    )


def pull_line(program: str, container: Container) -> str:
    """Return the line that gets the image; one that is there already is used when it cannot be pulled."""
    image = shlex.quote(container.image)
    have = f"{program} image inspect {image} >/dev/null 2>&1"
    if container.image.startswith("localhost/"):  # what podman calls images that were made there
        return (
            f"{have} || {{ echo the image {image} is not there: build it, or check docker.image; exit 1; }}"
        )
    if container.pull_before_run:
        return f"{program} pull -q {image} || {have}"
    return f"{have} || {program} pull -q {image}"


def run_arguments(
    program: str,
    container: Container,
    mounts: Mapping[str, str],
    detected: Sequence[str],
    *,
    is_kept: bool = False,
) -> list[str]:
    """Return the arguments that start a container; `mounts`: path in it to path on the machine.

    The head's `is_kept` when it stops, so that it can be started again after a reboot.
    """
    volumes = [part for inside, outside in mounts.items() for part in ("-v", f"{outside}:{inside}")]
    options = [word for option in container.run_options for word in shlex.split(option)]
    language = ["-e", "LC_ALL=C.UTF-8", "-e", "LANG=C.UTF-8"]
    kept = [] if is_kept else ["--rm"]
    start = [program, "run", *kept, "--name", container.name, "-d", "-it", *volumes, *language]
    return [*start, *detected, *options, "--net=host", container.image, "bash"]


def shm_bytes(meminfo: str) -> int:
    """Return the shared memory for Ray's object store, from /proc/meminfo; 0 when that says nothing.

    Example:
        >>> shm_bytes("MemAvailable:    1000 kB")
        337920
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(int(found[1]) * 1024 * OBJECT_STORE_SHARE * SHM_MARGIN) if found else 0


def _is_of(found: Mapping[str, Any], image: str) -> bool:
    """Return whether a container is of this image; podman puts the registry before the name."""
    name = str(found.get("ImageName") or (found.get("Config") or {}).get("Image") or image)
    return f"/{name}".removesuffix(":latest").endswith(f"/{image}".removesuffix(":latest"))


def explained(error: CommandFailed, program: str, image: str) -> RemoteError:
    """Return the error with the fix, where docker's own words are known."""
    text = "\n".join((str(error), *error.last_lines))
    for pattern, fix in _PROBLEMS:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            sentence = f"{error}; {fix.format(program=program, image=image)}"
            return CommandFailed(sentence, exit_code=error.exit_code, last_lines=error.last_lines)
    return error

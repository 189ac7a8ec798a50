"""Install the muster that runs here on a host, over its command runner; what is there already is left alone.

Called by the launcher once the head can run commands. The commands are made by pure functions; nothing here
knows SSH. Needs on the host: a shell and Python 3.10 or newer with `venv`.
"""

from __future__ import annotations

import asyncio
import inspect
import platform
import shlex
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

import muster
from muster.errors import CommandFailed, RemoteError
from muster.remote.runner import COMMAND_S, CommandRunner
from muster.remote.wheels import (
    DISTRIBUTION,
    closure,
    muster_wheel,
    package_digest,
    repacked,
    running_digest,
    source_tree,
)

INSTALL_S = 900.0  # numpy and Ray over a slow line
OLDEST = (3, 10)
_MARK = "muster-host-python "  # a login shell may print lines before it


class HostPython(Struct, frozen=True, kw_only=True):
    """One Python of a host and the muster that it has, as the host reports them."""

    executable: str
    version: tuple[int, int]
    platform: str
    home: str
    muster_version: str = ""  # "": none
    digest: str = ""
    has_ray: bool = False


class InstallRequest(Struct, frozen=True, kw_only=True):
    """Names the place of muster on a host, and the extras that must work there."""

    directory: str  # the cluster's directory on the host, may begin with ~/; gets `venv` and `wheels`
    python: str = "python3"  # makes the venv; with `is_own_venv` False muster goes into this one
    is_own_venv: bool = True
    extras: tuple[str, ...] = ("ray",)
    index: bool = True  # False: the host reaches no package index, which need not be tried
    cache: Path = Path("~/.muster/wheels")  # here: wheels of dependencies, made once


class InstalledMuster(Struct, frozen=True, kw_only=True):
    """The Python of a host that runs our version; `source` says how it got there."""

    python: str
    source: str  # "there already", "its own packages", "the package index", "wheels of this computer"


def probe_command(python: str) -> str:
    """Return the line of bash that prints a HostPython; prints nothing when there is no such Python."""
    script = f"""
import importlib.util, json, os, sys, sysconfig
{inspect.getsource(package_digest)}
spec = importlib.util.find_spec("muster")
found = {{"executable": sys.executable, "version": sys.version_info[:2], "platform": sysconfig.get_platform(),
    "home": os.path.expanduser("~"), "has_ray": importlib.util.find_spec("ray") is not None}}
if spec and spec.origin:
    found["digest"] = package_digest(os.path.dirname(spec.origin))
    text = open(spec.origin).read()
    found["muster_version"] = text.partition('__version__ = "')[2].partition('"')[0]
print({_MARK!r} + json.dumps(found))
"""
    return f"command -v {in_home(python)} >/dev/null || exit 0; {in_home(python)} -c {shlex.quote(script)}"


def parse_probe(output: str) -> HostPython | None:
    """Return what the probe printed; None when that Python is not there."""
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    return msgspec.json.decode(lines[-1][len(_MARK) :], type=HostPython) if lines else None


def has_ours(found: HostPython | None, *, digest: str, is_release: bool) -> bool:
    """Return whether that Python has the muster that runs here.

    Of a release the version is enough; while muster is worked on, its version says nothing.
    """
    if found is None or found.muster_version != muster.__version__:
        return False
    return is_release or found.digest == digest


def venv_command(python: str, venv: str) -> str:
    """Return the line that makes a venv which sees the packages of `python`, its venv included."""
    quoted, base = in_home(venv), in_home(python)
    paths = (
        "import sys, sysconfig; print(sysconfig.get_path('purelib') if sys.prefix != sys.base_prefix else '')"
    )
    own = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return (
        f"{{ {quoted}/bin/python -m pip --version >/dev/null 2>&1 || "
        f"{base} -m venv --clear --system-site-packages {quoted}; }} && "
        f'{base} -c "{paths}" > "$({quoted}/bin/python -c "{own}")"/muster-base.pth'
    )


def pip_command(python: str, *arguments: str, index: bool) -> str:
    """Return one call of pip; with an index that does not answer it ends soon."""
    options = [
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        "--no-warn-script-location",
        "--no-compile",
    ]
    options += ["--retries", "1", "--timeout", "10"] if index else ["--no-index"]
    words = ["-m", "pip", "install", *options, *arguments]
    return " ".join([in_home(python), *map(shlex.quote, words)])


def fits(found: HostPython) -> str:
    """Return why wheels of this computer do not run there; "" when they do."""
    here = (tuple(map(int, platform.python_version_tuple()[:2])), sysconfig.get_platform())
    if (found.version, found.platform) == here:
        return ""
    return (
        f"the host reaches no package index, and the wheels of this computer (Python {_dotted(here[0])}, "
        f"{here[1]}) do not fit its Python {_dotted(found.version)}, {found.platform}: let it reach an "
        f"index, or give it the same Python"
    )


def in_home(path: str) -> str:
    """Return a path for the shell: quoted, except a first `~`, which is the user's home there."""
    return '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


class MusterInstaller:
    """Puts the running muster on one host."""

    def __init__(
        self,
        runner: CommandRunner,
        request: InstallRequest,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._runner, self._request, self._report = runner, request, report

    async def run(self) -> InstalledMuster:
        """Return the Python that runs our version. Raises RemoteError with what the host lacks."""
        digest, is_release = running_digest(), source_tree() is None
        own = (f"{self._request.directory}/venv/bin/python",) if self._request.is_own_venv else ()
        for candidate in dict.fromkeys((*own, self._request.python)):
            found = await self._probe(candidate)
            if found is None or not has_ours(found, digest=digest, is_release=is_release):
                continue
            if found.has_ray or "ray" not in self._request.extras:
                return InstalledMuster(python=found.executable, source="there already")
        base = await self._probe(self._request.python)
        self._check(base)
        assert base is not None
        python = await self._environment(base)
        source = await self._install(python, base)
        found = await self._probe(python)
        if not has_ours(found, digest=digest, is_release=False):
            raise RemoteError(
                f"muster {muster.__version__} was installed into {python}, which still has another one: "
                f"remove {self._request.directory}/venv there and try again"
            )
        return InstalledMuster(python=python, source=source)

    async def _probe(self, python: str) -> HostPython | None:
        return parse_probe(await self._runner.run(probe_command(python)))

    def _check(self, base: HostPython | None) -> None:
        oldest = _dotted(OLDEST)
        if base is None:
            raise RemoteError(
                f"there is no {self._request.python} on the host: install Python {oldest} or newer, "
                "or name another"
            )
        if base.version < OLDEST:
            raise RemoteError(
                f"{self._request.python} on the host is Python {_dotted(base.version)}: muster needs "
                f"{oldest} or newer"
            )

    async def _environment(self, base: HostPython) -> str:
        if not self._request.is_own_venv:
            return base.executable
        folder = _absolute(self._request.directory, base.home)
        self._report("making a Python environment for muster")
        try:
            await self._run_there(venv_command(base.executable, f"{folder}/venv"))
        except CommandFailed as error:
            version = _dotted(base.version)
            raise RemoteError(
                f"{base.executable} on the host cannot make a venv ({_last(error)}): on Debian or Ubuntu, "
                f"`sudo apt install python{version}-venv` there"
            ) from error
        return f"{folder}/venv/bin/python"

    async def _install(self, python: str, base: HostPython) -> str:
        """Install muster, then what it needs: from the host's packages, an index, or this computer."""
        place = f"{_absolute(self._request.directory, base.home)}/wheels"
        cache = self._request.cache.expanduser()
        self._report(f"copying muster {muster.__version__}")
        wheel = await asyncio.to_thread(muster_wheel, cache)
        await self._send([wheel.path], place)
        ours = f"{place}/{wheel.path.name}"
        await self._pip(python, "--no-deps", "--force-reinstall", ours, index=False)
        wanted = f"{DISTRIBUTION}[{','.join(self._request.extras)}]=={wheel.version}"
        try:
            await self._pip(python, wanted, index=False)
            return "its own packages"
        except CommandFailed:
            pass
        if self._request.index:
            self._report("installing what muster needs from the package index")
            try:
                await self._pip(python, wanted, index=True)
                return "the package index"
            except (CommandFailed, TimeoutError):
                self._report("the host reaches no package index")
        return await self._from_here(python, base, wanted, place)

    async def _from_here(self, python: str, base: HostPython, wanted: str, place: str) -> str:
        problem = fits(base)
        if problem:
            raise RemoteError(problem)
        self._report("copying what muster needs from this computer")
        cache, names = self._request.cache.expanduser(), closure(self._request.extras)
        made = await asyncio.to_thread(lambda: [repacked(name, cache).path for name in names])
        await self._send(made, place)
        try:
            await self._pip(python, "--find-links", place, wanted, index=False)
        except CommandFailed as error:
            raise RemoteError(
                f"what muster needs could not be installed on the host: {_last(error)}"
            ) from error
        return "wheels of this computer"

    async def _send(self, files: Sequence[Path], place: str) -> None:
        await self._runner.run(f"mkdir -p {shlex.quote(place)}")
        for file in files:
            await self._runner.sync_up(str(file), f"{place}/{file.name}")

    async def _pip(self, python: str, *arguments: str, index: bool) -> None:
        await self._run_there(pip_command(python, *arguments, index=index), INSTALL_S)

    async def _run_there(self, line: str, timeout_s: float = COMMAND_S) -> None:
        """Run a line whose temporary files are in the cluster's directory: they are removed with it."""
        scratch = in_home(f"{self._request.directory}/tmp")
        await self._runner.run(
            f"mkdir -p {scratch} && export TMPDIR={scratch} && {line}", timeout_s=timeout_s
        )


def _absolute(path: str, home: str) -> str:
    return f"{home}/{path[2:]}" if path.startswith("~/") else path


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _last(error: CommandFailed) -> str:
    return error.last_lines[-1] if error.last_lines else str(error)

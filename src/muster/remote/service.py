"""Keep `muster monitor` running on a head: what is written and run there, as data, and the run of it.

Called by the launcher: `install_service` after Ray runs on the head, `remove_service` by `muster down`. The
supervisor restarts the monitor, and Ray when its GCS has crashed; systemd, or cron's `@reboot`, starts the
supervisor after a reboot, and Ray before it. Repeating either is harmless. What removes a service needs only
the cluster's name: an `up` that was killed may have left no record.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from muster.errors import CommandFailed, RemoteError
from muster.host.supervisor import HOLD
from muster.remote.runner import CommandRunner, RunWhere

_TEXT = "MUSTER_TEXT"  # travels as a secret: the environment of a monitor may hold keys
_START_S = 60  # Python imports little, but a head may be busy
_STOP_S = 40  # a monitor finishes its tick
MARK = "MUSTER_SERVICE"  # names the cluster in the environment of its supervisor and monitor
HEAD_FILE = "~/ray_bootstrap_config.yaml"  # Ray's names: tools of users look for them
HEAD_KEY = "~/ray_bootstrap_key.pem"
HEAD_PRICES = "~/muster_prices.csv"
SESSIONS = HOLD  # a file there: the sessions of Ray that are older than a start under way
OWN_HOME = "on_head"  # a file in the cluster's home on a head, with its node: not a launcher's directory


class StartedBy(Enum):
    """What starts the supervisor again after a reboot."""

    SYSTEMD = "systemd"
    USER_SYSTEMD = "systemd of the user"
    CRON = "cron"
    NOBODY = "nobody"


class HeadService(Struct, frozen=True, kw_only=True):
    """The monitor of one cluster on its head."""

    cluster: str  # a cluster's name: letters, digits, `-`, `_` and `.`
    directory: str  # the cluster's home on the head, an absolute path
    python: str  # that has muster
    command: tuple[str, ...]  # of the monitor
    environment: Mapping[str, str] = field(default_factory=dict)  # of the monitor and of Ray
    boot_commands: tuple[str, ...] = ()  # lines of bash that start Ray after a reboot or a crash
    address: str = ""  # HOST:PORT of Ray's GCS; "": it is not started again after a crash
    check: str = ""  # a line on the machine itself, before anything is started; where it fails nothing is
    container: str = ""  # its name, where the monitor runs in one; what starts it is on the machine itself
    container_program: str = "docker"

    def file(self, name: str) -> str:
        return f"{self.directory}/{name}"

    @property
    def machine_file(self) -> str:
        """Return the script that starts a container, in the HOME directory of the machine itself."""
        return f".muster/boot-{self.cluster}.sh"

    @property
    def unit(self) -> str:
        return f"muster-{self.cluster}"


class ServiceStep(Struct, frozen=True, kw_only=True):
    """A line of bash on the head; `text` is its variable MUSTER_TEXT, shown nowhere."""

    command: str
    text: str = ""
    where: RunWhere = RunWhere.AUTO


class InstalledService(Struct, frozen=True, kw_only=True):
    """Says what starts the monitor after a reboot; `note` is for the user."""

    started_by: StartedBy
    note: str = ""


# `is-system-running` also answers "degraded" or "starting"; only where systemd is not init it says "offline".
DETECT = """\
if [ -d /run/systemd/system ] && [ "$(id -u)" = 0 ]; then echo SYSTEMD
elif [ -d /run/systemd/system ] && loginctl enable-linger >/dev/null 2>&1 &&
  systemctl --user show-environment >/dev/null 2>&1; then echo USER_SYSTEMD
elif command -v crontab >/dev/null 2>&1 &&
  { crontab -l >/dev/null 2>&1 || crontab -l 2>&1 | grep -qi 'no crontab for'; }; then echo CRON
else echo NOBODY; fi"""

NOTES = {
    StartedBy.NOBODY: (
        "the head has neither systemd nor cron, so nothing starts the monitor after a reboot of it: run "
        "`muster up` again then, or install cron there"
    )
}


def monitor_script(service: HeadService) -> str:
    """Return the script that becomes the monitor."""
    return _script(service, [*_checked(service), f"exec {_words(service.command)}"])


def boot_script(service: HeadService) -> str:
    """Return the script that starts Ray again; each command as the updater runs it, in a login shell."""
    lines = [f"bash --login -c {shlex.quote(command)} || exit 1" for command in service.boot_commands]
    if service.address:  # what a GCS that crashed has left would keep a new one from starting
        words = " ".join(f"-e --gcs{sign}address={shlex.quote(service.address)}" for sign in "-_")
        found = f"$(grep -lzxF {words} /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3)"
        lines.insert(0, f"for p in {found}; do [ ! -O /proc/$p ] || kill -KILL $p; done")
    return _script(service, [f"unset {MARK}", *_checked(service), *lines])  # a new monitor must not end Ray


def _checked(service: HeadService) -> list[str]:
    is_here = bool(service.check) and not service.container  # which does not see the machine's files
    return [f"{service.check} || exit 1"] if is_here else []


def supervisor_script(service: HeadService) -> str:
    """Return the script that becomes the supervisor; with an argument it starts Ray first."""
    before, monitor = (shlex.quote(service.file(name)) for name in ("boot.sh", "monitor.sh"))
    run = _words((service.python, "-m", "muster.host.supervisor", "run", service.directory))
    mark = f"export {MARK}={service.cluster}"
    if service.address:
        run += f" --server {shlex.quote(service.address)} {before}"
    return _script(service, [mark, f"exec {run} ${{1:+--before {before}}} -- sh {monitor}"])


def machine_script(service: HeadService) -> str:
    """Return the script that starts the container again, and in it Ray and the supervisor.

    The program may need a while after a reboot. The files in the container are still there: it was stopped.
    """
    program, name = service.container_program, shlex.quote(service.container)
    script, log = (shlex.quote(service.file(name)) for name in ("supervisor.sh", "supervisor.log"))
    inside = f"exec sh {script} boot >> {log} 2>&1 < /dev/null"
    lines = [f"{service.check} || exit 1"] if service.check else []
    lines += [
        f"i=0; until {program} start {name} >/dev/null 2>&1; do",
        "  i=$((i+1)); [ $i -lt 60 ] || exit 1; sleep 5",
        f"done\n{program} exec -d {name} sh -c {shlex.quote(inside)}",
    ]
    about = f"# Written by muster for the cluster {service.cluster}; `muster down` removes it."
    return "\n".join(["#!/bin/sh", about, *lines, ""])


def unit_text(service: HeadService, started_by: StartedBy) -> str:
    """Return the unit of the supervisor; a Ray that it has started again outlives it."""
    target = "multi-user.target" if started_by is StartedBy.SYSTEMD else "default.target"
    if service.container:
        return (
            f"[Unit]\nDescription=container of cluster {service.cluster}\n"
            f"After=network-online.target docker.service\nWants=network-online.target\n\n"
            f"[Service]\nType=oneshot\nRemainAfterExit=yes\nKillMode=process\nTimeoutStartSec=600\n"
            f"ExecStart=/bin/sh %h/{service.machine_file}\n\n"
            f"[Install]\nWantedBy={target}\n"
        )
    return (
        f"[Unit]\nDescription=muster monitor of cluster {service.cluster}\n"
        f"After=network-online.target {service.unit}-ray.service\nWants=network-online.target\n"
        f"StartLimitIntervalSec=0\n\n"
        f"[Service]\nExecStart=/bin/sh {_unit_word(service.file('supervisor.sh'))}\n"
        f"Restart=always\nRestartSec=5\nKillMode=process\nTimeoutStopSec=60\nOOMPolicy=continue\n\n"
        f"[Install]\nWantedBy={target}\n"
    )


def ray_unit_text(service: HeadService, started_by: StartedBy) -> str:
    """Return the unit that starts Ray at boot; it is enabled, never started by us: Ray runs already."""
    target = "multi-user.target" if started_by is StartedBy.SYSTEMD else "default.target"
    return (
        f"[Unit]\nDescription=Ray head of cluster {service.cluster}\n"
        f"After=network-online.target\nWants=network-online.target\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nKillMode=process\n"
        f"ExecStart=/bin/sh {_unit_word(service.file('boot.sh'))}\n\n"
        f"[Install]\nWantedBy={target}\n"
    )


def cron_line(service: HeadService) -> str:
    """Return the line of the crontab, which begins with the cluster's name; `%` is special there."""
    script, log = (shlex.quote(service.file(name)) for name in ("supervisor.sh", "supervisor.log"))
    line = f"sh {script} boot >> {log} 2>&1 < /dev/null"
    if service.container:
        line = f'sh "$HOME"/{service.machine_file} > /dev/null 2>&1 < /dev/null'
    return f"{_cron_start(service.cluster)}{line}".replace("%", "\\%")


def _cron_start(cluster: str) -> str:
    return f"@reboot env {MARK}={cluster} "


def install_steps(service: HeadService, started_by: StartedBy) -> tuple[ServiceStep, ...]:
    """Return what installs and starts the service; one that runs is replaced."""
    files = {
        "monitor.sh": monitor_script(service),
        "boot.sh": boot_script(service),
        "supervisor.sh": supervisor_script(service),
    }
    written = tuple(_write(service.file(name), text) for name, text in files.items())
    if service.container and started_by is not StartedBy.NOBODY:
        script = _write(f'"$HOME"/{service.machine_file}', machine_script(service), is_private=False)
        written += (_on_machine('umask 077; mkdir -p "$HOME"/.muster'), replace(script, where=RunWhere.HOST))
    program, log = (shlex.quote(service.file(name)) for name in ("supervisor.sh", "supervisor.log"))
    run = f"setsid nohup sh {program} >> {log} 2>&1 < /dev/null & {_wait(service)}"
    stop, start = _stop(service), ServiceStep(command=run)
    if started_by in (StartedBy.SYSTEMD, StartedBy.USER_SYSTEMD):
        if service.container:  # no unit supervises what runs in there: the one on the machine starts it
            return (*written, stop, start, *_container_unit(service, started_by))
        return (*written, *_systemd_steps(service, started_by))
    if started_by is StartedBy.CRON:
        return (*written, stop, start, _on_machine(_crontab(service.cluster, cron_line(service))))
    return (*written, stop, start)


def _on_machine(command: str) -> ServiceStep:
    """Where there is a container, init and cron are outside of it."""
    return ServiceStep(command=command, where=RunWhere.HOST)


def _container_unit(service: HeadService, started_by: StartedBy) -> tuple[ServiceStep, ...]:
    folder, systemctl = _systemd(started_by)
    unit = _write(f"{folder}/{service.unit}.service", unit_text(service, started_by), is_private=False)
    enable = f"{systemctl} daemon-reload && {systemctl} enable --quiet {service.unit}.service"
    return (
        _on_machine(f"mkdir -p {folder}"),
        replace(unit, where=RunWhere.HOST),
        _on_machine(enable),
    )


def _systemd_steps(service: HeadService, started_by: StartedBy) -> tuple[ServiceStep, ...]:
    folder, systemctl = _systemd(started_by)
    ray, own = f"{service.unit}-ray.service", f"{service.unit}.service"
    return (
        ServiceStep(command=f"mkdir -p {folder}"),
        _write(f"{folder}/{own}", unit_text(service, started_by), is_private=False),
        _write(f"{folder}/{ray}", ray_unit_text(service, started_by), is_private=False),
        _stop(service),
        ServiceStep(
            command=f"{systemctl} daemon-reload && {systemctl} enable --quiet {ray} {own} && "
            f"{systemctl} restart {own}"
        ),
        ServiceStep(command=_wait(service)),
    )


# A start of Ray that is killed leaves the directory of its session.
REMOVE_SESSION = """
remove_session() {
  rm -rf -- "$1"
  base=$(dirname -- "$1"); [ -e "$base/session_latest" ] || rm -f -- "$base/session_latest"
  ls -d "$base"/session_* >/dev/null 2>&1 || rm -f -- "$base/ray_current_cluster"
  rmdir -- "$base" 2>/dev/null
}
"""


def disable_line(cluster: str) -> str:
    """Return the line that removes what would start a cluster's monitor again; harmless where nothing is."""
    lines = []
    for started_by in (StartedBy.SYSTEMD, StartedBy.USER_SYSTEMD):
        folder, systemctl = _systemd(started_by)
        both = f"muster-{cluster}.service muster-{cluster}-ray.service"
        paths = " ".join(f"{folder}/{name}" for name in both.split())
        lines.append(
            f"if [ -e {paths.split()[0]} ]; then {systemctl} disable --quiet --now {both} 2>/dev/null; "
            f"rm -f {paths}; {systemctl} daemon-reload; fi"
        )
    return "\n".join([*lines, f"( {_crontab(cluster)} )", f'rm -f "$HOME"/.muster/boot-{cluster}.sh*'])


def removal_line(cluster: str, node_id: str = "") -> str:
    """Return the line that removes everything a head leaves on its machine, except for processes.

    The cluster file and its keys may be those of another cluster, and the directory may be the launcher's, or
    that of the head which has followed the node, where hosts share a HOME directory.
    """
    file, key, prices = (f'"$HOME"/{path[2:]}' for path in (HEAD_FILE, HEAD_KEY, HEAD_PRICES))
    home = f'"$HOME"/.muster/clusters/{cluster}'
    name = shlex.quote(yaml.safe_dump({"cluster_name": cluster}).strip())
    return (
        f"{disable_line(cluster)}\n{REMOVE_SESSION}"
        f"[ ! -s {home}/{OWN_HOME} ] || grep -qF -e {shlex.quote(node_id)} {home}/{OWN_HOME} || exit 0\n"
        f"for d in /tmp/ray/session_[0-9]*; do [ -e {home}/{SESSIONS} ] && [ -O $d ] && [ ! -L $d ] &&\n"
        f"  ! grep -qxF -e $d {home}/{SESSIONS} && ! grep -qsF -e $d /proc/[0-9]*/cmdline &&\n"
        "  remove_session $d; done\n"
        f"rm -f {home}/monitor.sh* {home}/boot.sh* {home}/supervisor.sh*\n"
        f"[ ! -e {home}/{OWN_HOME} ] || rm -rf -- {home}\n"
        f"if [ ! -e {file} ] || grep -qxF -e {name} {file}; then\n"
        f"  rm -f {key.removesuffix('.pem')}*.pem* {prices} {prices}.partial {file} {file}.partial\n"
        'fi\nrmdir "$HOME"/.muster/clusters "$HOME"/.muster 2>/dev/null; true'
    )


def stop_line(cluster: str) -> str:
    """Return the line that ends a cluster's supervisor and monitor, which are known by their environment."""
    find = f"grep -lzxsF -e {MARK}={cluster} /proc/[0-9]*/environ"
    return f"""\
running() {{ {find} | while read -r f; do f=${{f%/environ}}; [ -O $f ] && echo ${{f#/proc/}}; done; }}
for i in $(seq {_STOP_S * 5}); do
  P=$(running); [ -n "$P" ] || exit 0
  [ $i -lt {_STOP_S * 5 - 25} ] && kill $P 2>/dev/null || kill -KILL $P 2>/dev/null
  sleep 0.2
done
echo "these processes do not end:" $P >&2; exit 1"""


async def install_service(runner: CommandRunner, service: HeadService) -> InstalledService:
    """Install and start the monitor on the head. Raises RemoteError when its supervisor does not start."""
    answer = (await runner.run(DETECT, where=RunWhere.HOST)).split()
    started_by = next((one for one in StartedBy if one.name in answer[-1:]), StartedBy.NOBODY)
    try:
        await _run(runner, install_steps(service, started_by))
    except CommandFailed as error:
        last = error.last_lines[-1] if error.last_lines else str(error)
        raise RemoteError(
            f"the monitor could not be started on the head ({last}): see "
            f"{service.file('supervisor.log')} there"
        ) from error
    return InstalledService(started_by=started_by, note=NOTES.get(started_by, ""))


async def remove_service(runner: CommandRunner, cluster: str) -> None:
    """Remove what would start the monitor of a cluster again, then ends it; its other files stay."""
    await runner.run(disable_line(cluster), where=RunWhere.HOST)
    with contextlib.suppress(CommandFailed):  # no container yet; what does not end, the release kills
        await runner.run(stop_line(cluster))


async def _run(runner: CommandRunner, steps: Sequence[ServiceStep]) -> None:
    for step in steps:
        secrets = {_TEXT: step.text} if step.text else {}
        await runner.run(step.command, secrets=secrets, where=step.where)


def _script(service: HeadService, lines: Sequence[str]) -> str:
    settings = [f"export {key}={shlex.quote(value)}" for key, value in service.environment.items()]
    about = f"# Written by muster for the cluster {service.cluster}; `muster down` removes it."
    return "\n".join(["#!/bin/sh", about, *settings, *lines, ""])


def _write(path: str, text: str, *, is_private: bool = True) -> ServiceStep:
    """The path of a unit is in the shell's words already; others are quoted here."""
    target = shlex.quote(path) if is_private else path
    folder = f"umask 077; mkdir -p {shlex.quote(path.rpartition('/')[0])}; " if is_private else ""
    command = f'{folder}printf %s "${_TEXT}" > {target}.partial && mv {target}.partial {target}'
    return ServiceStep(command=command, text=text)


def _systemd(started_by: StartedBy) -> tuple[str, str]:
    if started_by is StartedBy.SYSTEMD:
        return "/etc/systemd/system", "systemctl"
    return '"$HOME"/.config/systemd/user', "systemctl --user"


def _stop(service: HeadService) -> ServiceStep:
    """End an earlier supervisor; one that had to be killed has left the file for which `_wait` looks."""
    state = shlex.quote(service.file("supervisor.json"))
    return ServiceStep(command=f"( {stop_line(service.cluster)} ) && rm -f {state}")


def _wait(service: HeadService) -> str:
    """Return a line that ends once the supervisor has started its program, or fails with the log's end."""
    state, log = (shlex.quote(service.file(name)) for name in ("supervisor.json", "supervisor.log"))
    return (
        f"for i in $(seq {_START_S * 5}); do [ -s {state} ] && exit 0; sleep 0.2; done; "
        f"tail -n 5 {log} >&2; exit 1"
    )


def _crontab(cluster: str, line: str = "") -> str:
    """Return a line that replaces the cluster's line of the crontab; without a new one it is removed."""
    old = shlex.quote(f"^{_cron_start(cluster)}".replace(".", "[.]"))
    add = f" echo {shlex.quote(line)};" if line else ""
    is_there = "" if line else f"crontab -l 2>/dev/null | grep -q -e {old} || exit 0; "
    return (  # one after the other: on a new host two crontabs at once both make its directory
        # A crontab that SIGTERM ends leaves its temporary file.
        f"trap '' TERM; command -v crontab >/dev/null || exit 0; "
        f"{is_there}L=$(crontab -l 2>/dev/null | grep -v -e {old}); "
        f'{{ [ -z "$L" ] || printf "%s\\n" "$L";{add} true; }} | crontab -'
    )


def _words(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _unit_word(path: str) -> str:
    """Return a path as systemd reads it: in double quotes, `%` doubled."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'

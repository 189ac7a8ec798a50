"""Build the command lines of `ssh` and `rsync`, and explains what they complain about. Pure.

Called by `SshRunner`. Whatever a field holds reaches the other side as that text: no shell of this computer
reads it, and the shell over there reads only the command itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence

from muster.errors import CommandFailed, HostKeyChanged, KeyRefused, RemoteError, Unreachable
from muster.remote.runner import Host

PERSIST_S = 30  # how long a shared connection outlives its last command
ALIVE_S, ALIVE_COUNT = 5, 3  # a machine that is gone is noticed within their product
CONNECT_S = 20
COMMAND_ID = "MUSTER_COMMAND_ID"  # by this variable a command's processes are found when it must end early
# Says on standard error how a command ended: ssh itself waits for everything that was left in the background.
END_TRAP = f'trap \'printf "%s:%d\\n" "${COMMAND_ID}" $? >&2\' EXIT'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:%\[\]-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*")
_ALIAS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_READ_SECRETS = "IFS= read -r -d '' MUSTER_GIVEN; eval \"$MUSTER_GIVEN\"; unset MUSTER_GIVEN; exec </dev/null"


def shown(host: Host) -> str:
    """Return how errors name a host."""
    known = f"{host.instance_id} ({host.ip})" if host.instance_id not in ("", host.ip) else host.ip
    return known if host.port == 22 else f"{known} port {host.port}"


def check_host(host: Host) -> None:
    """Raise where an address or a user cannot be one; they would be options of ssh, or worse."""
    if not _ADDRESS.fullmatch(host.ip):
        raise RemoteError(f"{host.ip!r} is not the address of a host: write an IP address or a host name")
    if host.user and not _USER.fullmatch(host.user):
        raise RemoteError(f"{host.user!r} is not a user of {host.ip}: set auth.ssh_user to a plain name")


def ssh_options(host: Host, *, socket: str = "", connect_s: float = CONNECT_S) -> list[str]:
    """Return the options of `ssh` and of rsync's ssh; without a `socket` the connection is not shared."""
    options = {
        "StrictHostKeyChecking": "accept-new" if host.strict_host_keys else "no",
        "UserKnownHostsFile": _quoted(host.known_hosts)
        if host.strict_host_keys and host.known_hosts
        else os.devnull,
        "GlobalKnownHostsFile": os.devnull,
        "HashKnownHosts": "no",  # so that users find the line of a host
        "UpdateHostKeys": "no",
        # It takes six times the CPU time of all the rest of a connection; newer ssh have a quick one instead.
        "KexAlgorithms": "-sntrup761*",
        "LogLevel": "ERROR",  # no banner and no notice of a new host among the output
        "ServerAliveInterval": str(ALIVE_S),
        "ServerAliveCountMax": str(ALIVE_COUNT),
        "ConnectTimeout": str(max(1, round(min(connect_s, CONNECT_S)))),
        "ExitOnForwardFailure": "yes",
        "ControlPath": socket.replace("%", "%%") or "none",
    }
    if _ALIAS.fullmatch(host.instance_id) and host.instance_id != host.ip:
        options["HostKeyAlias"] = host.instance_id  # clouds give one machine's address to the next one
    if socket:
        options |= {"ControlMaster": "auto", "ControlPersist": f"{PERSIST_S}s"}
    if host.private_key:
        # Not `-i`, which looks for the file before it reads `%%`.
        options |= {"IdentitiesOnly": "yes", "IdentityFile": _quoted(host.private_key)}
    if host.proxy_command:
        options["ProxyCommand"] = host.proxy_command
    arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    if host.user:
        arguments += ["-l", host.user]
    return [*arguments, "-p", str(host.port)]


def ssh_arguments(host: Host, line: str, *, socket: str, log: str, connect_s: float = CONNECT_S) -> list[str]:
    """Return the process that runs one line on a host; what ssh itself has to say goes to the file `log`."""
    options = ssh_options(host, socket=socket, connect_s=connect_s)
    return ["ssh", "-T", "-E", log, "-o", "BatchMode=yes", *options, "--", host.ip, line]


def terminal_arguments(
    host: Host, line: str, *, socket: str, forward: Sequence[tuple[int, int]]
) -> list[str]:
    """Return the process of a user's terminal; forwarded ports have a connection that ends with it."""
    options = ssh_options(host, socket="" if forward else socket)
    ports = [part for here, there in forward for part in ("-L", f"{here}:localhost:{there}")]
    if ports:  # one that is taken here is an error, not a warning above the output of the command
        ports = ["-o", "ExitOnForwardFailure=yes", *ports]
    return ["ssh", "-tt", *options, *ports, "--", host.ip, *([line] if line else [])]


def remote_line(
    command: str,
    *,
    environment: Mapping[str, str] = {},
    has_secrets: bool = False,
    login_shell: bool = False,
    command_id: str = "",
    marks: Mapping[str, str] = {},
) -> str:
    """Return what the shell of the user over there is given: bash, the environment, the command.

    An interactive login shell reads what users put into their .bashrc and .profile. By its id and `marks` a
    command is found when it must end early: bash itself has them, from before it reads a profile.
    """
    bash = "bash --login -i" if login_shell else "bash"
    lines = [_READ_SECRETS] if has_secrets else []
    marks = {**({COMMAND_ID: command_id} if command_id else {}), **marks}
    prefix = f"env {_assignments(marks)} " if marks else ""
    exports = _assignments(environment)
    parts = [END_TRAP if command_id else "", f"export {exports}" if exports else "", command]
    body = "\n".join(part for part in parts if part)
    if has_secrets and login_shell:  # a profile may read standard input before the command does
        body, bash = f"exec {bash} -c {shlex.quote(body)}", "bash"
    return f"{prefix}{bash} -c {shlex.quote(chr(10).join([*lines, body]))}"


def _assignments(environment: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in checked_names(environment).items())


def secrets_input(secrets: Mapping[str, str]) -> bytes:
    """Return what a command with secrets reads from standard input before it starts."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in checked_names(secrets).items()]
    return ("\n".join(exports) + "\0").encode("utf-8", "surrogateescape") if exports else b""


def checked_names(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Raise where a name cannot be one of a variable, or a value cannot be passed at all."""
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise RemoteError(
                f"{name!r} is not the name of an environment variable: use letters, digits and _"
            )
        if "\0" in value:
            raise RemoteError(f"the value of the environment variable {name} has a NUL byte: remove it")
    return environment


def end_line(command_id: str) -> str:
    """Return a line that ends the processes of a command, first politely; Linux only."""
    find = f"grep -lzxs {shlex.quote(f'{COMMAND_ID}={command_id}')} /proc/[0-9]*/environ"
    send = 'for f in $({find}); do p=${{f#/proc/}}; kill -{signal} "${{p%/environ}}" 2>/dev/null; done'
    both = [send.format(find=find, signal=signal) for signal in ("TERM", "KILL")]
    return f"bash -c {shlex.quote(f'{both[0]}; sleep 0.5; {both[1]}; true')}"


def rsync_arguments(host: Host, *, socket: str, log: str, rsync_path: str = "rsync") -> list[str]:
    """Return the start of an rsync command line; what follows is never read by a shell (`-s`)."""
    ssh = ["ssh", "-E", log, "-o", "BatchMode=yes", *ssh_options(host, socket=socket)]
    quoted = " ".join("'" + part.replace("'", "''") + "'" for part in ssh)  # rsync's own rules
    return ["rsync", "-az", "-s", "--timeout=120", "-e", quoted, "--rsync-path", rsync_path]


def remote_path(host: Host, path: str) -> str:
    """Return a path over there for rsync, which knows no `~` when no shell reads it."""
    path = home_relative(path)
    address = f"[{host.ip}]" if ":" in host.ip and not host.ip.startswith("[") else host.ip
    return f"{address}:{path}"


def home_relative(path: str) -> str:
    """Return a path for programs that start in HOME and know no `~`.

    Example:
        >>> [home_relative(path) for path in ("~", "~/a b/", "/x", "x", "~root/y")]
        ['./', './a b/', '/x', './x', './~root/y']
    """
    if path == "~" or path.startswith("~/"):
        return "./" + path[2:]
    return path if path.startswith("/") else "./" + path


def upload_paths(source: str, target: str, where: str) -> tuple[str, str, str]:
    """Return what rsync copies here, where it goes there, and the directory to make there ("": none).

    A directory's contents go into the target. Raises RemoteError for a source that is not here.
    """
    local = os.path.abspath(os.path.expanduser(source))
    if not os.path.exists(local):
        raise RemoteError(f"{source} is not on this computer, so it cannot go to {where}: make it")
    if os.path.isdir(local):
        local, target = local + "/", target.rstrip("/") + "/"
    directory = os.path.dirname(target) if target != "~" else ""
    return local, target, "" if directory in ("/", "~") else directory


def selection(exclude: Sequence[str], filters: Sequence[str]) -> list[str]:
    """Return rsync's arguments for `rsync_exclude` and `rsync_filter` of the cluster file."""
    return [f"--exclude={one}" for one in exclude] + [f"--filter=dir-merge,- {one}" for one in filters]


def fill_proxy_command(template: str, *, instance_id: str = "", region: str = "", ip: str = "") -> str:
    """Return a proxy command with {instance_id}, {region} and {ip} as single words, whatever they hold.

    Example:
        >>> fill_proxy_command("tunnel {region} {instance_id} %p", instance_id="i 1", region="x")
        "tunnel x 'i 1' %p"
    """
    for name, value in (("instance_id", instance_id), ("region", region), ("ip", ip)):
        template = template.replace("{" + name + "}", shlex.quote(value).replace("%", "%%"))
    return template


def socket_name(host: Host) -> str:
    """Return a short name by which runners of the same login share one connection."""
    login = (host.ip, host.user, host.port, host.private_key, host.proxy_command, host.instance_id)
    return hashlib.sha256(repr((login, host.known_hosts, host.strict_host_keys)).encode()).hexdigest()[:12]


# What ssh writes, and what it means. The first that fits wins; {name} is the host, {host} its fields.
_REASONS: tuple[tuple[str, type[RemoteError], str], ...] = (
    (
        r"IDENTIFICATION HAS CHANGED|Host key verification failed|host key .* has changed",
        HostKeyChanged,
        "{name} has another host key than before: if it was reinstalled, remove its line from {pins}; "
        "otherwise somebody may be between you and it",
    ),
    (
        r"UNPROTECTED PRIVATE KEY|bad permissions",
        RemoteError,
        "{name} was not tried because others can read the key {key}: chmod 600 it",
    ),
    (
        r"Permission denied|Too many authentication failures|No more authentication methods",
        KeyRefused,
        "{name} refuses to let {user} in with {key}: check auth.ssh_user, auth.ssh_private_key and the "
        "authorized_keys of the host",
    ),
    (
        r"Could not resolve|Name or service not known|nodename nor servname",
        Unreachable,
        "{name} is not a name that this computer can resolve: check the address in the cluster file",
    ),
    (
        r"Connection refused",
        Unreachable,
        "{name} refuses connections: check that sshd runs there and listens on port {host.port}",
    ),
    (
        r"No route to host|Network is unreachable|Host is unreachable",
        Unreachable,
        "{name} cannot be reached from this network: check its address, its power and the route to it",
    ),
    (
        r"timed? ?out|Timeout|not responding",
        Unreachable,
        "{name} does not answer: check that it is on and that port {host.port} is open to this computer",
    ),
    (
        r"Bad (port|configuration)|keyword .* extra arguments|unsupported option",
        RemoteError,
        "ssh does not understand its options for {name} ({last}): check auth in the cluster file",
    ),
)
_NOISE = re.compile(r"ControlSocket .* already exists|Shared connection to|mux_client|disabling multiplexing")


def own_words(log: str) -> list[str]:
    """Return what ssh complained about, without what it says of its shared connections."""
    lines = (line.strip() for line in log.splitlines())
    return [line for line in lines if line and not set(line) <= {"@"} and not _NOISE.search(line)]


def explain_ssh(host: Host, log: str) -> RemoteError:
    """Return the error of a connection that could not be made, or that broke, with the fix."""
    lines = own_words(log)
    text, last = "\n".join(lines), lines[-1] if lines else "the connection broke"
    if host.proxy_command and re.search(r"banner|UNKNOWN port|Connection closed", text):
        return Unreachable(
            f"{shown(host)} cannot be reached through its proxy command ({last}): run it by hand to see why"
        )
    for pattern, kind, sentence in _REASONS:
        if re.search(pattern, text):
            return kind(sentence.format(**_words(host, last)))
    return Unreachable(f"the connection to {shown(host)} failed ({last}): check the host and its sshd")


def _words(host: Host, last: str) -> dict[str, object]:
    return {
        "host": host,
        "name": shown(host),
        "user": host.user or "you",
        "key": host.private_key or "the keys of your ssh",
        "pins": host.known_hosts or "your known_hosts",
        "last": last,
    }


_FAILURES = (
    (r"No space left on device", "the disk of {name} is full: free some space there"),
    (r"Read-only file system", "the disk of {name} cannot be written: check it there"),
    (
        r"rsync: (?:command )?not found|rsync: No such file",
        "{name} has no rsync: apt-get install rsync there",
    ),
    (r"(python[\d.]*): (?:command )?not found", "{name} has no {found} on its PATH: install it there"),
)


def explain_command(name: str, command: str, exit_code: int, last_lines: Sequence[str]) -> CommandFailed:
    """Return the error of a command that failed on a host; `last_lines` of its output say more."""
    text = "\n".join(last_lines)
    head = command.strip().splitlines()[0] if command.strip() else "nothing"
    head = head if len(head) <= 80 else head[:77] + "..."
    message = f"`{head}` ended with code {exit_code} on {name}"
    for pattern, sentence in _FAILURES:
        found = re.search(pattern, text)
        if found:
            word = found[1] if found.lastindex else ""
            fix = f": {sentence.format(name=name, found=word)}"
            break
    else:
        last = next((line.strip() for line in reversed(last_lines) if line.strip()), "")
        fix = f": {last[:300]}" if last else " and said nothing: run it there by hand to see why"
    return CommandFailed(message + fix, exit_code=exit_code, last_lines=last_lines)


def _quoted(path: str) -> str:
    """Return a path for an option of ssh that takes several of them."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
